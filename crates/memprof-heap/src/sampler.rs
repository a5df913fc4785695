//! The library that a target preloads so that its allocations are sampled: a file of its own for each run.
//!
//! The library is in `src/sampler/` (C), `build.rs` compiles it, and `docs/sampler.md` describes it.

mod file;
mod fitness;
mod left_behind;
mod stats;

pub use file::{Image, Library, Options, SamplerError, is_library};
pub use fitness::{Unfit, check};
pub use stats::{Imports, Preloaded, State, Stats};

/// The library as it was compiled, for the processor that memprof was compiled for.
pub static BYTES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libmemprof_heap.so"));

/// The provider of the library's probes, `alloc(ptr, size, weighted_bytes)` and `free(ptr)`.
pub const PROVIDER: &str = "otel_memory";

/// The mean number of bytes between two samples unless another is set.
pub const DEFAULT_INTERVAL: u64 = 512 << 10;
