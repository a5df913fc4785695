//! The heap by stack: which stacks allocated the chunks in use, which keep free memory resident, and which allocated
//! unreachable chunks. Joins sampled allocations with a heap snapshot.
//!
//! - `samples` finds the chunks of the samples.
//! - `holdings` counts exactly what each size class and each sampled chunk holds.
//! - `strata` decides which classes are estimated together, and by which method.
//! - `estimate` divides the bytes of the strata among stacks.
//! - `build` makes the rows (`report`), and `text` prints them.
//!
//! The sum of all rows is the process's anonymous memory.

mod build;
mod estimate;
mod holdings;
mod report;
mod round;
mod samples;
#[cfg(test)]
mod simulation;
mod strata;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod text;

use std::collections::{BTreeSet, HashMap};

pub(super) use holdings::{Holdings, Owner, RangeUse};
pub use report::{
    ByStack, Estimated, EstimatedNumber, FreePagesRow, HeadOf, LeakRow, RestKind, RestRow, StackRow,
};
pub(super) use samples::{Heads, Placed, place};
pub use samples::{HeapSample, HeapSamples, Origin, SampleCounts};

use super::memory::Run;
use super::report::{HeapRegion, OtherRow, RegionRow};
use estimate::{Divided, Quantity, divide};
use memprof_sys::ids::StackId;
use strata::{BY_PINNING, BY_SIZE, Method, Stratum, strata};

/// Live samples joined with a snapshot, before stacks are resolved to names.
#[derive(Clone, Debug)]
pub struct Joint {
    holdings: Holdings,
    heads: Heads,
    counts: SampleCounts,
    origin: Origin,
    /// Strata by chunk size, and by pinned bytes per byte of a chunk.
    strata: [Vec<Stratum>; 2],
    /// Resident bytes of Python's allocator by kind, if none of its blocks was sampled.
    python: Vec<(HeapRegion, u64)>,
    others: Vec<OtherRow>,
    /// Bytes of the allocators' own structures, without the headers of chunks in use.
    own: u64,
    total: u64,
}

impl Joint {
    /// Joins the ledger's sums with the samples. `rows` and `others` are the ledger's.
    pub(super) fn new(
        mut holdings: Holdings,
        heads: Heads,
        counts: SampleCounts,
        origin: Origin,
        rows: &[RegionRow],
        others: &[OtherRow],
    ) -> Joint {
        let is_python = |what: HeapRegion| {
            use HeapRegion::*;
            matches!(what, PythonLive | PythonFree | PythonPools | PythonOverhead)
                && !holdings.has_python
        };
        let (python, heap): (Vec<&RegionRow>, Vec<&RegionRow>) =
            rows.iter().partition(|row| is_python(row.what));
        let python: Vec<(HeapRegion, u64)> = python
            .into_iter()
            .filter(|row| row.resident > 0)
            .map(|row| (row.what, row.resident))
            .collect();
        let heap: u64 = heap.iter().map(|row| row.resident).sum();
        let held: u64 = holdings
            .classes
            .iter()
            .map(|class| class.held.resident + class.held.pinned)
            .sum();
        let free: u64 = holdings.free.iter().map(|free| free.free).sum();
        let total = heap
            + python.iter().map(|(_, bytes)| bytes).sum::<u64>()
            + others.iter().map(|row| row.resident).sum::<u64>();
        // Drop samples whose chunk the ledger did not pass: they have no class.
        holdings.joined.retain(|joined| joined.chunk > 0);
        let complete = origin.from_start && counts.lost == 0;
        Joint {
            strata: strata(&holdings, complete),
            holdings,
            heads,
            counts,
            origin,
            python,
            others: others.to_vec(),
            own: heap.saturating_sub(held + free),
            total,
        }
    }

    /// The stacks that need names.
    pub fn stacks(&self) -> BTreeSet<StackId> {
        let joined = self.holdings.joined.iter();
        joined.map(|joined| joined.placed.sample.stack).collect()
    }

    /// The resident pages without a chunk in use, by address. The caller looks up which stacks made the heap grow
    /// there.
    pub fn free_pages(&self) -> impl Iterator<Item = Run> {
        self.holdings.free.iter().map(|free| free.pages)
    }

    /// Makes the rows, at most `top` of each kind.
    ///
    /// `name` returns the functions of a stack. Stacks with the same names are one row, with the lines of the one whose
    /// samples have most bytes. `grown_by` lists the stacks that brought in the pages without a chunk in use, with their
    /// bytes. It may be incomplete or empty.
    pub fn by_stack<N: Into<StackNames>>(
        &self,
        name: impl Fn(StackId) -> N,
        grown_by: &[(Option<String>, u64)],
        top: usize,
    ) -> ByStack {
        let mut names = Names::default();
        let joined = &self.holdings.joined;
        let mut sampled: HashMap<StackId, u64> = HashMap::new();
        for one in joined {
            *sampled.entry(one.placed.sample.stack).or_default() += one.chunk;
        }
        let by_id: HashMap<StackId, u32> = self
            .stacks()
            .into_iter()
            .map(|stack| (stack, names.add(name(stack).into(), sampled[&stack])))
            .collect();
        let cells: Vec<u32> = joined
            .iter()
            .map(|j| by_id[&j.placed.sample.stack])
            .collect();
        build::build(self, &names.all, &cells, grown_by, top)
    }

    /// Divides the bytes that chunks hold among cells.
    fn divide(&self, cells: &[u32], quantity: &Quantity) -> Divided {
        divide(&self.strata[0], &BY_SIZE, &self.holdings, cells, quantity)
    }

    /// Divides the bytes that chunks pin among cells.
    fn divide_pinned(&self, cells: &[u32], quantity: &Quantity) -> Divided {
        divide(
            &self.strata[1],
            &BY_PINNING,
            &self.holdings,
            cells,
            quantity,
        )
    }

    /// Why the bytes of a stratum belong to no stack.
    fn reason(&self, method: Method) -> RestKind {
        match (method, self.origin.from_start) {
            (Method::TooFew, _) => RestKind::TooFewSamples,
            (_, false) => RestKind::BeforeSampling,
            (_, true) => RestKind::NotSampled,
        }
    }
}

/// The functions of a stack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StackNames {
    /// Their names, outermost first, joined with `;`.
    pub names: String,
    /// For each of them `FILE:LINE`, or the name of its file if no line is known; `None` if the file is not known either.
    pub places: Vec<Option<String>>,
}

impl From<String> for StackNames {
    /// Names of which no place is known.
    fn from(names: String) -> StackNames {
        StackNames {
            names,
            places: Vec::new(),
        }
    }
}

/// Stacks, interned by their names.
#[derive(Default)]
struct Names {
    all: Vec<StackNames>,
    /// The bytes of the stack that gave each of them its places.
    bytes: Vec<u64>,
    numbers: HashMap<String, u32>,
}

impl Names {
    fn add(&mut self, stack: StackNames, bytes: u64) -> u32 {
        let next = self.all.len() as u32;
        let number = *self.numbers.entry(stack.names.clone()).or_insert(next);
        let at = number as usize;
        if number == next {
            self.all.push(stack);
            self.bytes.push(bytes);
        } else if bytes > self.bytes[at] {
            self.all[at].places = stack.places;
            self.bytes[at] = bytes;
        }
        number
    }
}
