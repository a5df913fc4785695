//! Looks up paths, and reads file attributes without a request to the file system's server.

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

/// Attributes of a file, as the kernel caches them.
#[derive(Clone, Copy, Debug)]
pub struct About(libc::statx);

impl Default for About {
    fn default() -> About {
        // SAFETY: the structure contains only numbers, for which zero is valid.
        About(unsafe { MaybeUninit::zeroed().assume_init() })
    }
}

impl About {
    /// Whether the file is a regular file.
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

    /// Id of the file's mount, in the mount namespace through which the file was reached.
    pub(super) fn mount(&self) -> u64 {
        self.0.stx_mnt_id
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.0.stx_size
    }

    /// Whether the file is unlinked: no directory contains it.
    pub fn is_unlinked(&self) -> bool {
        self.0.stx_nlink == 0
    }

    /// User id of the owner.
    pub fn owner(&self) -> u32 {
        self.0.stx_uid
    }

    /// Group id.
    pub fn group(&self) -> u32 {
        self.0.stx_gid
    }

    /// File type and permission bits.
    pub fn mode(&self) -> u32 {
        self.0.stx_mode.into()
    }

    /// The key by which the BPF programs identify the file. It matches only if the file system reports the kernel's own device and
    /// inode numbers; overlayfs does not.
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

    /// Modification time of the contents.
    pub fn modified(&self) -> Option<SystemTime> {
        let seconds = u64::try_from(self.0.stx_mtime.tv_sec).ok()?;
        let since = Duration::new(seconds, self.0.stx_mtime.tv_nsec);
        SystemTime::UNIX_EPOCH.checked_add(since)
    }
}

/// Attributes of an open file, or of the file of a handle.
///
/// # Errors
/// The errors of `statx`.
pub fn about(file: &File) -> io::Result<About> {
    statx(file.as_raw_fd(), Path::new(""), libc::AT_EMPTY_PATH)
}

/// Attributes of the file that a link of `/proc` leads to.
///
/// # Errors
/// The errors of `statx`.
pub fn about_path(link: impl AsRef<Path>) -> io::Result<About> {
    statx(libc::AT_FDCWD, link.as_ref(), 0)
}

fn statx(directory: i32, path: &Path, flags: i32) -> io::Result<About> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut buffer = MaybeUninit::<libc::statx>::zeroed();
    // With AT_STATX_DONT_SYNC, FUSE, NFS and overlayfs answer from their caches.
    // SAFETY: `path` is NUL-terminated, and `buffer` has space for the structure that the kernel writes.
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
    // SAFETY: all bytes are initialised, and the structure contains only numbers.
    Ok(About(unsafe { buffer.assume_init() }))
}

/// A handle (`O_PATH`) to the file or directory at a path in memprof's own file tree.
///
/// # Errors
/// There is no such path, or a file system along it does not answer.
pub fn find(path: &Path) -> io::Result<File> {
    let key = Key::Directory((0, 0), path.parent().unwrap_or(path).to_owned());
    readers::find(&key, None, path, 0)
}

/// A handle (`O_PATH`) to the file or directory at a path in the file tree below `root`. Links lead neither out of the tree nor
/// through `/proc/PID/fd`. `more` are additional flags: `O_NOFOLLOW`, `O_DIRECTORY`.
///
/// # Errors
/// As for [`find`].
pub fn find_in(root: &File, path: &Path, more: i32) -> io::Result<File> {
    let tree = about(root)?.identity();
    let key = Key::Directory(tree, path.parent().unwrap_or(path).to_owned());
    readers::find(&key, Some(root), path, more)
}

/// A handle to a directory on a local file system. `root` is the root of a file tree: `/proc/PID/root`.
///
/// # Errors
/// There is no such directory, another process or machine serves its file system, or a file system along the path does not answer.
pub fn find_directory(root: &Path, path: &Path) -> io::Result<File> {
    let found = find_in(&handle_of(root)?, path, libc::O_DIRECTORY)?;
    match is_local(&about(&found)?) {
        true => Ok(found),
        false => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// A handle to the root of a process's file tree.
///
/// # Errors
/// The process has ended, or memprof may not inspect it.
pub fn root_of(pid: Pid) -> io::Result<File> {
    proc_dir::with(pid, |dir| handle_of(&Path::new(dir).join("root")))
}
