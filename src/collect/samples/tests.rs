use super::sums::{MAX_STACKS, OTHER};
use super::*;
use crate::random::Random;
use memprof_profile::measure::{
    ALLOC_OBJECTS, ALLOC_SPACE, AT_PEAK_SPACE, INUSE_OBJECTS, INUSE_SPACE, TEMPORARY_OBJECTS,
    TEMPORARY_SPACE,
};
use memprof_sys::ids::{Addr, StackId};

const ONE: MmId = MmId(1);
const CHILD: MmId = MmId(2);

fn allocation(mm: MmId, stack: u32, address: u64, size: u64, weight: u64) -> SampledAllocation {
    SampledAllocation {
        mm,
        stack: StackId(stack),
        thread: 7,
        address: Addr(address),
        size,
        weight,
        at: address,
    }
}

fn freed(mm: MmId, address: u64, after: Duration) -> SampleFreed {
    SampleFreed {
        mm,
        address: Addr(address),
        at: address + after.as_nanos() as u64,
    }
}

fn figures(samples: &Samples, mm: MmId, stack: u32) -> [u64; 6] {
    let mut totals = Totals::default();
    samples.add_to(mm, &mut totals);
    columns(&totals, stack)
}

fn columns(totals: &Totals, stack: u32) -> [u64; 6] {
    let amounts = totals.stacks.get(&StackId(stack));
    let amounts = amounts.copied().unwrap_or_default();
    [
        INUSE_SPACE,
        INUSE_OBJECTS,
        ALLOC_SPACE,
        ALLOC_OBJECTS,
        TEMPORARY_SPACE,
        TEMPORARY_OBJECTS,
    ]
    .map(|column| amounts.column(column))
}

#[test]
fn a_sample_stands_for_its_weight_until_it_is_freed() {
    let mut samples = Samples::default();
    samples.allocated(&allocation(ONE, 20, 0x1000, 100, 1000));
    samples.allocated(&allocation(ONE, 20, 0x2000, 5000, 5000));
    samples.allocated(&allocation(ONE, 21, 0x3000, 10, 1000));
    assert_eq!(figures(&samples, ONE, 20), [6000, 11, 6000, 11, 0, 0]);
    samples.freed(&freed(ONE, 0x1000, TEMPORARY));
    samples.freed(&freed(ONE, 0x3000, TEMPORARY + Duration::from_nanos(1)));
    // Unknown samples.
    samples.freed(&freed(ONE, 0x9000, Duration::ZERO));
    samples.freed(&freed(CHILD, 0x2000, Duration::ZERO));
    assert_eq!(figures(&samples, ONE, 20), [5000, 1, 6000, 11, 1000, 10]);
    assert_eq!(figures(&samples, ONE, 21), [0, 0, 1000, 100, 0, 0]);
    let mut totals = Totals::default();
    samples.add_to(ONE, &mut totals);
    let variance = |stack, column| totals.variances[&(StackId(stack), column)];
    // A sample with probability 1 is exact.
    assert_eq!(variance(20, INUSE_SPACE), 0.0);
    assert_eq!(variance(20, ALLOC_SPACE), 1000.0 * 1000.0 * 0.9);
    assert_eq!(variance(21, ALLOC_OBJECTS), 100.0 * 100.0 * 0.99);
}

#[test]
fn a_child_has_its_own_copy_of_the_heap() {
    let mut samples = Samples::default();
    samples.allocated(&allocation(ONE, 20, 0x1000, 100, 1000));
    samples.forked(ONE, CHILD);
    samples.freed(&freed(CHILD, 0x1000, Duration::from_secs(1)));
    assert_eq!(figures(&samples, ONE, 20), [1000, 10, 1000, 10, 0, 0]);
    assert_eq!(figures(&samples, CHILD, 20), [0; 6]);
    samples.forked(ONE, CHILD);
    assert_eq!(figures(&samples, CHILD, 20), [1000, 10, 0, 0, 0, 0]);
    samples.allocated(&allocation(CHILD, 21, 0x2000, 100, 100));
    samples.ended(CHILD);
    samples.ended(ONE);
    assert_eq!(samples.live, 0);
    let mut totals = Totals::default();
    samples.add_ended_to(&mut totals);
    assert_eq!(columns(&totals, 20), [0, 0, 1000, 10, 0, 0]);
    assert_eq!(columns(&totals, 21), [0, 0, 100, 1, 0, 0]);
}

#[test]
fn figures_that_cannot_be_true_do_no_harm() {
    let mut samples = Samples::default();
    for (size, weight) in [(0, 0), (0, u64::MAX), (u64::MAX, 0), (u64::MAX, u64::MAX)] {
        samples.allocated(&allocation(ONE, 20, size ^ weight, size, weight));
    }
    assert_eq!(samples.refused, 3);
    // Any number of samples with the maximum weight.
    for at in 0..1 << 16 {
        samples.allocated(&allocation(ONE, 20 + at as u32 % 9, at, 1, MAX_BYTES));
    }
    let mut totals = Totals::default();
    samples.add_to(ONE, &mut totals);
    assert!(
        totals
            .variances
            .values()
            .all(|v| v.is_finite() && *v >= 0.0)
    );
    let amounts = totals.stacks.values();
    let sum: u64 = amounts.map(|a| a.column(ALLOC_OBJECTS)).sum();
    assert!(sum >= MAX_TOTAL && samples.refused > 3);
}

#[test]
fn what_does_not_fit_is_counted_and_no_process_takes_the_room_of_another() {
    let mut samples = Samples::default();
    for at in 0..MAX_LIVE as u64 + 10 {
        samples.allocated(&allocation(ONE, 20, at, 1, 1));
    }
    assert_eq!((samples.live, samples.untracked), (MAX_LIVE, 10));
    samples.allocated(&allocation(CHILD, 20, 5, 1, 1));
    samples.allocated(&allocation(CHILD, 20, 5, 1, 1));
    assert_eq!((samples.live, samples.untracked), (MAX_LIVE + 1, 10));
    let mut losses = Losses::default();
    samples.losses(&mut losses);
    let counts: Vec<u64> = losses.counters.iter().map(|(_, count)| *count).collect();
    assert_eq!(counts, [10, 1]);
    // All allocations are in the sums.
    let all = MAX_LIVE as u64;
    assert_eq!(figures(&samples, ONE, 20)[..3], [all, all, all + 10]);
}

#[test]
fn freed_samples_beyond_the_limit_are_counted() {
    let mut samples = Samples::default();
    let all = history::MAX_FREED as u64 + 3;
    for at in 1..=all {
        samples.allocated(&allocation(ONE, 20, at, 1, 1));
        samples.freed(&freed(ONE, at, Duration::from_nanos(5)));
    }
    let forgotten = samples.forgotten();
    assert_eq!((forgotten.samples, forgotten.until), (3, Some(3 + 5)));
    assert_eq!(samples.records().count() as u64, history::MAX_FREED as u64);
    // All are in the sums.
    assert_eq!(figures(&samples, ONE, 20)[3], all);
}

#[test]
fn stacks_beyond_the_limit_are_summed_under_one() {
    let mut samples = Samples::default();
    let stacks = MAX_STACKS as u32 + 5;
    for stack in 0..stacks {
        samples.allocated(&allocation(ONE, 100 + stack, 0x1000, 10, 10));
    }
    assert_eq!(samples.unsummed, 5);
    assert_eq!(figures(&samples, ONE, OTHER.0)[2], 50);
    samples.ended(ONE);
    let mut totals = Totals::default();
    samples.add_ended_to(&mut totals);
    let all: u64 = totals.stacks.values().map(|a| a.column(ALLOC_SPACE)).sum();
    assert_eq!(all, 10 * u64::from(stacks));
}

/// Random allocations, frees, forks and ends.
#[test]
fn each_stacks_share_of_the_peak_is_that_of_a_copy_made_then() {
    let mut random = Random(1);
    for _ in 0..50 {
        let mut samples = Samples::default();
        // Process, address, stack and bytes of what is live.
        let mut live: Vec<(MmId, u64, u32, u64)> = Vec::new();
        let by_stack = |live: &[(MmId, u64, u32, u64)]| {
            let mut sums = [0; 5];
            live.iter()
                .for_each(|(.., stack, bytes)| sums[*stack as usize - 20] += bytes);
            sums
        };
        let (mut most, mut at_peak) = (0, [0; 5]);
        for at in 1..400 {
            let has_child = samples.live(CHILD).is_some();
            match random.below(12) {
                0 if !has_child && samples.live(ONE).is_some() => {
                    samples.forked(ONE, CHILD);
                    let of_parent = live.clone().into_iter().filter(|(mm, ..)| *mm == ONE);
                    live.extend(of_parent.map(|(_, a, s, b)| (CHILD, a, s, b)));
                }
                1 if has_child => {
                    samples.ended(CHILD);
                    live.retain(|(mm, ..)| *mm != CHILD);
                }
                2..=5 if !live.is_empty() => {
                    let (mm, address, ..) = live.swap_remove(random.index(live.len()));
                    samples.freed(&freed(mm, address, Duration::from_secs(1)));
                }
                _ => {
                    let mm = if has_child && random.below(2) == 0 {
                        CHILD
                    } else {
                        ONE
                    };
                    let (stack, bytes) = (20 + random.below(5) as u32, 1 + random.below(100));
                    samples.allocated(&allocation(mm, stack, at, 1, bytes));
                    live.push((mm, at, stack, bytes));
                }
            }
            let now = by_stack(&live);
            if now.iter().sum::<u64>() > most {
                (most, at_peak) = (now.iter().sum(), now);
            }
            let mut totals = Totals::default();
            samples.add_to(ONE, &mut totals);
            samples.add_to(CHILD, &mut totals);
            samples.add_ended_to(&mut totals);
            let column = |column| {
                [20, 21, 22, 23, 24].map(|stack| {
                    let amounts = totals.stacks.get(&StackId(stack));
                    amounts.map_or(0, |amounts| amounts.column(column))
                })
            };
            assert_eq!(column(INUSE_SPACE), now, "step {at}");
            assert_eq!(column(AT_PEAK_SPACE), at_peak, "step {at}");
        }
    }
}
