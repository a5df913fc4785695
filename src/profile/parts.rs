//! A part of a profile: one of its processes, or several.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::{Amounts, Border, Ended, KernelFigures, Profile, Sample, Share, Stack, TargetInfo};
use crate::event::Pid;

impl Profile {
    /// The profile of a single process; `None` if `pid` is not in `target.pids`.
    pub fn of(&self, pid: Pid) -> Option<Profile> {
        if self.target.pids == [pid] {
            return Some(self.clone());
        }
        let share = self.processes.iter().find(|share| share.pid == pid)?;
        Some(self.part(&[share]))
    }

    /// The profile of the processes in a control group and in those below it; `None` if none of several is.
    pub fn of_group(&self, group: &str) -> Option<Profile> {
        let inside = |share: &&Share| share.container.as_ref().is_some_and(|c| c.is_below(group));
        let shares: Vec<&Share> = self.processes.iter().filter(inside).collect();
        // Processes that are missing may be in the group.
        (!shares.is_empty()).then(|| Profile {
            losses: self.losses.clone(),
            ..self.part(&shares)
        })
    }

    /// The profile of these processes, of which there is at least one, with their places.
    fn part(&self, shares: &[&Share]) -> Profile {
        let part = self.figures_of(shares);
        let inside: BTreeSet<Pid> = part.target.pids.iter().copied().collect();
        Profile {
            places: Arc::new(self.places.of(&inside, &part.samples)),
            ..part
        }
    }

    /// The same without places, which take most of the time. Each stack has one row.
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
            taken_ns: self.taken_ns,
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
