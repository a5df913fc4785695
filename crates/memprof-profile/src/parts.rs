//! A profile of one or several processes, extracted from a larger profile.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::{
    Amounts, Ended, ProcessProfile, Profile, Sample, Stack, TargetInfo, UncertainPart, Uncertainty,
};
use memprof_sys::ids::Pid;
use memprof_sys::kernel_figures::KernelFigures;

/// A subset of a profile's processes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Subset {
    /// One process.
    Process(Pid),
    /// The processes in this control group and in its descendants.
    Group(Arc<str>),
}

impl Subset {
    /// Whether a process belongs to the subset.
    fn has(&self, share: &ProcessProfile) -> bool {
        match self {
            Subset::Process(pid) => share.pid == *pid,
            Subset::Group(group) => share.container.as_ref().is_some_and(|c| c.is_below(group)),
        }
    }
}

impl Profile {
    /// The profile of a single process; `None` if `pid` is not in `target.pids`.
    pub fn for_process(&self, pid: Pid) -> Option<Profile> {
        self.part(&Subset::Process(pid))
    }

    /// The profile of a subset of the processes; `None` if the subset is empty. The control group of a profile's only
    /// process is unknown, so a group never matches it.
    pub fn part(&self, subset: &Subset) -> Option<Profile> {
        if self.is_only(subset) {
            return Some(self.clone());
        }
        let part = self.figures(subset)?;
        let inside: BTreeSet<Pid> = part.target.pids.iter().copied().collect();
        Some(Profile {
            places: Arc::new(self.places.for_processes(&inside, &part.samples)),
            ..part
        })
    }

    /// Whether the subset is the only process of this profile.
    pub fn is_only(&self, subset: &Subset) -> bool {
        matches!(subset, Subset::Process(pid) if self.target.pids == [*pid])
    }

    /// The total of a subset of the processes, and their ids; `None` if the subset is empty.
    pub fn total_of(&self, subset: &Subset) -> Option<(Amounts, Vec<Pid>)> {
        if self.is_only(subset) {
            return Some((self.total, self.target.pids.clone()));
        }
        let (mut total, mut pids) = (Amounts::default(), Vec::new());
        for share in self.processes.iter().filter(|share| subset.has(share)) {
            total += share.total;
            pids.push(share.pid);
        }
        (!pids.is_empty()).then_some((total, pids))
    }

    /// The profile of a subset without places, which take most of the time of [`Profile::part`].
    pub fn figures(&self, subset: &Subset) -> Option<Profile> {
        let shares = self.processes.iter().filter(|share| subset.has(share));
        let shares: Vec<&ProcessProfile> = shares.collect();
        if shares.is_empty() {
            return None;
        }
        let figures = self.figures_of(&shares);
        Some(match subset {
            Subset::Process(_) => figures,
            // Missing processes may belong to the group, so all losses stay.
            Subset::Group(_) => Profile {
                losses: self.losses.clone(),
                ..figures
            },
        })
    }

    /// The profile of these processes without places. Each stack has one row.
    pub fn figures_of(&self, shares: &[&ProcessProfile]) -> Profile {
        let pids: Vec<Pid> = shares.iter().map(|share| share.pid).collect();
        let mut samples: Vec<Sample> = Vec::new();
        let mut rows: HashMap<*const Stack, u32> = HashMap::new();
        let mut uncertainties: Vec<Uncertainty> = Vec::new();
        let mut total = Amounts::default();
        let (mut before, mut after) = (KernelFigures::default(), KernelFigures::default());
        for share in shares {
            total += share.total;
            before += share.kernel_before;
            after += share.kernel_after;
            // For each sample of the process, the index of its row.
            let row_of: Vec<u32> = share
                .samples
                .iter()
                .map(|sample| {
                    let next = samples.len() as u32;
                    let row = *rows.entry(Arc::as_ptr(&sample.stack)).or_insert(next);
                    match samples.get_mut(row as usize) {
                        Some(known) => known.amounts += sample.amounts,
                        None => samples.push(sample.clone()),
                    }
                    row
                })
                .collect();
            let row = |at: Option<u32>| Some(*row_of.get(at? as usize)?);
            let part = |part: &UncertainPart| UncertainPart {
                sample: row(part.sample),
                ..*part
            };
            uncertainties.extend(share.uncertainties.iter().map(|uncertainty| Uncertainty {
                of: uncertainty.of,
                parts: uncertainty.parts.iter().map(part).collect(),
            }));
        }
        let not_observed = shares.iter().flat_map(|share| &share.not_observed);
        let (comm, freeze) = match shares {
            [one] => (one.comm.clone(), one.freeze.clone()),
            _ => (
                shares.first().map(|s| s.comm.clone()).unwrap_or_default(),
                self.freeze.clone(),
            ),
        };
        let own_peak = match shares {
            [one] => one.peak,
            _ => None,
        };
        Profile {
            taken: self.taken,
            taken_ns: self.taken_ns,
            observed: self.observed,
            target: TargetInfo {
                pid: pids.first().copied().unwrap_or(self.target.pid),
                comm,
                alive: self.target.alive,
                pids,
            },
            places: Arc::default(),
            samples,
            not_observed: not_observed.cloned().collect(),
            total,
            uncertainties,
            kernel_before: before,
            kernel_after: after,
            losses: self.losses.of_processes_followed(),
            faults: self.faults,
            modules: Arc::clone(&self.modules),
            processes: match shares {
                [_] => Vec::new(),
                several => several.iter().copied().cloned().collect(),
            },
            ended: Ended::default(),
            oom_kills: self.oom_kills.clone(),
            freeze,
            measures: self.measures.clone(),
            cgroup: None,
            peak: own_peak,
            own_peak,
        }
    }
}
