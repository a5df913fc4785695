//! Sampled allocations one by one, for questions that sums do not answer: by lifetime, by moment, by size, by thread.
//!
//! The collector keeps every live sample, and the newest of those that were freed (`collect::samples`). A [`Filter`]
//! chooses among them; the chosen ones become a profile whose heap columns are their estimates, so that every view and
//! format shows them.

mod filter;
mod groups;
mod marks;

pub use filter::{Filter, FilterError};
pub use groups::{Average, Course, Group, GroupBy, Groups, Key};
pub use marks::MarkTime;

use std::borrow::Cow;
use std::sync::Arc;

use crate::measure::{
    ALLOC_OBJECTS, ALLOC_SPACE, ColumnId, INUSE_OBJECTS, INUSE_SPACE, TEMPORARY_OBJECTS,
    TEMPORARY_SPACE,
};
use crate::{Amounts, Estimate, Profile, Report, Sample, Stack, Uncertainty};
use memprof_sys::ids::Pid;

/// A sampled allocation. Times are in ns since the first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// The index of its stack.
    pub stack: u32,
    /// Its process; `None` if that has ended.
    pub pid: Option<Pid>,
    /// The thread that made it, by its id in the initial pid namespace.
    pub thread: u32,
    /// The bytes that the program asked for.
    pub size: u64,
    /// The bytes for which it stands.
    pub weight: u64,
    /// When it was made.
    pub born_ns: u64,
    /// When it was freed; `None` if it is live, or was at the end of its process.
    pub freed_ns: Option<u64>,
    /// Whether it was made before its process was forked, by the parent: the parent has it, too.
    pub inherited: bool,
}

/// The sampled allocations that are kept.
#[derive(Clone, Debug, Default)]
pub struct Allocations {
    /// Their stacks.
    pub stacks: Vec<Arc<Stack>>,
    /// All of them.
    pub all: Vec<Allocation>,
    /// How many more there are, whose stack was lost.
    pub without_stack: u64,
    /// When the first one was made, in ns of `CLOCK_MONOTONIC`.
    pub began_ns: u64,
    /// The current moment.
    pub now_ns: u64,
    /// How many are kept no longer, because there is no room for more.
    pub missing: u64,
    /// Those were freed until this moment; `None` if none is missing.
    pub missing_until_ns: Option<u64>,
    /// An allocation freed within this time is temporary.
    pub temporary_ns: u64,
}

/// The allocations that are kept, with the names of their stacks: a report with one sample for each stack, in this order.
#[derive(Clone, Debug)]
pub struct NamedAllocations {
    /// The report.
    pub report: Report,
    /// The allocations.
    pub allocations: Arc<Allocations>,
}

impl NamedAllocations {
    /// The indices of those of one process; of all if `pid` is `None`.
    pub fn of_process(&self, pid: Option<Pid>) -> Vec<usize> {
        let all = self.allocations.all.iter().enumerate();
        let of_process = all.filter(|(_, one)| pid.is_none() || one.pid == pid);
        of_process.map(|(at, _)| at).collect()
    }
}

impl Allocation {
    /// When it was freed; the current moment if it is live.
    fn end_ns(&self, all: &Allocations) -> u64 {
        self.freed_ns.unwrap_or(all.now_ns)
    }

    /// How long it lived, or has lived until now.
    fn lifetime_ns(&self, all: &Allocations) -> u64 {
        self.end_ns(all).saturating_sub(self.born_ns)
    }

    /// Whether it was live at a moment.
    fn lived_at(&self, moment_ns: u64) -> bool {
        self.born_ns <= moment_ns && self.freed_ns.is_none_or(|freed| freed > moment_ns)
    }

    fn is_temporary(&self, all: &Allocations) -> bool {
        self.freed_ns.is_some() && self.lifetime_ns(all) <= all.temporary_ns
    }
}

impl Allocations {
    /// The moment at which the most bytes were live, by these estimates; the first of several.
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

    /// What no filter can choose, for the losses of its result: what it is, and how many.
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

    /// The profile of some of them: `profile` with their estimates in the heap's columns, and nothing else.
    pub fn profile_of(&self, chosen: impl Iterator<Item = usize>, profile: &Profile) -> Profile {
        let mut sums = vec![[Estimate::default(); 3]; self.stacks.len()];
        for one in chosen.filter_map(|at| self.all.get(at)) {
            let Some([all, live, temporary]) = sums.get_mut(one.stack as usize) else {
                continue;
            };
            let estimate = Estimate::of(one.size, one.weight);
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
            ..profile.clone()
        }
    }
}

/// The columns of all allocations, of the live ones, and of temporary ones.
const COLUMNS: [[ColumnId; 2]; 3] = [
    [ALLOC_SPACE, ALLOC_OBJECTS],
    [INUSE_SPACE, INUSE_OBJECTS],
    [TEMPORARY_SPACE, TEMPORARY_OBJECTS],
];

#[cfg(test)]
mod tests;
