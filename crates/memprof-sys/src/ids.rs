//! Identifiers of processes, address spaces, stacks, addresses and mapped files.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A process id (thread group id) as seen from memprof's own pid namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Pid(pub u32);

impl fmt::Display for Pid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An address space (the kernel's `mm_struct`), numbered by the BPF programs in the order in which they follow them.
///
/// Totals are keyed by address space, not by process: a `vfork` or `CLONE_VM` child faults into its parent's address space, and
/// `execve` gives a process a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MmId(pub u32);

/// A distinct call stack, numbered by the BPF programs when first seen. Processes that run the same code share it. Once nothing
/// refers to a stack, its number can be reused for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StackId(pub u32);

/// A virtual address in a followed process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Addr(pub u64);

impl fmt::Debug for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A file that code is mapped from, as the kernel identifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileKey {
    /// The kernel's device number (`s_dev`), which can differ from `st_dev` of `stat`; 0 for the vDSO.
    pub dev: u32,
    /// Inode number.
    pub ino: u64,
    /// Modification time of the contents, in ns since the epoch.
    pub modified: u64,
    /// Size in bytes.
    pub size: u64,
}
