//! The probe's clock: `CLOCK_MONOTONIC` without the offset of any time namespace.

use std::sync::OnceLock;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use crate::ids::Pid;
use crate::proc_dir;

/// The time in ns of `CLOCK_MONOTONIC`, as the probe has it (`bpf_ktime_get_ns`), in whatever time namespace memprof runs.
pub fn now_ns() -> u64 {
    static AHEAD: OnceLock<i64> = OnceLock::new();
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from);
    let now = now.map_or(0, |now| u64::try_from(now.as_nanos()).unwrap_or(u64::MAX));
    without(now, *AHEAD.get_or_init(own_ahead))
}

/// A time of a clock that is ahead by so many ns, by the probe's.
pub fn without(time: u64, ahead: i64) -> u64 {
    time.saturating_add_signed(ahead.saturating_neg())
}

fn own_ahead() -> i64 {
    let text = std::fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    parse(&text).unwrap_or(0)
}

/// By how many ns the `CLOCK_MONOTONIC` of a process's time namespace is ahead. (The file is about the namespace of its
/// children, which a process enters when it executes a program.)
pub fn ahead(pid: Pid) -> i64 {
    // Missing without support for time namespaces.
    let text = proc_dir::text(pid, "timens_offsets").unwrap_or_default();
    parse(&text).unwrap_or(0)
}

/// Lines of `CLOCK SECONDS NANOSECONDS`.
fn parse(text: &str) -> Option<i64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("monotonic"))?;
    let mut numbers = line.split_whitespace().map(str::parse::<i64>);
    let (seconds, ns) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    seconds.checked_mul(1_000_000_000)?.checked_add(ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_of_namespaces() {
        let text = "monotonic          -3 500000000\nboottime           10         0\n";
        assert_eq!(parse(text), Some(-2_500_000_000));
        for text in [
            "",
            "boottime 1 0\n",
            "monotonic\n",
            "monotonic 9223372036854775807 0\n",
        ] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }
}
