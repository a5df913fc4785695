//! Pseudo-random numbers. Benchmarks also use this file, so it does not depend on its sibling modules.

#![allow(dead_code, reason = "each test binary uses its own part")]

/// xorshift64*: the same numbers from the same seed, on every machine and with every compiler. The seed
/// must not be 0.
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 33) % end
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// An index into something of this length; 0 if it is empty.
    pub fn index(&mut self, len: usize) -> usize {
        (self.next() >> 33) as usize % len.max(1)
    }

    pub fn choose<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.index(values.len())]
    }

    /// At least 0, less than 1.
    pub fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}
