//! The records of the pages of a frozen process, copied while it stands still, and joined with its pages after its release.

use std::cell::RefCell;

use anyhow::Result;
use rustc_hash::FxHashMap;

use super::{Chunk, Loaded, PageLedger, SpaceView, in_chunks};
use crate::event::MmId;
use crate::residency::PageRun;

/// Copies of chunks of a ledger.
#[derive(Debug, Default)]
pub struct Copies(FxHashMap<(MmId, u64), Option<Box<Chunk>>>);

impl PageLedger for Copies {
    fn chunk(&self, mm: MmId, chunk: u64) -> Result<Option<Chunk>> {
        let copy = self.0.get(&(mm, chunk));
        Ok(copy.and_then(|copy| copy.as_deref().copied()))
    }
}

/// Copies the chunks that a [`Join`](super::Join) of the same pages reads.
pub struct Copier<'a, L> {
    from: Copying<'a, L>,
    space: SpaceView<'a>,
    loaded: Loaded,
}

/// A ledger that keeps a copy of what is read from it.
struct Copying<'a, L> {
    ledger: &'a L,
    copies: RefCell<Copies>,
}

impl<L: PageLedger> PageLedger for Copying<'_, L> {
    fn chunk(&self, mm: MmId, chunk: u64) -> Result<Option<Chunk>> {
        let found = self.ledger.chunk(mm, chunk)?;
        let mut copies = self.copies.borrow_mut();
        copies.0.insert((mm, chunk), found.map(Box::new));
        Ok(found)
    }
}

impl<'a, L: PageLedger> Copier<'a, L> {
    /// Copies records of one address space.
    pub fn new(ledger: &'a L, space: SpaceView<'a>) -> Copier<'a, L> {
        let copies = RefCell::default();
        Copier {
            from: Copying { ledger, copies },
            space,
            loaded: Loaded::default(),
        }
    }

    /// Copies the records of these pages. Runs come in the order of their addresses.
    ///
    /// # Errors
    /// If the ledger cannot be read.
    pub fn add(&mut self, run: PageRun) -> Result<()> {
        in_chunks(run, self.space.page_size)
            .try_for_each(|(chunk, part)| self.loaded.load(&self.from, &self.space, chunk, part))
    }

    /// The number of chunks so far, of 2 KiB each.
    pub fn chunks(&self) -> usize {
        self.from.copies.borrow().0.len()
    }

    /// The copies.
    pub fn finish(self) -> Copies {
        self.from.copies.into_inner()
    }
}
