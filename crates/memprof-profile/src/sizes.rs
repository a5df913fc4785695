//! The sizes of allocations by stack.

use std::sync::Arc;

use crate::Stack;

/// The sizes of a stack's allocations.
#[derive(Clone, Debug)]
pub struct StackSizes {
    /// The stack; `None` if it was lost.
    pub stack: Option<Arc<Stack>>,
    /// Numbers of allocations by the number of bits of their size in bytes.
    pub sizes: Vec<u64>,
}
