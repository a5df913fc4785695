//! Event sources: what kinds of memory memprof attributes. One file per source, one registry line.

pub mod kernel_memory;
pub mod page_cache;
pub mod resident;

use std::collections::{BTreeMap, HashMap};

use crate::event::StackId;
use crate::profile::{FileId, MappedBytes, Unobserved, Usage};

/// An event source: its name and the BPF programs that feed its ledger.
#[derive(Debug)]
pub struct Source {
    /// Name in messages and reports.
    pub name: &'static str,
    /// What its figures count.
    pub unit: &'static str,
    /// Programs it cannot do without, by their name in memprof.bpf.c.
    pub programs: &'static [&'static str],
    /// Programs whose absence costs detail, not truth.
    pub optional: &'static [&'static str],
    /// Loaded only where it is asked for ([`ProbeConfig::kernel`](crate::probe::ProbeConfig)).
    pub opt_in: bool,
}

/// Every source.
pub const SOURCES: &[&Source] = &[
    &resident::SOURCE,
    &page_cache::SOURCE,
    &kernel_memory::SOURCE,
];

/// Bytes per owner: what the sources fill in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Books {
    /// By stack.
    pub stacks: HashMap<StackId, Usage>,
    /// Without a stack, by mapping and reason.
    pub unobserved: BTreeMap<(String, Unobserved), Usage>,
    /// What was added of the mapping in hand; whoever goes on to the next one takes it.
    pub mapping: MappedBytes,
    /// Page cache by file and stack, in bytes.
    pub files: BTreeMap<FileId, HashMap<StackId, u64>>,
    /// Page cache of files for which there was no room, in bytes.
    pub other_files: u64,
}

impl Books {
    /// Adds bytes under a stack.
    pub fn add_stack(&mut self, id: StackId, usage: Usage) {
        *self.stacks.entry(id).or_default() += usage;
    }

    /// Adds bytes that have no stack.
    pub fn add_unobserved(&mut self, mapping: &str, reason: Unobserved, usage: Usage) {
        // A lookup by a borrowed pair is not to be had; there are few such calls, one per run.
        *self
            .unobserved
            .entry((mapping.to_owned(), reason))
            .or_default() += usage;
    }

    /// Adds everything another one holds.
    pub fn merge(&mut self, other: Books) {
        for (id, usage) in other.stacks {
            self.add_stack(id, usage);
        }
        for (key, usage) in other.unobserved {
            *self.unobserved.entry(key).or_default() += usage;
        }
    }
}
