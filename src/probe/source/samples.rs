//! Sampled allocations (`--heap`). `samples.bpf.h` describes the events that the programs send; [`crate::collect::samples`] sums
//! them up.

use super::Source;
use memprof_profile::measure::HEAP;

/// The program attached to a sampler's allocation probe.
pub(crate) const ALLOCATION: &str = "allocation_sampled";
/// The program attached to a sampler's free probe.
pub(crate) const FREE: &str = "sample_freed";

/// The program attached to the probe by which a program sets marks.
pub(crate) const MARK: &str = "mark_set";

/// The source of sampled allocations.
pub static SOURCE: Source = Source {
    name: "sampled allocations",
    programs: &[],
    at_faults: &[],
    optional: &[],
    tracepoints: &[],
    measure: &HEAP,
    option: Some("--heap"),
    on_demand: &[ALLOCATION, FREE, MARK],
    maps: &["sample_probes", "after_sample"],
    ledger: None,
    collect: None,
};
