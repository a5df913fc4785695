//! Figures by kind of memory: every kind of resident bytes, and the columns of other measures.

use std::fmt;

use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::measure::ColumnId;
use crate::{Amounts, Kind};
use memprof_sys::usage::Usage;

/// Figures of every kind that is not a sum of others; the keys are the names of [`Kind`].
impl Serialize for Amounts {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let stated = Kind::single().filter(|kind| kind.stated(self));
        s.collect_map(stated.map(|kind| (kind.name(), kind.figure(self))))
    }
}

impl<'de> Deserialize<'de> for Amounts {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Amounts, D::Error> {
        struct ByKind;
        impl<'de> Visitor<'de> for ByKind {
            type Value = Amounts;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("figures by kind of memory")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Amounts, A::Error> {
                let mut usage = Usage::default();
                let mut columns = Amounts::default();
                let mut seen = 0u64;
                while let Some((kind, figure)) = map.next_entry::<KindName, u64>()? {
                    if seen & kind.bit() != 0 {
                        return Err(A::Error::custom(format!("{} occurs twice", kind.name())));
                    }
                    seen |= kind.bit();
                    match kind {
                        KindName::Resident(at) => *RESIDENT[at].1(&mut usage) = figure,
                        KindName::Column(id) => columns += Amounts::in_column(id, figure),
                    }
                }
                match (0..RESIDENT.len()).find(|at| seen & (1 << at) == 0) {
                    Some(at) => Err(A::Error::missing_field(RESIDENT[at].0)),
                    None => {
                        columns.usage = usage;
                        Ok(columns)
                    }
                }
            }
        }
        d.deserialize_map(ByKind)
    }
}

type Field = fn(&mut Usage) -> &mut u64;

/// The kinds of resident bytes that every row has.
const RESIDENT: [(&str, Field); 6] = [
    ("anon", |usage| &mut usage.anon),
    ("shmem", |usage| &mut usage.shmem),
    ("cache", |usage| &mut usage.cache),
    ("file", |usage| &mut usage.file),
    ("swap", |usage| &mut usage.swap),
    ("hugetlb", |usage| &mut usage.hugetlb),
];

#[derive(Clone, Copy)]
enum KindName {
    Resident(usize),
    Column(ColumnId),
}

impl KindName {
    fn bit(self) -> u64 {
        1 << match self {
            KindName::Resident(at) => at,
            KindName::Column(id) => RESIDENT.len() + id.index(),
        }
    }

    fn name(self) -> &'static str {
        match self {
            KindName::Resident(at) => RESIDENT[at].0,
            KindName::Column(id) => id.column().name,
        }
    }
}

impl<'de> Deserialize<'de> for KindName {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<KindName, D::Error> {
        struct Name;
        impl Visitor<'_> for Name {
            type Value = KindName;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a kind of memory")
            }

            fn visit_str<E: Error>(self, name: &str) -> Result<KindName, E> {
                let resident = RESIDENT.iter().position(|(kind, _)| *kind == name);
                let column = || ColumnId::by_name(name);
                let known = resident.map(KindName::Resident);
                known
                    .or_else(|| column().map(KindName::Column))
                    .ok_or_else(|| E::unknown_variant(name, &[]))
            }
        }
        d.deserialize_str(Name)
    }
}
