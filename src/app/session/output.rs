//! Output at the end of a session: the profile for `--output`, and the summary.
//!
//! The path is checked at the start. The profile is first written to an unnamed file, which is then linked beside the
//! destination and renamed over it. A crash therefore leaves no partial file, and an existing file stays intact until
//! the rename. Pipes, terminals and other special files are written directly.

mod destination;

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result};
use nix::sys::resource::{Resource, getrlimit};

use self::destination::{
    WriteMethod, give_name, keep_pipe, kept_permissions, named, nameless, open_direct, part_of, way,
};
use crate::app::config::Output;
use crate::export;
use memprof_profile::{FrameFilter, Report, StackSizes};
use memprof_sys::interruptible_writer::InterruptibleWriter;
use memprof_sys::messages;

/// The options that name files.
pub const OUTPUT: &str = "--output";
pub const SIZES: &str = "--sizes";

/// Permissions of a new file, before the umask.
const SHARED: u32 = 0o666;
/// Permissions of a file with addresses, which would tell an attacker where code is mapped.
const PRIVATE: u32 = 0o600;

/// Checks at the start whether writing the file of this option could succeed later. Changes no existing file.
///
/// # Errors
/// The reason why the file cannot be written.
pub fn check(path: &Path, option: &str) -> Result<()> {
    let tried = way(path).and_then(|way| match way {
        WriteMethod::Direct => keep_pipe(path),
        WriteMethod::Beside(place) => check_beside(&place),
    });
    tried.with_context(|| refused(path, option))
}

/// Refuses a file, or a symbolic link, that another user may have planted.
///
/// # Errors
/// Whose file it is.
pub fn refuse_planted(path: &Path) -> Result<()> {
    destination::refuse_planted(path).map_err(Into::into)
}

/// Writes every output even if some fail: one disk may be full and another not.
///
/// # Errors
/// The last failure; earlier failures are printed.
pub fn all(written: impl IntoIterator<Item = Result<()>>) -> Result<()> {
    let mut last = None;
    for e in written.into_iter().filter_map(Result::err) {
        if let Some(e) = last.replace(e) {
            messages::print(&format!("error: {e:#}"));
        }
    }
    last.map_or(Ok(()), Err)
}

/// Writes a profile to the file of `option`.
///
/// # Errors
/// The profile cannot be written; an existing file is then unchanged.
pub fn write_profile(output: &Output, report: &Report, option: &str) -> Result<()> {
    let make = |out: &mut dyn Write| export::write(output.format, report, &output.options, out);
    if output.is_stdout() {
        return write_stdout(make).context("cannot write the profile to stdout");
    }
    let mode = match output.format.has_addresses {
        true => PRIVATE,
        false => SHARED,
    };
    write(&output.path, option, mode, make)?;
    let (path, format) = (output.path.display(), output.format.name);
    messages::print(&format!("wrote {path} ({format})"));
    Ok(())
}

/// Writes the sizes of allocations to the file of `--sizes`.
///
/// # Errors
/// The sizes cannot be written; an existing file is then unchanged.
pub fn write_sizes(path: &Path, report: &Report, sizes: &[StackSizes]) -> Result<()> {
    write(path, SIZES, SHARED, |out| {
        export::write_sizes(report, sizes, out)
    })?;
    messages::print(&format!("wrote {} (sizes by stack)", path.display()));
    Ok(())
}

/// Writes the summary to stdout, or to stderr if stdout is taken. `peak` is the state at the peak of a command that has ended.
///
/// # Errors
/// The summary cannot be written.
pub fn write_summary(report: &Report, peak: Option<&Report>, stdout_taken: bool) -> io::Result<()> {
    let mut text = b"\n".to_vec();
    let peak = peak.map(|peak| peak.showing(FrameFilter::default()));
    let shown = report.showing(FrameFilter::default());
    export::write_summary(&shown, peak.as_deref(), &mut text)?;
    if let Some(peak) = peak {
        export::write_peak(&peak, report, &mut text)?;
    }
    let written = match stdout_taken {
        true => InterruptibleWriter::new(&io::stderr()).write_all(&text),
        false => write_stdout(|out| out.write_all(&text)),
    };
    match written {
        // The terminal is gone, which is why memprof is ending.
        Err(e) if e.raw_os_error() == Some(libc::EIO) => Ok(()),
        other => other,
    }
}

/// Writes to stdout; a closed pipe (`| head`) is not an error.
fn write_stdout(make: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    match buffered(InterruptibleWriter::new(&io::stdout()), make) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// Buffers the output, because the formats write in small pieces.
fn buffered(
    out: impl Write,
    make: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let mut out = BufWriter::new(out);
    make(&mut out)?;
    out.flush()
}

/// Writes the whole file.
fn write(
    path: &Path,
    option: &str,
    mode: u32,
    make: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<()> {
    let written = way(path).and_then(|way| match way {
        WriteMethod::Direct => buffered(InterruptibleWriter::new(&open_direct(path)?), make),
        WriteMethod::Beside(place) => write_beside(&place, nameless(&place, mode), mode, make),
    });
    written
        .map_err(with_limit)
        .with_context(|| refused(path, option))
}

/// Adds the file size limit to the error if it caused the error.
fn with_limit(e: io::Error) -> io::Error {
    if e.raw_os_error() != Some(libc::EFBIG) {
        return e;
    }
    let limit = getrlimit(Resource::RLIMIT_FSIZE).map_or(0, |(soft, _)| soft);
    let why = format!(
        "it would exceed the {limit} bytes that this process may write to a file (EFBIG; RLIMIT_FSIZE, `ulimit -f`)"
    );
    io::Error::new(e.kind(), why)
}

fn refused(path: &Path, option: &str) -> String {
    format!(
        "cannot write a profile to {}; name another file with {option}",
        path.display()
    )
}

fn check_beside(place: &Path) -> io::Result<()> {
    match fs::symlink_metadata(part_of(place)?) {
        // For example, the name is too long.
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    match nameless(place, PRIVATE) {
        Some(_) => Ok(()),
        None => named(place, PRIVATE).and_then(|(_, part)| fs::remove_file(part)),
    }
}

/// Writes the unnamed file, or otherwise a temporary named one, and renames it over the destination.
fn write_beside(
    place: &Path,
    nameless: Option<File>,
    mode: u32,
    make: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let (file, mut part) = match nameless {
        Some(file) => (file, None),
        None => named(place, mode).map(|(file, part)| (file, Some(part)))?,
    };
    let done = buffered(&file, make).and_then(|()| {
        if let Some(permissions) = kept_permissions(place) {
            file.set_permissions(permissions)?;
        }
        let part = match &part {
            Some(part) => part,
            None => part.insert(give_name(&file, place)?),
        };
        fs::rename(part, place)
    });
    if let (Err(_), Some(part)) = (&done, part) {
        let _ = fs::remove_file(part);
    }
    done
}

#[cfg(test)]
mod tests;
