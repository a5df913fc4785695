//! The processes whose system calls are captured: the second source.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use libbpf_rs::{MapCore, MapFlags};
use memprof_sys::ids::Pid;
use memprof_sys::proc_dir;

use super::Target;
use crate::wire::RecorderSkel;
use crate::{cgroups, sockets};

/// The processes of all targets. The programs add children, and remove processes that end.
#[derive(Debug)]
pub(super) struct Followed {
    /// Each target, and whether it was found once.
    targets: Vec<(Target, bool)>,
    missing: Vec<String>,
    /// When to look again.
    next: Instant,
}

impl Followed {
    /// Time between looks for new processes.
    const PAUSE: Duration = Duration::from_secs(1);

    pub fn new(targets: &[Target]) -> Self {
        Self {
            targets: targets
                .iter()
                .map(|target| (target.clone(), false))
                .collect(),
            missing: Vec::new(),
            next: Instant::now(),
        }
    }

    /// Why targets are not recorded now.
    pub fn problems(&self) -> Vec<String> {
        self.missing.clone()
    }

    /// The processes.
    pub fn processes(skel: &RecorderSkel<'_>) -> Vec<u32> {
        let keys = skel.maps.processes.keys();
        let pids: BTreeSet<_> = keys
            .filter_map(|key| Some(u32::from_ne_bytes(*key.first_chunk()?)))
            .collect();
        pids.into_iter().collect()
    }

    /// Looks for the targets again if it is time to.
    pub fn keep(&mut self, skel: &RecorderSkel<'_>) {
        if Instant::now() >= self.next {
            self.refresh(skel);
        }
    }

    /// A process listens at a port.
    pub fn listens(&mut self, skel: &RecorderSkel<'_>, port: u16, pid: u32) {
        for (target, found) in &mut self.targets {
            if *target == Target::Port(port) {
                *found = follow(skel, pid).is_ok();
            }
        }
    }

    /// Looks for the processes of all targets.
    pub fn refresh(&mut self, skel: &RecorderSkel<'_>) {
        self.missing.clear();
        for (target, found) in &mut self.targets {
            // The next process that listens there reports itself; to search for it takes long on hosts with many sockets.
            if *found && matches!(target, Target::Port(_)) {
                continue;
            }
            let pids = processes_of(target);
            *found = !pids.is_empty();
            if !*found {
                self.missing.push(format!("{target}: not found"));
            }
            for pid in pids {
                if let Err(e) = follow(skel, pid) {
                    self.missing.push(format!("{target}: process {pid}: {e}"));
                }
            }
        }
        // The programs remove a process when it ends, but it may have been found just before.
        for pid in Self::processes(skel)
            .into_iter()
            .filter(|pid| !proc_dir::lives(Pid(*pid)))
        {
            // It may be gone by now.
            let _ = skel.maps.processes.delete(&pid.to_ne_bytes());
        }
        self.next = Instant::now() + Self::PAUSE;
    }
}

fn processes_of(target: &Target) -> Vec<u32> {
    match target {
        // Groups of version 1 will do, too.
        Target::Cgroup(path) => {
            let mount = cgroups::mount().unwrap_or_default();
            cgroups::processes(&mount.join(path))
        }
        Target::Unit(unit) => {
            let mount = cgroups::mount().unwrap_or_default();
            let group = cgroups::of_unit(&mount, unit);
            group.map_or_else(Vec::new, |group| cgroups::processes(&group))
        }
        Target::Process(pid) => proc_dir::lives(Pid(*pid))
            .then_some(*pid)
            .into_iter()
            .collect(),
        Target::Port(port) => sockets::listeners(*port),
    }
}

fn follow(skel: &RecorderSkel<'_>, pid: u32) -> libbpf_rs::Result<()> {
    let processes = &skel.maps.processes;
    processes.update(&pid.to_ne_bytes(), &[1], MapFlags::ANY)
}
