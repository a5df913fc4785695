//! Chunks by size.

use super::report::SizeClass;

/// Chunks up to this size, in bytes, have a class for each size.
const EXACT: u64 = 1024;
/// Distance of these sizes.
const STEP: u64 = 16;
/// Classes of a doubling of size above.
const PER_DOUBLING: u64 = 4;
/// Number of classes.
pub(super) const CLASSES: u64 = EXACT / STEP + 1 + (64 - EXACT.ilog2() as u64) * PER_DOUBLING;

/// Sums by size class.
#[derive(Debug)]
pub(super) struct Sizes {
    classes: Vec<SizeClass>,
}

impl Default for Sizes {
    fn default() -> Sizes {
        Sizes {
            classes: vec![SizeClass::default(); CLASSES as usize],
        }
    }
}

impl Sizes {
    /// Counts a chunk; returns its class.
    pub(super) fn add(&mut self, size: u64, live: bool) -> usize {
        let index = index(size);
        if let Some(class) = self.classes.get_mut(index) {
            let (count, bytes) = match live {
                true => (&mut class.live, &mut class.live_bytes),
                false => (&mut class.free, &mut class.free_bytes),
            };
            *count += 1;
            *bytes += size;
        }
        index
    }

    /// Charges free bytes to a class.
    pub(super) fn pin(&mut self, class: usize, free: u64) {
        if let Some(class) = self.classes.get_mut(class) {
            class.pinned += free;
        }
    }

    /// The classes that have chunks, by size.
    pub(super) fn classes(&self) -> Vec<SizeClass> {
        let all = self.classes.iter().enumerate();
        let filled = all.filter(|(_, class)| class.live + class.free > 0);
        filled
            .map(|(index, class)| SizeClass {
                from: largest(index.saturating_sub(1)) + 1,
                to: largest(index),
                ..*class
            })
            .collect()
    }
}

/// The smallest and the largest size, in bytes, of the class of a size.
pub(super) fn class(size: u64) -> (u64, u64) {
    let index = index(size);
    (largest(index.saturating_sub(1)) + 1, largest(index))
}

/// The class of a size.
pub(super) fn index(size: u64) -> usize {
    if size <= EXACT {
        return size.div_ceil(STEP) as usize;
    }
    let doubling = (size - 1).ilog2();
    let step = (1_u64 << doubling) / PER_DOUBLING;
    let within = (size - 1 - (1 << doubling)) / step;
    let above = u64::from(doubling - EXACT.ilog2()) * PER_DOUBLING + within;
    (EXACT / STEP + 1 + above) as usize
}

/// The largest size of a class.
pub(super) fn largest(index: usize) -> u64 {
    let index = index as u64;
    if index <= EXACT / STEP {
        return index * STEP;
    }
    let above = index - EXACT / STEP - 1;
    let doubling = EXACT << (above / PER_DOUBLING);
    doubling + doubling / PER_DOUBLING * (above % PER_DOUBLING + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_size_is_within_its_class() {
        let sizes = (1..5000).chain((0..43).map(|n| (1 << n) + 7));
        for size in sizes {
            let class = index(size);
            assert!(
                size <= largest(class) && size > largest(class - 1),
                "{size}"
            );
        }
    }
}
