//! Heap snapshots: which chunks are in use, which are free, and which resident pages they occupy.
//!
//! In reading order:
//!
//! - `snapshot` stops the process and copies its private memory (`memory`); `how_read` says how, `whole` whether the copy
//!   is complete.
//! - `glibc` and `jemalloc` read the allocators' own structures in the copy, `spans` those of further allocators;
//!   `all_heaps` presents all of them as one heap.
//!   `python` reads CPython's arenas and objects.
//! - `reach` finds unreachable chunks, `types` counts chunks by type, and `retained` counts them by the root that
//!   keeps them alive.
//! - `core_file` reads a snapshot from a core instead; `source` is what either knows of the process's files.
//! - `zero_pages` finds the resident pages that contain only zeroes.
//! - `ledger` attributes every resident byte to an owner; `report` holds the totals.
//! - `by_stack` joins the totals with sampled allocations.
//! - `text` prints the result.
//! - `attach` makes a running process load the sampling library that `sampler` contains.

mod address_map;
mod all_heaps;
mod arenas;
pub mod attach;
mod by_stack;
mod chunks;
mod classify;
mod core_file;
mod declared;
mod figures;
mod glibc;
mod golang;
mod grown_by;
pub mod headroom;
mod how_read;
mod jemalloc;
mod ledger;
mod mallocng;
mod mapped_files;
mod memory;
mod mimalloc;
mod module_data;
mod moment;
mod names;
mod other_allocators;
mod pages;
mod python;
mod reach;
mod regions;
mod report;
mod resident;
mod roots;
pub mod sampler;
mod shapes;
mod sizes;
mod snapshot;
mod source;
mod spans;
mod stages;
pub mod synthetic;
mod taken;
mod tcmalloc;
mod text;
mod text_table;
mod text_types;
mod types;
mod verdict;
mod vtables;
mod whole;
mod zero_pages;

pub use address_map::{AddressMap, Cell, MapRange};
pub use arenas::{ArenaKind, ArenaRow};
pub use by_stack::{
    ByStack, Estimated, EstimatedNumber, FreePagesRow, HeadOf, HeapSample, HeapSamples, Joint,
    LeakRow, Origin, RestKind, RestRow, SampleCounts, StackNames, StackRow,
};
pub use core_file::{
    CoreFileRow, CoreFileState, CorePaths, CoreReport, SavedCore, measure_core, measure_core_bytes,
};
pub use declared::DebugInfo;
pub use figures::SnapshotFigures;
pub use glibc::{Mallinfo, Refusal};
pub use grown_by::{GrownBy, GrownRow};
pub use how_read::{MappingKind, ReadFrom, ReadRow};
pub use jemalloc::{JemallocFigures, JemallocHeap};
pub use ledger::{
    Measured, SampleSource, measure, measure_and_save, measure_exiting, measure_with_samples,
};
pub use moment::{At, Moment};
pub use other_allocators::Seen;
pub use python::{BlockRole, PoolClass, PyHolder, PyType, PythonHeap, PythonRead};
pub use reach::{Head, Unreachable};
pub use report::{Allocator, Heap, HeapRegion, Object, OtherRow, RegionRow, SizeClass};
pub use resident::HeapPages;
pub use roots::{ObjectRoot, Retained, Retainer, RootKind, RootRow};
pub use shapes::{LostShape, ShapePart};
pub use snapshot::{Approach, SnapshotOptions, Taken};
pub use spans::{SpanFigures, SpanHeap, SpanSize};
pub use stages::Stages;
pub use taken::{HeapOptions, HeapSnapshot};
pub use types::{TypeKind, TypeRow, Types};
pub use whole::{Agreement, Missing, MissingKind};
pub use zero_pages::{ZeroMapping, ZeroPages, ZeroRegion};
