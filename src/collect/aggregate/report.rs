//! Assembles a report: totals by stack id become a [`Profile`] with stacks, processes and places.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::SystemTime;

use super::Aggregator;
use super::scan::Scanned;
use crate::collect::space::{LastReport, Space};
use crate::probe::Probe;
use crate::probe::source::{StackPart, Totals, Uncertainties};
use memprof_profile::measure::{
    ALLOC_SPACE, ColumnId, INUSE_OBJECTS, INUSE_SPACE, Measure, SHARED,
};
use memprof_profile::{
    Amounts, CachedFile, Ended, Frame, FrameKind, FreezeOutcome, LOST_STACK, Losses, Mapping,
    NotObserved, OomKills, Places, ProcessProfile, Profile, Sample, Stack, TargetInfo,
    UncertainPart, Uncertainty, UncertaintyOf, Unobserved,
};
use memprof_sys::file_id::FileId;
use memprof_sys::freeze::now_ns;
use memprof_sys::ids::{MmId, Pid, StackId};
use memprof_sys::kernel_figures::KernelFigures;
use memprof_sys::process::Container;
use memprof_sys::usage::Usage;

/// Why there is no report.
#[derive(Debug)]
pub enum ReportError {
    /// No followed process is left.
    NoTarget,
    /// The report failed: what was attempted, and the reason.
    Failed(anyhow::Error),
}

/// The memory of all followed processes, by stack id.
#[derive(Clone, Default)]
pub struct Snapshot {
    pub(super) processes: Vec<Scanned>,
    /// Memory outside address spaces: page cache and kernel memory of all processes.
    pub(super) beside: Totals,
    /// Whether `processes` is one of several followed processes.
    pub(super) is_share: bool,
}

impl Snapshot {
    /// Whether pages had stacks whose frames had not arrived yet.
    pub fn lacks_stacks(&self) -> bool {
        self.processes.iter().any(|p| !p.unknown.is_empty())
    }
}

impl Aggregator {
    /// Resolves stack ids to stacks. All events up to the snapshot must have been applied: a stack's record is in the
    /// ledger at once, but its frames come through the ring buffer.
    pub fn profile(&mut self, snapshot: Snapshot, probe: &Probe) -> Profile {
        let scanned: Vec<MmId> = snapshot.processes.iter().map(|p| p.mm).collect();
        let profile = self.resolve(snapshot, probe);
        let observed = self.observed();
        for (at, mm) in scanned.iter().enumerate() {
            if let Some(space) = self.spaces.get_mut(mm) {
                let (total, container) = match profile.processes.get(at) {
                    Some(share) => (share.total, share.container.clone()),
                    None => (profile.total, Container::for_process(space.pid)),
                };
                space.last = Some(LastReport {
                    total,
                    container,
                    at: SystemTime::now(),
                    observed,
                });
            }
        }
        profile
    }

    /// Like [`Self::profile`], for a snapshot that is not the newest one.
    pub fn resolve(&mut self, mut snapshot: Snapshot, probe: &Probe) -> Profile {
        for process in &mut snapshot.processes {
            self.samples.add_to(process.mm, &mut process.totals);
        }
        if snapshot.is_share {
            self.leave_out_others(&mut snapshot);
        } else {
            self.samples.add_ended_to(&mut snapshot.beside);
        }
        self.leave_out_ended(&mut snapshot.beside);
        let is_share = snapshot.is_share;
        let first = snapshot.processes.first();
        let target = TargetInfo {
            pid: first.map_or(Pid(0), |p| p.pid),
            comm: first.map(|p| p.comm.clone()).unwrap_or_default(),
            pids: snapshot.processes.iter().map(|p| p.pid).collect(),
            alive: !self.spaces.is_empty(),
        };
        let (mut before, mut after) = (KernelFigures::default(), KernelFigures::default());
        for process in &snapshot.processes {
            before += process.before;
            after += process.after;
        }
        let processes = match snapshot.processes.len() {
            0 | 1 => Vec::new(),
            _ => self.shares(&snapshot),
        };
        let mut totals = snapshot.beside;
        if let Some(starting) = self.starting {
            let counts = |id: &StackId| self.stacks.seen_in(*id) != Some(starting);
            totals.stacks.retain(|id, _| counts(id));
            for stacks in totals.files.values_mut() {
                stacks.retain(|id, _| counts(id));
            }
            totals.files.retain(|_, stacks| !stacks.is_empty());
        }
        let (files, other_files) = (std::mem::take(&mut totals.files), totals.other_files);
        let mut mappings = Vec::new();
        for process in snapshot.processes {
            mappings.extend(process.mappings(&self.stacks));
            totals.merge(process.totals);
        }
        let places = self.places(mappings, files, other_files);
        let rows = self.rows(totals);
        Profile {
            taken: SystemTime::now(),
            taken_ns: now_ns(),
            observed: self.observed(),
            target,
            samples: rows.samples,
            not_observed: rows.not_observed,
            total: rows.total,
            uncertainties: rows.uncertainties,
            kernel_before: before,
            kernel_after: after,
            losses: self.losses(probe),
            faults: probe.faults(),
            modules: self.modules.modules(),
            places: Arc::new(places),
            processes,
            ended: match is_share {
                true => Ended::default(),
                false => self.ended.newest(),
            },
            oom_kills: OomKills::default(),
            freeze: FreezeOutcome::Ran,
            measures: self.measures(probe),
            cgroup: None,
            peak: None,
            own_peak: None,
        }
    }

    fn measures(&self, probe: &Probe) -> Vec<&'static Measure> {
        let mut measures = probe.measures();
        if self.map_counts.is_some() {
            measures.push(&SHARED);
        }
        measures
    }

    /// Removes memory outside address spaces that belongs to other processes than the only one of this snapshot.
    fn leave_out_others(&self, snapshot: &mut Snapshot) {
        let mm = snapshot.processes.first().map(|process| process.mm);
        let is_own = |id: &StackId| self.stacks.seen_in(*id) == mm;
        let beside = &mut snapshot.beside;
        beside.stacks.retain(|id, _| is_own(id));
        for stacks in beside.files.values_mut() {
            stacks.retain(|id, _| is_own(id));
        }
        beside.files.retain(|_, stacks| !stacks.is_empty());
        beside.other_files = 0;
        beside.variances.retain(|(id, _), _| is_own(id));
    }

    /// Removes blocks of ended processes from the live heap. Counts of every allocation are not per process, but their stacks are
    /// (`source::exact`).
    fn leave_out_ended(&self, beside: &mut Totals) {
        let ended = |id: &StackId| {
            let mm = self.stacks.seen_in(*id);
            mm.is_some_and(|mm| !self.spaces.contains_key(&mm))
        };
        for (id, amounts) in &mut beside.stacks {
            for column in [INUSE_SPACE, INUSE_OBJECTS] {
                if amounts.column(column) > 0 && ended(id) {
                    amounts.clear(column);
                    beside.variances.remove(&(*id, column));
                }
            }
        }
    }

    /// Each process's share. Page cache and kernel memory belong to the address space in which their stack was first
    /// seen.
    fn shares(&self, snapshot: &Snapshot) -> Vec<ProcessProfile> {
        let mut beside: HashMap<MmId, Totals> = HashMap::new();
        for (&id, &amounts) in &snapshot.beside.stacks {
            if let Some(mm) = self.stacks.seen_in(id) {
                beside.entry(mm).or_default().add_stack(id, amounts);
            }
        }
        let share = |process: &Scanned| {
            let mut totals = beside.remove(&process.mm).unwrap_or_default();
            totals.merge(process.totals.clone());
            let rows = self.rows(totals);
            ProcessProfile {
                pid: process.pid,
                comm: process.comm.clone(),
                container: Container::for_process(process.pid),
                samples: rows.samples,
                not_observed: rows.not_observed,
                total: rows.total,
                uncertainties: rows.uncertainties,
                kernel_before: process.before,
                kernel_after: process.after,
                freeze: process.freeze.clone(),
                peak: None,
            }
        };
        snapshot.processes.iter().map(share).collect()
    }

    fn rows(&self, totals: Totals) -> Rows {
        let mut rows = Rows::default();
        let mut unobserved = totals.unobserved;
        let mut indices = HashMap::new();
        for (id, amounts) in sorted(totals.stacks) {
            let Some(stack) = self.stacks.get(id) else {
                let key = (LOST_STACK.to_owned(), Unobserved::StackLost);
                *unobserved.entry(key).or_default() += amounts;
                continue;
            };
            rows.total += amounts;
            indices.insert(id, rows.samples.len() as u32);
            rows.samples.push(Sample {
                stack: self.without_sampler(stack, &amounts),
                amounts,
            });
        }
        for ((mapping, reason), amounts) in unobserved {
            rows.total += amounts;
            rows.not_observed.push(NotObserved {
                mapping,
                reason,
                amounts,
            });
        }
        rows.uncertainties = uncertainties(&totals.uncertainties, &totals.variances, &indices);
        rows
    }

    /// The stack of sampled allocations from the sampler's caller on. Other stacks, including those of the sampler's own page
    /// faults, stay unchanged.
    fn without_sampler(&self, stack: &Arc<Stack>, amounts: &Amounts) -> Arc<Stack> {
        match [ALLOC_SPACE, INUSE_SPACE].map(|id| amounts.column(id)) {
            [0, 0] => Arc::clone(stack),
            _ => self.without_own_frames(stack),
        }
    }

    /// The stack of a sampled allocation from the sampler's caller on.
    pub(super) fn without_own_frames(&self, stack: &Arc<Stack>) -> Arc<Stack> {
        let inside = |frame: &&Frame| self.is_of_library(**frame);
        let own = stack.frames.iter().take_while(inside).count();
        if own == 0 || own == stack.frames.len() {
            return Arc::clone(stack);
        }
        Arc::new(Stack {
            frames: stack.frames[own..].into(),
            outcome: stack.outcome,
        })
    }

    /// Whether a frame is code of memprof's library.
    pub(super) fn is_of_library(&self, frame: Frame) -> bool {
        let preloaded = self.preloaded.as_deref();
        match frame.kind() {
            FrameKind::Code(module, _) => {
                self.samplers.contains(&module)
                    || preloaded.is_some_and(|path| self.modules.path(frame) == Some(path))
            }
            FrameKind::Unmapped(_) => false,
        }
    }

    fn losses(&self, probe: &Probe) -> Losses {
        let mut losses = probe.losses();
        losses.add(
            "code mappings without a place in the module table",
            self.modules.refused(),
        );
        losses.add(
            "modules whose file could not be opened",
            self.modules.unopened(),
        );
        losses.add(
            "modules whose file could not be opened: only exported functions have names, copied from memory",
            self.modules.copied(),
        );
        let refused = self.spaces.values().map(|s| s.functions.refused());
        losses.add(
            "interpreted functions without a name: too many names",
            self.modules.functions_refused() + refused.sum::<u64>(),
        );
        losses.add(
            "Python or Ruby frames not merged: their evaluator is not on the stack (counted at each new stack)",
            self.unmerged,
        );
        let forgotten = self.spaces.values().map(Space::forgotten).sum();
        losses.add("address ranges forgotten: range map full", forgotten);
        self.name_losses(&mut losses);
        self.samples.losses(&mut losses);
        losses
    }

    fn places(
        &self,
        mappings: Vec<Mapping>,
        files: BTreeMap<FileId, HashMap<StackId, u64>>,
        other_files: u64,
    ) -> Places {
        let files = files.into_iter().map(|(id, stacks)| {
            let mut file = CachedFile {
                id,
                path: self.paths.get(id).cloned(),
                samples: Vec::with_capacity(stacks.len()),
                lost: 0,
            };
            for (id, cache) in sorted(stacks) {
                let amounts = Amounts::from(Usage {
                    cache,
                    ..Usage::default()
                });
                match self.stacks.get(id).map(Arc::clone) {
                    Some(stack) => file.samples.push(Sample { stack, amounts }),
                    None => file.lost += cache,
                }
            }
            file
        });
        Places {
            mappings,
            files: files.collect(),
            other_files,
        }
    }
}

/// Bytes by resolved owner, and their sum.
#[derive(Default)]
struct Rows {
    samples: Vec<Sample>,
    not_observed: Vec<NotObserved>,
    total: Amounts,
    uncertainties: Vec<Uncertainty>,
}

/// Converts errors by stack id to errors of samples.
fn uncertainties(
    divided: &Uncertainties,
    variances: &HashMap<(StackId, ColumnId), f64>,
    indices: &HashMap<StackId, u32>,
) -> Vec<Uncertainty> {
    let sample = |id: Option<StackId>| id.and_then(|id| indices.get(&id)).copied();
    let part = |part: &StackPart| UncertainPart {
        sample: sample(part.stack),
        share: part.share,
        variance: part.variance,
        single: part.single,
    };
    let mut all: Vec<_> = divided
        .divided()
        .map(|divided| Uncertainty {
            of: divided.of,
            parts: divided.parts.iter().map(part).collect(),
        })
        .collect();
    let mut by_themselves: BTreeMap<UncertaintyOf, Vec<UncertainPart>> = BTreeMap::new();
    let mut add = |of, sample, [variance, single]: [f64; 2]| {
        by_themselves.entry(of).or_default().push(UncertainPart {
            sample,
            share: 0.0,
            variance,
            single,
        });
    };
    for (id, of, both) in divided.rest() {
        add(of, sample(id), both);
    }
    for ((id, column), variance) in variances.iter().filter(|(_, variance)| **variance > 0.0) {
        if let Some(sample) = indices.get(id) {
            let of = UncertaintyOf::Column(*column);
            add(of, Some(*sample), [*variance, 0.0]);
        }
    }
    for (of, mut parts) in by_themselves {
        parts.sort_unstable_by_key(|part| part.sample);
        all.push(Uncertainty { of, parts });
    }
    all
}

/// Sorts by id, so that reports of the same state are identical.
fn sorted<T>(stacks: HashMap<StackId, T>) -> Vec<(StackId, T)> {
    let mut rows: Vec<_> = stacks.into_iter().collect();
    rows.sort_unstable_by_key(|(id, _)| *id);
    rows
}
