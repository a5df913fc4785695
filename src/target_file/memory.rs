//! The memory of a target, which may have to come from a disk or a file server, too: readers read it.

use std::fs::File;
use std::io;

use super::readers::Key;
use super::{ReadAt, readers};
use crate::event::Pid;

/// The memory of a process; positions are addresses.
#[derive(Debug)]
pub(crate) struct TargetMemory {
    file: File,
    key: Key,
}

impl TargetMemory {
    /// Opens it.
    ///
    /// # Errors
    /// The process has ended, or its memory may not be read.
    pub(crate) fn of(pid: Pid) -> io::Result<TargetMemory> {
        Ok(TargetMemory {
            file: File::open(format!("/proc/{pid}/mem"))?,
            key: Key::Memory(pid),
        })
    }
}

impl ReadAt for TargetMemory {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        readers::read(&self.key, &self.file, None, buf, offset)
    }

    fn size(&self) -> io::Result<u64> {
        Ok(u64::MAX)
    }
}
