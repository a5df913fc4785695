//! Memory of a target. A page may have to come from a disk or a file server, so readers read it.

use std::fs::File;
use std::io;

use super::ReadAt;
use super::readers::{self, Key};
use crate::ids::Pid;
use crate::proc_dir;

/// The memory of a process; offsets are addresses.
#[derive(Debug)]
pub struct TargetMemory {
    file: File,
    key: Key,
}

impl TargetMemory {
    /// Opens the memory of a process.
    ///
    /// # Errors
    /// The process has ended, or memprof may not read its memory.
    pub fn for_process(pid: Pid) -> io::Result<TargetMemory> {
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

/// The file mappings of a process; offsets are addresses. Pages that are not in memory come from the files.
///
/// This does not read `/proc/PID/mem`, which holds the process's mmap lock while it waits for a file server (`FOLL_UNLOCKABLE` is
/// not set in `access_remote_vm()`, up to 6.18). `process_vm_readv` releases the lock while it waits, and pins only the pages being
/// read, which belong to files.
#[derive(Debug)]
pub struct MappedMemory(Pid);

impl MappedMemory {
    /// The file mappings of this process.
    pub fn for_process(pid: Pid) -> MappedMemory {
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
