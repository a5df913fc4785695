//! A part of a profile: one of its processes, or several.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::{Amounts, Border, Ended, KernelFigures, Profile, Sample, Share, Stack, TargetInfo};
use crate::event::Pid;

/// Some of a profile's processes.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    /// One of them.
    Process(Pid),
    /// Those in a control group and in those below it.
    Group(Arc<str>),
}

impl Part {
    /// Whether a process is one of these.
    fn has(&self, share: &Share) -> bool {
        match self {
            Part::Process(pid) => share.pid == *pid,
            Part::Group(group) => {
                let container = share.container.as_ref();
                container.is_some_and(|container| container.is_below(group))
            }
        }
    }
}

impl Profile {
    /// The profile of a single process; `None` if `pid` is not in `target.pids`.
    pub fn of(&self, pid: Pid) -> Option<Profile> {
        if self.is_only(pid) {
            return Some(self.clone());
        }
        Some(self.with_places(self.figures(&Part::Process(pid))?))
    }

    /// The profile of the processes in a control group and in those below it; `None` if none of several is.
    pub fn of_group(&self, group: &str) -> Option<Profile> {
        Some(self.with_places(self.figures(&Part::Group(group.into()))?))
    }

    /// The profile of these processes without places, which take most of the time; `None` if none of them is in it.
    fn figures(&self, part: &Part) -> Option<Profile> {
        if let Part::Process(pid) = part
            && self.is_only(*pid)
        {
            return Some(self.clone());
        }
        let inside = |share: &&Share| part.has(share);
        let shares: Vec<&Share> = self.processes.iter().filter(inside).collect();
        let figures = (!shares.is_empty()).then(|| self.figures_of(&shares))?;
        Some(match part {
            Part::Process(_) => figures,
            // Processes that are missing may be in the group.
            Part::Group(_) => Profile {
                losses: self.losses.clone(),
                ..figures
            },
        })
    }

    /// Whether this is the only process.
    fn is_only(&self, pid: Pid) -> bool {
        self.target.pids == [pid]
    }

    /// A part of this profile, with its places.
    fn with_places(&self, part: Profile) -> Profile {
        let inside: BTreeSet<Pid> = part.target.pids.iter().copied().collect();
        Profile {
            places: Arc::new(self.places.of(&inside, &part.samples)),
            ..part
        }
    }

    /// The profile of these processes without places. Each stack has one row.
    pub(crate) fn figures_of(&self, shares: &[&Share]) -> Profile {
        let pids: Vec<Pid> = shares.iter().map(|share| share.pid).collect();
        let mut samples: Vec<Sample> = Vec::new();
        let mut rows: HashMap<*const Stack, u32> = HashMap::new();
        let mut borders: Vec<Border> = Vec::new();
        let mut total = Amounts::default();
        let (mut before, mut after) = (KernelFigures::default(), KernelFigures::default());
        for share in shares {
            total += share.total;
            before += share.kernel_before;
            after += share.kernel_after;
            // The row of each of its samples.
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
            borders.extend(share.borders.iter().map(|border| Border {
                sample: row(border.sample),
                beside: border.beside.map(row),
                ..*border
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
        Profile {
            taken: self.taken,
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
            borders,
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
        }
    }
}
