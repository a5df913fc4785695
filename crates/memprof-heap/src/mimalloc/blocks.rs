//! The blocks of one page, and its lists of free blocks.

use crate::chunks::ChunkKind;
use crate::memory::Memory;
use crate::spans::{Refusal, SpanMap, refuse};

/// How a free block leads to the next one of its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Links {
    /// It begins with the address of the next block; 0 at the end.
    Plain,
    /// The address is encoded with two keys; at the end, the encoded address is `null`.
    Encoded {
        /// The keys.
        keys: [u64; 2],
        /// Address of the structure that has the list.
        null: u64,
    },
}

impl Links {
    /// Links of the structure at `null` with the keys at an address.
    pub(super) fn encoded(memory: &Memory, keys: u64, null: u64) -> Option<Links> {
        let keys = [memory.word(keys)?, memory.word(keys.checked_add(8)?)?];
        Some(Links::Encoded { keys, null })
    }

    /// The block after a block; 0 at the end.
    pub(super) fn next(self, memory: &Memory, block: u64) -> Option<u64> {
        let word = memory.word(block)?;
        let Links::Encoded { keys, null } = self else {
            return Some(word);
        };
        let next = word.wrapping_sub(keys[0]).rotate_right(keys[0] as u32 % 64) ^ keys[1];
        Some(if next == null { 0 } else { next })
    }
}

/// Minimum size of blocks, in bytes.
const MIN_SIZE: u64 = 8;

/// The blocks of a page.
#[derive(Debug)]
pub(super) struct Blocks {
    /// Range of the page.
    pub start: u64,
    pub end: u64,
    /// Address and size of the blocks.
    pub at: u64,
    pub size: u64,
    pub links: Links,
    /// The blocks that were handed out at least once.
    pub kinds: Vec<ChunkKind>,
}

impl Blocks {
    /// The page from `start` to `end` with `capacity` of at most `reserved` blocks, which are taken from the `left` ones.
    /// `None` if they do not fit into it, or are too many.
    pub(super) fn new(
        (start, end): (u64, u64),
        (at, size): (u64, u64),
        (capacity, reserved): (u64, u64),
        links: Links,
        left: &mut usize,
    ) -> Option<Blocks> {
        let room = end.checked_sub(at).filter(|_| at >= start)?;
        let fits = size >= MIN_SIZE && capacity <= reserved && size.checked_mul(reserved)? <= room;
        *left = left.checked_sub(capacity as usize)?;
        fits.then(|| Blocks {
            start,
            end,
            at,
            size,
            links,
            kinds: vec![ChunkKind::Live; capacity as usize],
        })
    }

    /// Marks the blocks of the owner's lists, which begin at `own`, and those that other threads freed.
    ///
    /// # Errors
    /// A list is damaged, or the free blocks and the `used` ones are not all.
    pub(super) fn free(
        &mut self,
        memory: &Memory,
        own: [u64; 2],
        by_others: u64,
        used: u64,
    ) -> Result<(), Refusal> {
        let mut found = 0;
        for head in own {
            found += self.mark(memory, head, ChunkKind::Small)?;
        }
        if found + used != self.kinds.len() as u64 {
            return refuse!(
                "the page at {:#x} has {found} free blocks and {used} in use, of {}",
                self.start,
                self.kinds.len()
            );
        }
        // The lowest bits have another meaning.
        self.mark(memory, by_others & !3, ChunkKind::Tcache)?;
        Ok(())
    }

    /// Index of the block that begins at an address.
    pub(super) fn index(&self, block: u64) -> Option<usize> {
        let inside = block.checked_sub(self.at)?;
        let index = (inside / self.size) as usize;
        (inside.is_multiple_of(self.size) && index < self.kinds.len()).then_some(index)
    }

    /// Marks the blocks of a list. Returns their number.
    fn mark(&mut self, memory: &Memory, head: u64, kind: ChunkKind) -> Result<u64, Refusal> {
        let (mut block, mut count) = (head, 0);
        while block != 0 {
            // Each block is marked once, so that a ring ends, too.
            match self.index(block) {
                Some(index) if self.kinds[index] == ChunkKind::Live => self.kinds[index] = kind,
                _ => {
                    return refuse!(
                        "a list of free blocks of the page at {:#x} contains {block:#x}",
                        self.start
                    );
                }
            }
            count += 1;
            block = match self.links.next(memory, block) {
                Some(next) => next,
                None => return refuse!("the free block at {block:#x} was not copied"),
            };
        }
        Ok(count)
    }

    /// Adds the page to a map.
    ///
    /// # Errors
    /// The map has too many blocks.
    pub(super) fn add_to(self, map: &mut SpanMap) -> Result<(), Refusal> {
        let last = self.at + self.size * self.kinds.len() as u64;
        map.add(
            (self.start, last),
            self.at,
            self.size,
            self.kinds.into_iter(),
        )?;
        map.add_free(last, self.end);
        Ok(())
    }
}
