//! The stacks whose first touches brought in the resident pages of a heap, or those that contain only zeroes. They need not own
//! the objects there, because allocators reuse pages.

use schemars::JsonSchema;
use serde::Serialize;

/// The stacks that brought in resident pages: those of a heap, or those that contain only zeroes. Sizes are in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
#[schemars(rename = "HeapGrownBy")]
pub struct GrownBy {
    /// Bytes of all these pages: the sum of `rows`, `left_out_bytes` and `shared`.
    pub resident: u64,
    /// The stacks with the most bytes, and memory without a stack by reason.
    pub rows: Vec<GrownRow>,
    /// Number of rows that are not listed.
    pub left_out: u64,
    /// Bytes of the rows that are not listed.
    pub left_out_bytes: u64,
    /// Bytes on pages that a heap shares with adjacent memory. Their stacks are not looked up.
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
