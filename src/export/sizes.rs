//! The size histogram of an exact window, as comma-separated values: one row per stack and size class.
//!
//! `from_bytes` and `to_bytes` are the smallest and the largest size of the class, `objects` is the number of allocations,
//! and `frames` is the stack, as in the format `csv`. Stacks with the most allocations come first.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::{self, Write};

use super::cells;
use super::csv::Cells;
use memprof_profile::{Report, StackSizes};

/// Writes the histogram. `report` has the symbols of the stacks.
///
/// # Errors
/// If writing to `out` fails.
pub fn write_sizes(report: &Report, stacks: &[StackSizes], out: &mut dyn Write) -> io::Result<()> {
    let mut names = Cells::new(report.side(), false);
    // Stacks of several processes, and stacks that differ only in frames without a name, can have the same text.
    let mut sums: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for of in stacks {
        let frames = match &of.stack {
            Some(stack) => names.frames(&stack.frames, None).to_owned(),
            None => "[stack lost]".to_owned(),
        };
        let sum = sums
            .entry(frames)
            .or_insert_with(|| vec![0; of.sizes.len()]);
        sum.iter_mut()
            .zip(&of.sizes)
            .for_each(|(to, from)| *to += from);
    }
    let mut rows: Vec<_> = sums.into_iter().collect();
    rows.sort_by_key(|(_, sizes)| Reverse(sizes.iter().sum::<u64>()));
    let mut writer = cells::writer(out);
    let head = ["from_bytes", "to_bytes", "objects", "frames"];
    writer.write_record(head).map_err(cells::failed)?;
    for (frames, sizes) in &rows {
        for (bits, objects) in sizes.iter().enumerate().filter(|(_, n)| **n > 0) {
            let (from, to) = class(bits);
            let [from, to, objects] = [from, to, *objects].map(|n| n.to_string());
            let row = [&from, &to, &objects, &*cells::text(frames)];
            writer.write_record(row).map_err(cells::failed)?;
        }
    }
    writer.flush()
}

/// The smallest and the largest number with `bits` bits.
fn class(bits: usize) -> (u64, u64) {
    match bits as u32 {
        0 => (0, 0),
        bits => (1 << (bits - 1), u64::MAX >> (64 - bits.min(64))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_has_the_sizes_of_so_many_bits() {
        assert_eq!(class(0), (0, 0));
        assert_eq!(class(1), (1, 1));
        assert_eq!(class(7), (64, 127));
        assert_eq!(class(63), (1 << 62, (1 << 63) - 1));
    }
}
