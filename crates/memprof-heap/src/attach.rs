//! `memprof attach-heap`: has a running process load the library that samples allocations.
//!
//! The process is changed for good: one of its threads calls its C library's `dlopen`, and the library has all loaded files
//! call it in place of the allocator (`src/sampler/imports.c`). The thread must hold no lock of the allocator or of the
//! loader (`safe_point.rs`, by its stack: `walk.rs`); the others run on, so that locks that they hold become free.
//! `freeze::inject` has the thread do it, and find its own way back.

#[cfg(target_arch = "x86_64")]
mod command;
#[cfg(target_arch = "x86_64")]
mod files;
#[cfg(target_arch = "x86_64")]
mod functions;
#[cfg(target_arch = "x86_64")]
mod loader_lock;
#[cfg(target_arch = "x86_64")]
mod report;
#[cfg(target_arch = "x86_64")]
mod safe_point;
#[cfg(not(target_arch = "x86_64"))]
mod unsupported;
#[cfg(target_arch = "x86_64")]
mod walk;

#[cfg(target_arch = "x86_64")]
pub use command::run;
#[cfg(not(target_arch = "x86_64"))]
pub use unsupported::run;

use std::time::Duration;

use memprof_sys::process::ProcessTarget;

/// What `memprof attach-heap` does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachConfig {
    /// The process that is to load the library.
    pub target: ProcessTarget,
    /// Whether the user has agreed.
    pub agreed: bool,
    /// For how many allocated bytes one sample stands on average.
    pub interval: u64,
    /// How long memprof looks for a safe moment, and how long the loader may take then.
    pub wait: Duration,
}
