//! Sampled allocations, one by one, for questions that sums cannot answer: by lifetime, moment, size or thread.
//!
//! The collector keeps every live sample and the newest freed ones (`collect::samples`). A [`Filter`] selects some
//! of them. The selection becomes a profile with estimates in the heap columns, so that every view and format can show it.

mod filter;
mod groups;
mod marks;

pub use filter::{Filter, FilterError};
pub use groups::{Average, Course, Group, GroupBy, Groups, Key};
pub use marks::MarkTime;

use std::borrow::Cow;
use std::sync::Arc;

use crate::measure::{
    ALLOC_OBJECTS, ALLOC_SPACE, ColumnId, HEAP, INUSE_OBJECTS, INUSE_SPACE, TEMPORARY_OBJECTS,
    TEMPORARY_SPACE,
};
use crate::{Amounts, Estimate, Profile, Report, Sample, Stack, Uncertainty};
use memprof_sys::ids::Pid;

/// One sampled allocation. Times are in ns since the first sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Index of the stack in [`Allocations::stacks`].
    pub stack: u32,
    /// The process; `None` if it has ended.
    pub pid: Option<Pid>,
    /// The allocating thread, by its id in the initial pid namespace.
    pub thread: u32,
    /// Bytes that the program requested.
    pub size: u64,
    /// Bytes that the sample represents.
    pub weight: u64,
    /// Time of the allocation.
    pub born_ns: u64,
    /// Time of the free; `None` if the allocation is live or was live when its process ended.
    pub freed_ns: Option<u64>,
    /// Whether the parent made the allocation before it forked this process. The parent's own entry also exists.
    pub inherited: bool,
}

/// The sampled allocations in memory.
#[derive(Clone, Debug, Default)]
pub struct Allocations {
    /// The stacks of the allocations.
    pub stacks: Vec<Arc<Stack>>,
    /// All allocations.
    pub all: Vec<Allocation>,
    /// Number of further samples, whose stack was lost.
    pub without_stack: u64,
    /// Time of the first sample, in ns of `CLOCK_MONOTONIC`.
    pub began_ns: u64,
    /// The current moment.
    pub now_ns: u64,
    /// Number of freed allocations that were discarded to limit memory.
    pub missing: u64,
    /// The latest free among the discarded allocations; `None` if none was discarded.
    pub missing_until_ns: Option<u64>,
    /// An allocation freed within this time is temporary.
    pub temporary_ns: u64,
}

/// Sampled allocations with the symbols of their stacks. The report has one sample for each stack, in the order of
/// [`Allocations::stacks`].
#[derive(Clone, Debug)]
pub struct NamedAllocations {
    /// The report.
    pub report: Report,
    /// The allocations.
    pub allocations: Arc<Allocations>,
}

impl NamedAllocations {
    /// Indices of the allocations of one process; of all processes if `pid` is `None`.
    pub fn of_process(&self, pid: Option<Pid>) -> Vec<usize> {
        let all = self.allocations.all.iter().enumerate();
        let of_process = all.filter(|(_, one)| pid.is_none() || one.pid == pid);
        of_process.map(|(at, _)| at).collect()
    }
}

impl Allocation {
    /// The time of the free; the current moment if the allocation is live.
    fn end_ns(&self, all: &Allocations) -> u64 {
        self.freed_ns.unwrap_or(all.now_ns)
    }

    /// The lifetime in ns; the age if the allocation is live.
    fn lifetime_ns(&self, all: &Allocations) -> u64 {
        self.end_ns(all).saturating_sub(self.born_ns)
    }

    /// Whether the allocation was live at a moment.
    fn lived_at(&self, moment_ns: u64) -> bool {
        self.born_ns <= moment_ns && self.freed_ns.is_none_or(|freed| freed > moment_ns)
    }

    fn is_temporary(&self, all: &Allocations) -> bool {
        self.freed_ns.is_some() && self.lifetime_ns(all) <= all.temporary_ns
    }
}

impl Allocations {
    /// The moment with the maximum of estimated live bytes; the first one if there are several.
    pub fn peak_ns(&self) -> u64 {
        let mut changes: Vec<(u64, bool, u64)> = Vec::new();
        for one in &self.all {
            // At the same moment, frees come first.
            changes.push((one.born_ns, true, one.weight));
            changes.extend(one.freed_ns.map(|freed| (freed, false, one.weight)));
        }
        changes.sort_unstable();
        let (mut live, mut most, mut peak) = (0u64, 0u64, 0);
        for (at, born, weight) in changes {
            live = match born {
                true => live.saturating_add(weight),
                false => live.saturating_sub(weight),
            };
            if live > most {
                (most, peak) = (live, at);
            }
        }
        peak
    }

    /// Samples that no filter can select, reported as losses: (description, count).
    fn not_looked_at(&self) -> impl Iterator<Item = (Cow<'static, str>, u64)> {
        let until = self.missing_until_ns.unwrap_or(0) as f64 / 1e9;
        let missing = format!(
            "samples the filter did not look at: freed in the first {until:.1} s, and kept no longer"
        );
        let without_stack = "samples the filter did not look at: their stack was lost";
        let all = [
            (missing.into(), self.missing),
            (without_stack.into(), self.without_stack),
        ];
        all.into_iter().filter(|(_, number)| *number > 0)
    }

    /// The profile of selected allocations: `profile` with their estimates in the heap columns and no other figures.
    pub fn profile_of(&self, chosen: impl Iterator<Item = usize>, profile: &Profile) -> Profile {
        let mut sums = vec![[Estimate::default(); 3]; self.stacks.len()];
        for one in chosen.filter_map(|at| self.all.get(at)) {
            let Some([all, live, temporary]) = sums.get_mut(one.stack as usize) else {
                continue;
            };
            let estimate = Estimate::from_sample(one.size, one.weight);
            if !one.inherited {
                *all += estimate;
            }
            if one.freed_ns.is_none() {
                *live += estimate;
            }
            if one.is_temporary(self) {
                *temporary += estimate;
            }
        }
        let (mut samples, mut uncertainties) = (Vec::new(), Vec::new());
        let mut total = Amounts::default();
        for (stack, sums) in self.stacks.iter().zip(&sums) {
            let mut amounts = Amounts::default();
            for (columns, sum) in COLUMNS.iter().zip(sums) {
                let figures = [
                    (columns[0], sum.space, sum.space_variance),
                    (columns[1], sum.objects, sum.objects_variance),
                ];
                for (column, figure, variance) in figures {
                    amounts += Amounts::in_column(column, figure.round() as u64);
                    if variance > 0.0 {
                        let sample = samples.len() as u32;
                        uncertainties.push(Uncertainty::in_column(column, sample, variance));
                    }
                }
            }
            total += amounts;
            samples.push(Sample {
                stack: Arc::clone(stack),
                amounts,
            });
        }
        Profile {
            samples,
            uncertainties,
            total,
            not_observed: Vec::new(),
            processes: Vec::new(),
            places: Arc::default(),
            // The resident memory of these allocations is not known.
            measures: vec![&HEAP],
            ..profile.clone()
        }
    }
}

/// The columns of all, live and temporary allocations: bytes and objects of each.
const COLUMNS: [[ColumnId; 2]; 3] = [
    [ALLOC_SPACE, ALLOC_OBJECTS],
    [INUSE_SPACE, INUSE_OBJECTS],
    [TEMPORARY_SPACE, TEMPORARY_OBJECTS],
];

#[cfg(test)]
mod tests;
