//! Tests of the estimates for unwalked pages against the truth: for several orders in which functions touch pages, the estimates
//! are unbiased and within their errors.

use super::*;
use crate::probe::wire::{RECORD_FOLLOWS, RECORD_STACK_BITS};
use crate::random::Random;
use memprof_profile::{ErrorSum, Parts, UncertainPart};

const FIRST: u64 = 1024;

/// A ledger entry: the stack, and the sampling interval.
fn record(stack: u32, interval: u32) -> u32 {
    let bits = (interval | 16).ilog2() - 4;
    let share = match interval {
        1 => 0,
        _ => (bits << 4) + (interval >> bits),
    };
    stack | share << RECORD_STACK_BITS
}

/// The standard error of the sum of some stacks.
fn error_of(totals: &Totals, stacks: &[u32]) -> f64 {
    let mut sum = ErrorSum::default();
    for divided in totals.uncertainties.divided() {
        let (mut of, mut all) = (Parts::default(), Parts::default());
        for part in &divided.parts {
            let inside = part.stack.is_some_and(|id| stacks.contains(&id.0));
            let part = UncertainPart {
                sample: None,
                share: part.share,
                variance: part.variance,
                single: part.single,
            };
            all.add(&part);
            if inside {
                of.add(&part);
            }
        }
        sum.add(&of, &all);
    }
    sum.standard_error() as f64 / PAGE as f64
}

/// Faults in chronological order: page and stack. The last fault of a page owns it.
type Faults = Vec<(u64, u32)>;

const PAGES: u64 = 8192;
const HALF: u64 = PAGES / 2;

fn shuffled(pages: u64, numbers: &mut Random) -> Vec<u64> {
    let mut order: Vec<u64> = (0..pages).collect();
    for at in (1..pages).rev() {
        order.swap(at as usize, numbers.below(at + 1) as usize);
    }
    order
}

/// `early` (16) touches the first half of the pages in this order, `later` (17) the other half.
fn halves(page: impl Fn(u64) -> u64) -> Faults {
    let stack = |at| if at < HALF { 16 } else { 17 };
    (0..PAGES).map(|at| (page(at), stack(at))).collect()
}

/// The page at position `at` in blocks of `length`: blocks of the first half alternate with blocks of the second half.
fn in_blocks(length: u64) -> impl Fn(u64) -> u64 {
    move |at| {
        let (at, odd) = (at % HALF, u64::from(at >= HALF));
        at / length * 2 * length + at % length + odd * length
    }
}

/// Orders in which pages are touched.
fn patterns() -> Vec<(&'static str, Faults)> {
    let mut numbers = Random(5);
    let random = shuffled(PAGES, &mut numbers);
    let mut many: Faults = random
        .iter()
        .map(|page| (*page, 16 + numbers.below(30) as u32))
        .collect();
    many.sort_by_key(|(_, stack)| stack % 3);
    let bursts = (0..PAGES).map(|at| (at * 7919 % PAGES, 16 + (at / 97 % 23) as u32));
    let skewed = random
        .iter()
        .map(|page| (*page, 16 + numbers.below(64).ilog2_or_0()));
    let mut rewritten = halves(|at| at);
    rewritten.extend((0..PAGES).step_by(8).map(|page| (page, 18)));
    vec![
        ("one after the other", halves(|at| at)),
        ("reversed", halves(|at| PAGES - 1 - at)),
        ("interleaved", halves(in_blocks(1))),
        ("blocks of 64", halves(in_blocks(64))),
        ("blocks of 512", halves(in_blocks(512))),
        ("random", halves(|at| random[at as usize])),
        ("strided", halves(|at| at * 5 % PAGES)),
        ("many stacks", many),
        ("bursts", bursts.collect()),
        ("skewed", skewed.collect()),
        ("rewritten", rewritten),
    ]
}

trait Log {
    fn ilog2_or_0(self) -> u32;
}

impl Log for u64 {
    fn ilog2_or_0(self) -> u32 {
        self.checked_ilog2().unwrap_or(0)
    }
}

/// Joins the faults. The first 1024 are all walked, later ones at random, at these intervals in turn.
fn sampled(faults: &Faults, intervals: &[u32], numbers: &mut Random) -> Totals {
    let mut world = World::new();
    world.sampled = true;
    for (at, (page, stack)) in faults.iter().enumerate() {
        let interval = match at {
            ..1024 => 1,
            at => intervals[at / 500 % intervals.len()],
        };
        let page = FIRST + page;
        if numbers.below(interval.into()) == 0 {
            world.ledger.set(MM, page, record(*stack, interval));
        } else if world.ledger.get(MM, page) != 0 {
            world.ledger.set(MM, page, STACK_UNWALKED);
        }
    }
    let pages = FIRST..FIRST + PAGES;
    world.join(&[run(pages.clone(), PageKind::Anon, false)], &vma(pages))
}

/// For stacks with at least 1 % of the pages: the largest bias of the mean, in standard errors of that mean, and the share of
/// estimates within 1.96 standard errors.
fn quality(faults: &Faults, intervals: &[u32], runs: u32, seed: u64) -> (f64, f64) {
    let mut last: HashMap<u64, u32> = HashMap::new();
    last.extend(faults.iter().copied());
    let mut truth: HashMap<u32, u64> = HashMap::new();
    last.values()
        .for_each(|stack| *truth.entry(*stack).or_default() += 1);
    truth.retain(|_, pages| *pages >= PAGES / 100);
    let mut numbers = Random(seed);
    let (mut within, mut off, mut errors) = (0u32, HashMap::new(), HashMap::new());
    for _ in 0..runs {
        let totals = sampled(faults, intervals, &mut numbers);
        assert_eq!(
            totals
                .stacks
                .keys()
                .map(|id| stack_pages(&totals, id.0))
                .sum::<u64>(),
            PAGES
        );
        for (&stack, &pages) in &truth {
            let error = error_of(&totals, &[stack]);
            let found = stack_pages(&totals, stack) as f64 - pages as f64;
            assert!(error > 0.0);
            within += u32::from(found.abs() <= 1.96 * error);
            *off.entry(stack).or_insert(0.0) += found;
            *errors.entry(stack).or_insert(0.0) += error * error;
        }
    }
    let bias = off
        .iter()
        .map(|(stack, off): (_, &f64)| off.abs() / f64::sqrt(errors[stack]));
    let bias = bias.fold(0.0, f64::max);
    (
        bias,
        f64::from(within) / f64::from(runs * truth.len() as u32),
    )
}

#[test]
fn estimates_are_unbiased_and_within_their_errors() {
    let runs = std::env::var("MEMPROF_TEST_ROUNDS").map_or(30, |n| n.parse().unwrap());
    let (mut all, mut number) = (0.0, 0.0);
    for (seed, (name, faults)) in patterns().iter().enumerate() {
        for intervals in [&[4][..], &[16], &[8, 24, 12, 40]] {
            let (bias, within) = quality(faults, intervals, runs, 11 + seed as u64);
            let what = format!("{name}, one of {intervals:?}: bias {bias:.1}, {within:.3} within");
            println!("{what}");
            assert!(bias < 4.0, "{what}");
            assert!(within > 0.8, "{what}");
            all += within;
            number += 1.0;
        }
    }
    let within = all / number;
    println!("{within:.3} of all are within 1.96 standard errors");
    assert!((0.93..0.975).contains(&within), "{within}");
}

#[test]
fn with_all_stacks_walked_nothing_is_uncertain() {
    let mut world = World::new();
    for page in 1000..1100 {
        world.ledger.set(MM, page, 16 + page as u32 % 3);
    }
    let pages = run(1000..1100, PageKind::Anon, false);
    let totals = world.join(&[pages], &vma(900..1200));
    assert_eq!(totals.uncertainties.divided().count(), 0);
    // The result is equal if other faults were not walked.
    world.sampled = true;
    let totals = world.join(&[pages], &vma(900..1200));
    assert_eq!(totals.uncertainties.divided().count(), 0);
    // Faults that were walked in any case stand for no others.
    let more = run(1000..1150, PageKind::Anon, false);
    let totals = world.join(&[more], &vma(900..1200));
    assert_eq!(nobody_pages(&totals, Unobserved::NotWalked), 50);
    assert_eq!(totals.uncertainties.divided().count(), 0);
}

#[test]
fn the_only_record_of_a_mapping_says_little_of_its_other_pages() {
    let mut world = World::new();
    world.sampled = true;
    world.ledger.set(MM, 1010, record(16, 50));
    let totals = world.join(&[run(1000..1100, PageKind::Anon, false)], &vma(900..1200));
    assert_eq!(stack_pages(&totals, 16), 100);
    let error = error_of(&totals, &[16]);
    assert!(error > 50.0, "{error}");
}

#[test]
fn a_fault_on_a_huge_page_is_one_sample() {
    let mut world = World::new();
    world.sampled = true;
    // Two huge pages that were walked, of two stacks, and six that were not; and small pages of a third stack.
    for (huge, stack) in [(2, 16), (5, 17)] {
        for page in huge * 512..(huge + 1) * 512 {
            let follows = if page % 512 == 9 { 0 } else { RECORD_FOLLOWS };
            world.ledger.set(MM, page, record(stack, 4) | follows);
        }
    }
    for page in (4096..4196).step_by(4) {
        world.ledger.set(MM, page, record(18, 4));
    }
    let runs = [
        run(1024..4096, PageKind::Anon, true),
        run(4096..4196, PageKind::Anon, false),
    ];
    let totals = world.join(&runs, &vma(1024..4200));
    assert_eq!(
        [16, 17, 18].map(|id| stack_pages(&totals, id)),
        [1536, 1536, 100]
    );
    // Two samples: half of the six others, more or less.
    let error = error_of(&totals, &[16]);
    assert!((512.0..4096.0).contains(&error), "{error}");
}

#[test]
fn proportional_shares_are_divided_like_pages() {
    let mut world = World::new();
    world.sampled = true;
    world.ledger.set(MM, 1000, record(16, 4));
    world.ledger.set(MM, 1001, record(17, 4));
    let pages = PageRun {
        maps: std::num::NonZeroU32::new(3),
        ..run(1000..1101, PageKind::Anon, false)
    };
    let totals = world.join(&[pages], &vma(900..1200));
    let share = |id| totals.stacks[&StackId(id)].column(PSS);
    let all = (101 * (PAGE << SHARE_SHIFT) / 3) >> SHARE_SHIFT;
    assert!(share(16).abs_diff(share(17)) <= 2 && share(16) + share(17) + 1 >= all);
}
