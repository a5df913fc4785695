//! A heap snapshot as it is requested and delivered.

use std::time::{Duration, SystemTime};

use super::{Approach, ByStack, GrownBy, Heap};

/// How a heap snapshot is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeapOptions {
    /// Whether the process is forked or its memory copied while it is stopped.
    pub approach: Approach,
    /// Maximum time for which the process is stopped; `None` for that of `--max-freeze`.
    pub max_stop: Option<Duration>,
    /// Number of chunks and of other single things that are listed.
    pub top: usize,
    /// Number of stacks that are listed in each table by stack.
    pub stacks: usize,
    /// What sets the limit of the stop, for messages.
    pub limit: &'static str,
    /// Whether to find out who made the heap grow.
    pub grown_by: bool,
}

/// A heap snapshot, and when it was taken.
#[derive(Clone, Debug)]
pub struct HeapSnapshot {
    /// What it found.
    pub heap: Heap,
    /// When the process was stopped for it, or shortly after.
    pub taken: SystemTime,
    /// Who made the heap grow, if that was asked for and the heap was read.
    pub grown_by: Option<GrownBy>,
    /// The heap by the stacks that allocated it, if allocations are sampled and the heap was read.
    pub by_stack: Option<ByStack>,
}
