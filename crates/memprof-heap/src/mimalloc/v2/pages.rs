//! Reads the pages of all segments: the blocks in use, and the lists of free blocks.

use std::collections::HashMap;

use super::super::blocks::{Blocks, Links};
use super::layout::{BlockSize, CAPACITY, FREE, HUGE_BLOCK, Layout, SLICE, SLICE_COUNT, Start};
use super::segments::Segment;
use crate::chunks::ChunkKind;
use crate::memory::Memory;
use crate::spans::{MAX_BLOCKS, Refusal, SpanMap, refuse};

/// Maximum number of blocks in a heap's list of blocks that other threads freed.
const MAX_DELAYED: usize = 1 << 28;
/// Offsets at which a heap may have that list: in later and in earlier releases, without and with padding of blocks. The
/// thread's id follows.
const DELAYED: [u64; 3] = [8, 2840, 2848];
/// Offset of a heap's keys from that list.
const HEAP_KEYS: u64 = 32;

/// Reads all pages.
pub(super) fn read(
    memory: &Memory,
    segments: &[Segment],
    layout: &Layout,
) -> Result<SpanMap, Refusal> {
    let mut map = SpanMap::new("2");
    // Pages by address.
    let mut pages: Vec<Blocks> = Vec::new();
    let mut left = MAX_BLOCKS;
    // The thread of each heap.
    let mut heaps: HashMap<u64, u64> = HashMap::new();
    // Whether the number of pages and the cookie may be in the first or second place: all cookies are equal, and are not
    // the pointers of an empty list.
    let mut places = [0, 1].map(|place| {
        let mut cookies = segments.iter().map(|segment| segment.used[place].1);
        let first = cookies.next();
        let null = segments[0].start;
        first != Some(null) && cookies.all(|cookie| Some(cookie) == first)
    });
    for segment in segments {
        let mut used = 0;
        map.add_own(segment.start, segment.start + segment.info * SLICE);
        // mimalloc keeps segments without pages for a while, whose descriptions are stale.
        let counts = places.iter().zip(segment.used).filter(|(fits, _)| **fits);
        if segments.len() > 1
            && counts.clone().count() > 0
            && counts.clone().all(|(_, used)| used.0 == 0)
        {
            map.add_free(segment.start + segment.info * SLICE, segment.end());
            continue;
        }
        let (mut index, mut spans) = (segment.info, Vec::new());
        while index < segment.entries {
            let at = segment.table + index * layout.size;
            let start = segment.start + index * SLICE;
            let count = memory.half(at + SLICE_COUNT).unwrap_or(0).max(1);
            let end = start + u64::from(count) * SLICE;
            index += u64::from(count);
            match block_size(memory, layout, at, end - start) {
                None => return refuse!("the page at {start:#x} was not copied"),
                Some(0) => spans.push((start, end)),
                Some(size) => {
                    used += 1;
                    pages.push(page(memory, layout, at, (start, end), size, &mut left)?);
                    if let Some(heap) = memory.word(at + layout.heap).filter(|heap| *heap != 0) {
                        let thread = heaps.entry(heap).or_default();
                        *thread = segment.thread.max(*thread);
                    }
                }
            }
        }
        map.add_own(segment.start + index * SLICE, segment.end());
        for (place, (said, _)) in places.iter_mut().zip(segment.used) {
            *place &= said == used;
        }
        if places == [false, false] {
            return refuse!(
                "the segment at {:#x} has {used} pages in use, and it counts {}",
                segment.start,
                segment.used[0].0
            );
        }
        for (start, end) in spans {
            map.add_free(start, end);
        }
    }
    map.caches = heaps.len() as u64;
    // A segment with one large page belongs to no thread, and no other thread's free is put into a list.
    for (heap, thread) in heaps.into_iter().filter(|(_, thread)| *thread != 0) {
        delayed(memory, layout, heap, thread, &mut pages)?;
    }
    map.spans = pages.len() as u64;
    for page in pages {
        page.add_to(&mut map)?;
    }
    Ok(map)
}

/// Size of the blocks of the page that is described at `at`; 0 if the slices are free.
fn block_size(memory: &Memory, layout: &Layout, at: u64, page: u64) -> Option<u64> {
    Some(match layout.block_size {
        BlockSize::Word(offset) => memory.word(at + offset)?,
        BlockSize::Half(offset) => match u64::from(memory.half(at + offset)?) {
            HUGE_BLOCK => page,
            size => size,
        },
    })
}

fn page(
    memory: &Memory,
    layout: &Layout,
    at: u64,
    (start, end): (u64, u64),
    size: u64,
    left: &mut usize,
) -> Result<Blocks, Refusal> {
    let wrong = || {
        Refusal(format!(
            "the description of the page at {start:#x} cannot be right"
        ))
    };
    let word = |offset| memory.word(at + offset).ok_or_else(wrong);
    let (counts, free) = (word(CAPACITY)?, word(FREE)?);
    let (capacity, reserved) = ((counts >> 16) & 0xffff, (counts >> 32) & 0xffff);
    let used = match layout.block_size {
        BlockSize::Half(_) => word(layout.used)? & 0xffff_ffff,
        BlockSize::Word(_) => word(layout.used)? & 0xffff,
    };
    let first = match layout.start {
        Start::Field(offset) => word(offset)?,
        rule => rule.address(start, size).ok_or_else(wrong)?,
    };
    let links = match layout.keys {
        Some(offset) => Links::encoded(memory, at + offset, at).ok_or_else(wrong)?,
        None => Links::Plain,
    };
    let blocks = Blocks::new(
        (start, end),
        (first, size),
        (capacity, reserved),
        links,
        left,
    );
    let mut page = blocks.filter(|_| used <= capacity).ok_or_else(wrong)?;
    let own = [free, word(layout.local_free)?];
    page.free(memory, own, word(layout.thread_free)?, used)?;
    Ok(page)
}

/// Marks the blocks that other threads freed and put into the list of a heap.
fn delayed(
    memory: &Memory,
    layout: &Layout,
    heap: u64,
    thread: u64,
    pages: &mut [Blocks],
) -> Result<(), Refusal> {
    let list = DELAYED
        .into_iter()
        .filter_map(|offset| heap.checked_add(offset));
    let mut list = list.filter(|at| {
        let id = at.checked_add(8).and_then(|at| memory.word(at));
        id == Some(thread)
    });
    let Some(at) = list.next() else {
        return refuse!("the heap at {heap:#x} is not the one of its segments' thread");
    };
    let wrong = || {
        Refusal(format!(
            "the list of freed blocks of the heap at {heap:#x} cannot be right"
        ))
    };
    let links = match layout.keys {
        Some(_) => at
            .checked_add(HEAP_KEYS)
            .and_then(|keys| Links::encoded(memory, keys, heap))
            .ok_or_else(wrong)?,
        None => Links::Plain,
    };
    let mut block = memory.word(at).ok_or_else(wrong)?;
    for _ in 0..MAX_DELAYED {
        if block == 0 {
            return Ok(());
        }
        let index = pages.partition_point(|page| page.end <= block);
        let page = pages
            .get_mut(index)
            .filter(|page| page.start <= block)
            .ok_or_else(wrong)?;
        let index = page.index(block).ok_or_else(wrong)?;
        if page.kinds[index] != ChunkKind::Live {
            return Err(wrong());
        }
        page.kinds[index] = ChunkKind::Tcache;
        block = links.next(memory, block).ok_or_else(wrong)?;
    }
    Err(wrong())
}
