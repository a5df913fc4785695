//! How a snapshot read the memory of each kind of mapping.

use std::fmt::{self, Display};

use schemars::JsonSchema;
use serde::Serialize;

use super::memory::Run;
use super::snapshot::{Approach, Snapshot};
use super::whole::MissingKind;

/// Where memory was read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "HeapReadFrom")]
pub enum ReadFrom {
    /// From the copy-on-write child, while the process ran.
    Child,
    /// From the process, while it was stopped.
    StoppedProcess,
    /// From a core.
    Core,
    /// Not read: only the pages are counted.
    Nothing,
}

/// A kind of private memory, by what its mapping permits and what a fork inherits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "HeapMappingKind")]
pub enum MappingKind {
    /// Anonymous memory, and pages of files that the process has changed.
    Ordinary,
    /// Memory that a forked child does not have (`MADV_DONTFORK`).
    NotForked,
    /// Memory that is empty in a forked child (`MADV_WIPEONFORK`).
    Wiped,
    /// Private huge pages of hugetlbfs.
    Hugetlb,
    /// Memory that its mapping does not permit to be read (`PROT_NONE`).
    NoAccess,
}

/// How the memory of one kind of mapping was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[schemars(rename = "HeapReadRow")]
pub struct ReadRow {
    /// The kind of mapping.
    pub kind: MappingKind,
    /// Where it was read from.
    pub from: ReadFrom,
    /// Resident and swapped-out bytes.
    pub bytes: u64,
}

/// The rows of a snapshot, without empty ones. What could not be read is not in them ([`super::Missing`]).
pub(super) fn rows(snapshot: &Snapshot) -> Vec<ReadRow> {
    let sum = |runs: &[Run]| runs.iter().map(Run::len).sum::<u64>();
    let from = match snapshot.taken.approach {
        Approach::Core => ReadFrom::Core,
        Approach::Fork => ReadFrom::Child,
        Approach::Auto | Approach::Copy => ReadFrom::StoppedProcess,
    };
    let [not_forked, wiped] = snapshot.kept_back;
    let hugetlb = sum(&snapshot.pages.hugetlb);
    let zeroes = sum(&snapshot.zeroes);
    let ordinary = (snapshot.memory.len() + zeroes).saturating_sub(not_forked + wiped + hugetlb);
    let rows = [
        (MappingKind::Ordinary, from, ordinary),
        (MappingKind::NotForked, ReadFrom::StoppedProcess, not_forked),
        (MappingKind::Wiped, ReadFrom::StoppedProcess, wiped),
        (MappingKind::Hugetlb, from, hugetlb),
        (
            MappingKind::NoAccess,
            ReadFrom::Nothing,
            sum(&snapshot.pages.hidden),
        ),
    ];
    let rows = rows.into_iter().filter(|(_, _, bytes)| *bytes > 0);
    rows.map(|(kind, from, bytes)| ReadRow { kind, from, bytes })
        .collect()
}

impl Display for ReadRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            MappingKind::Ordinary => "private memory",
            MappingKind::NotForked => MissingKind::NotForked.name(),
            MappingKind::Wiped => MissingKind::Wiped.name(),
            MappingKind::Hugetlb => "huge pages of hugetlbfs",
            MappingKind::NoAccess => "memory without access (PROT_NONE)",
        };
        let from = match self.from {
            ReadFrom::Child => "read from the copy-on-write child",
            ReadFrom::StoppedProcess => "read from the stopped process",
            ReadFrom::Core => "read from the core",
            ReadFrom::Nothing => "counted, not read",
        };
        write!(f, "{:.1} KiB of {kind}: {from}", self.bytes as f64 / 1024.0)
    }
}
