//! Access to the files of targets: programs, libraries, debug files, perf maps. No other code opens or reads them.
//!
//! A target chooses its files: their size, their contents, and the file system they lie on, whose server may stop answering. So
//! memprof itself opens only files on local file systems, and reads of them only the bytes in the page cache. All other lookups,
//! opens and reads are done by reader processes, for which memprof waits only a limited time (`readers.rs`). A file system that
//! does not answer rests for a while: every attempt to read from it then fails at once, with an error that says so.
//!
//! Readers are processes, not threads. Closing a file of a FUSE server, or exiting with one open, waits for that server without a
//! limit and uninterruptibly. memprof holds only handles (`O_PATH`) of such files, and closing a handle does not involve the
//! server, so memprof exits at once. A blocked reader exits when the server answers or the file system is unmounted.

pub mod find;
mod local;
mod memory;
mod message;
mod permitted;
mod reader;
mod readers;
mod tree;

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use self::find::About;
pub use self::find::{about, about_path, find, find_directory, find_in, root_of};
pub use self::memory::{MappedMemory, TargetMemory};
pub use self::reader::{start, stop};
use self::readers::{Key, is_backing_off};
pub use self::readers::{file_system_at, is_reader, unanswered};
pub use self::tree::FileTree;
pub use self::tree::TreeId;

/// A source that is read by offset: a [`File`] of memprof's own, a [`TargetFile`], or a target's memory.
pub trait ReadAt: std::fmt::Debug + Sync {
    /// Reads up to `buf.len()` bytes at an offset; returns 0 at the end.
    ///
    /// # Errors
    /// The errors of `pread`, and [`io::ErrorKind::TimedOut`] if the file system does not answer.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;

    /// The current size in bytes.
    ///
    /// # Errors
    /// The errors of `fstat`.
    fn size(&self) -> io::Result<u64>;

    /// Reads until `buf` is full or the file ends; returns the number of bytes read.
    ///
    /// # Errors
    /// The errors of [`ReadAt::read_at`].
    fn read_some(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut got = 0;
        while got < buf.len() {
            let at = offset.saturating_add(got as u64);
            match self.read_at(&mut buf[got..], at) {
                Ok(0) => break,
                Ok(n) => got += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(got)
    }

    /// Fills `buf` with the bytes at an offset.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] if the file ends before `buf` is full, otherwise the errors of [`ReadAt::read_at`].
    fn fill(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        match self.read_some(buf, offset)? {
            got if got < buf.len() => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}

impl ReadAt for File {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, buf, offset)
    }

    fn size(&self) -> io::Result<u64> {
        self.metadata().map(|about| about.len())
    }
}

/// A regular file chosen by a target.
#[derive(Clone, Debug)]
pub struct TargetFile {
    /// Open for reading, or only a handle (see [`Access`]).
    file: Arc<File>,
    access: Access,
    /// Attributes of the file when the handle was examined.
    about: About,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    /// A file of memprof's own.
    Own,
    /// Open for reading, on a local file system.
    Local,
    /// A handle (`O_PATH`). Readers open the file; this number identifies the handle.
    Remote(u64),
}

impl TargetFile {
    /// A regular file at a link of `/proc`, which leads to the file without a directory lookup.
    ///
    /// # Errors
    /// There is no file, it is not regular, or it cannot be opened.
    pub fn at_link(link: &Path) -> io::Result<TargetFile> {
        TargetFile::of_handle(handle_of(link)?)
    }

    /// The regular file that a handle refers to.
    ///
    /// # Errors
    /// As for [`TargetFile::at_link`].
    pub fn of_handle(handle: File) -> io::Result<TargetFile> {
        let about = regular(&handle)?;
        match local::is_local(&about) {
            true => Ok(TargetFile {
                file: Arc::new(reopen(&handle)?),
                access: Access::Local,
                about,
            }),
            false => Ok(TargetFile::read_by_readers(handle, about)),
        }
    }

    /// The file that a handle refers to, which readers open.
    fn read_by_readers(handle: File, about: About) -> TargetFile {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        TargetFile {
            file: Arc::new(handle),
            access: Access::Remote(NUMBER.fetch_add(1, Ordering::Relaxed)),
            about,
        }
    }

    /// Whether this is a file of memprof's own, such as a copy of a file that a process has only in memory.
    pub fn is_own(&self) -> bool {
        self.access == Access::Own
    }

    /// Whether memprof may not read the file, although it could be looked up.
    pub fn is_refused(&self) -> bool {
        let remote = matches!(self.access, Access::Remote(_));
        let read = || self.read_at(&mut [0], 0);
        remote && read().is_err_and(|e| e.kind() == io::ErrorKind::PermissionDenied)
    }

    /// Attributes of the file when the handle was examined.
    pub fn about(&self) -> &About {
        &self.about
    }

    /// Device and inode number.
    pub fn identity(&self) -> (u64, u64) {
        self.about.identity()
    }

    /// Whether the file's file system does not answer now, or answers only slowly: try again later.
    pub fn is_backing_off(&self) -> bool {
        self.access != Access::Own && is_backing_off(&self.key())
    }

    /// The file itself if memprof has it open for reading, so that it can be mapped.
    pub fn opened(&self) -> Option<&File> {
        (!matches!(self.access, Access::Remote(_))).then_some(&self.file)
    }

    /// Whether the bytes at these offsets can be read. The kernel reads them where it inserts a probe, and waits for them without a
    /// limit. After this call it finds them in the page cache.
    pub fn answers_at(&self, mut places: impl Iterator<Item = u64>) -> bool {
        places.all(|at| self.fill(&mut [0], at).is_ok())
    }

    /// Reads the contents from the start.
    pub fn contents(&self) -> Contents<'_> {
        Contents { file: self, at: 0 }
    }

    /// A server answers for all of its files, so they share a key. On a disk each file has its own key: a target must not be able
    /// to make other files wait.
    fn key(&self) -> Key {
        match self.access {
            Access::Remote(_) => Key::Device(self.about.device()),
            Access::Own | Access::Local => Key::File(self.identity()),
        }
    }

    /// Reads the bytes that are in the page cache. A reader reads the rest, because a disk may not answer either.
    fn read_local(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        match read_cached(&self.file, buf, offset) {
            Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EOPNOTSUPP)) => {
                readers::read(&self.key(), &self.file, None, buf, offset)
            }
            read => read,
        }
    }
}

impl ReadAt for TargetFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        match self.access {
            Access::Own => FileExt::read_at(&*self.file, buf, offset),
            Access::Local => self.read_local(buf, offset),
            Access::Remote(number) => {
                readers::read(&self.key(), &self.file, Some(number), buf, offset)
            }
        }
    }

    fn size(&self) -> io::Result<u64> {
        about(&self.file).map(|about| about.size())
    }
}

impl From<File> for TargetFile {
    /// A file of memprof's own, which is read directly.
    fn from(file: File) -> TargetFile {
        TargetFile {
            about: about(&file).unwrap_or_default(),
            file: Arc::new(file),
            access: Access::Own,
        }
    }
}

impl AsFd for TargetFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl AsRawFd for TargetFile {
    fn as_raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

/// Reads a file from start to end.
#[derive(Debug)]
pub struct Contents<'f> {
    file: &'f TargetFile,
    at: u64,
}

impl Read for Contents<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buf, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

/// The attributes of a regular file.
///
/// # Errors
/// It is not regular, or the errors of `statx`.
fn regular(handle: &File) -> io::Result<About> {
    let about = about(handle)?;
    match about.is_file() {
        true => Ok(about),
        false => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a regular file",
        )),
    }
}

/// A handle (`O_PATH`) to the file that a link of `/proc` leads to.
fn handle_of(link: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_PATH)
        .open(link)
}

/// Opens the file of a handle for reading, without waiting for the holder of a lease on it.
fn reopen(handle: &File) -> io::Result<File> {
    let again = format!("/proc/self/fd/{}", handle.as_raw_fd());
    OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(again)
}

/// Like `pread`, but fails with `EAGAIN` instead of waiting.
fn read_cached(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    let part = libc::iovec {
        iov_base: buf.as_mut_ptr().cast(),
        iov_len: buf.len(),
    };
    let offset = offset.min(i64::MAX as u64).cast_signed();
    // SAFETY: `part` describes `buf`, which outlives the call.
    let read = unsafe {
        libc::preadv2(
            file.as_raw_fd(),
            &raw const part,
            1,
            offset,
            libc::RWF_NOWAIT,
        )
    };
    usize::try_from(read).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests;
