//! Differences between two pushes. Columns such as `alloc_space` count from the start of sampling, but stores add up the
//! values that they receive, so they get the difference.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use rustc_hash::FxHashMap;

use memprof_profile::measure::{COLUMNS, ColumnId};
use memprof_profile::{
    Amounts, Ended, Kind, NotObserved, Profile, Report, Sample, Stack, Unobserved,
};

/// Figures of the cumulative columns; other columns are 0.
type Counts = [u64; COLUMNS];

/// The identity of a row of a profile, without its figures.
#[derive(PartialEq, Eq)]
enum RowKey {
    Stack(Arc<Stack>),
    Without(String, Unobserved),
}

impl Hash for RowKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self {
            RowKey::Stack(stack) => stack.frames.hash(state),
            RowKey::Without(mapping, reason) => (mapping, reason).hash(state),
        }
    }
}

/// The counts of the last push. They continue across processes that end and processes that replace them.
#[derive(Default)]
pub(super) struct Intervals {
    last: FxHashMap<RowKey, Counts>,
}

impl Intervals {
    /// The report with cumulative figures counted since the last call instead of since the start. Other figures are
    /// unchanged.
    pub fn since_last(&mut self, report: &Report) -> Report {
        let profile = &*report.profile;
        let last = std::mem::take(&mut self.last);
        // Several rows may have the same frames. The first one gets the sum.
        let mut now: FxHashMap<RowKey, Counts> = FxHashMap::default();
        for (row, amounts) in rows(profile) {
            let counts = counts(amounts);
            if counts != [0; COLUMNS] {
                let sum = now.entry(row).or_insert([0; COLUMNS]);
                sum.iter_mut().zip(counts).for_each(|(sum, n)| *sum += n);
            }
        }
        let mut change = |row: RowKey, amounts: &Amounts| {
            let before = last.get(&row).copied().unwrap_or([0; COLUMNS]);
            let (row, counts) = match now.remove_entry(&row) {
                Some((row, counts)) => (row, counts),
                None => (row, [0; COLUMNS]),
            };
            let mut changed = *amounts;
            for id in cumulative() {
                let (now, before) = (counts[id.index()], before[id.index()]);
                // A count that decreased was restarted: nothing referred to its stack for a while.
                let grown = now.checked_sub(before).unwrap_or(now);
                changed.clear(id);
                changed += Amounts::in_column(id, grown);
            }
            if counts != [0; COLUMNS] {
                self.last.insert(row, counts);
            }
            changed
        };
        let samples = profile.samples.iter().map(|sample| Sample {
            stack: Arc::clone(&sample.stack),
            amounts: change(RowKey::Stack(Arc::clone(&sample.stack)), &sample.amounts),
        });
        let samples: Vec<_> = samples.collect();
        let not_observed = profile.not_observed.iter().map(|row| NotObserved {
            amounts: change(
                RowKey::Without(row.mapping.clone(), row.reason),
                &row.amounts,
            ),
            ..row.clone()
        });
        let not_observed: Vec<_> = not_observed.collect();
        let mut total = Amounts::default();
        samples.iter().for_each(|sample| total += sample.amounts);
        not_observed.iter().for_each(|row| total += row.amounts);
        let changed = Profile {
            taken: profile.taken,
            taken_ns: profile.taken_ns,
            observed: profile.observed,
            target: profile.target.clone(),
            samples,
            not_observed,
            total,
            uncertainties: Vec::new(),
            kernel_before: profile.kernel_before,
            kernel_after: profile.kernel_after,
            losses: profile.losses.clone(),
            faults: profile.faults,
            modules: Arc::clone(&profile.modules),
            places: Arc::default(),
            processes: Vec::new(),
            ended: Ended::default(),
            oom_kills: profile.oom_kills.clone(),
            freeze: profile.freeze.clone(),
            measures: profile.measures.clone(),
            cgroup: None,
            own_peak: None,
            peak: profile.peak,
        };
        Report {
            profile: Arc::new(changed),
            symbols: Arc::clone(&report.symbols),
            sequence: report.sequence,
        }
    }
}

fn rows(profile: &Profile) -> impl Iterator<Item = (RowKey, &Amounts)> {
    let samples = profile.samples.iter();
    let samples = samples.map(|s| (RowKey::Stack(Arc::clone(&s.stack)), &s.amounts));
    let without = profile.not_observed.iter();
    let without = without.map(|n| (RowKey::Without(n.mapping.clone(), n.reason), &n.amounts));
    samples.chain(without)
}

/// The columns that count from the start of sampling.
fn cumulative() -> impl Iterator<Item = ColumnId> {
    let all = ColumnId::ALL.into_iter();
    all.filter(|id| id.column().cumulative)
}

/// Whether figures of this kind count from the start of sampling.
pub(super) fn is_cumulative(kind: Kind) -> bool {
    matches!(kind, Kind::Column(id) if id.column().cumulative)
}

fn counts(amounts: &Amounts) -> Counts {
    let mut counts = [0; COLUMNS];
    cumulative().for_each(|id| counts[id.index()] = amounts.column(id));
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::report;
    use crate::testing::{at, kib, profile};
    use memprof_profile::measure::{ALLOC_SPACE, INUSE_SPACE};

    /// A report of stacks with these allocated bytes. Every other figure is 4 KiB.
    fn allocated(stacks: &[(u64, u64)]) -> Report {
        let frames: Vec<_> = stacks.iter().map(|(offset, _)| [at(0, *offset)]).collect();
        let samples: Vec<_> = frames.iter().map(|f| (f.as_slice(), kib(4, 0))).collect();
        let mut profile = profile(&samples, &[kib(4, 0)]);
        for (sample, (_, bytes)) in profile.samples.iter_mut().zip(stacks) {
            sample.amounts += Amounts::in_column(ALLOC_SPACE, *bytes);
            sample.amounts += Amounts::in_column(INUSE_SPACE, 4096);
        }
        report(profile, &[])
    }

    fn changes(intervals: &mut Intervals, stacks: &[(u64, u64)]) -> Vec<u64> {
        let changed = intervals.since_last(&allocated(stacks));
        let profile = &changed.profile;
        for sample in &profile.samples {
            assert_eq!(sample.amounts.usage.anon, 4096);
            assert_eq!(sample.amounts.column(INUSE_SPACE), 4096);
        }
        let samples = profile.samples.iter();
        let changes: Vec<u64> = samples.map(|s| s.amounts.column(ALLOC_SPACE)).collect();
        assert_eq!(
            profile.total.column(ALLOC_SPACE),
            changes.iter().sum::<u64>()
        );
        assert_eq!(profile.total.usage.anon, 4096 * (stacks.len() as u64 + 1));
        changes
    }

    #[test]
    fn only_counts_become_differences() {
        let mut intervals = Intervals::default();
        assert_eq!(changes(&mut intervals, &[(1, 100), (2, 50)]), [100, 50]);
        assert_eq!(
            changes(&mut intervals, &[(1, 130), (2, 50), (3, 7)]),
            [30, 0, 7]
        );
        assert_eq!(changes(&mut intervals, &[(3, 7), (1, 130)]), [0, 0]);
        // One stack was gone and restarted; the count of the other one decreased.
        assert_eq!(changes(&mut intervals, &[(2, 60), (1, 10)]), [60, 10]);
    }

    #[test]
    fn stacks_with_the_same_frames_count_once() {
        let mut intervals = Intervals::default();
        assert_eq!(changes(&mut intervals, &[(1, 100), (1, 50)]), [150, 0]);
        assert_eq!(changes(&mut intervals, &[(1, 50), (1, 110)]), [10, 0]);
    }
}
