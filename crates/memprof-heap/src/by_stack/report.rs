//! The rows of the report, by stack and without one. Sizes are in bytes.

use schemars::JsonSchema;
use serde::Serialize;

use super::samples::SampleCounts;

/// An estimate with its standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Estimated {
    /// Estimated bytes.
    pub bytes: u64,
    /// Standard error, in bytes.
    pub error: u64,
}

/// An estimated number with its standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct EstimatedNumber {
    /// Estimated number.
    pub number: u64,
    /// Standard error of the number.
    pub error: u64,
}

/// What the chunks of a stack hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
#[schemars(rename = "HeapStackRow")]
pub struct StackRow {
    /// Function names of the stack, outermost first, joined with `;`.
    pub stack: String,
    /// For each function in `stack` its source line as `FILE:LINE`, that of the stack with the most sampled bytes; the name of
    /// its file if no line is known, null if that is not known either.
    pub places: Vec<Option<String>>,
    /// Number of live samples.
    pub samples: u64,
    /// Requested bytes of chunks in use, resident or not.
    pub live: Estimated,
    /// Resident bytes of its reachable chunks, with their headers.
    pub resident: Estimated,
    /// Portion of `resident` that is headers and rounding of the requested size.
    pub overhead: u64,
    /// Resident free bytes on pages that the stack's chunks keep in memory.
    pub pinned: Estimated,
    /// Portion of `pinned` that lies beside the sampled chunks themselves. The rest is extrapolated from it.
    pub pinned_beside_samples: u64,
    /// Resident bytes of the stack's unreachable chunks, with their headers.
    pub unreachable: Estimated,
    /// Number of live samples of unreachable chunks.
    pub unreachable_samples: u64,
}

impl StackRow {
    /// All resident bytes of the row.
    pub fn total(&self) -> u64 {
        self.resident.bytes + self.pinned.bytes + self.unreachable.bytes
    }
}

/// The head of unreachable chunks: the chunk that leads to them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind", content = "stack")]
#[schemars(rename = "HeapHeadOf")]
pub enum HeadOf {
    /// Nothing refers to the chunks themselves.
    Itself,
    /// A chunk of this stack leads to them.
    Stack(String),
    /// A chunk that was not sampled leads to them.
    NotSampled,
}

/// Unreachable chunks of a stack.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[schemars(rename = "HeapLeakRow")]
pub struct LeakRow {
    /// The stack that allocated them.
    pub stack: String,
    /// For each function in `stack` its source line as `FILE:LINE`, that of the stack with the most sampled bytes; the name of
    /// its file if no line is known, null if that is not known either.
    pub places: Vec<Option<String>>,
    /// The chunk that leads to them.
    pub head: HeadOf,
    /// Resident bytes of the chunks, with headers.
    pub unreachable: Estimated,
    /// Requested bytes, resident or not.
    pub requested: Estimated,
    /// Number of chunks.
    pub allocations: EstimatedNumber,
    /// Number of live samples.
    pub samples: u64,
    /// Address of one of the heads.
    pub example: u64,
}

/// The kind of memory without a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "HeapRestKind")]
pub enum RestKind {
    /// Chunks in use that were allocated before sampling began.
    BeforeSampling,
    /// Chunks in use of which some were not sampled, as the number of samples shows, although sampling began with the
    /// program.
    NotSampled,
    /// Chunks in use with too few samples for an estimate.
    TooFewSamples,
    /// The allocators' own structures.
    AllocatorOwn,
    /// Memory of Python's own allocator, whose blocks are not sampled.
    Python,
    /// Memory outside the heap.
    Other,
}

/// Memory without a stack.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[schemars(rename = "HeapRestRow")]
pub struct RestRow {
    /// The kind of memory.
    pub kind: RestKind,
    /// Subdivision of the memory of Python's own allocator, and of memory outside the heap.
    pub name: Option<String>,
    /// Smallest and largest size of the chunks, with header. `None` if the memory is not in chunks.
    pub sizes: Option<[u64; 2]>,
    /// Whether nothing refers to the chunks.
    pub unreachable: bool,
    /// Resident bytes.
    pub resident: Estimated,
    /// Resident free bytes on pages that the chunks keep in memory.
    pub pinned: u64,
}

/// Resident pages without a chunk in use.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[schemars(rename = "HeapFreePagesRow")]
pub struct FreePagesRow {
    /// The stack that brought them in; `None` if unknown.
    pub grown_by: Option<String>,
    /// Free bytes.
    pub resident: u64,
}

/// The heap by stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
#[schemars(rename = "HeapByStack")]
pub struct ByStack {
    /// Number of samples by their fate.
    pub samples: SampleCounts,
    /// Whether sampling began with the program.
    pub from_start: bool,
    /// Whether each allocation was sampled, so that nothing is estimated.
    pub every: bool,
    /// The process's resident anonymous memory: the sum of all rows.
    pub total: u64,
    /// The stacks, in descending order of resident bytes.
    pub rows: Vec<StackRow>,
    /// Number of stacks that are not listed.
    pub left_out: u64,
    /// Resident bytes of the stacks that are not listed.
    pub left_out_bytes: u64,
    /// Unreachable chunks by stack and head. Their bytes are also in `rows`.
    pub leaks: Vec<LeakRow>,
    /// Number of leak rows that are not listed.
    pub leaks_left_out: u64,
    /// Resident pages without a chunk in use, by the stack that brought them in. Another stack may have freed them.
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
