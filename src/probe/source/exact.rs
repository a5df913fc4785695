//! The exact count of all allocations (`--heap=exact`), summed up by stack in `exact.bpf.h`.

use anyhow::Result;

use super::{Ledger, ReadLedger, Source, Totals};
use crate::probe::wire::{self, exact_sum};
use memprof_profile::Amounts;
use memprof_profile::measure::{
    ALLOC_OBJECTS, ALLOC_SPACE, ColumnId, HEAP, INUSE_OBJECTS, INUSE_SPACE, TEMPORARY_OBJECTS,
    TEMPORARY_SPACE,
};
use memprof_sys::ids::StackId;

/// The option that enables the source.
pub(crate) const OPTION: &str = "--heap=exact";
/// The program at the entry of an allocation function, and the one at its return.
pub(crate) const BEGINS: &str = "call_begins";
/// See [`BEGINS`].
pub(crate) const ENDS: &str = "call_ends";
/// The program at the `ret` instructions of functions that throw.
pub(crate) const EXITS: &str = "call_exits";
/// The program at the start of an exception.
pub(crate) const THROWS: &str = "call_throws";
/// The program at the entry of a function that frees.
pub(crate) const FREES: &str = "free_called";

/// Maximum figure of a stack. Figures come from processes, and the sums of all 65,536 stacks must fit into 64 bits.
const MAX_FIGURE: u64 = 1 << 47;

/// The source of all allocations.
pub static SOURCE: Source = Source {
    name: "all allocations",
    programs: &[],
    at_faults: &[],
    optional: &[],
    tracepoints: &[],
    measure: &HEAP,
    option: Some(OPTION),
    on_demand: &[BEGINS, ENDS, EXITS, THROWS, FREES],
    maps: &["exact_initial", "exact_blocks", "exact_calls", "after_call"],
    ledger: Some(&LEDGER),
    collect: Some(collect),
};

static LEDGER: Ledger = Ledger {
    map: "exact_sums",
    entries: |bss| &raw const bss.exact_rows,
    batch: 1024,
    stacks: 0..4,
};

fn collect(probe: &dyn ReadLedger, _: u64, totals: &mut Totals) -> Result<()> {
    probe.read(&LEDGER, &mut |_, value| {
        if let Ok(sum) = wire::read_record::<exact_sum>(value, size_of::<exact_sum>()) {
            // The row of lost stacks exists from the start.
            if sum.objects > 0 {
                add(&sum, totals);
            }
        }
    })
}

/// Numbers of allocations of each stack by size class, which is the number of bits of the size.
///
/// # Errors
/// If the map cannot be read.
pub(crate) fn sizes(probe: &dyn ReadLedger) -> Result<Vec<(StackId, Vec<u64>)>> {
    let mut all = Vec::new();
    probe.read(&LEDGER, &mut |_, value| {
        if let Ok(sum) = wire::read_record::<exact_sum>(value, size_of::<exact_sum>())
            && sum.objects > 0
        {
            all.push((StackId(sum.stack), sum.sizes.to_vec()));
        }
    })?;
    Ok(all)
}

/// Adds a row of the ledger.
fn add(sum: &exact_sum, totals: &mut Totals) {
    let stack = StackId(sum.stack);
    for (space, objects, bytes, number) in [
        (ALLOC_SPACE, ALLOC_OBJECTS, sum.bytes, sum.objects),
        (INUSE_SPACE, INUSE_OBJECTS, sum.live_bytes, sum.live_objects),
        (
            TEMPORARY_SPACE,
            TEMPORARY_OBJECTS,
            sum.temporary_bytes,
            sum.temporary_objects,
        ),
    ] {
        let (bytes, number) = (bytes.min(MAX_FIGURE), number.min(MAX_FIGURE));
        totals.add_stack(stack, Amounts::in_column(space, bytes));
        totals.add_stack(stack, Amounts::in_column(objects, number));
        if sum.weight > 1 {
            let (bytes_too, number_too) = variances(sum, bytes, number);
            add_variance(totals, stack, space, bytes_too);
            add_variance(totals, stack, objects, number_too);
        }
    }
}

fn add_variance(totals: &mut Totals, stack: StackId, column: ColumnId, variance: f64) {
    *totals.variances.entry((stack, column)).or_default() += variance;
}

/// The variances of the bytes and of the number of allocations, when one allocation in `weight` is counted at random. The variance
/// of the bytes uses the mean square of the sizes of all allocations of the stack, by size class.
fn variances(sum: &exact_sum, bytes: u64, number: u64) -> (f64, f64) {
    let beyond = f64::from(sum.weight) - 1.0;
    let number = number as f64;
    let squares = sum.sizes.iter().enumerate().map(|(bits, n)| {
        // The middle of a class.
        let size = 0.75 * 2f64.powi(bits as i32);
        *n as f64 * size * size
    });
    let mean = squares.sum::<f64>() / (sum.objects as f64).max(1.0);
    // At least the value for equal sizes.
    let equal = bytes as f64 * (bytes as f64 / number.max(1.0));
    ((mean * number).max(equal) * beyond, number * beyond)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(weight: u32) -> exact_sum {
        let mut sum = exact_sum {
            stack: 20,
            weight,
            objects: 100,
            bytes: 6400,
            live_objects: 40,
            live_bytes: 2560,
            temporary_objects: 60,
            temporary_bytes: 3840,
            ..Default::default()
        };
        sum.sizes[7] = 100;
        sum
    }

    #[test]
    fn all_calls_have_no_error_and_one_in_ten_has() {
        let mut totals = Totals::default();
        add(&sum(1), &mut totals);
        let of = |totals: &Totals, column| totals.stacks[&StackId(20)].column(column);
        assert_eq!(of(&totals, ALLOC_SPACE), 6400);
        assert_eq!(of(&totals, INUSE_OBJECTS), 40);
        assert_eq!(of(&totals, TEMPORARY_SPACE), 3840);
        assert!(totals.variances.is_empty());
        let mut totals = Totals::default();
        add(&sum(10), &mut totals);
        let error = |column| totals.variances[&(StackId(20), column)].sqrt();
        // Ten samples of weight 10: √(10 · 10 · 9).
        assert_eq!(error(ALLOC_OBJECTS), 30.0);
        assert!(error(ALLOC_SPACE) >= 30.0 * 64.0);
    }
}
