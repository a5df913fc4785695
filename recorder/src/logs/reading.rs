//! A log file that is read: who it is, and how far.

use std::fmt;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use nix::errno::Errno;
use nix::fcntl::OFlag;

/// Tells a file from others at its path, also after its number was used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId {
    device: u64,
    inode: u64,
    /// Nanoseconds since 1970, 0 where the file system does not know it.
    created: u128,
}

impl FileId {
    fn of(metadata: &Metadata) -> Self {
        let created = metadata.created().ok();
        let created = created.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            created: created.map_or(0, |since| since.as_nanos()),
        }
    }

    /// The file at a path.
    pub fn at(path: &Path) -> Option<Self> {
        Some(Self::of(&fs::metadata(path).ok()?))
    }
}

/// A file that is read.
pub struct Reading {
    pub path: PathBuf,
    pub id: FileId,
    /// Bytes read.
    pub offset: u64,
    file: File,
}

impl Reading {
    /// Opens a file. Symbolic links are not followed: the node's user could make one to a file that only root may read.
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        // Without waiting for a writer, if it is a pipe.
        let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
        let file = options.read(true).custom_flags(flags.bits()).open(path);
        let file = file.map_err(|e| match e.raw_os_error() {
            Some(error) if error == Errno::ELOOP as i32 => {
                io::Error::other("it is a symbolic link, which is not followed")
            }
            _ => e,
        })?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::other("it is no regular file"));
        }
        Ok(Self {
            path: path.to_owned(),
            id: FileId::of(&metadata),
            offset: 0,
            file,
        })
    }

    /// Reads a piece; returns its size.
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let size = self.file.read(buffer)?;
        self.offset += size as u64;
        Ok(size)
    }

    /// Goes to a position.
    pub fn seek(&mut self, offset: u64) -> io::Result<()> {
        self.offset = self.file.seek(SeekFrom::Start(offset))?;
        Ok(())
    }

    /// The size of the file, in bytes.
    pub fn size(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }
}

/// A position in a file, as it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilePosition {
    pub id: FileId,
    pub offset: u64,
}

impl fmt::Display for FilePosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FileId {
            device,
            inode,
            created,
        } = self.id;
        write!(f, "{device} {inode} {created} {}", self.offset)
    }
}

impl FilePosition {
    /// Reads what `Display` wrote.
    pub fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let id = FileId {
            device: words.next()?.parse().ok()?,
            inode: words.next()?.parse().ok()?,
            created: words.next()?.parse().ok()?,
        };
        let offset = words.next()?.parse().ok()?;
        Some(Self { id, offset })
    }
}
