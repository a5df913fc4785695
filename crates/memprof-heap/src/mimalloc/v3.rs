//! Release 3 of mimalloc.
//!
//! A map of two levels, whose address is in the module's data, leads from each slice of 64 KiB to the description of its
//! page (`page_map`). A page has blocks of one size (`pages`). Its memory is a part of an arena, or was mapped for it
//! alone. An arena begins with bitmaps of its slices (`arenas`).
//!
//! Every structure is verified: a page's description names the memory for which the map leads to it; the blocks in use
//! and the lists of free blocks add up to the blocks that were handed out; an arena's bitmaps lie side by side, none of
//! its pages is on free slices, and each page that a bitmap has is in the map.
//!
//! Layouts: 3.0 to 3.4, according to `types.h`, 64-bit, with slices of 64 KiB and the map of two levels.

mod arenas;
mod page_map;
mod pages;

use std::collections::BTreeSet;

use crate::jemalloc::is_mapped;
use crate::memory::Memory;
use crate::spans::{Refusal, SpanMap, refuse};
use memprof_sys::residency::Vma;

/// Size of a slice, in bytes.
const SLICE: u64 = 64 << 10;

/// Reads the heaps of all copies of mimalloc in the process. `None` if there is none.
///
/// # Errors
/// The structures are inconsistent.
pub(super) fn read(memory: &Memory, vmas: &[Vma]) -> Result<Option<SpanMap>, Refusal> {
    let maps = page_map::find(memory, vmas);
    let Some(first) = maps.first() else {
        return Ok(None);
    };
    let mut map = SpanMap::new("3");
    first.module.clone_into(&mut map.module);
    let mut threads = BTreeSet::new();
    for page_map in &maps {
        page_map.add_to(&mut map);
        let mut pages = pages::read(memory, &page_map.entries)?;
        pages.sort_unstable_by_key(|page| page.blocks.start);
        arenas::read(memory, vmas, &pages, &mut map)?;
        map.spans += pages.len() as u64;
        for page in pages {
            let (start, end) = (page.blocks.start, page.blocks.end);
            if page.arena.is_none() && !is_mapped(vmas, start, end) {
                return refuse!("the page at {start:#x} is not mapped");
            }
            threads.insert(page.thread);
            page.blocks.add_to(&mut map)?;
        }
    }
    // Pages of threads that have ended have none.
    threads.remove(&0);
    map.caches = threads.len() as u64;
    Ok(Some(map))
}
