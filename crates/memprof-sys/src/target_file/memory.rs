//! The memory of a target, which may have to come from a disk or a file server, too: readers read it.

use std::fs::File;
use std::io;

use super::ReadAt;
use super::readers::{self, Key};
use crate::ids::Pid;
use crate::proc_dir;

/// The memory of a process; positions are addresses.
#[derive(Debug)]
pub struct TargetMemory {
    file: File,
    key: Key,
}

impl TargetMemory {
    /// Opens it.
    ///
    /// # Errors
    /// The process has ended, or its memory may not be read.
    pub fn of(pid: Pid) -> io::Result<TargetMemory> {
        Ok(TargetMemory {
            file: proc_dir::open(pid, "mem")?,
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

/// What a process has mapped of files; positions are addresses. Pages that are not in memory come from the files.
///
/// Not by `/proc/PID/mem`: that holds the process's mmap lock while it waits for a file server (`FOLL_UNLOCKABLE` is not set in
/// `access_remote_vm()`, up to 6.18). `process_vm_readv` lets go of it, and pins no pages but these, which are of files.
#[derive(Debug)]
pub struct MappedMemory(Pid);

impl MappedMemory {
    /// That of this process.
    pub fn of(pid: Pid) -> MappedMemory {
        MappedMemory(pid)
    }
}

impl ReadAt for MappedMemory {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        readers::read_memory(self.0, buf, offset)
    }

    fn size(&self) -> io::Result<u64> {
        Ok(u64::MAX)
    }
}
