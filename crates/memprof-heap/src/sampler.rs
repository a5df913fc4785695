//! The library that a target preloads so that its allocations are sampled. Each run places its own copy.
//!
//! The library is in `src/sampler/` (C), `build.rs` compiles it, and `docs/sampler.md` describes it.

mod file;
mod fitness;
mod in_process;
mod plan;
mod stale_copies;
mod stats;
#[cfg(target_arch = "x86_64")]
pub(crate) mod without_loader;
#[cfg(target_arch = "x86_64")]
pub(crate) mod words;

pub use file::{Image, Library, Options, SamplerError, is_library, stats_address};
pub use fitness::{Unfit, check};
pub use in_process::detours_placed;
#[cfg(target_arch = "x86_64")]
pub(crate) use in_process::mapped_library;
pub use plan::{DetoursPlaced, DetoursState, FailedStep};
pub use stats::{Imports, Preloaded, PythonState, SamplerState, Stats};

/// The compiled library, for the architecture of memprof itself.
pub static BYTES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libmemprof_heap.so"));

/// Provider of the library's USDT probes `alloc(ptr, size, weighted_bytes)` and `free(ptr)`.
pub const PROVIDER: &str = "otel_memory";

/// Default mean number of bytes between two samples, as in jemalloc and in the sampling contract.
pub const DEFAULT_INTERVAL: u64 = 512 << 10;
