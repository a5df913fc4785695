//! Output at the end of a session: the profile for `--output`, and the summary.
//!
//! The path is checked at the start. A profile is written to a file without a name, which gets one beside its destination and
//! then takes its place, so that a crash leaves no partial file and an existing file stays until then. Pipes, terminals and
//! other special files are written to directly.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::unistd::linkat;

use crate::config::Output;
use crate::console;
use crate::exact::StackSizes;
use crate::export::{self, Report};
use crate::profile::Frames;

/// The options that name files.
pub const OUTPUT: &str = "--output";
pub const SIZES: &str = "--sizes";

/// How a file is written.
enum Way {
    /// To a file without a name, or else with another one beside this path, which is then renamed.
    Beside(PathBuf),
    /// Directly: not a regular file.
    Direct,
}

/// Checks at the start whether writing the file of this option would fail later. Changes no existing file.
///
/// # Errors
/// Why the file cannot be written.
pub fn check(path: &Path, option: &str) -> Result<()> {
    let tried = way(path).and_then(|way| match way {
        Way::Direct => Ok(()),
        Way::Beside(place) => check_beside(&place),
    });
    tried.with_context(|| refused(path, option))
}

/// Writes all of it, whatever fails: where one disk is full, another may not be.
///
/// # Errors
/// The last failure; those before it are printed.
pub fn all(written: impl IntoIterator<Item = Result<()>>) -> Result<()> {
    let mut last = None;
    for e in written.into_iter().filter_map(Result::err) {
        if let Some(e) = last.replace(e) {
            console::print(&format!("error: {e:#}"));
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
    write(&output.path, option, make)?;
    let (path, format) = (output.path.display(), output.format.name);
    console::print(&format!("wrote {path} ({format})"));
    Ok(())
}

/// Writes the sizes of allocations to the file of `--sizes`.
///
/// # Errors
/// They cannot be written; an existing file is then unchanged.
pub fn write_sizes(path: &Path, report: &Report, sizes: &[StackSizes]) -> Result<()> {
    write(path, SIZES, |out| export::write_sizes(report, sizes, out))?;
    console::print(&format!("wrote {} (sizes by stack)", path.display()));
    Ok(())
}

/// Writes the summary to stdout, or to stderr if stdout is taken.
///
/// # Errors
/// The summary cannot be written.
pub fn write_summary(report: &Report, stdout_taken: bool) -> io::Result<()> {
    let mut text = b"\n".to_vec();
    export::write_summary(&report.showing(Frames::All), &mut text)?;
    let written = match stdout_taken {
        true => io::stderr().write_all(&text),
        false => write_stdout(|out| out.write_all(&text)),
    };
    match written {
        // The terminal is gone, and memprof is ending for that reason.
        Err(e) if e.raw_os_error() == Some(libc::EIO) => Ok(()),
        other => other,
    }
}

/// Writes to stdout; a closed pipe (`| head`) is not an error.
fn write_stdout(make: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    match buffered(io::stdout().lock(), make) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// Buffers the output: the formats write in small pieces.
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
    make: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<()> {
    let written = way(path).and_then(|way| match way {
        Way::Direct => buffered(OpenOptions::new().write(true).open(path)?, make),
        Way::Beside(place) => write_beside(&place, make),
    });
    written.with_context(|| refused(path, option))
}

fn refused(path: &Path, option: &str) -> String {
    format!(
        "cannot write a profile to {}; name another file with {option}",
        path.display()
    )
}

fn way(path: &Path) -> io::Result<Way> {
    match fs::metadata(path) {
        Ok(there) if there.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        // A symbolic link stays: the file that it points to is replaced.
        Ok(there) if there.is_file() => Ok(Way::Beside(fs::canonicalize(path)?)),
        Ok(_) => Ok(Way::Direct),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Way::Beside(path.to_owned())),
        Err(e) => Err(e),
    }
}

/// The name that a file has beside its place until it is whole.
fn part_of(place: &Path) -> io::Result<PathBuf> {
    let name = place.file_name().ok_or(io::ErrorKind::InvalidFilename)?;
    let mut part = std::ffi::OsString::from(".");
    part.push(name);
    part.push(format!(".{}.part", std::process::id()));
    Ok(place.with_file_name(part))
}

/// A new file without a name: nothing is left of it, whatever ends memprof, unless it gets one. `None` where the file system
/// has no such files.
fn nameless(part: &Path) -> Option<File> {
    let dir = part.parent().filter(|dir| !dir.as_os_str().is_empty());
    let mut options = OpenOptions::new();
    options.write(true).custom_flags(libc::O_TMPFILE);
    options.open(dir.unwrap_or(Path::new("."))).ok()
}

fn give_name(file: &File, part: &Path) -> io::Result<()> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(linkat(
        AT_FDCWD,
        path.as_str(),
        AT_FDCWD,
        part,
        AtFlags::AT_SYMLINK_FOLLOW,
    )?)
}

fn named(part: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(part)
}

fn check_beside(place: &Path) -> io::Result<()> {
    let part = part_of(place)?;
    match fs::symlink_metadata(&part) {
        // Such as a name that is too long.
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    match nameless(&part) {
        Some(_) => Ok(()),
        None => named(&part).and_then(|_| fs::remove_file(&part)),
    }
}

fn write_beside(
    place: &Path,
    make: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let part = part_of(place)?;
    write_by(place, &part, nameless(&part), make)
}

/// Writes the file without a name, or else one that is called `part`, and puts it in its place.
fn write_by(
    place: &Path,
    part: &Path,
    nameless: Option<File>,
    make: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let (file, needs_name) = match nameless {
        Some(file) => (file, true),
        None => (named(part)?, false),
    };
    let done = buffered(&file, make).and_then(|()| {
        if let Ok(there) = fs::metadata(place) {
            file.set_permissions(there.permissions())?;
        }
        if needs_name {
            give_name(&file, part)?;
        }
        fs::rename(part, place)
    });
    if done.is_err() {
        let _ = fs::remove_file(part);
    }
    done
}

#[cfg(test)]
mod tests;
