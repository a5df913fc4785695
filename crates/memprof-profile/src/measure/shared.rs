//! Memory with shared pages counted once (`--pss`): each mapping of a page has its part of it, as in the kernel's
//! proportional share. The sum over all processes is the memory that all of them hold together.

use super::{Column, ColumnId, Measure, Unit};

/// Resident memory and mapped files: a page that N mappings share counts as 1/N of a page under each.
pub const SHARED: Measure = Measure {
    name: "pss",
    title: "resident memory and mapped files with shared pages counted once",
    option: Some("--pss"),
    always_stated: false,
    columns: &[Column {
        name: "pss",
        label: "resident, shared pages once (PSS)",
        short: "PSS",
        unit: Unit::Bytes,
        cumulative: false,
        note: "of a page that N mappings have, each has 1/N",
        figure: "resident memory and mapped files with shared pages counted once, of the newest report, if that was made since the last sample or \
                 nothing changed since",
        sample_type: "pss_space",
        metric: (
            "memprof_pss_bytes",
            "Resident memory and mapped files with shared pages counted once: of a page that N mappings have, each has 1/N",
        ),
    }],
};

/// Its column.
pub const PSS: ColumnId = ColumnId::named("pss");
