//! The rows: by stack, and without one. Sizes are in bytes.

use serde::Serialize;

use super::samples::SampleCounts;

/// An estimate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Estimated {
    /// Bytes.
    pub bytes: u64,
    /// Its standard error, in bytes.
    pub error: u64,
}

/// An estimated number of things.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EstimatedNumber {
    /// How many.
    pub number: u64,
    /// Its standard error.
    pub error: u64,
}

/// What the chunks of a stack hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StackRow {
    /// Names of its functions, the outermost first, with `;` between them.
    pub stack: String,
    /// Number of live samples.
    pub samples: u64,
    /// Requested bytes that are in use, resident or not.
    pub live: Estimated,
    /// Resident bytes of its reachable chunks, with their headers.
    pub resident: Estimated,
    /// Those of them that are headers, or were added to the requested size.
    pub overhead: u64,
    /// Resident free bytes on pages that its chunks keep in memory.
    pub pinned: Estimated,
    /// Those of them that lie beside the sampled chunks themselves; the others are concluded from these.
    pub pinned_beside_samples: u64,
    /// Resident bytes of its unreachable chunks, with their headers.
    pub unreachable: Estimated,
    /// Number of live samples of these.
    pub unreachable_samples: u64,
}

impl StackRow {
    /// All resident bytes of the row.
    pub fn total(&self) -> u64 {
        self.resident.bytes + self.pinned.bytes + self.unreachable.bytes
    }
}

/// Whose chunk leads to unreachable ones.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind", content = "stack")]
pub enum HeadOf {
    /// Nothing refers to the chunks themselves.
    Itself,
    /// A chunk of this stack leads to them.
    Stack(String),
    /// A chunk that was not sampled leads to them.
    NotSampled,
}

/// Unreachable chunks of a stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeakRow {
    /// Who allocated them.
    pub stack: String,
    /// What leads to them.
    pub head: HeadOf,
    /// Their resident bytes, with headers.
    pub unreachable: Estimated,
    /// The bytes that were requested, resident or not.
    pub requested: Estimated,
    /// Number of chunks.
    pub allocations: EstimatedNumber,
    /// Number of live samples.
    pub samples: u64,
    /// Address of one of the heads.
    pub example: u64,
}

/// What memory without a stack is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RestKind {
    /// In use, and allocated before sampling began.
    BeforeSampling,
    /// In use, and the samples say that not all of these chunks could be sampled, though sampling began with the program.
    NotSampled,
    /// In use, with too few samples for an estimate.
    TooFewSamples,
    /// Of the allocators.
    AllocatorOwn,
    /// Python's own allocator, whose blocks are not sampled.
    Python,
    /// Memory outside the heap.
    Other,
}

/// Memory without a stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RestRow {
    /// What it is.
    pub kind: RestKind,
    /// What of it: of Python's own allocator and of memory outside the heap.
    pub name: Option<String>,
    /// Smallest and largest size of the chunks, with header, if they are chunks.
    pub sizes: Option<[u64; 2]>,
    /// Whether nothing refers to the chunks.
    pub unreachable: bool,
    /// Resident bytes.
    pub resident: Estimated,
    /// Resident free bytes on pages that the chunks keep in memory.
    pub pinned: u64,
}

/// Resident pages without a chunk in use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FreePagesRow {
    /// Who brought them in; `None` if that is not known.
    pub grown_by: Option<String>,
    /// Free bytes.
    pub resident: u64,
}

/// The heap by stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ByStack {
    /// What became of the samples.
    pub samples: SampleCounts,
    /// Whether sampling began with the program.
    pub from_start: bool,
    /// Whether each allocation was a sample: then nothing is estimated.
    pub every: bool,
    /// The process's resident anonymous memory: the sum of all rows.
    pub total: u64,
    /// The stacks, those with the most resident bytes first.
    pub rows: Vec<StackRow>,
    /// Number of stacks that are not listed.
    pub left_out: u64,
    /// Their resident bytes.
    pub left_out_bytes: u64,
    /// Unreachable chunks by stack and by what leads to them: parts of the rows above.
    pub leaks: Vec<LeakRow>,
    /// Number of these that are not listed.
    pub leaks_left_out: u64,
    /// Resident pages without a chunk in use, by who brought them in, which may have been another than who freed them.
    pub free_pages: Vec<FreePagesRow>,
    /// Memory without a stack.
    pub rest: Vec<RestRow>,
}

impl ByStack {
    /// The sum of all rows.
    pub fn sum(&self) -> u64 {
        let rows = self.rows.iter().map(StackRow::total).sum::<u64>() + self.left_out_bytes;
        let free = self.free_pages.iter().map(|row| row.resident).sum::<u64>();
        let rest = self.rest.iter().map(|row| row.resident.bytes + row.pinned);
        rows + free + rest.sum::<u64>()
    }
}
