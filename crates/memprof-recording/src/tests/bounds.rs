//! Thinning, and the bounds of a recording.

use std::fs;
use std::time::Duration;

use proptest::prelude::*;

use super::made::{World, layout};
use super::{assert_same, recorder, run, saved_text, state_text};
use crate::{MomentInfo, Options, Recorder, Recording, RecordingError};

/// A report that was recorded: milliseconds since the first one, its total, and its saved profile.
struct Recorded {
    elapsed: u64,
    total: u64,
    text: String,
}

/// Records reports every two seconds, then every 150 seconds for a day, then every four seconds for more than an hour.
fn long(path: &std::path::Path, options: Options) -> (Vec<Recorded>, Vec<MomentInfo>) {
    let mut world = World::new(3);
    let mut recorder = Recorder::open(path, options, &run(), layout).unwrap();
    let mut reports = Vec::new();
    let mut elapsed = 0;
    for at in 0..1900 {
        let passed = match at {
            0..300 => 2000,
            300..900 => 150_000,
            _ => 4000,
        };
        let mut report = world.report(passed);
        // Names are the newest ones at each moment: here, none.
        report.symbols = std::sync::Arc::default();
        assert!(recorder.record(&report).unwrap());
        elapsed += if at == 0 { 0 } else { passed };
        reports.push(Recorded {
            elapsed,
            total: report.profile.total.usage.value(),
            text: saved_text(&report),
        });
    }
    recorder.finish().unwrap();
    let moments = Recording::open(path).unwrap().moments().unwrap();
    (reports, moments)
}

/// Compares some of the moments, and the first and the last, with their reports.
fn compare(path: &std::path::Path, reports: &[Recorded], moments: &[MomentInfo]) {
    let recording = Recording::open(path).unwrap();
    let last = moments.len() - 1;
    for (at, moment) in moments.iter().enumerate() {
        let report = &reports[moment.id as usize - 1];
        assert_eq!(moment.total, report.total);
        if at % 9 == 0 || at == last {
            let found = state_text(&recording, moment.id);
            assert_same(moment.id, &found, &report.text);
        }
    }
}

#[test]
fn what_is_left_after_thinning_is_unchanged_and_has_the_extremes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.db");
    let (reports, moments) = long(&path, Options::default());
    assert!(moments.len() < 1650, "{} moments", moments.len());
    let end = moments.last().unwrap().elapsed;
    let recent = moments
        .iter()
        .filter(|m| end - m.elapsed < Duration::from_secs(3500));
    assert!(recent.count() >= 875, "the last hour is thinned");
    compare(&path, &reports, &moments);
    // No peak disappears: it stays in its interval.
    let end = reports.last().unwrap().elapsed;
    for report in &reports {
        let interval = match end - report.elapsed {
            86_400_000.. => 60_000,
            _ => 10_000,
        };
        let same =
            |m: &&MomentInfo| m.elapsed.as_millis() as u64 / interval == report.elapsed / interval;
        let totals: Vec<u64> = moments.iter().filter(same).map(|m| m.total).collect();
        let (above, below) = (
            totals.iter().any(|total| *total >= report.total),
            totals.iter().any(|total| *total <= report.total),
        );
        assert!(above && below, "{} of {totals:?}", report.total);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// Whichever moments go: those that stay are unchanged.
    #[test]
    fn removed_moments_change_no_other_one(
        seed in any::<u64>(),
        gone in prop::collection::vec(any::<bool>(), 2..60),
        full in prop::collection::vec(0u8..4, 60),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.db");
        let mut world = World::new(seed);
        let mut recorder = recorder(&path);
        let mut texts = Vec::new();
        for number in 1..=gone.len() as i64 {
            let mut report = world.report(10);
            report.symbols = std::sync::Arc::default();
            recorder.full_next = full[number as usize - 1] == 0;
            recorder.record(&report).unwrap();
            texts.push(saved_text(&report));
        }
        // The last moment stays.
        let removed = (1..gone.len() as i64).filter(|id| gone[*id as usize - 1]);
        let removed: Vec<i64> = removed.collect();
        recorder.remove_for_test(&removed);
        recorder.finish().unwrap();
        let recording = Recording::open(&path).unwrap();
        let moments = recording.moments().unwrap();
        prop_assert_eq!(moments.len(), gone.len() - removed.len());
        for moment in moments {
            let wanted = &texts[moment.id as usize - 1];
            assert_same(moment.id, &state_text(&recording, moment.id), wanted);
        }
    }
}

#[test]
fn the_oldest_moments_go_at_the_limits() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.db");
    let keep = Duration::from_secs(1000);
    let options = Options {
        keep,
        ..Options::default()
    };
    let (reports, moments) = long(&path, options);
    let end = moments.last().unwrap().elapsed;
    assert!(
        moments
            .iter()
            .all(|m| end - m.elapsed <= keep + Duration::from_secs(61))
    );
    compare(&path, &reports, &moments);

    let path = dir.path().join("small.db");
    let size = 1 << 20;
    let options = Options {
        size,
        ..Options::default()
    };
    let (reports, moments) = long(&path, options);
    let found = fs::metadata(&path).unwrap().len();
    assert!(found <= size, "{found} bytes");
    assert!(
        (10..1500).contains(&moments.len()),
        "{} moments",
        moments.len()
    );
    assert_eq!(moments.last().unwrap().id, 1900);
    compare(&path, &reports, &moments);
}

#[test]
fn a_limit_below_a_single_moment_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        size: 20_000,
        ..Options::default()
    };
    let mut recorder = Recorder::open(&dir.path().join("r.db"), options, &run(), layout).unwrap();
    let error = recorder.record(&World::new(1).report(1)).unwrap_err();
    assert!(matches!(error, RecordingError::TooSmall(20_000)), "{error}");
}

#[test]
fn one_recorder_writes_and_only_its_user_reads() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.db");
    let mut first = recorder(&path);
    first.record(&World::new(1).report(1)).unwrap();
    for name in ["r.db", "r.db-wal", "r.db-shm"] {
        let mode = fs::metadata(dir.path().join(name))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    let second = Recorder::open(&path, Options::default(), &run(), layout);
    assert!(matches!(second.err(), Some(RecordingError::InUse)));
    // A recording is read while it is written.
    assert_eq!(Recording::open(&path).unwrap().moments().unwrap().len(), 1);
    first.finish().unwrap();
    assert!(!dir.path().join("r.db-wal").exists());
    drop(recorder(&path));
}
