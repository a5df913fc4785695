//! An allocator for the slots of a map.

/// The free slots of a map, numbered from 0 and divided into blocks of equal size. An allocation does not cross a block boundary.
#[derive(Debug)]
pub struct SlotAllocator {
    block: u32,
    /// Free ranges as (first slot, length), in order; adjacent ranges of one block are merged.
    free: Vec<(u32, u32)>,
}

impl SlotAllocator {
    /// Creates `blocks` free blocks of `block` slots.
    pub fn new(block: u32, blocks: u32) -> SlotAllocator {
        let free = (0..blocks).map(|n| (n * block, block)).collect();
        SlotAllocator { block, free }
    }

    /// Allocates `length` slots in the first free range that is large enough; returns the first slot.
    pub fn take(&mut self, length: u32) -> Option<u32> {
        let at = self.free.iter().position(|(_, free)| *free >= length)?;
        let (first, free) = self.free[at];
        match free - length {
            0 => drop(self.free.remove(at)),
            rest => self.free[at] = (first + length, rest),
        }
        Some(first)
    }

    /// Frees an allocation.
    pub fn give_back(&mut self, first: u32, length: u32) {
        let at = self.free.partition_point(|(start, _)| *start < first);
        self.free.insert(at, (first, length));
        self.merge(at);
        if let Some(before) = at.checked_sub(1) {
            self.merge(before);
        }
    }

    /// Merges a free range with the next one if they are adjacent in one block.
    fn merge(&mut self, at: usize) {
        let Some(&(next, more)) = self.free.get(at + 1) else {
            return;
        };
        let (first, length) = self.free[at];
        if first + length == next && first / self.block == next / self.block {
            self.free[at].1 = length + more;
            self.free.remove(at + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_is_whole_again() {
        let mut room = SlotAllocator::new(10, 2);
        let parts: Vec<u32> = [4, 6, 7, 3].map(|n| room.take(n).unwrap()).to_vec();
        assert_eq!(parts, [0, 4, 10, 17]);
        assert_eq!(room.take(1), None);
        for (first, length) in [(4, 6), (17, 3), (0, 4), (10, 7)] {
            room.give_back(first, length);
        }
        // Ranges of different blocks are not merged.
        assert_eq!(room.free, [(0, 10), (10, 10)]);
        assert_eq!(room.take(11), None);
    }

    #[test]
    fn a_gap_is_used_again() {
        let mut room = SlotAllocator::new(10, 1);
        let [_, second, _] = [2, 3, 5].map(|n| room.take(n).unwrap());
        room.give_back(second, 3);
        assert_eq!((room.take(4), room.take(3)), (None, Some(2)));
    }
}
