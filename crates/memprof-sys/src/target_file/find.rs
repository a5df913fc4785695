//! What paths lead to, and what is known of it without asking its file system's server.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::handle_of;
use super::local::is_local;
use super::readers::{self, Key};
use crate::ids::{FileKey, Pid};
use crate::proc_dir;

/// What the kernel knows of a file.
#[derive(Clone, Copy, Debug)]
pub struct About(libc::statx);

impl Default for About {
    fn default() -> About {
        // SAFETY: the structure has only numbers, for which zero is valid.
        About(unsafe { MaybeUninit::zeroed().assume_init() })
    }
}

impl About {
    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        u32::from(self.0.stx_mode) & libc::S_IFMT == libc::S_IFREG
    }

    /// Device and inode number.
    pub fn identity(&self) -> (u64, u64) {
        let device = libc::makedev(self.0.stx_dev_major, self.0.stx_dev_minor);
        (device, self.0.stx_ino)
    }

    pub(crate) fn device(&self) -> u64 {
        self.identity().0
    }

    /// The number of its mount, in the mount namespace that it was reached in.
    pub(super) fn mount(&self) -> u64 {
        self.0.stx_mnt_id
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        self.0.stx_size
    }

    /// Whether no directory lists it any more.
    pub fn is_unlinked(&self) -> bool {
        self.0.stx_nlink == 0
    }

    /// The user id of its owner.
    pub fn owner(&self) -> u32 {
        self.0.stx_uid
    }

    /// The id of its group.
    pub fn group(&self) -> u32 {
        self.0.stx_gid
    }

    /// Its permissions.
    pub fn mode(&self) -> u32 {
        self.0.stx_mode.into()
    }

    /// How the probe names the file, if its file system shows the numbers by which the kernel knows it. (Overlayfs does not.)
    pub fn key(&self) -> FileKey {
        const MINOR_BITS: u32 = 20;
        let since = self
            .modified()
            .and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
        FileKey {
            dev: self.0.stx_dev_major << MINOR_BITS | self.0.stx_dev_minor,
            ino: self.0.stx_ino,
            modified: since.map_or(0, |since| since.as_nanos() as u64),
            size: self.0.stx_size,
        }
    }

    /// When its contents last changed.
    pub fn modified(&self) -> Option<SystemTime> {
        let seconds = u64::try_from(self.0.stx_mtime.tv_sec).ok()?;
        let since = Duration::new(seconds, self.0.stx_mtime.tv_nsec);
        SystemTime::UNIX_EPOCH.checked_add(since)
    }
}

/// What is known of an open file, or of what a handle leads to.
///
/// # Errors
/// Those of `statx`.
pub fn about(file: &File) -> io::Result<About> {
    statx(file.as_raw_fd(), Path::new(""), libc::AT_EMPTY_PATH)
}

/// What is known of the file that a link of `/proc` leads to.
///
/// # Errors
/// Those of `statx`.
pub fn about_path(link: impl AsRef<Path>) -> io::Result<About> {
    statx(libc::AT_FDCWD, link.as_ref(), 0)
}

fn statx(directory: i32, path: &Path, flags: i32) -> io::Result<About> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut buffer = MaybeUninit::<libc::statx>::zeroed();
    // With AT_STATX_DONT_SYNC, FUSE, NFS and overlayfs answer with what they know.
    // SAFETY: `path` is NUL-terminated, and `buffer` has room for what the kernel writes.
    let status = unsafe {
        libc::statx(
            directory,
            path.as_ptr(),
            flags | libc::AT_STATX_DONT_SYNC,
            libc::STATX_BASIC_STATS | libc::STATX_MNT_ID,
            buffer.as_mut_ptr(),
        )
    };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all bytes are initialised, and the structure has only numbers.
    Ok(About(unsafe { buffer.assume_init() }))
}

/// A handle to what a path names in memprof's own file tree, which can only be looked at (`O_PATH`).
///
/// # Errors
/// There is no such path, or a file system on the way to it does not answer.
pub fn find(path: &Path) -> io::Result<File> {
    let key = Key::Directory((0, 0), path.parent().unwrap_or(path).to_owned());
    readers::find(&key, None, path, 0)
}

/// A handle to what a path names in a file tree. Links lead neither out of the tree nor through `/proc/PID/fd`. `more` are
/// further flags: `O_NOFOLLOW`, `O_DIRECTORY`.
///
/// # Errors
/// As for [`find`].
pub fn find_in(root: &File, path: &Path, more: i32) -> io::Result<File> {
    let tree = about(root)?.identity();
    let key = Key::Directory(tree, path.parent().unwrap_or(path).to_owned());
    readers::find(&key, Some(root), path, more)
}

/// A handle to a directory on a local file system, in the file tree with this root: `/proc/PID/root`.
///
/// # Errors
/// There is none, it is served by another process or machine, or a file system on the way to it does not answer.
pub fn find_directory(root: &Path, path: &Path) -> io::Result<File> {
    let found = find_in(&handle_of(root)?, path, libc::O_DIRECTORY)?;
    match is_local(&about(&found)?) {
        true => Ok(found),
        false => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// The root of a process's file tree.
///
/// # Errors
/// The process has ended, or may not be inspected.
pub fn root_of(pid: Pid) -> io::Result<File> {
    proc_dir::with(pid, |dir| handle_of(&Path::new(dir).join("root")))
}
