//! Event sources: the kinds of memory that memprof attributes, with one file and one registry line per source.

pub mod exact;
pub mod kernel_memory;
pub mod page_cache;
pub mod resident_pages;
pub mod samples;
mod uncertainties;

pub use uncertainties::{Divided, Group, StackPart, Uncertainties};

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use anyhow::Result;

use crate::probe::faults;
use crate::probe::wire::Bss;
use memprof_profile::measure::{ColumnId, Measure};
use memprof_profile::{Amounts, Unobserved};
use memprof_sys::file_id::FileId;
use memprof_sys::ids::StackId;

/// An event source: the BPF programs that fill its ledger, and how a report uses the ledger.
pub struct Source {
    /// Name in messages and reports.
    pub name: &'static str,
    /// Required programs, by their name in the BPF object.
    pub programs: &'static [&'static str],
    /// Required programs that run at every page fault; not loaded if no fault's stack is walked (`--stacks off`).
    pub at_faults: &'static [&'static str],
    /// Optional programs: without them figures have less detail, but stay correct.
    pub optional: &'static [&'static str],
    /// Kernel tracepoints that its programs attach to, except tracepoints that every supported kernel has.
    pub tracepoints: &'static [Tracepoints],
    /// The measure that it fills.
    pub measure: &'static Measure,
    /// The command-line option that enables the source; `None` if it is always loaded.
    pub option: Option<&'static str>,
    /// Programs that are attached later, to what user space finds in a process.
    pub on_demand: &'static [&'static str],
    /// Maps that only its programs need, besides the ledger.
    pub maps: &'static [&'static str],
    /// Where its programs record their data; `None` if they send events instead.
    pub ledger: Option<&'static Ledger>,
    /// Sums up memory outside address spaces. Memory in an address space is joined with its scan (`collect::resident::Join`).
    pub collect: Option<Collect>,
}

/// Kernel tracepoints needed for one purpose.
pub struct Tracepoints {
    /// The tracepoints' name in `memprof doctor`.
    pub check: &'static str,
    /// The tracepoints' names in the kernel.
    pub names: &'static [&'static str],
    /// The consequence of a missing tracepoint.
    pub consequence: &'static str,
    /// The remedy for a missing tracepoint.
    pub remedy: &'static str,
}

/// Sums up the bytes of a ledger that lie in no address space.
pub type Collect = fn(&dyn ReadLedger, page_size: u64, &mut Totals) -> Result<()>;

/// A BPF hash map whose values name stacks.
pub struct Ledger {
    /// The map's name.
    pub map: &'static str,
    /// The probe's counter of its entries.
    pub entries: fn(&Bss) -> *const u64,
    /// Entries per read.
    pub batch: u32,
    /// Which bytes of a value are stack ids, 4 bytes each.
    pub stacks: Range<usize>,
}

/// Reads ledgers.
pub trait ReadLedger {
    /// Calls `each` with the key and value of each entry.
    ///
    /// # Errors
    /// If the map cannot be read.
    fn read(&self, ledger: &Ledger, each: &mut dyn FnMut(&[u8], &[u8])) -> Result<()>;
}

/// All sources.
pub static SOURCES: [&Source; 5] = [
    &resident_pages::SOURCE,
    &page_cache::SOURCE,
    &kernel_memory::SOURCE,
    &samples::SOURCE,
    &exact::SOURCE,
];

/// The names of all tracepoints that a source needs, or uses if the kernel has them.
pub fn tracepoints() -> impl Iterator<Item = &'static str> {
    let needed = SOURCES.into_iter().flat_map(|source| source.tracepoints);
    let needed = needed.flat_map(|needed| needed.names.iter().copied());
    needed.chain(faults::TRACEPOINTS)
}

/// The sources to load: sources that need no option, and sources whose option is given.
pub fn chosen(options: &[&str]) -> Vec<&'static Source> {
    let wanted = |source: &&Source| source.option.is_none_or(|needed| options.contains(&needed));
    SOURCES.into_iter().filter(wanted).collect()
}

/// Figures per owner, as the sources provide them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Totals {
    /// Figures with a stack.
    pub stacks: HashMap<StackId, Amounts>,
    /// Figures without a stack, by mapping and reason.
    pub unobserved: BTreeMap<(String, Unobserved), Amounts>,
    /// Page cache by file and stack, in bytes.
    pub files: BTreeMap<FileId, HashMap<StackId, u64>>,
    /// Page cache of files that did not fit into `files`, in bytes.
    pub other_files: u64,
    /// Remainder of proportional shares that is in no figure yet, in 1/4096 of a byte.
    pub share_rest: u64,
    /// The errors of figures with a stack.
    pub uncertainties: Uncertainties,
    /// The variances of estimates in columns, in the column's unit squared.
    pub variances: HashMap<(StackId, ColumnId), f64>,
}

impl Totals {
    /// Adds figures under a stack.
    pub fn add_stack(&mut self, id: StackId, amounts: impl Into<Amounts>) {
        *self.stacks.entry(id).or_default() += amounts.into();
    }

    /// Adds figures that have no stack.
    pub fn add_unobserved(
        &mut self,
        mapping: &str,
        reason: Unobserved,
        amounts: impl Into<Amounts>,
    ) {
        // The map cannot be searched by a borrowed pair. Calls are rare, one per run of pages.
        *self
            .unobserved
            .entry((mapping.to_owned(), reason))
            .or_default() += amounts.into();
    }

    /// Adds the figures per owner of another value, except its page cache by file.
    pub fn merge(&mut self, other: Totals) {
        for (id, amounts) in other.stacks {
            self.add_stack(id, amounts);
        }
        for (key, amounts) in other.unobserved {
            *self.unobserved.entry(key).or_default() += amounts;
        }
        self.uncertainties.merge(other.uncertainties);
        for (key, variance) in other.variances {
            *self.variances.entry(key).or_default() += variance;
        }
    }
}
