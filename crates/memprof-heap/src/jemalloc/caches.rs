//! Thread caches: stacks of free regions per size class, which the slabs count as in use.
//!
//! The descriptors of a cache's stacks are thread-local data. All caches of an arena form a ring, so that one leads
//! to the others. Builds without statistics (`--disable-stats`, as the Rust crate's default) have no rings: memprof finds
//! the caches of threads there, and none that a program made itself.

use std::collections::HashSet;

use super::super::chunks::ChunkKind;
use super::super::memory::Memory;
use super::Regions;
use super::layout::{Caches, Layout};
use super::{Refusal, classes};
use memprof_sys::freeze::Registers;

/// Search range for a thread's variables below its thread pointer, in bytes.
const THREAD_LOCAL: u64 = 64 << 10;
/// Size of a stack descriptor, in bytes.
const STACK: u64 = 24;
/// Minimum number of stacks in a cache.
const LEAST: usize = 8;
/// Maximum number of caches.
const MAX_CACHES: usize = 1 << 20;
/// Maximum size of a stack, in bytes.
const MAX_STACK: u64 = 1 << 16;

/// Offset of the pointer to the stack descriptors, from the link of an arena's ring of caches.
const STACKS: u64 = 16;
/// Offset of the ring's link in the slow part of a cache (5.3). The word in front of the stack descriptors points to
/// that part.
const LINK: u64 = 16;
/// Offset in the slow part of the address of that word.
const OWNER: u64 = 168;
/// Offsets of the ring's link from the stack descriptors, after those of the small classes: 5.2 and 5.1.
const LINKS_BEHIND: [u64; 2] = [classes::SMALL * STACK + 40, classes::SMALL * STACK + 16];

/// A thread cache.
#[derive(Debug)]
struct Cache {
    /// Address of its link in the ring, if it is in one.
    link: Option<u64>,
    /// The stack of each class: the class, and the address range of its pointers to free regions.
    stacks: Vec<(u64, u64, u64)>,
    /// First address and end of all stacks.
    bounds: (u64, u64),
}

/// Finds all caches and marks the regions in them. Returns the number of caches.
pub(super) fn read(
    memory: &Memory,
    threads: &[Registers],
    layout: &Layout,
    regions: &mut Regions,
) -> Result<usize, Refusal> {
    let mut known = HashSet::new();
    for thread in threads {
        let start = thread.thread_pointer.saturating_sub(THREAD_LOCAL) / 8 * 8;
        for at in (start..thread.thread_pointer).step_by(8) {
            let Some(cache) = cache(memory, layout, at).filter(|_| !known.contains(&at)) else {
                continue;
            };
            known.insert(at);
            note(memory, regions, at, &cache)?;
            ring(memory, layout, regions, &cache, &mut known)?;
        }
    }
    Ok(known.len())
}

/// Reads the other caches of the same arena.
fn ring(
    memory: &Memory,
    layout: &Layout,
    regions: &mut Regions,
    first: &Cache,
    known: &mut HashSet<u64>,
) -> Result<(), Refusal> {
    let Some(first) = first.link else {
        return Ok(());
    };
    let mut link = first;
    for _ in 0..MAX_CACHES {
        let next = memory.word(link).ok_or(Refusal::Cache(link))?;
        if next == first {
            return Ok(());
        }
        let at = memory.word(next.saturating_add(STACKS));
        let at = at.ok_or(Refusal::Cache(next))?;
        if known.insert(at) {
            let cache = cache(memory, layout, at).filter(|cache| cache.link == Some(next));
            note(memory, regions, at, &cache.ok_or(Refusal::Cache(at))?)?;
        }
        link = next;
    }
    Err(Refusal::Cache(first))
}

/// The cache whose stack descriptors begin at this address.
fn cache(memory: &Memory, layout: &Layout, at: u64) -> Option<Cache> {
    match layout.caches {
        Caches::Heads => heads(memory, at),
        Caches::Counts => counts(memory, at),
    }
}

fn heads(memory: &Memory, at: u64) -> Option<Cache> {
    let slow = memory.word(at.checked_sub(8)?)?;
    let link = slow.checked_add(LINK)?;
    let is_linked = memory.word(link.checked_add(STACKS)?)? == at;
    if !is_linked && memory.word(slow.checked_add(OWNER)?)? != at - 8 {
        return None;
    }
    let mut cache = Cache {
        link: is_linked.then_some(link),
        stacks: Vec::new(),
        bounds: (0, 0),
    };
    for class in 0..classes::COUNT {
        let head = memory.word(at + STACK * class)?;
        let ends = memory.word(at + STACK * class + 16)?;
        if head == 0 {
            break;
        }
        let low = |shift: u32| (ends >> shift) as u16;
        let (above, below) = (
            low(32).wrapping_sub(head as u16),
            (head as u16).wrapping_sub(low(16)),
        );
        // This class is not cached.
        if (above, below) == (0, 0) {
            continue;
        }
        let first = head.checked_sub(u64::from(below))?;
        let end = head.checked_add(u64::from(above))?;
        if cache.stacks.is_empty() {
            cache.bounds.0 = first;
        } else if cache.bounds.1 != first {
            // The last stack was the previous one.
            break;
        }
        if head % 8 != 0 || end % 8 != 0 {
            return None;
        }
        cache.bounds.1 = end;
        cache.stacks.push((class, head, end));
    }
    (cache.stacks.len() >= LEAST).then_some(cache)
}

fn counts(memory: &Memory, at: u64) -> Option<Cache> {
    let mut links = LINKS_BEHIND
        .into_iter()
        .filter_map(|link| at.checked_add(link));
    let link = links.find(|link| {
        let stacks = link.checked_add(STACKS);
        stacks.and_then(|stacks| memory.word(stacks)) == Some(at)
    })?;
    let large = memory.word(link.checked_add(STACKS + 8)?)?;
    let mut cache = Cache {
        link: Some(link),
        stacks: Vec::new(),
        bounds: (0, 0),
    };
    for class in 0..classes::COUNT {
        let stack = match class.checked_sub(classes::SMALL) {
            None => at + STACK * class,
            Some(index) => large.checked_add(STACK * index)?,
        };
        let count = memory.word(stack)? >> 32;
        let end = memory.word(stack + 16)?;
        let room = end.wrapping_sub(cache.bounds.1);
        let is_first = cache.stacks.is_empty();
        if !is_first && (room == 0 || room > MAX_STACK) {
            break;
        }
        let first = end.checked_sub(8 * count)?;
        if end % 8 != 0 || 8 * count > if is_first { MAX_STACK } else { room } {
            return None;
        }
        if is_first {
            cache.bounds.0 = end.checked_sub(8)?;
        }
        cache.bounds.1 = end;
        cache.stacks.push((class, first, end));
    }
    (cache.stacks.len() as u64 >= classes::SMALL).then_some(cache)
}

/// Marks the regions in a cache as free, and the region that contains its stacks as jemalloc's own.
fn note(memory: &Memory, regions: &mut Regions, at: u64, cache: &Cache) -> Result<(), Refusal> {
    let wrong = || Refusal::Cache(at);
    // With `metadata_thp`, the stacks are in one of jemalloc's own blocks instead.
    if let Some(own) = regions.containing(cache.bounds.0) {
        let end = regions.place(own).1;
        if regions.kind(own) != ChunkKind::Live || end < cache.bounds.1 {
            return Err(wrong());
        }
        regions.set(own, ChunkKind::Own);
    }
    for (class, start, end) in &cache.stacks {
        for at in (*start..*end).step_by(8) {
            let address = memory.word(at).ok_or_else(wrong)?;
            let region = regions.containing(address).ok_or_else(wrong)?;
            let (first, end) = regions.place(region);
            let fits = first == address
                && end - first == classes::size(*class)
                && regions.kind(region) == ChunkKind::Live;
            if !fits {
                return Err(wrong());
            }
            regions.set(region, ChunkKind::Tcache);
        }
    }
    Ok(())
}
