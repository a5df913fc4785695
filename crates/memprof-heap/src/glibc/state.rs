//! glibc's own variables, found without symbols: the arenas by the structure of their bins, and malloc's parameters
//! by the address of the main arena's memory.

use super::super::memory::Memory;
use super::Refusal;
use memprof_sys::residency::Vma;

/// Number of bins (`NBINS - 1`): unsorted, small and large.
pub(super) const BINS: u64 = 127;
/// Offsets of fields relative to an arena's bins: its top chunk (in front of them), the next arena, its size.
const TOP: u64 = 16;
const NEXT: u64 = 2048;
const SYSTEM_MEM: u64 = 2072;
/// End of an arena, relative to its bins.
const END: u64 = 2088;
/// Bytes of an arena in front of its bins: up to glibc 2.42, which has fast bins, and since 2.43.
const BEFORE_LISTS: [u64; 2] = [112, 24];
/// Number of fast bins.
pub(super) const FAST_BINS: u64 = 10;
/// Maximum number of arenas to read.
const MAX_ARENAS: usize = 65_536;
/// Maximum number of heaps to count.
const MAX_HEAPS: usize = 16;
/// Maximum number of bytes to search for glibc's variables.
const SEARCHED: u64 = 256 << 20;

/// An arena (`malloc_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arena {
    /// Address of the arena.
    pub at: u64,
    /// Address of its bins.
    pub bins: u64,
    /// Address of its top chunk.
    pub top: u64,
    /// Bytes of its memory, as glibc counts them.
    pub system_mem: u64,
}

impl Arena {
    /// Address of its fast bins; `None` since glibc 2.43, which has none.
    pub(super) fn fast_bins(&self) -> Option<u64> {
        (self.bins - self.at == BEFORE_LISTS[0]).then_some(self.at + 16)
    }

    /// End of the structure.
    pub(super) fn end(&self) -> u64 {
        self.bins + END
    }

    /// Whether no chunk was ever allocated from it: its top chunk is a placeholder.
    pub(super) fn is_unused(&self) -> bool {
        self.top == self.bins - TOP
    }
}

/// malloc's parameters (`mp_`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parameters {
    /// First address of the main arena's memory.
    pub sbrk_base: u64,
    /// Bytes of chunks with a mapping of their own.
    pub mmapped: u64,
    /// Number of these chunks: by the layout since 2.35, and by the older one.
    pub mmaps: [u32; 2],
    /// Number of small-chunk lists of a thread cache.
    pub tcache_bins: u64,
    /// Maximum number of chunks per list.
    pub tcache_count: u64,
}

/// glibc's variables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GlibcState {
    /// The arenas, the main one first.
    pub arenas: Vec<Arena>,
    /// The parameters; `None` if the main arena is unused, because nothing identifies them then.
    pub parameters: Option<Parameters>,
}

/// Finds glibc's variables. `Ok(None)` if there are none: the program uses another allocator, or has not called
/// malloc.
pub(super) fn find(memory: &Memory, vmas: &[Vma]) -> Result<Option<GlibcState>, Refusal> {
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
    Ok(Some(GlibcState { arenas, parameters }))
}

/// The writable private data of files, and the zeroed data after it.
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

/// Addresses of bins: [`BINS`] consecutive rings. Returns at most [`MAX_HEAPS`].
fn all_bins(memory: &Memory, data: &[(u64, u64)]) -> Vec<u64> {
    let mut left = SEARCHED;
    let mut found = Vec::new();
    for (start, end) in data {
        let mut before = 0;
        // Consecutive rings so far. Rings are 16 bytes apart, so that there are two sequences.
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

/// Whether this address has the bins of an arena.
fn are_bins(memory: &Memory, bins: u64) -> bool {
    (0..BINS).all(|i| {
        bins.checked_add(16 * i)
            .is_some_and(|links| is_ring(memory, links))
    })
}

/// Whether the two links at this address belong to the head of a ring.
fn is_ring(memory: &Memory, links: u64) -> bool {
    // Bins are linked as if they were chunks, whose links are 16 bytes after their beginning.
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

/// All arenas, the main one first. They form a ring.
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

/// Finds malloc's parameters in the same data, around the address at which the main arena's memory begins.
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
    // The loader's variables also contain this address, followed by zeroes. malloc's parameters have zeroes there
    // only if thread caches are off.
    let cached = |found: &&Parameters| found.tcache_bins > 0 && found.tcache_count > 0;
    let mut cached = found.iter().filter(cached);
    match (&found[..], cached.next(), cached.next()) {
        ([], ..) => Err(Refusal::Parameters("no place looks like them")),
        ([parameters], ..) | (_, Some(parameters), None) => Ok(*parameters),
        _ => Err(Refusal::Parameters("several places look like them")),
    }
}
