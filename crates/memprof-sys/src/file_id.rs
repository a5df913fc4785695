//! The identity of a file on a file system.

/// A file on a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    /// Device, (major, minor).
    pub dev: (u32, u32),
    /// Inode number.
    pub ino: u64,
}
