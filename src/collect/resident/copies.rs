//! Copies of the page records of a frozen process, joined with its pages after its release.

use std::cell::RefCell;

use anyhow::Result;
use rustc_hash::FxHashMap;

use super::{Loaded, SpaceView, in_chunks};
use crate::probe::source::resident_pages::{Chunk, PageLedger};
use crate::probe::wire::CHUNK_PAGES;
use memprof_sys::ids::MmId;
use memprof_sys::residency::PageRun;

/// Copies of chunks of a ledger.
#[derive(Debug, Default)]
pub struct Copies {
    chunks: FxHashMap<(MmId, u64), Option<Records>>,
    bytes: usize,
}

/// The records of a chunk. Neighbouring pages usually have the same stack.
#[derive(Debug)]
enum Records {
    /// Records, each with the number of consecutive pages that have it.
    Runs(Box<[(u32, u16)]>),
    Pages(Box<Chunk>),
}

impl Records {
    fn from_chunk(chunk: &Chunk) -> Records {
        let runs = chunk.chunk_by(|a, b| a == b);
        let runs: Vec<(u32, u16)> = runs.map(|run| (run[0], run.len() as u16)).collect();
        match size_of_val(&*runs) < size_of_val(chunk) {
            true => Records::Runs(runs.into()),
            false => Records::Pages(Box::new(*chunk)),
        }
    }

    fn chunk(&self) -> Chunk {
        match self {
            Records::Pages(chunk) => **chunk,
            Records::Runs(runs) => {
                let mut chunk = [0; CHUNK_PAGES];
                let mut rest = &mut chunk[..];
                for (stack, pages) in runs {
                    let (run, after) = rest.split_at_mut(usize::from(*pages));
                    run.fill(*stack);
                    rest = after;
                }
                chunk
            }
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Records::Pages(chunk) => size_of_val(&**chunk),
            Records::Runs(runs) => size_of_val(&**runs),
        }
    }
}

impl Copies {
    /// Size of the copies in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Removes all copies.
    pub fn clear(&mut self) {
        *self = Copies::default();
    }

    fn insert(&mut self, key: (MmId, u64), chunk: Option<&Chunk>) {
        let records = chunk.map(Records::from_chunk);
        let entry = size_of::<((MmId, u64), Option<Records>)>();
        self.bytes += entry + records.as_ref().map_or(0, Records::bytes);
        self.chunks.insert(key, records);
    }
}

impl PageLedger for RefCell<Copies> {
    fn chunk(&self, mm: MmId, chunk: u64) -> Result<Option<Chunk>> {
        let copies = self.borrow();
        let records = copies.chunks.get(&(mm, chunk));
        Ok(records.and_then(|records| Some(records.as_ref()?.chunk())))
    }
}

/// Copies the chunks that a [`Join`](super::Join) of the same pages reads.
pub struct Copier<'a, L> {
    from: Copying<'a, L>,
    space: SpaceView<'a>,
    loaded: Loaded,
}

/// A ledger that copies every chunk that is read from it.
struct Copying<'a, L> {
    ledger: &'a L,
    copies: &'a RefCell<Copies>,
}

impl<L: PageLedger> PageLedger for Copying<'_, L> {
    fn chunk(&self, mm: MmId, chunk: u64) -> Result<Option<Chunk>> {
        let found = self.ledger.chunk(mm, chunk)?;
        let mut copies = self.copies.borrow_mut();
        copies.insert((mm, chunk), found.as_ref());
        Ok(found)
    }
}

impl<'a, L: PageLedger> Copier<'a, L> {
    /// Copies records of one address space to `copies`.
    pub fn new(ledger: &'a L, space: SpaceView<'a>, copies: &'a RefCell<Copies>) -> Copier<'a, L> {
        Copier {
            from: Copying { ledger, copies },
            space,
            loaded: Loaded::default(),
        }
    }

    /// Copies the records of these pages. Runs must come in address order.
    ///
    /// # Errors
    /// If the ledger cannot be read.
    pub fn add(&mut self, run: PageRun) -> Result<()> {
        in_chunks(run, self.space.page_size)
            .try_for_each(|(chunk, part)| self.loaded.load(&self.from, &self.space, chunk, part))
    }
}
