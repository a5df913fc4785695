//! Marks the free chunks: chunks in the arenas' bins, in fast bins and in thread caches.

use std::cell::Cell;

use super::super::chunks::ChunkKind;
use super::super::memory::Memory;
use super::state::{Arena, BINS, FAST_BINS, GlibcState, Parameters};
use super::walk::{ArenaPart, HEADER};
use super::{Mallinfo, Refusal};

/// Layouts of thread caches (tcache) by the size of their chunk: up to glibc 2.41, and later.
const TCACHES: [(u64, TcacheLayout); 2] = [
    (
        0x290,
        TcacheLayout {
            lists: 64,
            entries: 128,
            counts_room: false,
        },
    ),
    (
        0x300,
        TcacheLayout {
            lists: 76,
            entries: 152,
            counts_room: true,
        },
    ),
];
/// Number of lists of a cache whose chunks all have the same size.
const SMALL_LISTS: u64 = 64;

#[derive(Clone, Copy, Debug)]
struct TcacheLayout {
    /// Number of lists.
    lists: u64,
    /// Offset of the array of list heads.
    entries: u64,
    /// Whether the counters at the beginning count free slots instead of chunks.
    counts_room: bool,
}

/// The parts of a heap while the free lists are read.
pub(super) struct Lists<'a> {
    memory: &'a Memory,
    parts: &'a mut [ArenaPart],
    /// Whether links are mangled (safe-linking, since glibc 2.32). `None` until known.
    mangled: Option<bool>,
    /// Remaining steps through lists of thread caches. A false match of a cache may lead anywhere; real lists have no
    /// more chunks than the memory can contain.
    left: Cell<u64>,
}

impl<'a> Lists<'a> {
    pub(super) fn new(memory: &'a Memory, parts: &'a mut [ArenaPart]) -> Lists<'a> {
        Lists {
            memory,
            parts,
            mangled: None,
            left: Cell::new(memory.len() / HEADER + 1),
        }
    }

    /// Reads the lists of all arenas, and adds up the figures of `mallinfo2`.
    pub(super) fn arenas(&mut self, state: &GlibcState) -> Result<Mallinfo, Refusal> {
        let mut info = Mallinfo::default();
        for arena in &state.arenas {
            let free = info.fordblks;
            self.fast(arena, &mut info)?;
            self.bins(arena, &mut info)?;
            let top = self.size(arena.top).unwrap_or(0);
            info.ordblks += 1;
            info.fordblks += top;
            info.arena += arena.system_mem;
            let free = info.fordblks - free;
            let used = arena.system_mem.checked_sub(free);
            info.uordblks += used.ok_or(Refusal::FreeLists(arena.at))?;
            if arena.at == state.arenas[0].at {
                info.keepcost = top;
            }
        }
        Ok(info)
    }

    fn fast(&mut self, arena: &Arena, info: &mut Mallinfo) -> Result<(), Refusal> {
        let Some(bins) = arena.fast_bins() else {
            return Ok(());
        };
        for bin in 0..FAST_BINS {
            let mut at = self.word(bins + 8 * bin)?;
            while at != 0 {
                let size = self.take(at, ChunkKind::Fast)?;
                info.smblks += 1;
                info.fsmblks += size;
                info.fordblks += size;
                // Links in fast bins point to chunks rather than to their contents.
                at = self.follow_fast(at + HEADER)?;
            }
        }
        Ok(())
    }

    fn bins(&mut self, arena: &Arena, info: &mut Mallinfo) -> Result<(), Refusal> {
        for bin in 0..BINS {
            let kind = match bin {
                0 => ChunkKind::Unsorted,
                1..63 => ChunkKind::Small,
                _ => ChunkKind::Large,
            };
            let head = arena.bins + 16 * bin - 16;
            let mut at = self.word(head + 16)?;
            while at != head {
                let size = self.take(at, kind)?;
                info.ordblks += 1;
                info.fordblks += size;
                at = self.word(at + 16)?;
            }
        }
        Ok(())
    }

    /// Reads the thread caches, which are found as chunks in use with the layout of a cache. Returns their number.
    pub(super) fn tcaches(&mut self, parameters: &Parameters) -> Result<usize, Refusal> {
        let mut caches = Vec::new();
        for part in &*self.parts {
            let live = part
                .chunks
                .iter()
                .filter(|chunk| chunk.kind == ChunkKind::Live);
            caches.extend(live.filter_map(|chunk| {
                let (_, layout) = TCACHES.into_iter().find(|(size, _)| *size == chunk.size)?;
                let links = [true, false].into_iter();
                let mut links = links.filter(|m| self.mangled.is_none_or(|known| known == *m));
                let at = chunk.at + HEADER;
                let mangled = links.find(|m| self.is_tcache(at, layout, parameters, *m))?;
                Some((at, layout, mangled))
            }));
        }
        if self.left.get() == 0 {
            return Err(Refusal::FreeLists(0));
        }
        for (at, layout, mangled) in &caches {
            for list in 0..layout.lists {
                let mut entry = self.word(at + layout.entries + 8 * list)?;
                while entry != 0 {
                    self.take(entry - HEADER, ChunkKind::Tcache)?;
                    entry = self.follow(entry, *mangled)?;
                }
            }
        }
        Ok(caches.len())
    }

    /// Whether this address has a thread cache: each list must have the number and size of chunks that the cache
    /// records. An empty cache looks like a chunk of zeroes and does not matter.
    fn is_tcache(
        &self,
        at: u64,
        layout: TcacheLayout,
        parameters: &Parameters,
        mangled: bool,
    ) -> bool {
        let most = parameters.tcache_count;
        let check = |list: u64| {
            let number = self.memory.half(at + 2 * (list & !1))? >> (16 * (list & 1)) & 0xffff;
            let number = u64::from(number);
            let mut entry = self.memory.word(at + layout.entries + 8 * list)?;
            let mut seen = 0;
            while entry != 0 {
                let chunk = entry.checked_sub(HEADER)?;
                let size = self.size(chunk)?;
                let fits = list >= SMALL_LISTS || size == SMALLEST_OF_LIST + 16 * list;
                seen += 1;
                self.left.set(self.left.get().checked_sub(1)?);
                if !fits || seen > most || self.kind(chunk) != Some(ChunkKind::Live) {
                    return None;
                }
                entry = self.follow(entry, mangled).ok()?;
            }
            let expected = match layout.counts_room {
                // A list that was never used, or is turned off, has no slots.
                true if number == 0 && seen == 0 => 0,
                true => most.checked_sub(number)?,
                false => number,
            };
            (seen == expected).then_some(seen)
        };
        let seen: Option<u64> = (0..layout.lists).map(check).sum();
        seen.is_some_and(|seen| seen > 0)
    }

    fn word(&self, at: u64) -> Result<u64, Refusal> {
        self.memory.word(at).ok_or(Refusal::Chunk(at))
    }

    fn part(&self, at: u64) -> Option<usize> {
        let index = self.parts.partition_point(|part| part.end <= at);
        self.parts.get(index).filter(|part| part.start <= at)?;
        Some(index)
    }

    fn kind(&self, at: u64) -> Option<ChunkKind> {
        self.parts[self.part(at)?].chunks.kind_at(at)
    }

    /// Size of the chunk at this address, if the walk found a chunk there.
    fn size(&self, at: u64) -> Option<u64> {
        self.kind(at)?;
        Some(self.memory.word(at + 8)? & !7)
    }

    /// Marks a chunk of a list, which must not be in another list. Returns its size.
    fn take(&mut self, at: u64, kind: ChunkKind) -> Result<u64, Refusal> {
        let part = self.part(at).ok_or(Refusal::FreeLists(at))?;
        let chunks = &mut self.parts[part].chunks;
        if chunks.kind_at(at) != Some(ChunkKind::Live) {
            return Err(Refusal::FreeLists(at));
        }
        chunks.set(at, kind);
        self.size(at).ok_or(Refusal::FreeLists(at))
    }

    /// Reads the link at an address of a certain list, and detects mangling from it.
    fn follow_fast(&mut self, at: u64) -> Result<u64, Refusal> {
        let link = self.word(at)?;
        // The last link of a list is 0 and reveals nothing.
        let mangled = self
            .mangled
            .unwrap_or(link != 0 && self.kind(link).is_none());
        self.mangled = Some(mangled);
        self.follow(at, mangled)
    }

    fn follow(&self, at: u64, mangled: bool) -> Result<u64, Refusal> {
        let link = self.word(at)?;
        Ok(if mangled { link ^ at >> 12 } else { link })
    }
}

/// Size of the chunks of a cache's first list, in bytes.
const SMALLEST_OF_LIST: u64 = 32;
