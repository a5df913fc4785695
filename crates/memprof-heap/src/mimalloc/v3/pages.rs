//! Reads the pages that the map leads to: the blocks in use, and the lists of free blocks.

use super::super::blocks::{Blocks, Links};
use super::SLICE;
use super::page_map::{Entry, MAX_PAGES};
use crate::memory::Memory;
use crate::spans::{MAX_BLOCKS, Refusal, refuse};

/// Offsets of fields that all releases have in common.
const THREAD: u64 = 0;
const FREE: u64 = 8;
const COUNTS: u64 = 16;
const LOCAL_FREE: u64 = 24;
const THREAD_FREE: u64 = 32;
const BLOCK_SIZE: u64 = 40;
const START: u64 = 48;
/// Bits of the thread's id with another meaning. Only they are set if the page belongs to no thread.
const FLAGS: u64 = 7;

/// Kinds of memory.
const OS: std::ops::RangeInclusive<u32> = 4..=6;
const ARENA: u32 = 7;

/// Offsets in a page's description, by release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    /// Where the page's memory comes from.
    memory: u64,
    /// Whether the address of the first block is relative to the description, in words of 32 bits, rather than absolute.
    is_relative: bool,
    /// The keys of encoded lists.
    keys: Option<u64>,
}

const THIRD: Layout = Layout {
    memory: 96,
    is_relative: false,
    keys: None,
};
const FOURTH: Layout = Layout {
    memory: 88,
    is_relative: true,
    keys: None,
};

/// The known layouts: 3.0 to 3.3 and later releases, without keys, with keys for encoded lists, with keys for padding alone.
const LAYOUTS: [Layout; 7] = [
    THIRD,
    FOURTH,
    Layout {
        memory: 112,
        keys: Some(56),
        ..THIRD
    },
    // 3.0 and 3.1.
    Layout {
        memory: 112,
        keys: Some(64),
        ..THIRD
    },
    Layout {
        memory: 104,
        keys: Some(56),
        ..FOURTH
    },
    Layout {
        memory: 112,
        ..THIRD
    },
    Layout {
        memory: 104,
        ..FOURTH
    },
];

/// Maximum number of entries to examine for the layout.
const TRIED: usize = 64;

/// A page.
#[derive(Debug)]
pub(super) struct Page {
    pub blocks: Blocks,
    /// The arena with its memory; `None` if its memory was mapped for it alone.
    pub arena: Option<u64>,
    /// Id of the thread that owns it; 0 if none does.
    pub thread: u64,
}

/// Where a page's memory is.
#[derive(Clone, Copy, Debug)]
struct Place {
    start: u64,
    end: u64,
    arena: Option<u64>,
}

impl Layout {
    /// The memory of the page that is described at `page`.
    fn place(&self, memory: &Memory, page: u64) -> Option<Place> {
        let at = page.checked_add(self.memory)?;
        let (base, size) = (memory.word(at)?, memory.word(at + 8)?);
        let kind = memory.half(at + 16)?;
        let (start, size, arena) = match kind {
            ARENA => (
                base.checked_add((size & 0xffff_ffff) * SLICE)?,
                (size >> 32) * SLICE,
                Some(base),
            ),
            _ if OS.contains(&kind) => (base, size, None),
            _ => return None,
        };
        let end = start.checked_add(size)?;
        Some(Place { start, end, arena })
    }

    /// Address of the first block.
    fn first(&self, memory: &Memory, page: u64) -> Option<u64> {
        let start = memory.word(page.checked_add(START)?)?;
        match self.is_relative {
            true => page.checked_add((start & 0xffff_ffff) * 8),
            false => Some(start),
        }
    }

    /// Whether the description names the memory for which the map leads to it. The map has all slices of a page, or those
    /// from its first block on.
    fn fits(&self, memory: &Memory, entry: &Entry) -> bool {
        let place = self.place(memory, entry.page);
        let first = self.first(memory, entry.page);
        place.zip(first).is_some_and(|(place, first)| {
            (place.start..=first).contains(&entry.start) && first < place.end.min(entry.end)
        })
    }

    /// The page of an entry, with at most `left` blocks.
    fn page(&self, memory: &Memory, entry: &Entry, left: &mut usize) -> Result<Page, Refusal> {
        let wrong = || {
            Refusal(format!(
                "the description of the page at {:#x} cannot be right",
                entry.start
            ))
        };
        if !self.fits(memory, entry) {
            return Err(wrong());
        }
        let word = |offset| {
            let at = entry.page.checked_add(offset);
            at.and_then(|at| memory.word(at)).ok_or_else(wrong)
        };
        let place = self.place(memory, entry.page).ok_or_else(wrong)?;
        let first = self.first(memory, entry.page).ok_or_else(wrong)?;
        let links = match self.keys {
            Some(offset) => Links::encoded(memory, entry.page + offset, entry.page),
            None => Some(Links::Plain),
        };
        let counts = word(COUNTS)?;
        let (used, capacity) = (counts & 0xffff, counts >> 16 & 0xffff);
        let blocks = Blocks::new(
            (place.start, place.end),
            (first, word(BLOCK_SIZE)?),
            (capacity, counts >> 32 & 0xffff),
            links.ok_or_else(wrong)?,
            left,
        );
        let mut blocks = blocks.ok_or_else(wrong)?;
        blocks.free(
            memory,
            [word(FREE)?, word(LOCAL_FREE)?],
            word(THREAD_FREE)?,
            used,
        )?;
        Ok(Page {
            blocks,
            arena: place.arena,
            thread: word(THREAD)? & !FLAGS,
        })
    }
}

/// Whether the map's entry leads to a description of some layout.
pub(super) fn is_page(memory: &Memory, entry: &Entry) -> bool {
    LAYOUTS.iter().any(|layout| layout.fits(memory, entry))
}

/// Reads all pages.
pub(super) fn read(memory: &Memory, entries: &[Entry]) -> Result<Vec<Page>, Refusal> {
    if entries.len() > MAX_PAGES {
        return refuse!("it has more than {MAX_PAGES} pages");
    }
    // The first layout that fits most pages has the likeliest reason.
    let tried = &entries[..entries.len().min(TRIED)];
    let mut first = None;
    for layout in LAYOUTS {
        let fit = tried.iter().filter(|entry| layout.fits(memory, entry));
        if 2 * fit.count() <= tried.len() {
            continue;
        }
        let mut left = MAX_BLOCKS;
        let pages = entries
            .iter()
            .map(|entry| layout.page(memory, entry, &mut left));
        match pages.collect() {
            Ok(pages) => return Ok(pages),
            Err(refusal) => first = first.or(Some(refusal)),
        }
    }
    match first {
        Some(refusal) => Err(refusal),
        None => refuse!("the map of its pages was found, but their layout is not known"),
    }
}
