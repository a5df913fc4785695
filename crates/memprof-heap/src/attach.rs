//! `memprof attach-heap`: makes a running process load the library that samples allocations.
//!
//! The change is permanent: one thread of the process calls the C library's `dlopen`, and the library then makes all
//! loaded files call it instead of the allocator (`src/sampler/imports.c`). The thread must hold no lock of the
//! allocator or the loader; `safe_point.rs` decides that from the thread's stack (`walk.rs`). The other threads keep
//! running, so that they release any lock they hold. An allocator inside the executable is reached by detours (`detours.rs`,
//! and `added.rs` if the library was there before). `memprof_sys::freeze` injects the call and restores the thread's
//! registers.

#[cfg(target_arch = "x86_64")]
mod added;
#[cfg(target_arch = "x86_64")]
mod command;
#[cfg(target_arch = "x86_64")]
pub(crate) mod detours;
#[cfg(target_arch = "x86_64")]
mod functions;
#[cfg(target_arch = "x86_64")]
mod loaded_files;
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
mod without_loader;

#[cfg(target_arch = "x86_64")]
pub use command::run;
#[cfg(not(target_arch = "x86_64"))]
pub use unsupported::run;

use std::time::Duration;

use memprof_sys::process::ProcessTarget;

/// Configuration of `memprof attach-heap`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachConfig {
    /// The process that loads the library.
    pub target: ProcessTarget,
    /// Whether the user has agreed to the change (`--yes`).
    pub agreed: bool,
    /// Mean number of allocated bytes per sample.
    pub interval: u64,
    /// Maximum time to look for a safe moment, and then again for the loader to finish (`--wait`).
    pub wait: Duration,
}
