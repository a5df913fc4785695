//! Heap memory by the stack that allocated it (`--heap`): estimates from sampled allocations.
//!
//! The texts are those of sampled allocations. [`WINDOW`] and [`EXACT`] say of a profile that calls were counted instead;
//! [`Profile::as_counted`](crate::Profile) puts the texts into other words then.

use std::time::Duration;

use super::{Column, ColumnId, Measure, Unit};

/// An allocation freed this soon counts as temporary.
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

/// Says of [`HEAP`] that its figures are counts of calls in a window (`--heap=exact`): there are no single allocations. It has
/// no columns.
pub const WINDOW: Measure = Measure {
    name: "window",
    title: "calls in a window",
    option: None,
    always_stated: false,
    columns: &[],
};

/// Says of [`HEAP`] that its figures are no estimates: every call was counted (`--heap=exact` without `--every`). It has no
/// columns.
pub const EXACT: Measure = Measure {
    name: "exact",
    title: "every allocation",
    option: None,
    always_stated: false,
    columns: &[],
};

/// Bytes allocated and not freed.
pub const INUSE_SPACE: ColumnId = ColumnId::named("inuse_space");
/// Allocations not freed.
pub const INUSE_OBJECTS: ColumnId = ColumnId::named("inuse_objects");
/// Bytes allocated since sampling began.
pub const ALLOC_SPACE: ColumnId = ColumnId::named("alloc_space");
/// Allocations since sampling began.
pub const ALLOC_OBJECTS: ColumnId = ColumnId::named("alloc_objects");
/// Bytes freed soon after their allocation.
pub const TEMPORARY_SPACE: ColumnId = ColumnId::named("temporary_space");
/// Allocations freed soon after they were made.
pub const TEMPORARY_OBJECTS: ColumnId = ColumnId::named("temporary_objects");
