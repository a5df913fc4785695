//! Event sources: what kinds of memory memprof attributes. One file per source, one registry line.

pub mod kernel_memory;
pub mod page_cache;
pub mod resident;

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use anyhow::Result;

use crate::event::StackId;
use crate::profile::{FileId, Kind, Unobserved, Usage};
use crate::wire::Bss;

/// An event source: the BPF programs that feed its ledger, and what becomes of the ledger in a report.
pub struct Source {
    /// Name in messages and reports.
    pub name: &'static str,
    /// What its figures count.
    pub unit: &'static str,
    /// Programs it cannot do without, by their name in the BPF object.
    pub programs: &'static [&'static str],
    /// Programs whose absence costs detail, not truth.
    pub optional: &'static [&'static str],
    /// Kernel tracepoints that its programs attach to, beyond those that every kernel of memprof's has.
    pub tracepoints: &'static [Tracepoints],
    /// The command-line option that it needs; without one it is always loaded.
    pub option: Option<&'static str>,
    /// The kinds of bytes that it fills in.
    pub kinds: &'static [Kind],
    /// Where its programs keep what they see.
    pub ledger: Ledger,
    /// Adds up what lies in no address space; what lies in one is joined with its scan ([`resident::Join`]).
    pub collect: Option<Collect>,
}

/// Tracepoints of the kernel that are needed for one purpose.
pub struct Tracepoints {
    /// What `memprof doctor` calls them.
    pub check: &'static str,
    /// Their names.
    pub names: &'static [&'static str],
    /// What does not work where one is missing.
    pub consequence: &'static str,
    /// What to do then.
    pub remedy: &'static str,
}

/// Adds up the bytes of a ledger that lie in no address space.
pub type Collect = fn(&dyn ReadLedger, page_size: u64, &mut Totals) -> Result<()>;

/// A BPF hash map whose values name stacks.
pub struct Ledger {
    /// Its name.
    pub map: &'static str,
    /// Maps that are needed for nothing else.
    pub helpers: &'static [&'static str],
    /// How many entries it has, as the probe counts them.
    pub entries: fn(&Bss) -> *const u64,
    /// Entries read at once.
    pub batch: u32,
    /// Which bytes of a value are stack ids, 4 bytes each.
    pub stacks: Range<usize>,
}

/// Reads ledgers.
pub trait ReadLedger {
    /// Gives each entry, key and value, to `each`.
    ///
    /// # Errors
    /// The map could not be read.
    fn read(&self, ledger: &Ledger, each: &mut dyn FnMut(&[u8], &[u8])) -> Result<()>;
}

/// Every source.
pub static SOURCES: [&Source; 3] = [
    &resident::SOURCE,
    &page_cache::SOURCE,
    &kernel_memory::SOURCE,
];

/// The names of all tracepoints that any source needs.
pub fn tracepoints() -> impl Iterator<Item = &'static str> {
    let needed = SOURCES.into_iter().flat_map(|source| source.tracepoints);
    needed.flat_map(|needed| needed.names.iter().copied())
}

/// The sources that are loaded: those that need no option, and those whose option is among these.
pub fn chosen(options: &[&str]) -> Vec<&'static Source> {
    let wanted = |source: &&Source| source.option.is_none_or(|needed| options.contains(&needed));
    SOURCES.into_iter().filter(wanted).collect()
}

/// Bytes per owner: what the sources fill in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// By stack.
    pub stacks: HashMap<StackId, Usage>,
    /// Without a stack, by mapping and reason.
    pub unobserved: BTreeMap<(String, Unobserved), Usage>,
    /// Page cache by file and stack, in bytes.
    pub files: BTreeMap<FileId, HashMap<StackId, u64>>,
    /// Page cache of files for which there was no room, in bytes.
    pub other_files: u64,
}

impl Totals {
    /// Adds bytes under a stack.
    pub fn add_stack(&mut self, id: StackId, usage: Usage) {
        *self.stacks.entry(id).or_default() += usage;
    }

    /// Adds bytes that have no stack.
    pub fn add_unobserved(&mut self, mapping: &str, reason: Unobserved, usage: Usage) {
        // The map cannot be searched for a borrowed pair; there are few such calls, one per run.
        *self
            .unobserved
            .entry((mapping.to_owned(), reason))
            .or_default() += usage;
    }

    /// Adds everything another one holds.
    pub fn merge(&mut self, other: Totals) {
        for (id, usage) in other.stacks {
            self.add_stack(id, usage);
        }
        for (key, usage) in other.unobserved {
            *self.unobserved.entry(key).or_default() += usage;
        }
    }
}
