//! A heap snapshot as requested and as delivered.

use std::time::{Duration, SystemTime};

use super::{Approach, ByStack, GrownBy, Heap};

/// Options of a heap snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeapOptions {
    /// Whether the process is forked, or stopped while its memory is copied.
    pub approach: Approach,
    /// Maximum time for which the process is stopped; `None` for the value of `--max-freeze`.
    pub max_stop: Option<Duration>,
    /// Maximum number of rows in each list of chunks, unreachable heads and Python types.
    pub top: usize,
    /// Number of stacks to list in each table by stack.
    pub stacks: usize,
    /// The option or setting that determines the maximum stop, for messages.
    pub limit: &'static str,
    /// Whether to look up the stacks that made the heap grow.
    pub grown_by: bool,
}

/// A heap snapshot, and its time.
#[derive(Clone, Debug)]
pub struct HeapSnapshot {
    /// The report of the snapshot.
    pub heap: Heap,
    /// When the process was stopped for it, or shortly after.
    pub taken: SystemTime,
    /// The stacks that made the heap grow, if requested and the heap was read.
    pub grown_by: Option<GrownBy>,
    /// The stacks that brought in the pages that contain only zeroes, if requested.
    pub zero_by: Option<GrownBy>,
    /// The heap by allocating stack, if allocations are sampled and the heap was read.
    pub by_stack: Option<ByStack>,
}
