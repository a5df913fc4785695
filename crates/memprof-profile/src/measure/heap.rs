//! Heap memory by the stack that allocated it (`--heap`), estimated from sampled allocations.
//!
//! The texts describe sampled allocations. If a profile has [`WINDOW`] or [`EXACT`], calls were counted instead, and
//! [`Profile::as_counted`](crate::Profile) rewrites the texts.

use std::time::Duration;

use super::{Column, ColumnId, Measure, Unit};

/// An allocation freed within this time counts as temporary.
pub const TEMPORARY: Duration = Duration::from_millis(10);

/// Allocations by the stack that made them.
pub const HEAP: Measure = Measure {
    name: "heap",
    title: "heap memory",
    option: Some("--heap"),
    always_stated: false,
    columns: &[
        Column {
            name: "inuse_space",
            label: "live heap (estimated)",
            short: "live heap",
            unit: Unit::Bytes,
            cumulative: false,
            note: "estimated: allocated and not freed, whether resident or not",
            figure: "bytes allocated and not freed of the newest report, if that was made since the last sample or nothing changed since",
            sample_type: "inuse_space",
            metric: (
                "memprof_heap_inuse_bytes",
                "Heap memory allocated and not freed, estimated from samples",
            ),
        },
        Column {
            name: "inuse_objects",
            label: "live allocations (estimated)",
            short: "live allocs",
            unit: Unit::Objects,
            cumulative: false,
            note: "estimated: allocations not freed",
            figure: "allocations not freed of the newest report, if that was made since the last sample or nothing changed since",
            sample_type: "inuse_objects",
            metric: (
                "memprof_heap_inuse_objects",
                "Allocations not freed, estimated from samples",
            ),
        },
        Column {
            name: "alloc_space",
            label: "allocated (estimated)",
            short: "allocated",
            unit: Unit::Bytes,
            cumulative: true,
            note: "estimated: all allocations since sampling began, also freed ones",
            figure: "bytes allocated since counting began of the newest report, if that was made since the last sample or nothing changed since",
            sample_type: "alloc_space",
            metric: (
                "memprof_heap_alloc_bytes",
                "Heap memory allocated since sampling began, estimated from samples",
            ),
        },
        Column {
            name: "alloc_objects",
            label: "allocations (estimated)",
            short: "allocations",
            unit: Unit::Objects,
            cumulative: true,
            note: "estimated: number of allocations since sampling began",
            figure: "allocations since counting began of the newest report, if that was made since the last sample or nothing changed since",
            sample_type: "alloc_objects",
            metric: (
                "memprof_heap_alloc_objects",
                "Allocations since sampling began, estimated from samples",
            ),
        },
        Column {
            name: "temporary_space",
            label: "temporary (estimated)",
            short: "temporary",
            unit: Unit::Bytes,
            cumulative: true,
            note: "estimated: freed within --heap-temporary",
            figure: "bytes freed soon after their allocation of the newest report, if that was made since the last sample or nothing changed since",
            sample_type: "temporary_space",
            metric: (
                "memprof_heap_temporary_bytes",
                "Heap memory freed soon after its allocation, estimated from samples",
            ),
        },
        Column {
            name: "temporary_objects",
            label: "temporary allocations (estimated)",
            short: "temp allocs",
            unit: Unit::Objects,
            cumulative: true,
            note: "estimated: number of allocations freed within --heap-temporary",
            figure: "allocations freed soon after they were made of the newest report, if that was made since the last sample or nothing changed since",
            sample_type: "temporary_objects",
            metric: (
                "memprof_heap_temporary_objects",
                "Allocations freed soon after they were made, estimated from samples",
            ),
        },
    ],
};

/// What the stacks of sampled allocations had live when all of them together had most. Calls that are counted in the kernel
/// ([`WINDOW`]) have no such moment.
pub const HEAP_PEAK: Measure = Measure {
    name: "heap_peak",
    title: "heap memory at its peak",
    option: Some("--heap"),
    always_stated: false,
    columns: &[
        Column {
            name: "at_peak_space",
            label: "live heap at its peak (estimated)",
            short: "at peak",
            unit: Unit::Bytes,
            cumulative: false,
            note: "estimated: live at the moment at which the whole live heap was largest",
            figure: "bytes that were live at the peak of the heap of the newest report, if that was made since the last sample or nothing changed since",
            sample_type: "at_peak_space",
            metric: (
                "memprof_heap_at_peak_bytes",
                "Heap memory that was live when the live heap was largest, estimated from samples",
            ),
        },
        Column {
            name: "at_peak_objects",
            label: "allocations at the heap's peak (estimated)",
            short: "peak allocs",
            unit: Unit::Objects,
            cumulative: false,
            note: "estimated: allocations that were live at the moment at which the whole live heap was largest",
            figure: "allocations that were live at the peak of the heap of the newest report, if that was made since the last sample or nothing changed since",
            sample_type: "at_peak_objects",
            metric: (
                "memprof_heap_at_peak_objects",
                "Allocations that were live when the live heap was largest, estimated from samples",
            ),
        },
    ],
};

/// Marks a profile whose [`HEAP`] figures count calls in a window (`--heap=exact`), so that it has no single allocations.
/// This measure has no columns.
pub const WINDOW: Measure = Measure {
    name: "window",
    title: "calls in a window",
    option: None,
    always_stated: false,
    columns: &[],
};

/// Marks a profile whose [`HEAP`] figures are not estimates, because every call was counted (`--heap=exact` without
/// `--every`). This measure has no columns.
pub const EXACT: Measure = Measure {
    name: "exact",
    title: "every allocation",
    option: None,
    always_stated: false,
    columns: &[],
};

/// Bytes that were allocated and not freed.
pub const INUSE_SPACE: ColumnId = ColumnId::named("inuse_space");
/// Allocations that were not freed.
pub const INUSE_OBJECTS: ColumnId = ColumnId::named("inuse_objects");
/// Bytes that were live when the live heap was largest.
pub const AT_PEAK_SPACE: ColumnId = ColumnId::named("at_peak_space");
/// Allocations that were live when the live heap was largest.
pub const AT_PEAK_OBJECTS: ColumnId = ColumnId::named("at_peak_objects");
/// Bytes allocated since sampling began.
pub const ALLOC_SPACE: ColumnId = ColumnId::named("alloc_space");
/// Allocations since sampling began.
pub const ALLOC_OBJECTS: ColumnId = ColumnId::named("alloc_objects");
/// Bytes of temporary allocations, which were freed soon after they were made.
pub const TEMPORARY_SPACE: ColumnId = ColumnId::named("temporary_space");
/// Temporary allocations, which were freed soon after they were made.
pub const TEMPORARY_OBJECTS: ColumnId = ColumnId::named("temporary_objects");
