//! Kernel memory allocated on behalf of the target (`--kernel`): approximate.

use super::{Column, ColumnId, Measure, Unit};

/// Kernel memory by the stack that allocated it.
pub const KERNEL_MEMORY: Measure = Measure {
    name: "kernel",
    title: "kernel memory",
    option: Some("--kernel"),
    always_stated: true,
    columns: &[Column {
        name: "kernel",
        label: "kernel (approximate)",
        short: "kernel",
        unit: Unit::Bytes,
        cumulative: false,
        note: "approximate, not resident: allocated for the target",
        figure: "kernel memory (approximate) of the newest report, if that was made since the last sample or nothing changed since",
        sample_type: "approximate_kernel_space",
        metric: (
            "memprof_approximate_kernel_bytes",
            "Kernel memory allocated for the target; approximate, not resident",
        ),
    }],
};

/// Its column.
pub const KERNEL_BYTES: ColumnId = ColumnId::named("kernel");
