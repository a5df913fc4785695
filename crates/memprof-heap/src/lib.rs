//! Heap snapshot: what lives in the heap of a running process, what of it is free, and which pages that takes.
//!
//! In reading order: `snapshot` stops the process and copies its private memory (`memory`), `whole` tells whether that is all; `glibc` reads the
//! allocator's own structures in the copy, `jemalloc` those of another one (`all_heaps` is both as one), `python` those of CPython and its objects; `reach` finds the chunks that nothing refers to, while `types` counts all by type
//! and `retained` by what leads to them; `ledger` adds up whose each resident byte is, as `report` has it; `by_stack` joins that with sampled allocations; `text` and
//! `command` show it.

mod address_map;
mod all_heaps;
mod arenas;
pub mod attach;
mod by_stack;
mod chunks;
mod contents;
mod figures;
mod files;
mod glibc;
mod grown_by;
pub mod headroom;
mod jemalloc;
mod ledger;
mod memory;
mod moment;
mod names;
mod pages;
mod python;
mod reach;
mod report;
mod resident;
mod retained;
pub mod sampler;
mod seen;
mod sizes;
mod snapshot;
mod stages;
pub mod synthetic;
mod taken;
mod text;
mod text_types;
mod types;
mod vtables;
mod whole;

pub use address_map::{AddressMap, Cell, MapRange};
pub use arenas::{ArenaKind, ArenaRow};
pub use by_stack::{
    ByStack, Estimated, EstimatedNumber, FreePagesRow, HeadOf, HeapSample, HeapSamples, Joint,
    LeakRow, Origin, RestKind, RestRow, SampleCounts, StackRow,
};
pub use figures::Figures;
pub use glibc::{Mallinfo, Refusal};
pub use grown_by::{GrownBy, GrownRow};
pub use jemalloc::{JemallocFigures, JemallocHeap};
pub use ledger::{Measured, SampleSource, measure, measure_exiting, measure_with_samples};
pub use moment::{At, Moment};
pub use python::{PoolClass, PyType, PythonHeap, PythonRead, Role};
pub use reach::{Head, Unreachable};
pub use report::{Allocator, Heap, Object, OtherRow, Row, SizeClass, What};
pub use resident::HeapPages;
pub use retained::{ObjectRoot, Retained, Retainer, RootKind, RootRow};
pub use seen::Seen;
pub use snapshot::{Approach, SnapshotOptions, Taken};
pub use stages::Stages;
pub use taken::{HeapOptions, HeapSnapshot};
pub use types::{TypeKind, TypeRow, Types};
pub use whole::{Agreement, Missing, MissingKind};
