//! Growth is ranked right in programs whose slopes are known.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use super::recorder;
use crate::random::Random;
use crate::testing::{at, kib, profile, symbols};
use crate::{At, Growth, Owner, Recording, Shape};
use memprof_profile::{Kind, Report};

const MINUTES: u64 = 600;
const NAMES: [&str; 7] = [
    "leak", "slow", "cache", "teeth", "noise", "step", "constant",
];

/// KiB of each function in a minute. Together they have about 1 GiB.
fn figures(minute: u64, random: &mut Random) -> [u64; 7] {
    [
        // 10 MiB and 1 MiB (0.1 % of the total) an hour.
        50_000 + minute * 10_240 / 60 / 4 * 4,
        20_000 + minute * 1024 / 60 / 4 * 4,
        200_000.min(minute * 2000),
        100_000 + (minute % 37) * 4000,
        200_000 + random.below(50_000),
        if minute < 250 { 4 } else { 100_000 },
        400_000,
    ]
}

fn report(minute: u64, clock: u64, random: &mut Random) -> Report {
    let frames = [0, 1, 2, 3, 4, 5, 6].map(|n| [at(0, n * 16), at(1, 8)]);
    let figures = figures(minute, random);
    let samples = frames.iter().zip(figures);
    let samples: Vec<_> = samples
        .map(|(frames, n)| (&frames[..], kib(n, 0)))
        .collect();
    let mut profile = profile(&samples, &[kib(64, 0)]);
    profile.taken = UNIX_EPOCH + Duration::from_secs(1_700_000_000 + clock * 60);
    profile.taken_ns = 1_000_000_000 + clock * 60_000_000_000;
    Report {
        profile: Arc::new(profile),
        symbols: Arc::new(symbols(&[])),
        sequence: minute + 1,
    }
}

/// Names of the functions that grew, with their shapes and slopes in KiB per hour.
fn ranked(growth: &Growth) -> Vec<(&'static str, Shape, f64, f64)> {
    let name = |owner| match owner {
        Owner::Sample(sample) => {
            let frame = growth.end.profile.samples[sample].stack.frames[0];
            let number = (0..7u16).find(|n| frame == at(0, u64::from(*n) * 16));
            number.map(|n| NAMES[usize::from(n)])
        }
        Owner::NotObserved(_) => None,
    };
    let per_hour = |slope: f64| slope * 3600.0 / 1024.0;
    let rows = growth.by(name).into_iter();
    let row = |grown: crate::Grown<&'static str>| {
        let trend = &grown.trend;
        (
            grown.key,
            trend.shape.unwrap(),
            per_hour(trend.slope),
            per_hour(trend.error),
        )
    };
    rows.map(row).collect()
}

#[test]
fn known_slopes_are_found_and_ranked() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.db");
    let mut random = Random(5);
    // The second run begins after a night in which nothing is recorded.
    for (run, minutes) in [0..MINUTES / 2, MINUTES / 2..MINUTES]
        .into_iter()
        .enumerate()
    {
        let mut recorder = recorder(&path);
        for minute in minutes {
            let clock = minute + run as u64 * 700;
            recorder
                .record(&report(minute, clock, &mut random))
                .unwrap();
        }
        recorder.finish().unwrap();
    }
    let recording = Recording::open(&path).unwrap();
    let [from, to] = [
        recording.begin(None).unwrap(),
        recording.find(&At::End).unwrap(),
    ];
    let growth = recording.growth([from, to], Kind::Anon).unwrap().unwrap();
    assert_eq!(growth.moments as u64, MINUTES);
    let ranked = ranked(&growth);
    let shapes: Vec<_> = ranked
        .iter()
        .map(|(name, shape, ..)| (*name, *shape))
        .collect();
    let wanted = [
        ("leak", Shape::Steady),
        ("slow", Shape::Steady),
        ("cache", Shape::Stopped),
        ("step", Shape::Jump),
    ];
    assert_eq!(shapes, wanted, "{ranked:?}");
    for (at, slope) in [(0, 10_240.0), (1, 1024.0)] {
        let (name, _, found, error) = ranked[at];
        assert!(
            (found - slope).abs() <= (2.0 * error).max(slope / 100.0),
            "{name}: {found} ± {error}"
        );
        assert!(error < slope / 10.0, "{name}: {found} ± {error}");
    }
    // Of all kinds together, the total is the same; of another kind, there is nothing.
    let all = recording.growth([from, to], Kind::All).unwrap().unwrap();
    assert_eq!(all.total().unwrap().means, growth.total().unwrap().means);
    let cache = recording.growth([from, to], Kind::Cache).unwrap().unwrap();
    assert!(cache.by(Some).is_empty());
    // Too short for a trend.
    let late = recording.find(&"-5m".parse().unwrap()).unwrap();
    assert!(recording.growth([late, to], Kind::All).unwrap().is_none());
}

/// The highest and the lowest moments stay, whatever is left out.
#[test]
fn a_time_line_keeps_its_extremes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.db");
    let mut recorder = recorder(&path);
    let mut random = Random(5);
    for minute in 0..200 {
        recorder
            .record(&report(minute, minute, &mut random))
            .unwrap();
    }
    recorder.finish().unwrap();
    let recording = Recording::open(&path).unwrap();
    let total = |totals: &crate::Totals| totals.usage.value();
    let all = recording.totals([0, u64::MAX], 1000).unwrap();
    let few = recording.totals([0, u64::MAX], 20).unwrap();
    assert_eq!(all.len(), 200);
    assert!((10..=20).contains(&few.len()), "{}", few.len());
    assert_eq!(few.iter().map(total).max(), all.iter().map(total).max());
    assert_eq!(few.iter().map(total).min(), all.iter().map(total).min());
    assert!(few.is_sorted_by_key(|totals| totals.taken));
}
