//! The destination of an output, and checks against files that another user has planted there.
//!
//! In a world-writable directory such as `/tmp`, other users may have created a link, pipe or file under the output's
//! name, or may create one at any moment. The kernel's `protected_symlinks` and related settings protect only if they
//! are enabled.

use std::ffi::OsString;
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::unistd::{geteuid, linkat};

/// How to write a file.
pub(super) enum WriteMethod {
    /// To an unnamed file, or otherwise a temporary file beside this path, which is then renamed to it.
    Beside(PathBuf),
    /// Directly, because it is not a regular file.
    Direct,
}

/// Maximum number of names to try for a temporary file.
const TRIES: u32 = 100;

/// Pipes opened at the start, by path.
static PIPES: Mutex<Vec<(PathBuf, File)>> = Mutex::new(Vec::new());

/// How to write the file at a path.
///
/// # Errors
/// The file cannot be written, or another user has planted it.
pub(super) fn way(path: &Path) -> io::Result<WriteMethod> {
    let there = match fs::symlink_metadata(path) {
        Ok(there) => there,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return Ok(WriteMethod::Beside(path.to_owned()));
        }
        Err(e) => return Err(e),
    };
    // The rename replaces any file that has the name at that time.
    if there.is_file() {
        return Ok(WriteMethod::Beside(path.to_owned()));
    }
    refuse_planted(path)?;
    match fs::metadata(path) {
        Ok(there) if there.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        // The symbolic link stays; the file that it points to is replaced.
        Ok(there) if there.is_file() => Ok(WriteMethod::Beside(fs::canonicalize(path)?)),
        Ok(_) => Ok(WriteMethod::Direct),
        // A dangling link is replaced.
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(WriteMethod::Beside(path.to_owned())),
        Err(e) => Err(e),
    }
}

/// Refuses a file that another user may have planted.
///
/// # Errors
/// Whose file it is.
pub(super) fn refuse_planted(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(there) if is_planted(path, &there) => {
            let what = if there.is_symlink() {
                "symbolic link"
            } else {
                "file"
            };
            let (why, user) = ("in a directory that everybody may write to", there.uid());
            let why = format!("it is a {what} of user id {user} {why}");
            Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
        }
        _ => Ok(()),
    }
}

/// Whether another user may have planted the file at an output's path, by the kernel's rule for `protected_symlinks`.
fn is_planted(path: &Path, there: &Metadata) -> bool {
    let everybody = libc::S_ISVTX | libc::S_IWOTH;
    let Ok(directory) = fs::metadata(directory_of(path)) else {
        return false;
    };
    let trusted = [geteuid().as_raw(), directory.uid()];
    directory.mode() & everybody == everybody && !trusted.contains(&there.uid())
}

fn directory_of(path: &Path) -> &Path {
    let directory = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    directory.unwrap_or(Path::new("."))
}

/// The permissions of the file to replace; `None` if another user may have planted the file to choose them.
pub(super) fn kept_permissions(place: &Path) -> Option<Permissions> {
    let there = fs::symlink_metadata(place).ok()?;
    let keep = there.is_file() && !is_planted(place, &there);
    keep.then(|| there.permissions())
}

/// Opens a file that is written directly. A pipe without a reader is an error here: opening it would block until a
/// reader comes.
///
/// # Errors
/// The file is a pipe without a reader, or the system's error.
pub(super) fn open_direct(path: &Path) -> io::Result<File> {
    let mut pipes = PIPES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(at) = pipes.iter().position(|(known, _)| known == path) {
        return Ok(pipes.swap_remove(at).1);
    }
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = OpenOptions::new()
        .write(true)
        .custom_flags(flags)
        .open(path);
    file.map_err(|e| match e.raw_os_error() {
        Some(libc::ENXIO) => {
            let why = "no process has the pipe open for reading (ENXIO): start its reader first";
            io::Error::new(e.kind(), why)
        }
        _ => e,
    })
}

/// Opens a pipe at the start and keeps it open for its output: if the pipe were closed in between, its reader would see
/// the end.
///
/// # Errors
/// As for [`open_direct`].
pub(super) fn keep_pipe(path: &Path) -> io::Result<()> {
    if fs::metadata(path)?.file_type().is_fifo() {
        let file = open_direct(path)?;
        let mut pipes = PIPES.lock().unwrap_or_else(PoisonError::into_inner);
        pipes.push((path.to_owned(), file));
    }
    Ok(())
}

/// An unpredictable name for a temporary file beside the destination.
pub(super) fn part_of(place: &Path) -> io::Result<PathBuf> {
    let name = place.file_name().ok_or(io::ErrorKind::InvalidFilename)?;
    let mut random = [0; 8];
    // SAFETY: the kernel writes at most as many bytes as there are.
    unsafe { libc::getrandom(random.as_mut_ptr().cast(), random.len(), 0) };
    let mut part = OsString::from(".");
    part.push(name);
    part.push(format!(".{:016x}.part", u64::from_ne_bytes(random)));
    Ok(place.with_file_name(part))
}

/// A new unnamed file, which disappears when memprof exits for any reason unless it has been given a name. `None` if the
/// file system does not support `O_TMPFILE`.
pub(super) fn nameless(place: &Path, mode: u32) -> Option<File> {
    let mut options = OpenOptions::new();
    options.write(true).mode(mode).custom_flags(libc::O_TMPFILE);
    options.open(directory_of(place)).ok()
}

/// Calls `make` with new names beside a destination until one is free.
fn with_free_name<T>(
    place: &Path,
    mut make: impl FnMut(&Path) -> io::Result<T>,
) -> io::Result<(T, PathBuf)> {
    for _ in 1..TRIES {
        let part = part_of(place)?;
        match make(&part) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made.map(|made| (made, part)),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Links an unnamed file under a new name beside its destination.
pub(super) fn give_name(file: &File, place: &Path) -> io::Result<PathBuf> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let give = |part: &Path| {
        let given = linkat(
            AT_FDCWD,
            path.as_str(),
            AT_FDCWD,
            part,
            AtFlags::AT_SYMLINK_FOLLOW,
        );
        given.map_err(|e: Errno| e.into())
    };
    with_free_name(place, give).map(|((), part)| part)
}

/// A new named file beside a destination.
pub(super) fn named(place: &Path, mode: u32) -> io::Result<(File, PathBuf)> {
    with_free_name(place, |part| {
        // `create_new` does not follow links.
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(part)
    })
}
