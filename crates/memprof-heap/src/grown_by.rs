//! The stacks whose first touches brought in the resident pages of a heap. They need not own the objects there,
//! because allocators reuse pages.

use schemars::JsonSchema;
use serde::Serialize;

/// The stacks that brought in the resident pages of a heap. Sizes are in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
#[schemars(rename = "HeapGrownBy")]
pub struct GrownBy {
    /// Resident bytes of the whole heap: the sum of `rows`, `left_out_bytes` and `shared`.
    pub resident: u64,
    /// The stacks with the most bytes, and memory without a stack by reason.
    pub rows: Vec<GrownRow>,
    /// Number of rows that are not listed.
    pub left_out: u64,
    /// Bytes of the rows that are not listed.
    pub left_out_bytes: u64,
    /// Bytes on pages that the heap shares with adjacent memory. Their stacks are not looked up.
    pub shared: u64,
    /// Reason why the lookup failed; the rows are empty then.
    pub error: Option<String>,
}

/// The resident bytes of one stack.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[schemars(rename = "HeapGrownRow")]
pub struct GrownRow {
    /// Function names of the stack, outermost first, joined with `;`. For memory without a stack: `[REASON:
    /// MAPPING]`.
    pub stack: String,
    /// Resident bytes.
    pub bytes: u64,
}

impl GrownBy {
    /// The result of a failed lookup, with its reason.
    pub fn failed(why: String) -> GrownBy {
        GrownBy {
            error: Some(why),
            ..GrownBy::default()
        }
    }
}
