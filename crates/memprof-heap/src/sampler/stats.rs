//! The library's state and counters in a target.

use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use super::Library;
use super::file::{Places, append_plan};
use memprof_code::allocators::Detours;
use memprof_sys::ids::Pid;
use memprof_sys::proc_dir;

/// Whether the library sees the allocations of its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SamplerState {
    /// The process has not allocated yet.
    New,
    /// The library sees the allocations.
    Active,
    /// The program itself contains a `malloc`, which takes precedence over preloaded ones.
    OwnMalloc,
}

/// The library's counters in one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Whether the library sees the process's allocations.
    pub state: SamplerState,
    /// Samples that were not reported because the library's address table was full.
    pub dropped: u64,
    /// Bytes that the dropped samples stood for.
    pub dropped_bytes: u64,
    /// Live samples that the library remembers.
    pub tracked: u64,
    /// What the library does about the blocks of Python's own allocator.
    pub python: PythonState,
}

/// What the library does about the blocks of CPython's own allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PythonState {
    /// The library has not started.
    New,
    /// No file that the process had loaded when the library started exports CPython's functions.
    NotFound,
    /// The blocks are sampled.
    Sampled,
    /// CPython is configured to use `malloc`, whose blocks are sampled.
    UsesMalloc,
    /// The blocks are not sampled: the program has installed an allocator of its own, or CPython's tables of functions were
    /// not found.
    Hidden,
}

impl Stats {
    /// Size of the structure in the target, in bytes.
    pub const SIZE: usize = 40;

    /// Decodes the structure; `None` if the state is unknown.
    pub fn parse(bytes: &[u8; Stats::SIZE]) -> Option<Stats> {
        let (words, _) = bytes.as_chunks::<8>();
        let word = |n: usize| u64::from_ne_bytes(words[n]);
        let state = match word(0) {
            0 => SamplerState::New,
            1 => SamplerState::Active,
            2 => SamplerState::OwnMalloc,
            _ => return None,
        };
        let python = match word(4) {
            0 => PythonState::New,
            1 => PythonState::Sampled,
            2 => PythonState::UsesMalloc,
            3 => PythonState::Hidden,
            4 => PythonState::NotFound,
            _ => return None,
        };
        Some(Stats {
            python,
            state,
            dropped: word(1),
            dropped_bytes: word(2),
            tracked: word(3),
        })
    }
}

/// The result of attaching the library to a running process: number of words found with the address of an allocation
/// function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Imports {
    /// Loaded files in which words were patched.
    pub files: u64,
    /// Words that now lead to the library.
    pub patched: u64,
    /// Words that lead to another allocator than the others do, and were left unchanged.
    pub other: u64,
    /// Words that could not be written.
    pub failed: u64,
    /// Whether all loaded files were searched.
    pub done: bool,
}

impl Imports {
    /// Size of the structure in the target, in bytes.
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

/// Identifies a placed copy of the library without owning it.
#[derive(Clone, Debug)]
pub struct Preloaded {
    /// Path of the file.
    pub path: PathBuf,
    /// Mean number of bytes between two samples.
    pub interval: u64,
    pub(super) places: Places,
}

impl Library {
    /// Returns a description of the copy that does not own it.
    pub fn preloaded(&self) -> Preloaded {
        Preloaded {
            path: self.path().to_owned(),
            interval: self.interval(),
            places: self.places,
        }
    }

    /// The library's counters in a process; `None` if the process has not loaded this copy.
    ///
    /// # Errors
    ///
    /// The process is gone, or may not be read.
    pub fn stats(&self, pid: Pid) -> io::Result<Option<Stats>> {
        self.preloaded().stats(pid)
    }
}

impl Preloaded {
    /// The library's counters in a process; `None` if the process has not loaded this copy.
    ///
    /// # Errors
    ///
    /// The process is gone, or may not be read.
    pub fn stats(&self, pid: Pid) -> io::Result<Option<Stats>> {
        let maps = proc_dir::read(pid, "maps")?;
        // The file's first mapping starts at the load address, unless it is that of the detours.
        let own = maps.split(|b| *b == b'\n').find(|line| {
            let mut fields = line.split(|b| *b == b' ').skip(2);
            let is_first = fields
                .next()
                .is_some_and(|offset| offset.iter().all(|b| *b == b'0'));
            is_first && line.ends_with(self.path.as_os_str().as_bytes())
        });
        let start = own.and_then(|line| line.split(|b| *b == b'-').next());
        let start = start.and_then(|hex| u64::from_str_radix(str::from_utf8(hex).ok()?, 16).ok());
        let Some(start) = start else {
            return Ok(None);
        };
        Stats::read(pid, start.wrapping_add(self.places.stats))
    }

    /// Has processes that load the library from now on make these functions of their executable lead to it. Processes that run
    /// another executable ignore this.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn add_detours(&self, detours: &Detours) -> io::Result<()> {
        let file = File::options().read(true).write(true).open(&self.path)?;
        append_plan(&file, self.places, detours).map(drop)
    }
}

#[cfg(not(target_arch = "x86_64"))]
impl Preloaded {
    /// Places the library in a program without a loader.
    ///
    /// # Errors
    /// That is not possible on this processor.
    pub fn place(&self, _: Pid, _: libc::c_int) -> Result<(), String> {
        Err("memprof can place its library in such a program on x86-64 only".into())
    }
}

impl Stats {
    /// Reads the counters at an address of a process, as from [`stats_address`](super::stats_address). `None` if they make
    /// no sense.
    ///
    /// # Errors
    ///
    /// The process is gone, or may not be read.
    pub fn read(pid: Pid, address: u64) -> io::Result<Option<Stats>> {
        let mut bytes = [0; Stats::SIZE];
        let memory = proc_dir::open(pid, "mem")?;
        memory.read_exact_at(&mut bytes, address)?;
        Ok(Stats::parse(&bytes))
    }
}
