//! Strata: size classes that are estimated together, and by which method.
//!
//! Merging depends on the heap alone, not on which chunks were sampled: a choice by the sample would bias the
//! estimates.

use std::ops::Range;

use super::super::sizes::CLASSES;
use super::holdings::{Class, GROUPS, Holdings, Joined, OWNERS, PINNING};
use crate::sampler::DEFAULT_INTERVAL;

/// Neighbouring classes are merged until at least this number of samples is expected of them.
const EXPECTED: f64 = 32.0;
/// Minimum number of samples for an estimate of shares.
const MIN_SAMPLES: usize = 8;
/// Chunks of at least this number of intervals are practically always sampled (all but one in 3,000): each stands for
/// itself.
pub(super) const CERTAIN: f64 = 8.0;
/// Number of standard errors by which the samples may stand for less than all chunks before some of the chunks count
/// as not sampled.
const TOLERATED: f64 = 4.0;

/// The method by which the bytes of a stratum are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    /// All of the chunks could be sampled: the samples give the shares of all bytes.
    Shares,
    /// Not all of the chunks could be sampled: the samples stand for their weights, and the rest was not sampled.
    Weights,
    /// Too few samples for shares.
    TooFew,
}

/// Adjacent classes of one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stratum {
    /// The group: an allocator, and whether its chunks are reachable.
    pub group: usize,
    /// Indexes of the classes.
    pub classes: Range<usize>,
    /// Whether the chunks are so large that each is sampled.
    pub is_certain: bool,
    /// How the bytes are divided.
    pub method: Method,
}

/// The mean number of bytes between samples: the median that follows from the samples' sizes and weights, because
/// there may be several samplers. If all samples were certain, they reveal nothing, and `known` or the default
/// applies.
pub(super) fn interval(joined: &[Joined], known: Option<u64>) -> f64 {
    let uncertain = joined.iter().filter(|joined| joined.placed.p < 0.99);
    // p = 1 − exp(−size / interval)
    let mut all: Vec<f64> = uncertain
        .map(|joined| -(joined.placed.sample.size as f64) / (-joined.placed.p).ln_1p())
        .collect();
    let middle = all.len() / 2;
    match all.is_empty() {
        true => known.unwrap_or(DEFAULT_INTERVAL) as f64,
        false => *all.select_nth_unstable_by(middle, f64::total_cmp).1,
    }
}

/// Expectation for the samples of a class if each of its chunks could be sampled.
#[derive(Clone, Copy, Debug, Default)]
struct Expected {
    samples: f64,
    /// Bytes of contents; `variance` is that of their estimate.
    bytes: f64,
    variance: f64,
    is_certain: bool,
}

impl Expected {
    fn for_class(class: &Class, interval: f64) -> Expected {
        let (chunks, bytes) = (class.held.chunks as f64, class.held.contents as f64);
        let mean = bytes / chunks.max(1.0);
        let p = -(-mean / interval).exp_m1();
        let variance = match p > 0.0 {
            true => chunks * mean * mean * (1.0 - p) / p,
            false => 0.0,
        };
        Expected {
            samples: chunks * p,
            bytes,
            variance,
            is_certain: mean >= CERTAIN * interval,
        }
    }

    fn add(&mut self, other: Expected) {
        self.samples += other.samples;
        self.bytes += other.bytes;
        self.variance += other.variance;
    }
}

/// The actual samples of a class.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    samples: usize,
    bytes: f64,
    chunks: u64,
}

impl Seen {
    fn add(&mut self, other: Seen) {
        self.samples += other.samples;
        self.bytes += other.bytes;
        self.chunks += other.chunks;
    }

    /// Whether shares can be estimated: there are enough samples, or every chunk was sampled.
    fn suffices(&self) -> bool {
        self.samples >= MIN_SAMPLES || self.samples as u64 == self.chunks
    }
}

/// A classification of the chunks.
#[derive(Clone, Copy)]
pub(super) struct Classing {
    /// Number of classes per group.
    pub per_group: usize,
    pub classes: fn(&Holdings) -> &[Class],
    pub class_of: fn(&Joined) -> usize,
}

/// By size.
pub(super) const BY_SIZE: Classing = Classing {
    per_group: CLASSES as usize,
    classes: |holdings| &holdings.classes,
    class_of: |joined| joined.class,
};

/// Chunks that pin free bytes, by pinned bytes per byte of their own.
pub(super) const BY_PINNING: Classing = Classing {
    per_group: PINNING,
    classes: |holdings| &holdings.pinning,
    class_of: |joined| joined.pinning,
};

/// The strata of both classifications. Together, the strata of one contain all its classes that have chunks.
pub(super) fn strata(holdings: &Holdings, from_start: bool) -> [Vec<Stratum>; 2] {
    let interval = holdings.interval;
    let sizes = |_, class: &Class| Expected::for_class(class, interval);
    let bytes = |joined: &Joined| joined.held.contents as f64 / joined.placed.p;
    let sizes = merged(holdings, &BY_SIZE, sizes, bytes);
    // A class of pinned bytes says nothing about chunk sizes, so samples are counted here instead of their bytes.
    let pinning = |index: usize, class: &Class| Expected {
        samples: class.expected,
        bytes: class.expected,
        variance: class.expected,
        is_certain: index.is_multiple_of(PINNING),
    };
    let pinning = merged(holdings, &BY_PINNING, pinning, |_| 1.0);
    // Per allocator: a program may have a second allocator that is not sampled.
    let incomplete: [bool; OWNERS] = std::array::from_fn(|allocator| {
        let (mut expected, mut seen) = (Expected::default(), Seen::default());
        let of = sizes
            .iter()
            .filter(|(s, e, _)| s.group / 2 == allocator && !e.is_certain);
        for (_, more, also) in of {
            expected.add(*more);
            seen.add(*also);
        }
        is_less(&expected, &seen)
    });
    [sizes, pinning].map(|all| {
        let chosen = all.into_iter().map(|(stratum, expected, seen)| {
            let by_weights = !from_start
                || expected.is_certain
                || incomplete[stratum.group / 2]
                || is_less(&expected, &seen);
            let method = match seen.suffices() {
                _ if by_weights => Method::Weights,
                true => Method::Shares,
                false => Method::TooFew,
            };
            Stratum { method, ..stratum }
        });
        chosen.collect()
    })
}

/// Whether the samples show that not all chunks could be sampled.
fn is_less(expected: &Expected, seen: &Seen) -> bool {
    seen.bytes < expected.bytes - TOLERATED * expected.variance.sqrt()
}

type Merged = Vec<(Stratum, Expected, Seen)>;

/// Merges the classes of each group from the last one on. Large chunks are few and each of their samples stands for
/// much, so they are merged with the next smaller ones.
fn merged(
    holdings: &Holdings,
    classing: &Classing,
    expected: impl Fn(usize, &Class) -> Expected,
    bytes: impl Fn(&Joined) -> f64,
) -> Merged {
    let classes = (classing.classes)(holdings);
    let none = |class: &Class| Seen {
        chunks: class.held.chunks,
        ..Seen::default()
    };
    let mut seen: Vec<Seen> = classes.iter().map(none).collect();
    for joined in &holdings.joined {
        let seen = &mut seen[(classing.class_of)(joined)];
        seen.samples += 1;
        seen.bytes += bytes(joined);
    }
    let mut strata: Merged = Vec::new();
    for group in 0..GROUPS {
        let first = strata.len();
        let all = group * classing.per_group..(group + 1) * classing.per_group;
        for index in all.rev().filter(|index| classes[*index].held.chunks > 0) {
            let expected = expected(index, &classes[index]);
            match strata[first..].last_mut() {
                Some((last, sum, of))
                    if expected.is_certain == sum.is_certain
                        && (sum.is_certain || sum.samples < EXPECTED) =>
                {
                    last.classes.start = index;
                    sum.add(expected);
                    of.add(seen[index]);
                }
                _ => {
                    let stratum = Stratum {
                        group,
                        classes: index..index + 1,
                        is_certain: expected.is_certain,
                        method: Method::Weights,
                    };
                    strata.push((stratum, expected, seen[index]));
                }
            }
        }
        merge_last(&mut strata, first);
    }
    strata
}

/// Merges the last stratum of a group into the one before if it is too small to stand alone.
fn merge_last(strata: &mut Merged, first: usize) {
    let uncertain = |(_, expected, _): &&(Stratum, Expected, Seen)| !expected.is_certain;
    let Some(last) = strata[first..].iter().rposition(|of| uncertain(&of)) else {
        return;
    };
    let before = strata[first..first + last]
        .iter()
        .rposition(|of| uncertain(&of));
    let Some(before) = before.filter(|_| strata[first + last].1.samples < EXPECTED) else {
        return;
    };
    let (stratum, expected, seen) = strata.remove(first + last);
    let (into, sum, of) = &mut strata[first + before];
    into.classes.start = stratum.classes.start;
    sum.add(expected);
    of.add(seen);
}
