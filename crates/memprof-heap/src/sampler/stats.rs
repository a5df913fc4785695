//! What the library in a target says of itself.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use super::Library;
use memprof_sys::ids::Pid;
use memprof_sys::proc_dir;

/// Whether the library sees the allocations of its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The process has not allocated yet.
    New,
    /// Yes.
    Active,
    /// The program itself contains a `malloc`, which comes before any that is preloaded.
    OwnMalloc,
}

/// The library's counters in one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Whether the library sees the process's allocations.
    pub state: State,
    /// Samples that were not reported, as the library could not remember more addresses.
    pub dropped: u64,
    /// The bytes that those stood for.
    pub dropped_bytes: u64,
    /// Samples that the library remembers, as they are not freed.
    pub tracked: u64,
}

impl Stats {
    /// Bytes of the structure in the target.
    pub const SIZE: usize = 32;

    /// Decodes the structure; `None` if it is not one.
    pub fn parse(bytes: &[u8; Stats::SIZE]) -> Option<Stats> {
        let (words, _) = bytes.as_chunks::<8>();
        let word = |n: usize| u64::from_ne_bytes(words[n]);
        let state = match word(0) {
            0 => State::New,
            1 => State::Active,
            2 => State::OwnMalloc,
            _ => return None,
        };
        Some(Stats {
            state,
            dropped: word(1),
            dropped_bytes: word(2),
            tracked: word(3),
        })
    }
}

/// What the library says of a process that was running already: how many places with the address of a function it found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Imports {
    /// Loaded files in which some were patched.
    pub files: u64,
    /// They lead to the library now.
    pub patched: u64,
    /// They lead to another allocator than the others do, and were left as they are.
    pub other: u64,
    /// They could not be written.
    pub failed: u64,
    /// Whether all loaded files were looked at.
    pub done: bool,
}

impl Imports {
    /// Bytes of the structure in the target.
    pub const SIZE: usize = 40;

    /// Decodes the structure.
    pub fn parse(bytes: &[u8; Imports::SIZE]) -> Imports {
        let (words, _) = bytes.as_chunks::<8>();
        let word = |n: usize| u64::from_ne_bytes(words[n]);
        Imports {
            files: word(0),
            patched: word(1),
            other: word(2),
            failed: word(3),
            done: word(4) == 1,
        }
    }
}

/// A copy of the library, for those who only want to know of it.
#[derive(Clone, Debug)]
pub struct Preloaded {
    /// Its file.
    pub path: PathBuf,
    /// The mean number of bytes between two samples.
    pub interval: u64,
    stats_address: u64,
}

impl Library {
    /// What others need to know of it.
    pub fn preloaded(&self) -> Preloaded {
        Preloaded {
            path: self.path().to_owned(),
            interval: self.interval(),
            stats_address: self.stats_address(),
        }
    }

    /// The library's counters in a process; `None` if it has not loaded this copy.
    ///
    /// # Errors
    ///
    /// The process is gone, or may not be read.
    pub fn stats(&self, pid: Pid) -> io::Result<Option<Stats>> {
        self.preloaded().stats(pid)
    }
}

impl Preloaded {
    /// The library's counters in a process; `None` if it has not loaded this copy.
    ///
    /// # Errors
    ///
    /// The process is gone, or may not be read.
    pub fn stats(&self, pid: Pid) -> io::Result<Option<Stats>> {
        let maps = proc_dir::read(pid, "maps")?;
        // The file's first part is mapped at the address that the others are relative to.
        let own = maps
            .split(|b| *b == b'\n')
            .find(|line| line.ends_with(self.path.as_os_str().as_bytes()));
        let start = own.and_then(|line| line.split(|b| *b == b'-').next());
        let start = start.and_then(|hex| u64::from_str_radix(str::from_utf8(hex).ok()?, 16).ok());
        let Some(start) = start else {
            return Ok(None);
        };
        let mut bytes = [0; Stats::SIZE];
        let memory = proc_dir::open(pid, "mem")?;
        memory.read_exact_at(&mut bytes, start.wrapping_add(self.stats_address))?;
        Ok(Stats::parse(&bytes))
    }
}
