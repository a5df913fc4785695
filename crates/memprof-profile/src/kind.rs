//! Kinds of figures that can be shown by stack.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use super::Amounts;
use crate::measure::{COLUMNS, ColumnId, Measure, RESIDENCY, Unit};
#[cfg(doc)]
use memprof_sys::usage::Usage;

/// A category of resident bytes, a sum of categories, or a column of another measure. The HTTP API, the command
/// line and the metrics' `kind` label use the same names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Anonymous, shared and page cache together: [`Usage::value`].
    #[default]
    All,
    /// Anonymous and shared memory: [`Usage::resident`].
    Resident,
    /// [`Usage::anon`].
    Anon,
    /// [`Usage::shmem`].
    Shmem,
    /// [`Usage::cache`].
    Cache,
    /// [`Usage::file`].
    File,
    /// [`Usage::swap`].
    Swap,
    /// [`Usage::hugetlb`].
    Hugetlb,
    /// A column of a measure other than residency.
    Column(ColumnId),
}

/// The kinds of resident bytes; the first [`SUMS`] are sums of others.
const RESIDENT: [Kind; 8] = [
    Kind::All,
    Kind::Resident,
    Kind::Anon,
    Kind::Shmem,
    Kind::Cache,
    Kind::File,
    Kind::Swap,
    Kind::Hugetlb,
];
const SUMS: usize = 2;

// The names of the kinds, in the OpenAPI document.
impl JsonSchema for Kind {
    fn schema_name() -> Cow<'static, str> {
        "Kind".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "A kind of memory: a field of Usage.",
            "enum": Kind::ALL.map(Kind::name),
        })
    }
}

impl Kind {
    /// Every kind, in display order.
    pub const ALL: [Kind; RESIDENT.len() + COLUMNS] = {
        let (mut all, mut at) = ([Kind::All; RESIDENT.len() + COLUMNS], 0);
        while at < all.len() {
            all[at] = match at < RESIDENT.len() {
                true => RESIDENT[at],
                false => Kind::Column(ColumnId::ALL[at - RESIDENT.len()]),
            };
            at += 1;
        }
        all
    };

    /// The kinds that are not sums of others.
    pub fn single() -> impl Iterator<Item = Kind> {
        Kind::ALL.into_iter().skip(SUMS)
    }

    /// Whether replies and files contain this kind's figure of `amounts`.
    pub fn stated(self, amounts: &Amounts) -> bool {
        self.measure().always_stated || self.figure(amounts) > 0
    }

    /// The short lower-case name.
    pub fn name(self) -> &'static str {
        match self {
            Kind::All => "all",
            Kind::Resident => "resident",
            Kind::Anon => "anon",
            Kind::Shmem => "shmem",
            Kind::Cache => "cache",
            Kind::File => "file",
            Kind::Swap => "swap",
            Kind::Hugetlb => "hugetlb",
            Kind::Column(id) => id.column().name,
        }
    }

    /// The display name, which says if the figure is not exact.
    pub fn label(self) -> &'static str {
        match self {
            Kind::Column(id) => id.column().label,
            resident => resident.name(),
        }
    }

    /// The unit of the figures.
    pub fn unit(self) -> Unit {
        match self {
            Kind::Column(id) => id.column().unit,
            _ => Unit::Bytes,
        }
    }

    /// The measure to which the kind belongs.
    pub fn measure(self) -> &'static Measure {
        match self {
            Kind::Column(id) => id.measure(),
            _ => &RESIDENCY,
        }
    }

    /// Looks up a kind by name.
    pub fn by_name(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|k| k.name() == name)
    }

    /// The figure of this kind, in its unit.
    pub fn figure(self, amounts: &Amounts) -> u64 {
        let Amounts { usage, .. } = amounts;
        match self {
            Kind::All => usage.value(),
            Kind::Resident => usage.resident(),
            Kind::Anon => usage.anon,
            Kind::Shmem => usage.shmem,
            Kind::Cache => usage.cache,
            Kind::File => usage.file,
            Kind::Swap => usage.swap,
            Kind::Hugetlb => usage.hugetlb,
            Kind::Column(id) => amounts.column(id),
        }
    }
}
