//! In-memory time series: one hour at one-second resolution, one day at one-minute resolution.
//!
//! Only cheap figures are sampled: counters of `/proc/PID/status`, and figures of the newest report while they are
//! valid. A missing sample is a gap, never interpolated.

use std::collections::VecDeque;

use memprof_profile::measure::{COLUMNS, ColumnId};

/// A sampled figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figure {
    /// The name in the API.
    pub name: &'static str,
    /// The description.
    pub is: &'static str,
    /// Whether replies leave the figure out if no sample has a value for it.
    pub optional: bool,
}

impl Figure {
    const fn always(name: &'static str, is: &'static str) -> Figure {
        Figure {
            name,
            is,
            optional: false,
        }
    }

    const fn for_column(id: ColumnId) -> Figure {
        Figure {
            name: id.column().name,
            is: id.column().figure,
            optional: true,
        }
    }
}

/// All figures, in the order of [`Sample::values`]: first the figures of every run, then the columns of other measures.
pub const FIGURES: [Figure; ALWAYS.len() + COLUMNS] = {
    let (mut all, mut at) = ([ALWAYS[0]; ALWAYS.len() + COLUMNS], 0);
    while at < all.len() {
        all[at] = match at < ALWAYS.len() {
            true => ALWAYS[at],
            false => Figure::for_column(ColumnId::ALL[at - ALWAYS.len()]),
        };
        at += 1;
    }
    all
};

const ALWAYS: [Figure; 9] = [
    Figure::always(
        "rss_anon",
        "RssAnon of /proc/PID/status, all followed processes",
    ),
    Figure::always(
        "rss_shmem",
        "RssShmem of /proc/PID/status, all followed processes",
    ),
    Figure::always(
        "rss_file",
        "RssFile of /proc/PID/status, all followed processes",
    ),
    Figure::always("swap", "VmSwap of /proc/PID/status, all followed processes"),
    Figure::always(
        "cache",
        "page cache of the newest report, if that was made since the last sample or nothing changed since",
    ),
    Figure::always(
        "attributed",
        "bytes under stacks (kind all) of the newest report, if that was made since the last sample or nothing changed since",
    ),
    Figure::always(
        "not_observed",
        "bytes without a stack (kind all) of the newest report, if that was made since the last sample or nothing changed since",
    ),
    Figure::always(
        "page_tables",
        "VmPTE of /proc/PID/status, all followed processes: kernel memory, not part of RSS",
    ),
    Figure {
        name: "lost",
        is: "number of events missed, lost or truncated since memprof attached, of the newest report, if that was made since the last sample or nothing changed since",
        optional: true,
    },
];

/// The figures at one moment, in bytes but for numbers; `None` for figures that were not sampled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Time of the sample, in milliseconds since 1970.
    pub at: u64,
    /// Values in the order of [`FIGURES`].
    pub values: [Option<u64>; FIGURES.len()],
}

/// The interval between samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Resolution {
    /// One second, for the last hour.
    #[default]
    Second,
    /// One minute, for the last day.
    Minute,
}

impl Resolution {
    /// Milliseconds between samples.
    pub fn millis(self) -> u64 {
        match self {
            Resolution::Second => 1_000,
            Resolution::Minute => 60_000,
        }
    }

    /// Maximum number of samples.
    pub fn capacity(self) -> usize {
        match self {
            Resolution::Second => 3_600,
            Resolution::Minute => 1_440,
        }
    }
}

/// The samples of both resolutions.
#[derive(Clone, Debug, Default)]
pub struct Series {
    seconds: VecDeque<Sample>,
    minutes: VecDeque<Sample>,
    /// The time of the last sample, in ms of a clock that is never set.
    last_ms: u64,
}

/// Threshold in ms: between two samples, the system clock and the clock that is never set advance by different amounts. From
/// this difference on, the system clock was set. Slewing accounts for less than 1 ms.
const SET: u64 = 100;

impl Series {
    /// Maximum size of all samples, in bytes.
    pub const BYTES: usize = (3_600 + 1_440) * size_of::<Sample>();

    /// Adds a sample. `now_ms` is its time in ms of a clock that is never set. If the system clock was set since the
    /// last sample, corrects the times of all earlier samples, so that times always ascend and intervals are preserved.
    pub fn push(&mut self, mut sample: Sample, now_ms: u64) {
        if let Some(last) = self.seconds.back() {
            let expected = last.at.saturating_add(now_ms.saturating_sub(self.last_ms));
            if sample.at.abs_diff(expected) >= SET {
                self.correct(sample.at, expected);
            }
        }
        if let Some(last) = self.seconds.back() {
            sample.at = sample.at.max(last.at + 1);
        }
        self.last_ms = now_ms;
        add(&mut self.seconds, sample, Resolution::Second.capacity());
        let minute = |at: u64| at / Resolution::Minute.millis();
        match self.minutes.back_mut() {
            // Keep the last sample of each minute, and the last value of figures that are sampled less often.
            Some(last) if minute(last.at) == minute(sample.at) => {
                last.at = sample.at;
                for (kept, new) in last.values.iter_mut().zip(sample.values) {
                    *kept = new.or(*kept);
                }
            }
            _ => add(&mut self.minutes, sample, Resolution::Minute.capacity()),
        }
    }

    /// Shifts the times of all samples: it is `now`, although `expected` was expected.
    fn correct(&mut self, now: u64, expected: u64) {
        let rings = [&mut self.seconds, &mut self.minutes];
        for sample in rings.into_iter().flatten() {
            sample.at = match now >= expected {
                true => sample.at.saturating_add(now - expected),
                false => sample.at.saturating_sub(expected - now),
            };
        }
    }

    /// The samples later than `since` (milliseconds since the Unix epoch), oldest first.
    pub fn after(&self, resolution: Resolution, since: u64) -> impl Iterator<Item = &Sample> {
        let ring = match resolution {
            Resolution::Second => &self.seconds,
            Resolution::Minute => &self.minutes,
        };
        ring.iter().filter(move |sample| sample.at > since)
    }

    /// Current number of samples.
    pub fn len(&self) -> usize {
        self.seconds.len() + self.minutes.len()
    }
}

fn add(ring: &mut VecDeque<Sample>, sample: Sample, capacity: usize) {
    if ring.len() == capacity {
        ring.pop_front();
    }
    ring.push_back(sample);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(second: u64, anon: Option<u64>) -> Sample {
        let mut sample = Sample {
            at: second * 1_000,
            ..Sample::default()
        };
        sample.values[0] = anon;
        sample
    }

    #[test]
    fn rings_keep_an_hour_and_a_day() {
        let mut series = Series::default();
        let day = 26 * 3_600;
        (0..day).for_each(|second| series.push(sample(second, Some(second)), second * 1_000));
        let seconds: Vec<_> = series.after(Resolution::Second, 0).collect();
        let minutes: Vec<_> = series.after(Resolution::Minute, 0).collect();
        assert_eq!((seconds.len(), minutes.len()), (3_600, 1_440));
        assert_eq!(seconds[0].at, (day - 3_600) * 1_000);
        assert_eq!(minutes[1_439].at, (day - 1) * 1_000);
        assert_eq!(minutes[0].at % 60_000, 59_000);
        assert_eq!(
            series.after(Resolution::Second, (day - 2) * 1_000).count(),
            1
        );
        const { assert!(Series::BYTES < 3 << 19) };
        assert_eq!(series.len(), 3_600 + 1_440);
    }

    #[test]
    fn gaps_stay_gaps_and_a_minute_keeps_what_it_saw() {
        let mut series = Series::default();
        for (second, anon) in [(1, Some(7)), (2, None), (130, None)] {
            series.push(sample(second, anon), second * 1_000);
        }
        let of = |resolution| -> Vec<_> {
            let samples = series.after(resolution, 0);
            samples.map(|s| (s.at / 1_000, s.values[0])).collect()
        };
        assert_eq!(
            of(Resolution::Second),
            [(1, Some(7)), (2, None), (130, None)]
        );
        assert_eq!(of(Resolution::Minute), [(2, Some(7)), (130, None)]);
    }

    #[test]
    fn earlier_samples_follow_a_clock_that_is_set() {
        // By hours, by seconds, and to before 1970.
        for set in [50_000, 103, 98, 0] {
            let mut series = Series::default();
            for second in [100, 101] {
                series.push(sample(second, Some(second)), second * 1_000);
            }
            series.push(sample(set, Some(102)), 102_000);
            series.push(sample(set + 1, Some(103)), 103_000);
            let samples = series.after(Resolution::Second, 0);
            let found: Vec<_> = samples.map(|s| (s.at, s.values[0].unwrap())).collect();
            assert!(found.is_sorted_by(|a, b| a.0 < b.0), "{found:?}");
            if set > 2 {
                let of = |n| ((set + n) * 1_000, 102 + n);
                let before = |n| ((set - n) * 1_000, 102 - n);
                assert_eq!(found, [before(2), before(1), of(0), of(1)]);
            }
            assert_eq!(found.last().unwrap().1, 103);
        }
    }
}
