//! Which parts of a map are free.

/// The free parts of something that is numbered from 0 on and comes in blocks of a size. What is taken
/// lies in one block.
#[derive(Debug)]
pub struct Room {
    block: u32,
    /// First number and length, in order; neighbours in one block are one part.
    free: Vec<(u32, u32)>,
}

impl Room {
    /// All of `blocks` blocks is free.
    pub fn new(block: u32, blocks: u32) -> Room {
        let free = (0..blocks).map(|n| (n * block, block)).collect();
        Room { block, free }
    }

    /// Takes the first part of this length that is free, and returns its first number.
    pub fn take(&mut self, length: u32) -> Option<u32> {
        let at = self.free.iter().position(|(_, free)| *free >= length)?;
        let (first, free) = self.free[at];
        match free - length {
            0 => drop(self.free.remove(at)),
            rest => self.free[at] = (first + length, rest),
        }
        Some(first)
    }

    /// Gives back what was taken.
    pub fn give_back(&mut self, first: u32, length: u32) {
        let at = self.free.partition_point(|(start, _)| *start < first);
        self.free.insert(at, (first, length));
        self.merge(at);
        if let Some(before) = at.checked_sub(1) {
            self.merge(before);
        }
    }

    /// Makes a part and the next one a single one, if they can be.
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
        let mut room = Room::new(10, 2);
        let parts: Vec<u32> = [4, 6, 7, 3].map(|n| room.take(n).unwrap()).to_vec();
        assert_eq!(parts, [0, 4, 10, 17]);
        assert_eq!(room.take(1), None);
        for (first, length) in [(4, 6), (17, 3), (0, 4), (10, 7)] {
            room.give_back(first, length);
        }
        // Blocks stay apart.
        assert_eq!(room.free, [(0, 10), (10, 10)]);
        assert_eq!(room.take(11), None);
    }

    #[test]
    fn a_gap_is_used_again() {
        let mut room = Room::new(10, 1);
        let [_, second, _] = [2, 3, 5].map(|n| room.take(n).unwrap());
        room.give_back(second, 3);
        assert_eq!((room.take(4), room.take(3)), (None, Some(2)));
    }
}
