//! The chunks of one contiguous part of a heap: start and kind of each.
//!
//! Takes half a byte per 16 bytes of the heap, in blocks that are allocated only where chunks begin.

use super::memory::prefetch;

/// Alignment of chunks, in bytes.
pub(crate) const GRANULE: u64 = 16;
/// Offset of a glibc chunk's contents, and how far they extend past the end of the chunk, in bytes.
pub(super) const CONTENTS: u64 = 16;
pub(super) const BEHIND: u64 = 8;
/// Heap bytes that a block describes.
const BLOCK: u64 = 256 << 10;
/// Maximum size of a contiguous part, in bytes.
pub(crate) const LARGEST: u64 = 1 << 40;

/// The kind of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum ChunkKind {
    /// In use by the program.
    Live = 1,
    /// Free, in a thread's cache.
    Tcache,
    /// Free, in a fast bin.
    Fast,
    /// Freed recently, not yet sorted into a bin.
    Unsorted,
    /// Free, in a small bin; for jemalloc, free in a slab.
    Small,
    /// Free, in a large bin.
    Large,
    /// Free, the last chunk, from which new ones are split.
    Top,
    /// The allocator's own structure.
    Own,
    /// In use, and reachable from the program's roots.
    Reached,
    /// In use, unreachable, and referred to by another unreachable chunk.
    Referred,
    /// In use, unreachable, and counted under its head.
    Counted,
    /// In use and reachable, but its contents are yet to be read.
    Waiting,
}

impl ChunkKind {
    const ALL: [ChunkKind; 12] = [
        ChunkKind::Live,
        ChunkKind::Tcache,
        ChunkKind::Fast,
        ChunkKind::Unsorted,
        ChunkKind::Small,
        ChunkKind::Large,
        ChunkKind::Top,
        ChunkKind::Own,
        ChunkKind::Reached,
        ChunkKind::Referred,
        ChunkKind::Counted,
        ChunkKind::Waiting,
    ];

    /// Whether the program uses the chunk.
    pub(crate) fn is_live(self) -> bool {
        use ChunkKind::*;
        matches!(self, Live | Reached | Referred | Counted | Waiting)
    }

    fn from_nibble(nibble: u8) -> Option<ChunkKind> {
        ChunkKind::ALL
            .get(usize::from(nibble).checked_sub(1)?)
            .copied()
    }
}

/// A chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// Address of the first word of its header. The word belongs to the preceding chunk while that is in use.
    pub at: u64,
    /// Size in bytes, with the header.
    pub size: u64,
    pub kind: ChunkKind,
}

#[derive(Debug, Default)]
struct Block {
    /// Two granules per byte, the lower granule in the low bits. Empty if no chunk begins in the block.
    nibbles: Box<[u8]>,
    /// Address of the last chunk that begins before the block; 0 if there is none.
    before: u64,
}

/// The chunks of one contiguous part of a heap.
#[derive(Debug)]
pub(crate) struct Chunks {
    start: u64,
    end: u64,
    blocks: Vec<Block>,
    /// Address of the chunk added last.
    last: u64,
}

impl Chunks {
    /// Starts without chunks, for the part from `start` to `end`. `None` if the part is not aligned or too large.
    pub(crate) fn new(start: u64, end: u64) -> Option<Chunks> {
        let size = end.checked_sub(start)?;
        if !start.is_multiple_of(GRANULE) || !size.is_multiple_of(GRANULE) || size > LARGEST {
            return None;
        }
        let mut blocks = Vec::new();
        let count = size.div_ceil(BLOCK) as usize;
        blocks.try_reserve_exact(count).ok()?;
        blocks.resize_with(count, Block::default);
        Some(Chunks {
            start,
            end,
            blocks,
            last: 0,
        })
    }

    /// First address.
    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    /// Adds a chunk. Addresses must ascend.
    pub(crate) fn add(&mut self, at: u64, kind: ChunkKind) {
        let index = ((at - self.start) / BLOCK) as usize;
        let first = match self.last {
            0 => 0,
            last => ((last - self.start) / BLOCK) as usize + 1,
        };
        for block in &mut self.blocks[first..index + 1] {
            block.before = self.last;
        }
        if self.blocks[index].nibbles.is_empty() {
            self.blocks[index].nibbles = vec![0; (BLOCK / GRANULE / 2) as usize].into_boxed_slice();
        }
        self.set(at, kind);
        self.last = at;
    }

    /// Completes the index once all chunks are added.
    pub(crate) fn close(&mut self) {
        if self.last != 0 {
            let first = ((self.last - self.start) / BLOCK) as usize + 1;
            for block in &mut self.blocks[first..] {
                block.before = self.last;
            }
        }
    }

    /// Block, byte and shift of a granule.
    fn place(&self, at: u64) -> Option<(usize, usize, u32)> {
        if at < self.start || at >= self.end {
            return None;
        }
        let granule = (at - self.start) / GRANULE;
        let per_block = BLOCK / GRANULE;
        let within = granule % per_block;
        Some((
            (granule / per_block) as usize,
            (within / 2) as usize,
            (within % 2) as u32 * 4,
        ))
    }

    /// Prefetches the index entry of the chunk at or before an address, ahead of a lookup.
    pub(super) fn prefetch(&self, addr: u64) {
        if let Some((block, byte, _)) = self.place(addr)
            && let Some(byte) = self.blocks[block].nibbles.get(byte)
        {
            prefetch(byte);
        }
    }

    /// The kind of the chunk that begins at this address, if any.
    pub(crate) fn kind_at(&self, at: u64) -> Option<ChunkKind> {
        if !(at.wrapping_sub(self.start)).is_multiple_of(GRANULE) {
            return None;
        }
        let (block, byte, shift) = self.place(at)?;
        let nibbles = self.blocks[block].nibbles.get(byte)?;
        ChunkKind::from_nibble(nibbles >> shift & 15)
    }

    /// Sets the kind of the chunk at this address.
    pub(crate) fn set(&mut self, at: u64, kind: ChunkKind) {
        if let Some((block, byte, shift)) = self.place(at)
            && let Some(nibbles) = self.blocks[block].nibbles.get_mut(byte)
        {
            *nibbles = *nibbles & !(15 << shift) | (kind as u8) << shift;
        }
    }

    /// Start and kind of the chunk that contains an address.
    pub(crate) fn containing(&self, addr: u64) -> Option<(u64, ChunkKind)> {
        let (index, byte, shift) = self.place(addr)?;
        let block = &self.blocks[index];
        let granule_of = |byte: usize, high: bool| {
            let granule = index as u64 * (BLOCK / GRANULE) + byte as u64 * 2 + u64::from(high);
            self.start + granule * GRANULE
        };
        let mut at = block.before;
        if !block.nibbles.is_empty() {
            let own = block.nibbles[byte];
            let own = if shift == 0 { own & 15 } else { own };
            let bytes = block.nibbles[..byte].iter().rev();
            let behind = bytes.zip(1..).find(|(nibbles, _)| **nibbles != 0);
            if own != 0 {
                at = granule_of(byte, own > 15);
            } else if let Some((nibbles, back)) = behind {
                at = granule_of(byte - back, *nibbles > 15);
            }
        }
        Some((at, self.kind_at(at)?))
    }

    /// Size of the chunk that begins at this address, in bytes.
    pub(crate) fn size(&self, at: u64) -> u64 {
        self.next(at).unwrap_or(self.end) - at
    }

    /// The first chunk that begins after this address.
    pub(crate) fn next(&self, at: u64) -> Option<u64> {
        let (mut index, byte, shift) = self.place(at)?;
        let nibbles = &self.blocks[index].nibbles;
        if shift == 0 && nibbles.get(byte)? >> 4 != 0 {
            return Some(at + GRANULE);
        }
        let mut from = byte + 1;
        loop {
            let block = self.blocks.get(index)?;
            if let Some(rest) = block.nibbles.get(from..)
                && let Some(found) = rest.iter().position(|nibbles| *nibbles != 0)
            {
                let byte = from + found;
                let high = u64::from(block.nibbles[byte] & 15 == 0);
                let granule = index as u64 * (BLOCK / GRANULE) + byte as u64 * 2 + high;
                return Some(self.start + granule * GRANULE);
            }
            index += 1;
            from = 0;
        }
    }

    /// All chunks, in address order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Chunk> {
        let kind = self.kind_at(self.start);
        let mut at = kind.map(|_| self.start);
        std::iter::from_fn(move || {
            let here = at?;
            at = self.next(here);
            Some(Chunk {
                at: here,
                size: at.unwrap_or(self.end) - here,
                kind: self.kind_at(here)?,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_found_by_any_address_in_them() {
        let start = 0x10000;
        let sizes = [32, 16, 48, 5 * BLOCK, 64, BLOCK - 16, 16];
        let end = start + sizes.iter().sum::<u64>();
        let mut chunks = Chunks::new(start, end).unwrap();
        let mut at = start;
        let mut expected = Vec::new();
        for (i, size) in sizes.into_iter().enumerate() {
            let kind = ChunkKind::ALL[i];
            chunks.add(at, kind);
            expected.push(Chunk { at, size, kind });
            at += size;
        }
        chunks.close();
        assert_eq!(chunks.iter().collect::<Vec<_>>(), expected);
        for chunk in &expected {
            let last = chunk.at + chunk.size - 1;
            for addr in [chunk.at, chunk.at + 9, chunk.at + chunk.size / 2, last] {
                assert_eq!(
                    chunks.containing(addr),
                    Some((chunk.at, chunk.kind)),
                    "{addr:#x}"
                );
            }
            assert_eq!(chunks.kind_at(chunk.at), Some(chunk.kind));
            assert_eq!(chunks.kind_at(chunk.at + 8), None);
            assert_eq!(chunks.size(chunk.at), chunk.size);
        }
        assert_eq!(chunks.containing(end), None);
        assert_eq!(chunks.containing(start - 1), None);
        chunks.set(start, ChunkKind::Reached);
        assert_eq!(chunks.kind_at(start), Some(ChunkKind::Reached));
        assert_eq!(chunks.kind_at(start + 32), Some(expected[1].kind));
    }

    #[test]
    fn what_is_too_large_or_not_aligned_has_no_chunks() {
        assert!(Chunks::new(0, LARGEST + 16).is_none());
        assert!(Chunks::new(8, 24).is_none());
        assert!(Chunks::new(16, 8).is_none());
        let none = Chunks::new(16, 1 << 20).unwrap();
        assert_eq!((none.iter().next(), none.containing(100)), (None, None));
    }
}
