//! The stacks that made a heap grow, by name.

use super::folded;
use memprof_heap::{GrownBy, GrownRow};
use memprof_profile::Report;

/// Maximum number of listed stacks, because each line is as long as all names of its stack.
const MAX_STACKS: usize = 100;

/// Lists at most `top` stacks of a report that contains only the pages of a heap. `shared` is the number of bytes on pages
/// that the heap shares with other memory.
pub(crate) fn grown_by(report: &Report, shared: u64, top: usize, inlined: bool) -> GrownBy {
    let rows = folded::lines(report, inlined).into_iter();
    let mut rows: Vec<GrownRow> = rows
        .map(|(stack, bytes)| GrownRow { stack, bytes })
        .collect();
    rows.sort_by(|a, b| (b.bytes, &a.stack).cmp(&(a.bytes, &b.stack)));
    let resident = rows.iter().map(|row| row.bytes).sum::<u64>() + shared;
    let rest = rows.split_off(rows.len().min(top).min(MAX_STACKS));
    GrownBy {
        resident,
        rows,
        left_out: rest.len() as u64,
        left_out_bytes: rest.iter().map(|row| row.bytes).sum(),
        shared,
        error: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, kib, profile, report};

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
        let grown = grown_by(&report, 100, 2, true);
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
