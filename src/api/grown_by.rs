//! Who made a heap grow: the stacks whose first touches brought in its resident pages. Not who owns the objects there:
//! allocators use pages again.

use serde::Serialize;

use super::Report;
use crate::export::folded_lines;

/// Maximum number of stacks that are listed: each may be as long as its names.
const MOST_STACKS: usize = 100;

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
    /// Nothing, and why.
    pub(crate) fn failed(why: String) -> GrownBy {
        GrownBy {
            error: Some(why),
            ..GrownBy::default()
        }
    }

    /// The stacks of a report of nothing but the heap's pages; lists at most `top`.
    pub(crate) fn of(report: &Report, shared: u64, top: usize) -> GrownBy {
        let rows = folded_lines(report).into_iter();
        let mut rows: Vec<GrownRow> = rows
            .map(|(stack, bytes)| GrownRow { stack, bytes })
            .collect();
        rows.sort_by(|a, b| (b.bytes, &a.stack).cmp(&(a.bytes, &b.stack)));
        let resident = rows.iter().map(|row| row.bytes).sum::<u64>() + shared;
        let rest = rows.split_off(rows.len().min(top).min(MOST_STACKS));
        GrownBy {
            resident,
            rows,
            left_out: rest.len() as u64,
            left_out_bytes: rest.iter().map(|row| row.bytes).sum(),
            shared,
            error: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::export::testing::report;
    use crate::tree::testing::{at, kib, profile};

    use super::*;

    #[test]
    fn rows_and_the_rest_are_all_bytes() {
        let profile = profile(
            &[
                (&[at(0, 2), at(0, 1)], kib(64, 0)),
                (&[at(0, 3)], kib(8, 0)),
            ],
            &[kib(16, 0)],
        );
        let total = profile.total.usage.value();
        let report = report(profile, &[(at(0, 1), "a;b"), (at(0, 2), "c")]);
        let grown = GrownBy::of(&report, 100, 2);
        assert_eq!(grown.resident, total + 100);
        let rows: Vec<_> = grown
            .rows
            .iter()
            .map(|row| (row.stack.as_str(), row.bytes >> 10))
            .collect();
        assert_eq!(rows[0], ("a\\x3bb;c", 64));
        assert!(rows[1].0.starts_with("[before attach: "), "{rows:?}");
        assert_eq!((grown.left_out, grown.left_out_bytes >> 10), (1, 8));
    }
}
