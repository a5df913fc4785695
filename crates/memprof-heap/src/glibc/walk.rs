//! Walks all chunks of glibc's arenas, in address order. Each arena's chunks must end where glibc's structures say.

use super::super::chunks::{ChunkKind, Chunks};
use super::super::memory::Memory;
use super::Refusal;
use super::state::{Arena, GlibcState};

/// Flags in the lowest bits of a chunk's size.
const FLAGS: u64 = 7;
/// Maximum size and alignment of the parts of all arenas but the main one (`HEAP_MAX_SIZE`).
const HEAP: u64 = 64 << 20;
/// Size of `heap_info` at the beginning of each part: since glibc 2.35, and before.
const HEAP_INFO: [u64; 2] = [48, 32];
/// Minimum size of a chunk other than glibc's end markers, in bytes.
const SMALLEST: u64 = 32;
/// Maximum number of parts per arena.
const MAX_PARTS: usize = 65_536;
/// Size of a chunk's header, in bytes.
pub(super) const HEADER: u64 = 16;

/// A contiguous part of an arena.
#[derive(Debug)]
pub(crate) struct ArenaPart {
    /// Index of its arena. The main arena is 0.
    pub arena: usize,
    /// First address. glibc's own structures precede the first chunk.
    pub start: u64,
    /// End of the part.
    pub end: u64,
    pub chunks: Chunks,
}

/// Walks all arenas.
pub(super) fn walk(memory: &Memory, state: &GlibcState) -> Result<Vec<ArenaPart>, Refusal> {
    let mut parts = Vec::new();
    let mut walk = Walk {
        memory,
        left: memory.len() / HEADER,
    };
    for (index, arena) in state.arenas.iter().enumerate() {
        let first = parts.len();
        match (index, state.parameters) {
            (0, Some(parameters)) => parts.push(walk.main(arena, parameters.sbrk_base)?),
            (0, None) => {}
            _ => walk.other(arena, index, &mut parts)?,
        }
        let walked: u64 = parts[first..]
            .iter()
            .map(|part| part.end - part.start)
            .sum();
        if walked != arena.system_mem {
            return Err(Refusal::Size {
                arena: arena.at,
                walked,
                counted: arena.system_mem,
            });
        }
    }
    parts.sort_by_key(|part| part.start);
    if parts.windows(2).any(|pair| pair[0].end > pair[1].start) {
        return Err(Refusal::Arenas);
    }
    Ok(parts)
}

/// A walk over all arenas.
struct Walk<'a> {
    memory: &'a Memory,
    /// Maximum number of chunks that remain: each has a header of its own in memory.
    left: u64,
}

impl Walk<'_> {
    /// Walks the main arena, which grows by `brk`.
    fn main(&mut self, arena: &Arena, start: u64) -> Result<ArenaPart, Refusal> {
        let top = self
            .memory
            .word(arena.top.wrapping_add(8))
            .ok_or(Refusal::Chunk(arena.top))?;
        let end = arena
            .top
            .checked_add(top & !FLAGS)
            .ok_or(Refusal::Chunk(arena.top))?;
        self.part(arena, 0, (start, start.next_multiple_of(16), end))
    }

    /// Walks another arena, whose parts have mappings of their own. The newest part contains the top chunk, and each
    /// part links to the previous one.
    fn other(
        &mut self,
        arena: &Arena,
        index: usize,
        parts: &mut Vec<ArenaPart>,
    ) -> Result<(), Refusal> {
        let mut start = arena.top & !(HEAP - 1);
        for _ in 0..MAX_PARTS {
            let field = |at| self.memory.word(start + at).ok_or(Refusal::Chunk(start));
            let (owner, previous, size) = (field(0)?, field(8)?, field(16)?);
            if owner != arena.at || size > HEAP {
                return Err(Refusal::Chunk(start));
            }
            let end = start + size;
            // In the first part, the arena follows `heap_info`.
            let is_first = arena.at & !(HEAP - 1) == start;
            let walked = match is_first {
                true => self.part(arena, index, (start, arena.end().next_multiple_of(16), end)),
                false => {
                    let mut walk = |info| self.part(arena, index, (start, start + info, end));
                    walk(HEAP_INFO[0]).or_else(|_| walk(HEAP_INFO[1]))
                }
            };
            parts.push(walked?);
            if previous == 0 {
                return Ok(());
            }
            start = previous;
        }
        Err(Refusal::Arenas)
    }

    /// Walks from the first chunk of a part to its end.
    fn part(
        &mut self,
        arena: &Arena,
        index: usize,
        (start, first, end): (u64, u64, u64),
    ) -> Result<ArenaPart, Refusal> {
        let mut chunks = Chunks::new(first, end).ok_or(Refusal::Chunk(first))?;
        let mut at = first;
        while at < end {
            self.left = self.left.checked_sub(1).ok_or(Refusal::Arenas)?;
            let head = self.memory.word(at + 8).ok_or(Refusal::Chunk(at))?;
            let (size, kind) = match head & !FLAGS {
                // End markers of a full part.
                0 | HEADER => (HEADER, ChunkKind::Own),
                size if at == arena.top => (size, ChunkKind::Top),
                size => (size, ChunkKind::Live),
            };
            let fits = size.is_multiple_of(16) && size <= end - at;
            if !fits || (kind != ChunkKind::Own && size < SMALLEST) {
                return Err(Refusal::Chunk(at));
            }
            chunks.add(at, kind);
            at += size;
        }
        chunks.close();
        Ok(ArenaPart {
            arena: index,
            start,
            end,
            chunks,
        })
    }
}
