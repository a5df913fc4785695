//! Synthetic heaps with known owners, sampled many times: checks that the estimates are unbiased and that their
//! standard errors are right.

use std::collections::HashMap;

use super::holdings::Joined;
use super::testing::*;
use super::tests::{name, samples};
use super::*;

/// Draws a random sample of a heap.
fn sampled(all: &Joint, from_start: bool, random: &mut Random, seen: fn(&Joined) -> bool) -> Joint {
    let mut joint = all.clone();
    joint.origin.from_start = from_start;
    joint.holdings.joined.retain_mut(|joined| {
        let size = joined.placed.sample.size as f64;
        joined.placed.p = -(-size / INTERVAL).exp_m1();
        joined.placed.sample.weight = (size / joined.placed.p).round() as u64;
        random.unit() < joined.placed.p && seen(joined)
    });
    joint.strata = strata(&joint.holdings, from_start);
    joint
}

/// Live, resident, unreachable and pinned bytes by stack.
fn figures(shown: &ByStack) -> HashMap<String, [Estimated; 4]> {
    let rows = shown.rows.iter();
    rows.map(|row| {
        (
            row.stack.clone(),
            [row.live, row.resident, row.unreachable, row.pinned],
        )
    })
    .collect()
}

/// Sums over many runs of one estimated figure.
#[derive(Clone, Copy, Default)]
struct Runs {
    sum: f64,
    covered: u32,
}

const RUNS: u32 = 1000;

/// Samples a heap many times. Checks the mean of each stack, and how often the interval of 1.96 standard errors
/// covers the truth, over all stacks together.
fn simulate(
    name_of: &str,
    from_start: bool,
    truth: &Joint,
    all: &Joint,
    seen: fn(&Joined) -> bool,
) {
    let truth = figures(&truth.by_stack(name, &[], 100));
    let mut runs: HashMap<String, [Runs; 4]> = HashMap::new();
    let mut random = Random(7);
    for _ in 0..RUNS {
        let joint = sampled(all, from_start, &mut random, seen);
        let shown = joint.by_stack(name, &[], 100);
        assert_eq!(shown.sum(), shown.total);
        let found = figures(&shown);
        for (stack, truth) in &truth {
            let found = found.get(stack).copied().unwrap_or_default();
            let runs = runs.entry(stack.clone()).or_default();
            for ((run, found), truth) in runs.iter_mut().zip(found).zip(truth) {
                run.sum += found.bytes as f64;
                let away = (found.bytes as f64 - truth.bytes as f64).abs();
                run.covered += u32::from(away <= 1.96 * found.error as f64);
            }
        }
    }
    for (quantity, what) in ["live", "resident", "unreachable", "pinned"]
        .into_iter()
        .enumerate()
    {
        let (mut worst, mut covered) = (0.0_f64, 0);
        for (stack, runs) in &runs {
            let mean = runs[quantity].sum / f64::from(RUNS);
            let off = mean / truth[stack][quantity].bytes as f64 - 1.0;
            worst = if off.abs() > worst.abs() { off } else { worst };
            covered += runs[quantity].covered;
        }
        let covered = f64::from(covered) / f64::from(RUNS) / runs.len() as f64;
        println!(
            "{name_of}: {what}: mean off by {:.2} % at most, covered {:.1} %",
            worst * 100.0,
            covered * 100.0
        );
        if what == "pinned" {
            // A few chunks pin most of the bytes, so that these sums are far from normally distributed.
            assert!(
                worst.abs() < 0.03 && covered > 0.8,
                "{name_of}: {worst} {covered}"
            );
            continue;
        }
        assert!(worst.abs() < 0.01, "{name_of}: {what}: {worst}");
        assert!(
            (0.94..=0.96).contains(&covered),
            "{name_of}: {what}: {covered}"
        );
    }
}

/// Mean number of bytes between samples.
const INTERVAL: f64 = 16384.0;

fn large() -> Joint {
    let wanted = HeapParameters {
        chunks: 20_000,
        stacks: 5,
        free: 30,
        absent: 10,
        lost: 25,
        size: 2000,
        jemalloc: true,
    };
    let mut random = Random(3);
    let made = SyntheticHeap::new(&wanted, &mut random);
    // Every chunk is in the list, with the weight of a sample.
    let all = made.samples(0, &mut random).into_iter();
    let all = all.map(|sample| {
        let p = -(-(sample.size as f64) / INTERVAL).exp_m1();
        let weight = (sample.size as f64 / p).round() as u64;
        HeapSample { weight, ..sample }
    });
    made.join(&samples(all.collect(), true))
}

/// The truth to be estimated: the same heap, as if each chunk had certainly been sampled.
fn known(all: &Joint) -> Joint {
    let mut known = all.clone();
    known
        .holdings
        .joined
        .iter_mut()
        .for_each(|joined| joined.placed.p = 1.0);
    known.strata = strata(&known.holdings, all.origin.from_start);
    known
}

#[test]
fn estimates_from_the_start_are_unbiased_and_their_errors_true() {
    let all = large();
    simulate("from the start", true, &known(&all), &all, |_| true);
}

/// Whether a chunk was allocated after sampling began: true for most chunks of some sizes, and for few of others.
fn is_new(joined: &Joined) -> bool {
    let number = joined.placed.start.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60;
    number < 4 + u64::from(joined.held.contents.ilog2()) % 8
}

#[test]
fn estimates_of_what_was_allocated_later_are_unbiased_and_their_errors_true() {
    let all = large();
    let mut new = all.clone();
    new.holdings.joined.retain(is_new);
    new.origin.from_start = false;
    simulate("later", false, &known(&new), &all, is_new);
    // Everything was allocated since, but memprof does not know it: only the sum of all strata is limited.
    let mut cut = all.clone();
    cut.origin.from_start = false;
    let mut random = Random(11);
    let truth = figures(&known(&all).by_stack(name, &[], 100));
    let mut sums: HashMap<String, f64> = HashMap::new();
    for _ in 0..RUNS {
        let shown = sampled(&cut, false, &mut random, |_| true).by_stack(name, &[], 100);
        for (stack, found) in figures(&shown) {
            *sums.entry(stack).or_default() += found[1].bytes as f64;
        }
    }
    for (stack, sum) in sums {
        let off = sum / f64::from(RUNS) / truth[&stack][1].bytes as f64 - 1.0;
        println!("all of it later: {stack} off by {:.2} %", off * 100.0);
        assert!(off.abs() < 0.02, "{stack}: {off}");
    }
}
