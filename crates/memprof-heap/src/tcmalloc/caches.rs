//! Free blocks outside of the lists of their spans: in the transfer cache of their class, and in threads' caches.

use super::super::chunks::ChunkKind;
use super::super::jemalloc::is_anonymous;
use super::super::memory::Memory;
use super::super::spans::{Refusal, refuse};
use super::spans::Spans;
use super::tables::{CLASSES, Tables};
use memprof_sys::residency::Vma;

/// Offsets in a central list.
const COUNTER: u64 = 120;
const TRANSFER: u64 = 128;
const TRANSFER_USED: u64 = 1152;
/// Maximum number of chains in a transfer cache.
const MAX_CHAINS: u64 = 64;
/// Maximum length of a chain.
const MAX_CHAIN: u64 = 1 << 16;

/// Size of the description of a list in a thread's cache, and offsets in it.
const LIST: u64 = 32;
const LIST_LENGTH: u64 = 8;
const LIST_SIZE: u64 = 24;
/// Offset of the number of bytes in a thread's cache, and size and alignment of the part that is read.
const CACHED: u64 = LIST * CLASSES;
const CACHE: u64 = CACHED + 8;
const ALIGN: u64 = 64;

/// Marks the blocks in transfer caches, and compares the numbers of free blocks in spans with the central counters.
pub(super) fn central(memory: &Memory, tables: &Tables, spans: &mut Spans) -> Result<(), Refusal> {
    for (class, at) in tables.central.iter().enumerate().skip(1) {
        let size = tables.sizes[class];
        let wrong = || {
            Refusal(format!(
                "the central list of blocks of {size} bytes cannot be right"
            ))
        };
        let counter = memory.word(at + COUNTER).ok_or_else(wrong)?;
        if counter != spans.free[class] {
            return refuse!(
                "there are {} free blocks of {size} bytes in spans, and it counts {counter}",
                spans.free[class]
            );
        }
        let chains = u64::from(memory.half(at + TRANSFER_USED).ok_or_else(wrong)?);
        if chains > MAX_CHAINS {
            return Err(wrong());
        }
        for chain in 0..chains {
            let ends = at + TRANSFER + 16 * chain;
            let (mut block, last) = (
                memory.word(ends).ok_or_else(wrong)?,
                memory.word(ends + 8).ok_or_else(wrong)?,
            );
            for length in 1.. {
                spans
                    .mark(block, class, ChunkKind::Small)
                    .ok_or_else(wrong)?;
                if block == last {
                    break;
                }
                let next = memory.word(block).filter(|_| length < MAX_CHAIN);
                block = next.ok_or_else(wrong)?;
            }
        }
    }
    Ok(())
}

/// Marks the blocks in threads' caches, which lie outside of all spans. Returns the number of caches in use.
pub(super) fn threads(
    memory: &Memory,
    vmas: &[Vma],
    tables: &Tables,
    spans: &mut Spans,
) -> Result<u64, Refusal> {
    let mut found = 0;
    for vma in vmas.iter().filter(|vma| is_anonymous(vma)) {
        for run in memory.runs_in(vma.start.0, vma.end.0) {
            let mut at = run.start.next_multiple_of(ALIGN);
            while at + CACHE <= run.end {
                let index = spans.spans.partition_point(|span| span.end <= at);
                match spans.spans.get(index) {
                    Some(span) if span.start <= at => at = span.end,
                    _ if is_cache(memory, tables, at) => {
                        found += u64::from(cache(memory, tables, spans, at)?);
                        spans.owns(at, CACHE);
                        at += ALIGN;
                    }
                    _ => at += ALIGN,
                }
            }
        }
    }
    Ok(found)
}

/// Whether each list of a cache has the size of its class.
fn is_cache(memory: &Memory, tables: &Tables, at: u64) -> bool {
    let sizes = (1..).zip(&tables.sizes[1..]);
    let mut sizes = sizes.map(|(class, size)| (memory.half(at + LIST * class + LIST_SIZE), *size));
    sizes.all(|(found, size)| found.map(u64::from) == Some(size))
}

/// Marks the blocks in a cache. Returns whether there are any.
fn cache(memory: &Memory, tables: &Tables, spans: &mut Spans, at: u64) -> Result<bool, Refusal> {
    let wrong = || Refusal(format!("the thread's cache at {at:#x} cannot be right"));
    let mut bytes = 0;
    for (class, size) in tables.sizes.iter().enumerate().skip(1) {
        let list = at + LIST * class as u64;
        let mut block = memory.word(list).ok_or_else(wrong)?;
        let length = memory.half(list + LIST_LENGTH).ok_or_else(wrong)?;
        for _ in 0..length {
            spans
                .mark(block, class, ChunkKind::Tcache)
                .ok_or_else(wrong)?;
            block = memory.word(block).ok_or_else(wrong)?;
        }
        if block != 0 {
            return Err(wrong());
        }
        bytes += u64::from(length) * size;
    }
    let said = memory.half(at + CACHED).ok_or_else(wrong)?;
    match u64::from(said) == bytes {
        true => Ok(bytes > 0),
        false => Err(wrong()),
    }
}
