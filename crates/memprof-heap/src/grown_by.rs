//! The stacks whose first touches brought in the resident pages of a heap. They do not own the objects there, because allocators
//! reuse pages.

use serde::Serialize;

/// The stacks that brought in the resident pages of a heap. Sizes are in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GrownBy {
    /// All of the heap's resident bytes: the sum of all rows, of those that are left out, and of `shared`.
    pub resident: u64,
    /// The stacks with the most bytes, and memory without a stack with the reason.
    pub rows: Vec<GrownRow>,
    /// Number of rows that are not listed.
    pub left_out: u64,
    /// Their bytes.
    pub left_out_bytes: u64,
    /// Bytes on pages that the heap shares with what lies beside it, which are not looked up.
    pub shared: u64,
    /// Why nothing is known.
    pub error: Option<String>,
}

/// A stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GrownRow {
    /// Names of its functions, the outermost first, with `;` between them; of memory without a stack `[REASON: MAPPING]`.
    pub stack: String,
    /// Resident bytes.
    pub bytes: u64,
}

impl GrownBy {
    /// Nothing is known, for this reason.
    pub fn failed(why: String) -> GrownBy {
        GrownBy {
            error: Some(why),
            ..GrownBy::default()
        }
    }
}
