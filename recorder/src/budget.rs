//! A limit on the bytes that all connections together hold in buffers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A number of bytes that is shared by all its clones.
#[derive(Clone, Debug)]
pub struct Budget {
    left: Arc<AtomicUsize>,
}

impl Budget {
    /// A budget of `bytes`.
    pub fn new(bytes: usize) -> Self {
        let left = Arc::new(AtomicUsize::new(bytes));
        Self { left }
    }

    /// The bytes that are not in use.
    pub fn left(&self) -> usize {
        self.left.load(Ordering::Relaxed)
    }

    fn take(&self, bytes: usize) -> bool {
        let take = |left: usize| left.checked_sub(bytes);
        let taken = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        taken.is_ok()
    }

    fn give_back(&self, bytes: usize) {
        self.left.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// A buffer whose bytes count against a budget.
#[derive(Debug)]
pub struct Buffer {
    bytes: Vec<u8>,
    charged: usize,
    budget: Budget,
}

impl Buffer {
    /// Buffers up to this size are not charged: every connection has some.
    pub const FREE: usize = 4 << 10;

    /// An empty buffer.
    pub fn new(budget: Budget) -> Self {
        Self {
            bytes: Vec::new(),
            charged: 0,
            budget,
        }
    }

    /// Appends bytes, or returns false and changes nothing if the budget does not permit it.
    #[must_use]
    pub fn extend(&mut self, bytes: &[u8]) -> bool {
        let size = self.bytes.len() + bytes.len();
        let charge = size.saturating_sub(Self::FREE);
        let more = charge.saturating_sub(self.charged);
        if more > 0 && !self.budget.take(more) {
            return false;
        }
        self.charged += more;
        // Not by doubling: what the allocation has and the buffer does not is not charged.
        if size > self.bytes.capacity() {
            let room = size.max(self.bytes.capacity() + self.bytes.capacity() / 4);
            self.bytes.reserve_exact(room - self.bytes.len());
        }
        self.bytes.extend_from_slice(bytes);
        true
    }

    /// Empties the buffer.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.shrink();
    }

    /// Shortens the buffer to [`Self::FREE`] bytes, which are not charged.
    pub fn shrink(&mut self) {
        self.bytes.truncate(Self::FREE);
        self.bytes.shrink_to(Self::FREE);
        self.budget.give_back(std::mem::take(&mut self.charged));
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.budget.give_back(self.charged);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_exceeds_the_budget_is_refused_and_returned_bytes_can_be_used_again() {
        let budget = Budget::new(1000);
        let mut one = Buffer::new(budget.clone());
        assert!(one.extend(&[0; Buffer::FREE + 600]));
        assert_eq!(budget.left(), 400);
        let mut other = Buffer::new(budget.clone());
        assert!(other.extend(&[0; Buffer::FREE]));
        assert!(!other.extend(&[0; 401]));
        assert_eq!(other.bytes().len(), Buffer::FREE);
        assert!(other.extend(&[0; 400]));
        one.clear();
        assert_eq!(budget.left(), 600);
        drop(other);
        assert_eq!(budget.left(), 1000);
    }
}
