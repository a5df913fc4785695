//! What grew over a span of a recording, by stack.

use rustc_hash::FxHashMap;
use std::hash::Hash;

use crate::RecordingError;
use crate::read::{MomentInfo, Recording, checked, damaged};
use crate::recorder::full_before;
use crate::report::WHOLE;
use crate::state::{Owner, Reader, amounts_of, kinds};
use crate::trend::{INTERVALS, Shape, Trend, trend};
use memprof_profile::{Kind, Report};

/// The share of a span, at its end, that is left out: what is younger may yet be freed.
const YOUNGEST: f64 = 0.1;
/// Maximum number of moments and of series of a span. Real recordings have some ten thousand and some thousand.
const MAX_MOMENTS: usize = 1 << 20;
const MAX_SERIES: usize = 1 << 20;

/// The figures of a process over a span, moment by moment.
pub(crate) const SERIES: &str =
    "SELECT v.series, s.stack, s.kind, v.moment, v.bytes FROM value v CROSS JOIN series s ON s.id = v.series
     WHERE s.process = ?1 AND s.file = 0 AND v.moment BETWEEN ?2 AND ?3 ORDER BY v.moment";

/// The figures of one kind over a span, by stack.
pub struct Growth {
    /// The state at the end of the span, which has the names.
    pub end: Report,
    /// The first moment of the span.
    pub from: MomentInfo,
    /// The last moment of the span.
    pub to: MomentInfo,
    /// The number of moments in the span.
    pub moments: usize,
    /// Length of an interval in seconds: a fortieth of the time in which memprof was running, without its last tenth.
    pub interval: f64,
    /// Start of each interval, as the last moment that is not after it.
    pub starts: Vec<MomentInfo>,
    stacks: Vec<(Owner, Vec<f64>)>,
}

/// What several stacks, or one, have in common, and how it grew.
#[derive(Clone, Debug)]
pub struct Grown<K> {
    /// What they have in common.
    pub key: K,
    /// Mean bytes in each interval.
    pub means: Vec<f64>,
    /// How it grew.
    pub trend: Trend,
}

impl<K> Grown<K> {
    /// Bytes in the last interval minus those in the first.
    pub fn growth(&self) -> f64 {
        self.means.last().unwrap_or(&0.0) - self.means.first().unwrap_or(&0.0)
    }

    /// Steady growth first, by what is certain of its slope; then the other shapes, by what they grew.
    fn rank(&self) -> (bool, f64) {
        match self.trend.shape {
            Some(Shape::Steady) => (true, self.trend.certain()),
            _ => (false, self.growth()),
        }
    }
}

impl Growth {
    /// What grew, largest first: the sums of the stacks to which `key` gives the same key. Leaves out those to which it gives
    /// none, and those that did not certainly grow.
    pub fn by<K: Eq + Hash>(&self, key: impl Fn(Owner) -> Option<K>) -> Vec<Grown<K>> {
        let mut sums: FxHashMap<K, Vec<f64>> = FxHashMap::default();
        for (owner, means) in &self.stacks {
            let Some(key) = key(*owner) else { continue };
            let sum = sums.entry(key).or_insert_with(|| vec![0.0; INTERVALS]);
            sum.iter_mut()
                .zip(means)
                .for_each(|(sum, mean)| *sum += mean);
        }
        let grown = sums.into_iter().filter_map(|(key, means)| {
            let trend = trend(&means, self.interval)?;
            trend.shape?;
            Some(Grown { key, means, trend })
        });
        let mut grown: Vec<_> = grown.collect();
        grown.sort_by(|a, b| {
            let (a, b) = (a.rank(), b.rank());
            b.0.cmp(&a.0).then(b.1.total_cmp(&a.1))
        });
        grown
    }

    /// The trend of all together, whether or not it is certain.
    pub fn total(&self) -> Option<Grown<()>> {
        let mut means = vec![0.0; INTERVALS];
        for (_, part) in &self.stacks {
            means
                .iter_mut()
                .zip(part)
                .for_each(|(sum, mean)| *sum += mean);
        }
        let trend = trend(&means, self.interval)?;
        Some(Grown {
            key: (),
            means,
            trend,
        })
    }
}

/// The time in which memprof was running, as a clock that stands still in gaps.
struct Observed {
    moments: Vec<MomentInfo>,
    /// Seconds from the first moment, for each moment.
    seconds: Vec<f64>,
}

impl Observed {
    fn new(moments: Vec<MomentInfo>) -> Observed {
        let mut seconds = Vec::with_capacity(moments.len());
        let mut now = 0.0;
        for (at, moment) in moments.iter().enumerate() {
            if let Some(before) = at
                .checked_sub(1)
                .map(|at| &moments[at])
                .filter(|before| before.run == moment.run)
            {
                now += moment.elapsed.saturating_sub(before.elapsed).as_secs_f64();
            }
            seconds.push(now);
        }
        Observed { moments, seconds }
    }

    /// The time of a moment that may have gone: rows of a moment before the span hold from its start.
    fn at(&self, moment: i64) -> f64 {
        let at = self.moments.partition_point(|known| known.id < moment);
        self.seconds[at.min(self.seconds.len() - 1)]
    }

    fn start_of(&self, seconds: f64) -> MomentInfo {
        let at = self.seconds.partition_point(|known| *known <= seconds);
        self.moments[at.saturating_sub(1)]
    }
}

/// Adds a figure that holds from one time to another, in seconds, to the sums of the intervals.
fn add(sums: &mut [f64], interval: f64, [start, end]: [f64; 2], figure: f64) {
    // Rounding may make this the interval before.
    let first = ((start / interval) as usize).saturating_sub(1);
    for (number, sum) in sums.iter_mut().enumerate().skip(first) {
        let from = start.max(interval * number as f64);
        let to = end.min(interval * (number + 1) as f64);
        if to > from {
            *sum += figure * (to - from) / interval;
        } else if from >= end {
            return;
        }
    }
}

impl Recording {
    /// What grew from one moment to another, by stack. `None` if memprof was not running for long enough: there have to be
    /// more moments than a line needs.
    ///
    /// # Errors
    /// The file cannot be read or is damaged.
    pub fn growth(
        &self,
        [from, to]: [MomentInfo; 2],
        kind: Kind,
    ) -> Result<Option<Growth>, RecordingError> {
        let moments = self.select(
            "WHERE id BETWEEN ?1 AND ?2 ORDER BY id LIMIT ?3",
            [from.id, to.id, MAX_MOMENTS as i64 + 1],
        )?;
        if moments.len() > MAX_MOMENTS {
            return damaged(format!("a span has more than {MAX_MOMENTS} moments"));
        }
        let number = moments.len();
        let observed = Observed::new(moments);
        let all = observed.seconds.last().copied().unwrap_or(0.0);
        let interval = all * (1.0 - YOUNGEST) / INTERVALS as f64;
        if interval <= 0.0 || number < INTERVALS / 4 {
            return Ok(None);
        }
        let (end, owners) = Reader::new(&self.db, to.id)?.report_and_owners()?;
        let end = checked(&end)?.into();
        let mut stacks: FxHashMap<i64, Vec<f64>> = FxHashMap::default();
        let kinds = kinds(&self.db)?;
        let full = full_before(&self.db, from.id)?;
        let mut rows = self.db.prepare(SERIES)?;
        let mut rows = rows.query((WHOLE, full, to.id))?;
        // The figure of each series that holds, its stack, and since when.
        let mut held: FxHashMap<i64, (i64, f64, f64)> = FxHashMap::default();
        let mut close = |(stack, figure, start): (i64, f64, f64), end: f64| {
            if figure > 0.0 {
                let sums = stacks.entry(stack).or_insert_with(|| vec![0.0; INTERVALS]);
                add(sums, interval, [start, end], figure);
            }
        };
        while let Some(row) = rows.next()? {
            let [series, stack, of_kind, moment]: [i64; 4] =
                [row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?];
            let figure: Option<i64> = row.get(4)?;
            let Some(Some(of_kind)) = kinds.get(&of_kind) else {
                return damaged("a figure is of an unknown kind");
            };
            let figure = figure.unwrap_or(0).cast_unsigned();
            let figure =
                amounts_of(*of_kind, figure).map_or(0, |amounts| kind.figure(&amounts)) as f64;
            let now = observed.at(moment);
            if let Some(before) = held.insert(series, (stack, figure, now)) {
                close(before, now);
            }
            if held.len() > MAX_SERIES {
                return damaged(format!("a span has more than {MAX_SERIES} series"));
            }
        }
        held.into_values().for_each(|held| close(held, all));
        let stacks = stacks
            .into_iter()
            .filter_map(|(stack, means)| Some((*owners.get(&stack)?, means)));
        let mut stacks: Vec<_> = stacks.collect();
        stacks.sort_unstable_by_key(|(owner, _)| *owner);
        let starts = (0..INTERVALS).map(|at| observed.start_of(at as f64 * interval));
        Ok(Some(Growth {
            end,
            from,
            to,
            moments: number,
            interval,
            starts: starts.collect(),
            stacks,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_divided_over_intervals() {
        let mut sums = vec![0.0; 4];
        add(&mut sums, 2.0, [1.0, 5.0], 8.0);
        assert_eq!(sums, [4.0, 8.0, 4.0, 0.0]);
        add(&mut sums, 2.0, [7.0, 100.0], 8.0);
        assert_eq!(sums, [4.0, 8.0, 4.0, 4.0]);
        add(&mut sums, 2.0, [9.0, 100.0], 8.0);
        add(&mut sums, 2.0, [3.0, 3.0], 8.0);
        assert_eq!(sums, [4.0, 8.0, 4.0, 4.0]);
    }
}
