//! glibc's own variables, found without symbols: the arenas, by the shape of their lists of free chunks, and malloc's
//! parameters, by their neighbourhood.

use super::super::memory::Memory;
use super::Refusal;
use memprof_sys::residency::Vma;

/// Number of lists of free chunks (`NBINS - 1`): unsorted, small and large ones.
pub(super) const BINS: u64 = 127;
/// Offsets from an arena's lists: its newest chunk, the next arena, its size.
const TOP: u64 = 16;
const NEXT: u64 = 2048;
const SYSTEM_MEM: u64 = 2072;
/// End of an arena, from its lists on.
const END: u64 = 2088;
/// Bytes of an arena in front of its lists: until glibc 2.42, which has fast bins, and from 2.43 on.
const BEFORE_LISTS: [u64; 2] = [112, 24];
/// Number of fast bins.
pub(super) const FAST_BINS: u64 = 10;
/// Maximum number of arenas that are read.
const MAX_ARENAS: usize = 65_536;
/// Maximum number of heaps that are counted.
const MAX_HEAPS: usize = 16;
/// Maximum number of bytes in which glibc's variables are searched.
const SEARCHED: u64 = 256 << 20;

/// An arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arena {
    /// Its address.
    pub at: u64,
    /// Address of its lists of free chunks.
    pub bins: u64,
    /// Address of its newest chunk.
    pub top: u64,
    /// Its memory, in bytes, as glibc counts it.
    pub system_mem: u64,
}

impl Arena {
    /// Address of its fast bins; `None` from glibc 2.43 on, which has none.
    pub(super) fn fast_bins(&self) -> Option<u64> {
        (self.bins - self.at == BEFORE_LISTS[0]).then_some(self.at + 16)
    }

    /// First address behind it.
    pub(super) fn end(&self) -> u64 {
        self.bins + END
    }

    /// Whether no chunk was ever cut from it: its newest chunk is a place holder.
    pub(super) fn is_unused(&self) -> bool {
        self.top == self.bins - TOP
    }
}

/// malloc's parameters (`mp_`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parameters {
    /// Where the main arena begins.
    pub sbrk_base: u64,
    /// Bytes in chunks with a mapping of their own.
    pub mmapped: u64,
    /// Number of these chunks: by the layout from 2.35 on, and by the older one.
    pub mmaps: [u32; 2],
    /// Number of lists of a thread's cache of small chunks.
    pub tcache_bins: u64,
    /// Maximum number of chunks of a list.
    pub tcache_count: u64,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct State {
    /// The arenas, the main one first.
    pub arenas: Vec<Arena>,
    /// The parameters; `None` if the main arena is unused and there is nothing that they could be recognised by.
    pub parameters: Option<Parameters>,
}

/// Finds them. `Ok(None)` if there are none: the program has another allocator, or has not called malloc.
pub(super) fn find(memory: &Memory, vmas: &[Vma]) -> Result<Option<State>, Refusal> {
    let data: Vec<(u64, u64)> = written_data(vmas).collect();
    let found = all_bins(memory, &data);
    let arenas = match found[..] {
        [] => return Ok(None),
        [bins] => arenas(memory, bins)?,
        _ => return Err(Refusal::SeveralHeaps(found.len())),
    };
    let parameters = match arenas[0].is_unused() {
        true => None,
        false => Some(parameters(memory, &data, &arenas[0])?),
    };
    Ok(Some(State { arenas, parameters }))
}

/// The writable private data of files, and the zeroed data behind it.
pub(crate) fn written_data(vmas: &[Vma]) -> impl Iterator<Item = (u64, u64)> {
    let is_data = |vma: &Vma| vma.perms.write && !vma.perms.shared;
    let of_file = move |vma: &Vma| is_data(vma) && vma.ino != 0;
    let previous = std::iter::once(None).chain(vmas.iter().map(Some));
    let pairs = vmas.iter().zip(previous);
    pairs
        .filter(move |(vma, before)| {
            let follows = |before: &Vma| before.end == vma.start && of_file(before);
            of_file(vma) || (is_data(vma) && vma.name.is_empty() && before.is_some_and(follows))
        })
        .map(|(vma, _)| (vma.start.0, vma.end.0))
}

/// Where arenas' lists are: so many rings behind each other. At most a few places are returned.
fn all_bins(memory: &Memory, data: &[(u64, u64)]) -> Vec<u64> {
    let mut left = SEARCHED;
    let mut found = Vec::new();
    for (start, end) in data {
        let mut before = 0;
        // The rings up to here without a gap, every 16 bytes; there are two places for them.
        let mut rings = [0; 2];
        for run in memory.runs_in(*start, (*end).min(start.saturating_add(left))) {
            left = left.saturating_sub(run.len());
            if run.start != before {
                rings = [0; 2];
            }
            before = run.end;
            for links in (run.start..run.end).step_by(8) {
                let rings = &mut rings[links as usize / 8 % 2];
                *rings = if is_ring(memory, links) {
                    *rings + 1
                } else {
                    0
                };
                if *rings >= BINS {
                    found.push(links - 16 * (BINS - 1));
                }
                if found.len() == MAX_HEAPS {
                    return found;
                }
            }
        }
    }
    found
}

/// Whether an arena's lists are at this address.
fn are_bins(memory: &Memory, bins: u64) -> bool {
    (0..BINS).all(|i| {
        bins.checked_add(16 * i)
            .is_some_and(|links| is_ring(memory, links))
    })
}

/// Whether the links at this address are those of a list's head: a ring through it.
fn is_ring(memory: &Memory, links: u64) -> bool {
    // The lists are linked as if they were chunks, whose links are 16 bytes behind their beginning.
    let (Some(head), Some(next)) = (links.checked_sub(16), memory.word(links)) else {
        return false;
    };
    if !next.is_multiple_of(8) {
        return false;
    }
    let Some(previous) = memory.word(links + 8) else {
        return false;
    };
    (next == head && previous == head)
        || (next.is_multiple_of(16)
            && previous.is_multiple_of(16)
            && memory.word(next.wrapping_add(24)) == Some(head)
            && memory.word(previous.wrapping_add(16)) == Some(head))
}

/// All arenas, from the main one on: a ring, too.
fn arenas(memory: &Memory, bins: u64) -> Result<Vec<Arena>, Refusal> {
    let ring = |before_lists: u64| {
        let main = bins.checked_sub(before_lists)?;
        let mut arenas = Vec::new();
        let mut at = main;
        loop {
            let bins = at.checked_add(before_lists)?;
            arenas.push(Arena {
                at,
                bins,
                top: memory.word(bins.checked_sub(TOP)?)?,
                system_mem: memory.word(bins.checked_add(SYSTEM_MEM)?)?,
            });
            at = memory.word(bins.checked_add(NEXT)?)?;
            if at == main {
                return Some(arenas);
            }
            if arenas.len() == MAX_ARENAS || !at.is_multiple_of(8) {
                return None;
            }
        }
    };
    let arenas = BEFORE_LISTS.into_iter().find_map(ring);
    let arenas = arenas.ok_or(Refusal::Arenas)?;
    match arenas[1..]
        .iter()
        .find(|arena| !are_bins(memory, arena.bins))
    {
        Some(arena) => Err(Refusal::FreeLists(arena.at)),
        None => Ok(arenas),
    }
}

/// malloc's parameters, in the same data: around the address at which the main arena begins.
fn parameters(memory: &Memory, data: &[(u64, u64)], main: &Arena) -> Result<Parameters, Refusal> {
    let top = memory.word(main.top.wrapping_add(8));
    let end = top.and_then(|size| main.top.checked_add(size & !7));
    let begin = end.and_then(|end| end.checked_sub(main.system_mem));
    let begin = begin.ok_or(Refusal::Chunk(main.top))?;
    let at = |place: u64| {
        if memory.word(place)? != begin {
            return None;
        }
        let [tcache_bins, max_bytes, tcache_count] = [8, 16, 24].map(|at| memory.word(place + at));
        let parameters = Parameters {
            sbrk_base: begin,
            mmapped: memory.word(place - 16)?,
            mmaps: [memory.half(place - 36)?, memory.half(place - 32)?],
            tcache_bins: tcache_bins?,
            tcache_count: tcache_count?,
        };
        let most_mmapped = memory.word(place - 8)?;
        (parameters.mmapped <= most_mmapped
            && parameters.tcache_bins <= 128
            && parameters.tcache_count <= 65_535
            && max_bytes? <= 4 << 20)
            .then_some(parameters)
    };
    let runs = data
        .iter()
        .flat_map(|(start, end)| memory.runs_in(*start, *end));
    let places = runs.flat_map(|run| (run.start..run.end).step_by(8));
    let found: Vec<Parameters> = places.filter_map(at).take(MAX_HEAPS).collect();
    // The loader's variables have the same address, too, and zeroes behind it, as malloc has without thread caches only.
    let cached = |found: &&Parameters| found.tcache_bins > 0 && found.tcache_count > 0;
    let mut cached = found.iter().filter(cached);
    match (&found[..], cached.next(), cached.next()) {
        ([], ..) => Err(Refusal::Parameters("no place looks like them")),
        ([parameters], ..) | (_, Some(parameters), None) => Ok(*parameters),
        _ => Err(Refusal::Parameters("several places look like them")),
    }
}
