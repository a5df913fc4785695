//! The heap of Go programs, read from a copy of a process's memory without symbols.
//!
//! Go's runtime divides its arenas of 64 MiB into spans of pages of 8 KiB, each with objects of one size class, one
//! large object, or memory of the runtime such as stacks. The runtime's list of all spans is in the program's data. The
//! heap is managed: its collector frees objects, so that what is in use includes objects that nothing refers to any
//! more, until it has swept their span.
//!
//! Every span in use is verified: it lies in an arena, and the objects that its bits say are allocated are as many as
//! it counts. Spans must not overlap. Pages between them are free.
//!
//! Layouts: Go 1.19 to 1.27, according to `mheap.go`, 64-bit. The one by which all spans are verified is taken.

use super::chunks::ChunkKind;
use super::jemalloc::{is_anonymous, is_mapped};
use super::memory::Memory;
use super::module_data::module_data;
use super::snapshot::Snapshot;
use super::spans::{Refusal, SpanMap, refuse};
use memprof_sys::residency::Vma;

/// Name of the runtime.
pub(crate) const NAME: &str = "Go";

/// Size of the runtime's pages and of its arenas, in bytes.
const PAGE: u64 = 8192;
const ARENA: u64 = 64 << 20;
/// Maximum number of spans.
const MAX_SPANS: u64 = 1 << 26;
/// Minimum number of spans, and number of spans that are examined in search of the list.
const FEWEST: u64 = 4;
const EXAMINED: u64 = 64;

/// Offsets in a span's description.
const START: u64 = 24;
const PAGES: u64 = 32;
const FREE_INDEX: u64 = 48;

/// The offsets that differ between releases.
#[derive(Clone, Copy, Debug)]
struct Layout {
    /// Number of objects. With 16 bits, it follows the free index, which then has 16 bits, too.
    elements: u64,
    alloc_bits: u64,
    /// Number of allocated objects (16 bits), class, and state (8 bits each). The size of an object and the end of the objects
    /// follow.
    counts: u64,
}

const LAYOUTS: [Layout; 3] = [
    // Go 1.22: small numbers take 16 bits.
    Layout {
        elements: 50,
        alloc_bits: 64,
        counts: 96,
    },
    // Go 1.21: one more field before the counts.
    Layout {
        elements: 56,
        alloc_bits: 72,
        counts: 104,
    },
    // Go 1.19 and 1.20.
    Layout {
        elements: 56,
        alloc_bits: 72,
        counts: 96,
    },
];

impl Layout {
    fn element_size(self) -> u64 {
        self.counts + 8
    }

    fn limit(self) -> u64 {
        self.counts + 16
    }

    /// The free index and the number of objects, from the words that contain them.
    fn numbers(self, word: impl Fn(u64) -> Option<u64>) -> Option<(u64, u64)> {
        let free = word(FREE_INDEX)?;
        if self.elements.is_multiple_of(8) {
            Some((free, word(self.elements)?))
        } else {
            Some((free & 0xffff, free >> 16 & 0xffff))
        }
    }
}
/// Maximum number of arenas: those of all 48-bit addresses.
const MAX_ARENAS: u64 = 1 << 22;
/// Address of the arena with number 0, on x86-64 and elsewhere.
const ARENA_BASES: [u64; 2] = [0xffff_8000_0000_0000, 0];
/// Number of words behind the list of spans in which the list of arenas is searched.
const ARENAS_WITHIN: u64 = 64;
/// Maximum number of objects of a span.
const MAX_ELEMENTS: u64 = 1 << 16;

/// States of a span.
const DEAD: u64 = 0;
const IN_USE: u64 = 1;
const MANUAL: u64 = 2;

/// Reads the heap. `None` if there is none.
///
/// # Errors
/// The structures are inconsistent: the process was stopped while the runtime changed them, they are damaged, or the
/// release has another layout.
pub(crate) fn read(snapshot: &Snapshot) -> Result<Option<SpanMap>, Refusal> {
    let mut refused = None;
    for layout in LAYOUTS {
        match read_as(layout, snapshot) {
            Ok(None) => {}
            Err(why) => refused = refused.or(Some(why)),
            found => return found,
        }
    }
    refused.map_or(Ok(None), Err)
}

/// Reads the heap of a runtime with this layout.
fn read_as(layout: Layout, snapshot: &Snapshot) -> Result<Option<SpanMap>, Refusal> {
    let (memory, vmas) = (&snapshot.memory, &snapshot.vmas);
    let mut lists = find(layout, memory, vmas);
    // A list of some spans may lie elsewhere, but not in front of a list of their arenas.
    lists.retain(|(at, list, count, _)| {
        let first = (0..(*count).min(EXAMINED)).filter_map(|index| {
            let span = memory.word(list + 8 * index)?;
            let state = memory.word(span.checked_add(layout.counts)?)? >> 24 & 0xff;
            let start = memory.word(span + START)?;
            (state == IN_USE).then_some((start, start))
        });
        arenas(memory, *at, &first.collect::<Vec<_>>()).is_some()
    });
    let Some((at, list, count, module)) = lists.pop() else {
        return Ok(None);
    };
    if !lists.is_empty() {
        return refuse!("the process has several lists of spans; memprof reads one");
    }
    let mut map = SpanMap::default();
    module.clone_into(&mut map.module);
    let mut taken = Vec::new();
    for index in 0..count {
        let Some(span_at) = memory.word(list + 8 * index) else {
            return refuse!("the list of spans was not copied");
        };
        taken.extend(span(layout, memory, span_at, &mut map)?);
    }
    map.spans = taken.len() as u64;
    taken.sort_unstable();
    if let Some(pair) = taken.windows(2).find(|pair| pair[0].1 > pair[1].0) {
        return refuse!("two spans overlap at {:#x}", pair[1].0);
    }
    let Some(arenas) = arenas(memory, at, &taken) else {
        return refuse!("its list of spans was found, but not the list of its arenas");
    };
    add_free(vmas, &arenas, &taken, &mut map)?;
    map.note = Some(
        "A managed heap: live includes objects that the collector has not freed yet. Stacks and the runtime's own spans are \
         its own.",
    );
    Ok(Some(map))
}

/// Finds the lists of all spans: where the list is noted, its address and length, and the file of its module.
fn find<'a>(layout: Layout, memory: &Memory, vmas: &'a [Vma]) -> Vec<(u64, u64, u64, &'a str)> {
    let mut found: Vec<(u64, u64, u64, &str)> = Vec::new();
    for (start, end, module) in module_data(vmas) {
        for run in memory.runs_in(start, end) {
            let bytes = memory.from(run.start).unwrap_or_default();
            let bytes = &bytes[..bytes.len().min(run.len() as usize)];
            for (slice, at) in bytes
                .as_chunks::<8>()
                .0
                .windows(3)
                .zip((run.start..).step_by(8))
            {
                let [list, count, room] = [0, 1, 2].map(|index| u64::from_le_bytes(slice[index]));
                let fits = (FEWEST..=MAX_SPANS).contains(&count)
                    && (count..=MAX_SPANS).contains(&room)
                    && is_list(layout, memory, list, count);
                if fits && found.iter().all(|(_, known, ..)| *known != list) {
                    found.push((at, list, count, module));
                }
            }
        }
    }
    found
}

/// Whether all of the first spans of a list, and the last one, look like spans, and some are in use.
fn is_list(layout: Layout, memory: &Memory, list: u64, count: u64) -> bool {
    if !list.is_multiple_of(8) || list.checked_add(8 * count).is_none() {
        return false;
    }
    let mut in_use = 0;
    let examined = (0..count.min(EXAMINED)).chain([count - 1]);
    let mut fit = examined.map(|index| {
        let at = memory
            .word(list + 8 * index)
            .filter(|at| at.is_multiple_of(8))?;
        // Descriptions that were never used are not in memory.
        at.checked_add(layout.limit())?;
        let word = |offset| memory.word(at + offset).unwrap_or(0);
        let (start, pages, state) = (word(START), word(PAGES), word(layout.counts) >> 24 & 0xff);
        let is_span = start % PAGE == 0 && pages < 1 << 35 && state <= MANUAL;
        let is_used = state == IN_USE && pages > 0 && start > 0 && word(layout.limit()) > start;
        in_use += u64::from(is_used);
        is_span.then_some(())
    });
    fit.all(|fits| fits.is_some()) && in_use >= FEWEST / 2
}

/// The addresses of all arenas, in ascending order. Their list is noted in the words behind the list of spans, at `at`. It
/// has each arena in which a span lies.
fn arenas(memory: &Memory, at: u64, taken: &[(u64, u64)]) -> Option<Vec<u64>> {
    let mut used: Vec<u64> = taken
        .iter()
        .map(|(start, _)| start / ARENA * ARENA)
        .collect();
    used.dedup();
    (3..ARENAS_WITHIN).find_map(|index| {
        let word = |more: u64| memory.word(at.checked_add(8 * (index + more))?);
        let (list, count, room) = (word(0)?, word(1)?, word(2)?);
        if !(1..=MAX_ARENAS).contains(&count) || room < count || room > MAX_ARENAS {
            return None;
        }
        ARENA_BASES.into_iter().find_map(|base| {
            let arena = |index: u64| {
                let number = memory.word(list.checked_add(8 * index)?)?;
                let arena = number.checked_mul(ARENA)?.wrapping_add(base);
                Some(arena).filter(|arena| *arena < 1 << 48)
            };
            let mut arenas: Vec<u64> = (0..count).map(arena).collect::<Option<_>>()?;
            arenas.sort_unstable();
            arenas.dedup();
            let all = used.iter().all(|arena| arenas.binary_search(arena).is_ok());
            all.then_some(arenas)
        })
    })
}

/// Adds the span that is described at `at`. Returns its range, unless it is not in use.
fn span(
    layout: Layout,
    memory: &Memory,
    at: u64,
    map: &mut SpanMap,
) -> Result<Option<(u64, u64)>, Refusal> {
    let wrong = || {
        Refusal(format!(
            "the description of the span at {at:#x} cannot be right"
        ))
    };
    at.checked_add(layout.limit() + 8).ok_or_else(wrong)?;
    let word = |offset| memory.word(at + offset).ok_or_else(wrong);
    let counts = word(layout.counts).unwrap_or(0);
    let state = counts >> 24 & 0xff;
    if state == DEAD {
        return Ok(None);
    }
    let (start, pages) = (word(START)?, word(PAGES)?);
    let len = pages
        .checked_mul(PAGE)
        .filter(|len| *len > 0 && *len < 1 << 47);
    let end = len
        .and_then(|len| start.checked_add(len))
        .filter(|_| start % PAGE == 0);
    let end = end.ok_or_else(wrong)?;
    if state == MANUAL {
        map.add_own(start, end);
        return Ok(Some((start, end)));
    }
    let numbers = layout.numbers(|offset| word(offset).ok());
    let (free, count) = numbers.ok_or_else(wrong)?;
    let size = word(layout.element_size())?;
    let fits = state == IN_USE && (1..=MAX_ELEMENTS).contains(&count) && free <= count;
    if !fits || size.checked_mul(count).is_none_or(|all| all > end - start) {
        return Err(wrong());
    }
    // All objects in front of the index are allocated, and those behind it whose bit is set.
    let bits = word(layout.alloc_bits)?;
    let (mut kinds, mut allocated) = (Vec::with_capacity(count as usize), 0);
    for index in 0..count {
        let is_allocated = index < free || {
            // Bits that were never written to are not in memory.
            let word = bits
                .checked_add(index / 64 * 8)
                .and_then(|at| memory.word(at));
            word.unwrap_or(0) >> (index % 64) & 1 == 1
        };
        allocated += u64::from(is_allocated);
        kinds.push(if is_allocated {
            ChunkKind::Live
        } else {
            ChunkKind::Small
        });
    }
    if allocated != counts & 0xffff {
        return refuse!(
            "the span at {start:#x} has {allocated} allocated objects, and counts {}",
            counts & 0xffff
        );
    }
    map.add((start, end), start, size, kinds.into_iter())?;
    Ok(Some((start, end)))
}

/// Adds the pages between spans, in the mapped parts of all arenas. `taken` are the spans, by address.
fn add_free(
    vmas: &[Vma],
    arenas: &[u64],
    taken: &[(u64, u64)],
    map: &mut SpanMap,
) -> Result<(), Refusal> {
    if let Some((start, _)) = taken
        .iter()
        .find(|(start, end)| !is_mapped(vmas, *start, *end))
    {
        return refuse!("the span at {start:#x} is not mapped");
    }
    for arena in arenas {
        let (first, last) = (*arena, *arena + ARENA);
        let index = vmas.partition_point(|vma| vma.end.0 <= first);
        let within = vmas[index..].iter().take_while(|vma| vma.start.0 < last);
        for vma in within.filter(|vma| is_anonymous(vma) && vma.perms.write) {
            let (mut at, end) = (vma.start.0.max(first), vma.end.0.min(last));
            let index = taken.partition_point(|(_, end)| *end <= at);
            for (start, span_end) in taken[index..].iter().take_while(|(start, _)| *start < end) {
                map.add_free(at, (*start).max(at));
                at = *span_end;
            }
            map.add_free(at, end.max(at));
        }
    }
    Ok(())
}
