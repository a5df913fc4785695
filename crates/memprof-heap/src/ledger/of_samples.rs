//! Sums of what chunks hold, for the join with samples.

use super::super::all_heaps::AllHeaps;
use super::super::by_stack::{self, Heads, HeapSamples, Holdings, Joint, Owner, Placed};
use super::super::chunks::ChunkKind;
use super::super::python::PythonMemory;
use super::super::snapshot::Snapshot;
use super::Ledger;
use memprof_sys::residency::{Category, page_size};

impl Ledger<'_> {
    /// Also sums what each size class and each of these sampled chunks holds. `interval` is the mean number of bytes
    /// between samples, if known.
    pub(super) fn hold(&mut self, placed: &[Placed], interval: Option<u64>) {
        self.holdings = Some(Holdings::new(page_size(), placed, interval));
    }

    /// Directs the next bytes to a chunk in use: its kind, its size for the size class, and its contents.
    pub(super) fn begin_object(
        &mut self,
        owner: Owner,
        kind: ChunkKind,
        size: u64,
        (start, end): (u64, u64),
    ) {
        if let Some(holdings) = &mut self.holdings {
            holdings.begin(owner, kind, size, start, end.saturating_sub(start));
        }
    }

    pub(super) fn end_object(&mut self) {
        if let Some(holdings) = &mut self.holdings {
            holdings.end();
        }
    }

    /// Also sums what Python's blocks hold, if any of them was sampled.
    pub(super) fn hold_python(&mut self, pymalloc: &PythonMemory) {
        if let Some(holdings) = &mut self.holdings
            && holdings.begin_python(pymalloc.ranges())
        {
            pymalloc.hold(&self.pages, holdings);
        }
    }

    /// Completes the current page.
    pub(super) fn finish_pages(&mut self) {
        self.occupancy.finish(&mut self.sizes);
        if let Some(holdings) = &mut self.holdings {
            holdings.finish();
        }
    }
}

/// Joins samples with heaps that `reach` has searched. `categories` are those of the snapshot's mappings.
pub(crate) fn join(
    snapshot: &Snapshot,
    heaps: &AllHeaps,
    categories: &[Category],
    samples: &HeapSamples,
    heads: Heads,
) -> Joint {
    let (placed, counts) = by_stack::place(heaps, None, samples);
    let mut ledger = Ledger::new(snapshot, 1);
    ledger.hold(&placed, samples.origin.interval);
    ledger.add_heaps(heaps);
    let (rows, others) = (ledger.rows(), ledger.others(categories));
    let holdings = ledger.holdings.take().unwrap_or_default();
    Joint::new(holdings, heads, counts, samples.origin, &rows, &others)
}
