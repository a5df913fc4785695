//! The sampled allocations of one process by stack: all, temporary and live ones, and those that were live at the heap's peak.
//!
//! The highest of many estimates is too high: of a heap that stays the same while its blocks are replaced thirty times, by a
//! quarter with 125 samples. So each sample counts in two [`views`](LiveSample::views) whose errors are independent. Each view finds
//! the moment at which it is highest, the other one tells what was live then, and the mean of both is the figure.
//!
//! Nothing is copied at a peak, of which a growing heap has one at each allocation. Peaks are numbered instead. Before a stack's
//! live allocations change for the first time after a peak, they are kept as those of that peak. So a stack that has not changed
//! since the newest peak still has what it had then.

use std::collections::{HashMap, HashSet};

use super::LiveSample;
use crate::probe::source::Totals;
use crate::probe::wire;
use memprof_profile::measure::{
    ALLOC_OBJECTS, ALLOC_SPACE, AT_PEAK_OBJECTS, AT_PEAK_SPACE, ColumnId, INUSE_OBJECTS,
    INUSE_SPACE, TEMPORARY_OBJECTS, TEMPORARY_SPACE,
};
use memprof_profile::{Amounts, Estimate};
use memprof_sys::ids::StackId;

/// Maximum number of stacks in the sums of a process, and in the sums of all ended processes, about 350 bytes each.
pub(super) const MAX_STACKS: usize = 1 << 16;
/// The stack for allocations whose own stack does not fit.
pub(super) const OTHER: StackId = StackId(wire::STACK_LOST);

/// The live heap of all processes, in both views.
pub(super) type Peaks = [Peak; 2];

/// The live heap of all processes in one view, in bytes.
#[derive(Debug, Default)]
pub(super) struct Peak {
    /// Now.
    live: u64,
    /// The most so far.
    most: u64,
    /// How often that has grown.
    number: u64,
}

impl Peak {
    fn grow(&mut self, bytes: u64) {
        self.live = self.live.saturating_add(bytes);
        if self.live > self.most {
            self.most = self.live;
            self.number += 1;
        }
    }

    fn shrink(&mut self, bytes: u64) {
        self.live = self.live.saturating_sub(bytes);
    }
}

/// The allocations of each stack so far.
#[derive(Debug, Default)]
pub(super) struct Sums {
    by_stack: HashMap<StackId, Allocated>,
    /// Live bytes in each view.
    live: [u64; 2],
}

#[derive(Clone, Copy, Debug, Default)]
struct Allocated {
    all: Estimate,
    /// Allocations that were freed soon.
    temporary: Estimate,
    /// Allocations that are not freed, and the number of their samples.
    live: Estimate,
    samples: u32,
    /// What each view tells of the peak of the other one.
    at_peak: [AtPeak; 2],
}

/// Live allocations in one view, halved.
#[derive(Clone, Copy, Debug, Default)]
struct AtPeak {
    now: Estimate,
    /// At the peak of this number.
    then: Estimate,
    number: u64,
}

impl AtPeak {
    /// The allocations that were live at the newest peak.
    fn at(&self, peak: &Peak) -> Estimate {
        if self.number == peak.number {
            self.then
        } else {
            self.now
        }
    }

    /// Keeps what is live for the newest peak, before it changes.
    fn keep(&mut self, peak: &Peak) {
        self.then = self.at(peak);
        self.number = peak.number;
    }
}

impl Allocated {
    fn at(&self, peaks: &Peaks) -> Estimate {
        let mut sum = Estimate::default();
        for (told, peak) in self.at_peak.iter().zip(peaks) {
            sum += told.at(peak);
        }
        sum
    }
}

impl Sums {
    /// Whether a stack has sums of its own, or may have.
    pub(super) fn fits(&self, stack: StackId) -> bool {
        self.by_stack.len() < MAX_STACKS || self.by_stack.contains_key(&stack)
    }

    /// The sums of a stack, or those of the stacks that do not fit.
    fn entry(&mut self, stack: StackId) -> &mut Allocated {
        let stack = if self.fits(stack) { stack } else { OTHER };
        self.by_stack.entry(stack).or_default()
    }

    /// Adds a sampled allocation, which is not live yet.
    pub(super) fn allocated(&mut self, sample: &LiveSample) {
        self.entry(sample.stack).all += sample.estimate();
    }

    /// Adds an allocation to those that were freed soon.
    pub(super) fn freed_soon(&mut self, sample: &LiveSample) {
        self.entry(sample.stack).temporary += sample.estimate();
    }

    /// Adds an allocation to the live ones.
    pub(super) fn lives(&mut self, sample: &LiveSample, peaks: &mut Peaks) {
        let (views, told) = (sample.views(), sample.told());
        let sums = self.entry(sample.stack);
        sums.live += sample.estimate();
        sums.samples += 1;
        for at in 0..2 {
            sums.at_peak[at].keep(&peaks[at]);
            sums.at_peak[at].now += told[1 - at];
            peaks[at].grow(views[at]);
        }
        let live = self.live.iter_mut().zip(views);
        live.for_each(|(live, view)| *live = live.saturating_add(view));
    }

    /// Removes an allocation from the live ones.
    pub(super) fn ends(&mut self, sample: &LiveSample, peaks: &mut Peaks) {
        let (views, told) = (sample.views(), sample.told());
        // Of a child, it may have been inherited under a stack that did not fit into its parent.
        let own = self.by_stack.get(&sample.stack);
        let is_own = own.is_some_and(|sums| sums.samples > 0);
        let sums = self.entry(if is_own { sample.stack } else { OTHER });
        sums.live -= sample.estimate();
        sums.samples = sums.samples.saturating_sub(1);
        for at in 0..2 {
            sums.at_peak[at].keep(&peaks[at]);
            sums.at_peak[at].now -= told[1 - at];
            peaks[at].shrink(views[at]);
        }
        if sums.samples == 0 {
            // Without what rounding has left.
            sums.live = Estimate::default();
            sums.at_peak
                .iter_mut()
                .for_each(|told| told.now = Estimate::default());
        }
        let live = self.live.iter_mut().zip(views);
        live.for_each(|(live, view)| *live = live.saturating_sub(view));
    }

    /// Removes these stacks, of which nothing is live.
    pub(super) fn take_back(&mut self, stacks: &HashSet<StackId>) {
        self.by_stack.retain(|stack, _| !stacks.contains(stack));
    }

    /// The sums of a child that was just forked, whose live allocations are copies.
    pub(super) fn forked(&self, peaks: &mut Peaks) -> Sums {
        let live = self.by_stack.iter().filter(|(_, sums)| sums.samples > 0);
        let copies = live.map(|(stack, sums)| {
            let mut copy = Allocated {
                live: sums.live,
                samples: sums.samples,
                ..Allocated::default()
            };
            for (at, peak) in peaks.iter().enumerate() {
                copy.at_peak[at].keep(peak);
                copy.at_peak[at].now = sums.at_peak[at].now;
            }
            (*stack, copy)
        });
        let by_stack = copies.collect();
        let grown = peaks.iter_mut().zip(self.live);
        grown.for_each(|(peak, live)| peak.grow(live));
        Sums {
            by_stack,
            live: self.live,
        }
    }

    /// Adds the sums of a process that has ended: nothing of it is live. Returns the number of stacks that do not fit.
    pub(super) fn take_over(&mut self, ended: Sums, peaks: &mut Peaks) -> u64 {
        let mut too_many = 0;
        for (stack, sums) in ended.by_stack {
            too_many += u64::from(!self.fits(stack));
            let own = self.entry(stack);
            own.all += sums.all;
            own.temporary += sums.temporary;
            for (at, peak) in peaks.iter().enumerate() {
                own.at_peak[at].keep(peak);
                own.at_peak[at].then += sums.at_peak[at].at(peak);
            }
        }
        let shrunk = peaks.iter_mut().zip(ended.live);
        shrunk.for_each(|(peak, live)| peak.shrink(live));
        too_many
    }

    /// The stacks, without repetitions.
    pub(super) fn stacks(&self) -> impl Iterator<Item = StackId> {
        self.by_stack.keys().copied()
    }

    /// Adds the estimates to the columns.
    pub(super) fn add_to(&self, peaks: &Peaks, totals: &mut Totals) {
        for (stack, sums) in &self.by_stack {
            for (estimate, space, objects) in [
                (sums.all, ALLOC_SPACE, ALLOC_OBJECTS),
                (sums.temporary, TEMPORARY_SPACE, TEMPORARY_OBJECTS),
                (sums.live, INUSE_SPACE, INUSE_OBJECTS),
                (sums.at(peaks), AT_PEAK_SPACE, AT_PEAK_OBJECTS),
            ] {
                add(totals, *stack, estimate, space, objects);
            }
        }
    }
}

/// Adds an estimate and its variances to the columns of a stack.
fn add(
    totals: &mut Totals,
    stack: StackId,
    estimate: Estimate,
    space: ColumnId,
    objects: ColumnId,
) {
    if estimate == Estimate::default() {
        return;
    }
    for (column, figure, variance) in [
        (space, estimate.space, estimate.space_variance),
        (objects, estimate.objects, estimate.objects_variance),
    ] {
        // Rounded once for each stack, not once for each sample.
        totals.add_stack(stack, Amounts::in_column(column, figure.round() as u64));
        *totals.variances.entry((stack, column)).or_default() += variance;
    }
}
