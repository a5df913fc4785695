//! Sampled allocations (`--heap`). `samples.bpf.h` describes what the programs send; [`crate::collect::samples`] adds it up.

use super::Source;
use memprof_profile::measure::HEAP;

/// The program that is attached to a sampler's probe of an allocation.
pub(crate) const ALLOCATION: &str = "allocation_sampled";
/// The program that is attached to its probe of a free.
pub(crate) const FREE: &str = "sample_freed";

/// The program that is attached to the probe by which a program sets marks.
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
