//! Histograms of allocation sizes by stack.

use std::sync::Arc;

use crate::Stack;

/// The histogram of allocation sizes of one stack.
#[derive(Clone, Debug)]
pub struct StackSizes {
    /// The stack; `None` if it was lost.
    pub stack: Option<Arc<Stack>>,
    /// Number of allocations per size class; the index is the number of bits of the size in bytes.
    pub sizes: Vec<u64>,
}
