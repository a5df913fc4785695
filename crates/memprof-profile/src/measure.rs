//! Measures: what the figures of a report count, and in which unit.
//!
//! Residency is the measure of every report: bytes of resident and cached pages
//! ([`Usage`](memprof_sys::usage::Usage)), which add up to the kernel's figures. Every other measure has columns of its
//! own, in its own unit, and is in no sum of residency. Its figures are kept per stack next to the resident bytes
//! ([`Amounts`](crate::Amounts)), and each column is a [`Kind`](crate::Kind) that trees, tables,
//! diffs, the time series, metrics and exports can show.
//!
//! A measure is one file here and one line in [`MEASURES`]. An event source names the measure that it fills
//! (`Source::measure`).

mod heap;
mod kernel_memory;
mod residency;
mod shared;

pub use heap::TEMPORARY;
pub use heap::{
    ALLOC_OBJECTS, ALLOC_SPACE, EXACT, HEAP, INUSE_OBJECTS, INUSE_SPACE, TEMPORARY_OBJECTS,
    TEMPORARY_SPACE, WINDOW,
};
pub use kernel_memory::{KERNEL_BYTES, KERNEL_MEMORY};
pub use residency::RESIDENCY;
pub use shared::{PSS, SHARED};

/// What a group of figures counts.
#[derive(Debug)]
pub struct Measure {
    /// Its name in replies: one lower-case word.
    pub name: &'static str,
    /// What messages call it.
    pub title: &'static str,
    /// The command-line option that enables it; `None` if every report has it.
    pub option: Option<&'static str>,
    /// Whether replies and files state its figures even if they were not counted, as they have done from the start. Figures
    /// of other measures are left out where they are 0.
    pub always_stated: bool,
    /// Its columns. Residency has none, because its kinds are the fields of [`Usage`](memprof_sys::usage::Usage).
    pub columns: &'static [Column],
}

/// A column of a measure.
#[derive(Debug)]
pub struct Column {
    /// Its name on the command line, in URLs, in replies and as the metrics' `kind`: one lower-case word.
    pub name: &'static str,
    /// Its display name, which says if it is not exact; see [`Profile::label`](crate::Profile).
    pub label: &'static str,
    /// Its name in the narrow columns of a terminal: at most 11 letters.
    pub short: &'static str,
    /// What one counts.
    pub unit: Unit,
    /// Whether it counts what has happened since memprof began, and never falls; others count what is there now.
    pub cumulative: bool,
    /// What distinguishes it from resident memory, for the summary.
    pub note: &'static str,
    /// Its description in the time series.
    pub figure: &'static str,
    /// The name of its value type in pprof files.
    pub sample_type: &'static str,
    /// The name of its metric, and the metric's help text.
    pub metric: (&'static str, &'static str),
}

/// What figures count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Objects, for example allocations.
    Objects,
}

impl Unit {
    /// Its name: the suffix of column names in CSV files.
    pub fn name(self) -> &'static str {
        match self {
            Unit::Bytes => "bytes",
            Unit::Objects => "objects",
        }
    }

    /// Its name in pprof files, whose readers know `count`.
    pub fn pprof(self) -> &'static str {
        match self {
            Unit::Bytes => "bytes",
            Unit::Objects => "count",
        }
    }

    /// A figure as it is shown to people: bytes as KiB, rounded down.
    pub fn shown(self, figure: u64) -> u64 {
        match self {
            Unit::Bytes => figure / 1024,
            Unit::Objects => figure,
        }
    }

    /// A limit as it is shown to people: as [`Unit::shown`], rounded up.
    pub fn limit(self, figure: u64) -> u64 {
        match self {
            Unit::Bytes => figure.div_ceil(1024),
            Unit::Objects => figure,
        }
    }

    /// What [`Unit::shown`] counts.
    pub fn symbol(self) -> &'static str {
        match self {
            Unit::Bytes => "KiB",
            Unit::Objects => "objects",
        }
    }
}

/// All measures, residency first.
pub const MEASURES: [&Measure; 6] = [&RESIDENCY, &SHARED, &KERNEL_MEMORY, &HEAP, &WINDOW, &EXACT];

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

    /// The column of this name.
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

    /// Its position in [`ColumnId::ALL`].
    pub fn index(self) -> usize {
        let before = &MEASURES[..self.measure.into()];
        let before: usize = before.iter().map(|measure| measure.columns.len()).sum();
        before + usize::from(self.column)
    }

    /// Its measure.
    pub const fn measure(self) -> &'static Measure {
        MEASURES[self.measure as usize]
    }

    /// Its description.
    pub const fn column(self) -> &'static Column {
        &self.measure().columns[self.column as usize]
    }
}

/// `==` is not available in constants.
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
