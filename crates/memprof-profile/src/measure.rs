//! Measures: the meaning and the unit of a report's figures.
//!
//! Residency is the measure of every report: bytes of resident and cached pages ([`Usage`](memprof_sys::usage::Usage)),
//! which add up to the kernel's figures. Every other measure has columns in a unit of its own, and no sum of residency
//! includes them. The figures of a column are stored per stack next to the resident bytes
//! ([`Amounts`](crate::Amounts)). Each column is a [`Kind`](crate::Kind) that trees, tables, diffs, the
//! time series, metrics and exports can show.
//!
//! A measure is one file in this directory and one line in [`MEASURES`]. An event source names the measure that it fills
//! (`Source::measure`).

mod heap;
mod kernel_memory;
mod residency;
mod shared;

pub use heap::TEMPORARY;
pub use heap::{
    ALLOC_OBJECTS, ALLOC_SPACE, AT_PEAK_OBJECTS, AT_PEAK_SPACE, EXACT, HEAP, HEAP_PEAK,
    INUSE_OBJECTS, INUSE_SPACE, TEMPORARY_OBJECTS, TEMPORARY_SPACE, WINDOW,
};
pub use kernel_memory::{KERNEL_BYTES, KERNEL_MEMORY};
pub use residency::RESIDENCY;
pub use shared::{PSS, SHARED};

/// A group of figures that are counted together.
#[derive(Debug)]
pub struct Measure {
    /// The name in replies: lower-case words, joined by `_`.
    pub name: &'static str,
    /// The name in messages.
    pub title: &'static str,
    /// The command-line option that enables it; `None` if every report has it.
    pub option: Option<&'static str>,
    /// Whether replies and files contain the figures even if they were not counted, for compatibility. Figures of other
    /// measures are omitted where they are 0.
    pub always_stated: bool,
    /// The columns of the measure. Residency has none, because its kinds are the fields of
    /// [`Usage`](memprof_sys::usage::Usage).
    pub columns: &'static [Column],
}

/// A column of a measure.
#[derive(Debug)]
pub struct Column {
    /// The name on the command line, in URLs, in replies and as the `kind` label of metrics: one lower-case word.
    pub name: &'static str,
    /// The display name, which says if the figure is not exact; see [`Profile::label`](crate::Profile).
    pub label: &'static str,
    /// The name in the narrow columns of a terminal: at most 11 letters.
    pub short: &'static str,
    /// The unit of the figures.
    pub unit: Unit,
    /// Whether the figure accumulates since memprof began and never decreases. Other figures are amounts at the current
    /// moment.
    pub cumulative: bool,
    /// The difference from resident memory, for the summary.
    pub note: &'static str,
    /// The description in the time series.
    pub figure: &'static str,
    /// The name of the value type in pprof files.
    pub sample_type: &'static str,
    /// The name of the metric, and its help text.
    pub metric: (&'static str, &'static str),
}

/// The unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Objects, for example allocations.
    Objects,
}

impl Unit {
    /// The name of the unit: the suffix of column names in CSV files.
    pub fn name(self) -> &'static str {
        match self {
            Unit::Bytes => "bytes",
            Unit::Objects => "objects",
        }
    }

    /// The name in pprof files. Readers of pprof expect `count` for objects.
    pub fn pprof(self) -> &'static str {
        match self {
            Unit::Bytes => "bytes",
            Unit::Objects => "count",
        }
    }

    /// Converts a figure for display: bytes to KiB, rounded down.
    pub fn shown(self, figure: u64) -> u64 {
        match self {
            Unit::Bytes => figure / 1024,
            Unit::Objects => figure,
        }
    }

    /// Converts a limit for display: like [`Unit::shown`], but rounded up.
    pub fn limit(self, figure: u64) -> u64 {
        match self {
            Unit::Bytes => figure.div_ceil(1024),
            Unit::Objects => figure,
        }
    }

    /// The unit of [`Unit::shown`].
    pub fn symbol(self) -> &'static str {
        match self {
            Unit::Bytes => "KiB",
            Unit::Objects => "objects",
        }
    }
}

/// All measures, residency first.
pub const MEASURES: [&Measure; 7] = [
    &RESIDENCY,
    &SHARED,
    &KERNEL_MEMORY,
    &HEAP,
    &HEAP_PEAK,
    &WINDOW,
    &EXACT,
];

/// Number of columns of all measures.
pub const COLUMNS: usize = {
    let (mut sum, mut at) = (0, 0);
    while at < MEASURES.len() {
        sum += MEASURES[at].columns.len();
        at += 1;
    }
    sum
};

/// A column of a measure in [`MEASURES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ColumnId {
    measure: u8,
    column: u8,
}

impl ColumnId {
    /// Every column, in the order of [`MEASURES`].
    pub const ALL: [ColumnId; COLUMNS] = {
        let (measure, column) = (0, 0);
        let (mut all, mut next) = ([ColumnId { measure, column }; COLUMNS], 0);
        let mut measure = 0;
        while measure < MEASURES.len() {
            let mut column = 0;
            while column < MEASURES[measure].columns.len() {
                all[next].measure = measure as u8;
                all[next].column = column as u8;
                next += 1;
                column += 1;
            }
            measure += 1;
        }
        all
    };

    /// The column of this name, at compile time.
    const fn named(name: &str) -> ColumnId {
        let mut at = 0;
        while at < COLUMNS {
            let id = ColumnId::ALL[at];
            if same(name.as_bytes(), id.column().name.as_bytes()) {
                return id;
            }
            at += 1;
        }
        panic!("no measure has a column of this name")
    }

    /// Looks up a column by name.
    pub(crate) fn by_name(name: &str) -> Option<ColumnId> {
        ColumnId::ALL
            .into_iter()
            .find(|id| id.column().name == name)
    }

    /// The position in [`ColumnId::ALL`].
    pub fn index(self) -> usize {
        let before = &MEASURES[..self.measure.into()];
        let before: usize = before.iter().map(|measure| measure.columns.len()).sum();
        before + usize::from(self.column)
    }

    /// The measure of the column.
    pub const fn measure(self) -> &'static Measure {
        MEASURES[self.measure as usize]
    }

    /// The description of the column.
    pub const fn column(self) -> &'static Column {
        &self.measure().columns[self.column as usize]
    }
}

/// Compares byte strings; `==` is not available in constants.
const fn same(a: &[u8], b: &[u8]) -> bool {
    let mut at = 0;
    while at < a.len() && at < b.len() && a[at] == b[at] {
        at += 1;
    }
    at == a.len() && at == b.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_column_has_its_own_place_and_name() {
        let mut names = Vec::new();
        for (at, id) in ColumnId::ALL.into_iter().enumerate() {
            assert_eq!(id.index(), at);
            assert!(!names.contains(&id.column().name));
            assert!(id.column().short.len() <= 11);
            names.push(id.column().name);
        }
        let columns = MEASURES.iter().flat_map(|measure| measure.columns);
        assert!(columns.map(|column| column.name).eq(names));
        assert_eq!(KERNEL_BYTES.measure().name, "kernel");
    }
}
