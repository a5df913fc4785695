//! Parsers of single command-line values.

use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{CommandFactory, ValueEnum};

use super::Cli;
use crate::export::Exporter;
use crate::http::exporters::EXPORTERS;
use crate::probe::{Overhead, Stacks, Unwind};
use memprof_profile::FrameFilter;
use memprof_sys::ids::Pid;

pub(super) fn parse_name(name: &str) -> Result<String, String> {
    if name.is_empty() || name.contains(['/', '\0']) {
        return Err("expected a process name without directories, such as `light-node`".into());
    }
    Ok(name.to_owned())
}

pub(super) fn parse_pid(pid: &str) -> Result<Pid, String> {
    match pid.parse() {
        Ok(pid) if pid > 0 && pid <= i32::MAX as u32 => Ok(Pid(pid)),
        _ => Err("expected a process id, a whole number above 0".into()),
    }
}

pub(super) fn parse_seconds(seconds: &str) -> Result<Duration, String> {
    let seconds = seconds.strip_suffix('s').unwrap_or(seconds);
    let seconds: f64 = seconds
        .parse()
        .map_err(|_| "expected a number of seconds")?;
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|d| !d.is_zero())
        .ok_or_else(|| "expected a number of seconds above 0".into())
}

/// Like [`parse_seconds`], but accepts 0.
pub(super) fn parse_wait(seconds: &str) -> Result<Duration, String> {
    let seconds: Option<f64> = seconds.parse().ok();
    seconds
        .and_then(|s| Duration::try_from_secs_f64(s).ok())
        .ok_or_else(|| "expected a number of seconds, 0 or more".into())
}

/// A number of bytes, with or without a binary unit.
pub(super) fn parse_size(size: &str) -> Result<u64, String> {
    let digits = size.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match &size[digits.len()..] {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        _ => return Err("expected a number of bytes, KiB, MiB or GiB, such as `64KiB`".into()),
    };
    // `parse` accepts a plus sign, which a size must not have.
    let number = digits
        .parse::<u64>()
        .ok()
        .filter(|_| !size.starts_with('+'));
    number
        .and_then(|n| n.checked_mul(1 << shift))
        .ok_or_else(|| {
            "expected a whole number of bytes below 16 EiB, such as `65536` or `64KiB`".into()
        })
}

/// The maximum size of a recording.
pub(super) fn parse_record_size(size: &str) -> Result<u64, String> {
    match parse_size(size)? {
        bytes if bytes >= 1 << 20 => Ok(bytes),
        _ => Err("expected at least 1MiB".into()),
    }
}

/// An age with a unit.
pub(super) fn parse_age(age: &str) -> Result<Duration, String> {
    let digits = age.trim_end_matches(|c: char| !c.is_ascii_digit());
    let seconds = match &age[digits.len()..] {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => 0,
    };
    let number = digits.parse::<u64>().ok().filter(|_| !age.starts_with('+'));
    let seconds = number
        .and_then(|n| n.checked_mul(seconds))
        .filter(|seconds| *seconds > 0);
    seconds.map(Duration::from_secs).ok_or_else(|| {
        "expected a whole number and a unit (s, m, h or d), such as `12h` or `30d`".into()
    })
}

/// The mean number of bytes between samples. An interval of 1 byte samples every allocation, so 1 becomes 0.
pub(super) fn parse_interval(size: &str) -> Result<u64, String> {
    parse_size(size).map(|bytes| if bytes == 1 { 0 } else { bytes })
}

/// All formats, with their descriptions.
pub(super) fn formats() -> PossibleValuesParser {
    let value = |format: &Exporter| PossibleValue::new(format.name).help(format.about);
    PossibleValuesParser::new(EXPORTERS.iter().map(value))
}

/// Which stacks to walk, within this overhead if one is given.
pub(super) fn stacks(stacks: Stacks, overhead: Option<Overhead>) -> Result<Stacks, clap::Error> {
    match (stacks, overhead) {
        (Stacks::Auto(_), Some(overhead)) => Ok(Stacks::Auto(overhead)),
        (_, Some(_)) => Err(Cli::command().error(
            clap::error::ErrorKind::ArgumentConflict,
            "--max-overhead requires --stacks auto: the other values say themselves how many stacks are walked\n",
        )),
        (stacks, None) => Ok(stacks),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_bytes_with_binary_units() {
        for (text, bytes) in [
            ("0", 0),
            ("65536", 65_536),
            ("12B", 12),
            ("64KiB", 65_536),
            ("3MiB", 3 << 20),
            ("2GiB", 2 << 30),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "KiB",
            "-1",
            "+1",
            "1k",
            "1 KiB",
            "1.5MiB",
            "1KB",
            "99999999999GiB",
        ] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum UnwindArg {
    /// Unwind tables, and frame pointers where code has none
    Auto,
    /// Unwind tables built from each file's .eh_frame
    Tables,
    /// Frame pointers
    Fp,
    /// Do not record stacks
    Off,
}

impl From<UnwindArg> for Unwind {
    fn from(arg: UnwindArg) -> Unwind {
        match arg {
            UnwindArg::Auto => Unwind::Auto,
            UnwindArg::Tables => Unwind::Tables,
            UnwindArg::Fp => Unwind::FramePointers,
            UnwindArg::Off => Unwind::Off,
        }
    }
}

/// Whether to read the frames of an interpreter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum ReadFrames {
    /// In processes that run an interpreter version known to memprof
    #[default]
    Auto,
    /// Never: only the interpreter's own functions appear
    Off,
}

/// The frames to show, by name.
pub(super) fn frames_of(name: Option<&str>) -> Option<FrameFilter> {
    let mut all = FrameFilter::ALL.into_iter();
    all.find(|frames| Some(frames.name()) == name)
}

/// How to count the heap by stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum HeapHow {
    /// Estimated from sampled allocations
    Sampled,
    /// Counted at every call, for --duration seconds
    Exact,
}
