//! What a memprof holds of the kernel, and whether anything of it is there after its end.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use ::memprof::event::Pid;
use libbpf_rs::query::{LinkInfoIter, MapInfoIter, ProgInfoIter};

use crate::common::process::LIMIT;
use crate::common::process::{eventually, state, threads};

/// Ids of BPF objects, and processes.
#[derive(Debug, Default)]
pub struct Held {
    pub programs: BTreeSet<u32>,
    maps: BTreeSet<u32>,
    links: BTreeSet<u32>,
    /// memprof's guard for heap snapshots, and whatever else it has started.
    helpers: Vec<Pid>,
}

impl Held {
    /// What a process holds, which is stopped: it must not change meanwhile. Its child `but` is no helper.
    pub fn by(pid: Pid, but: Option<Pid>) -> Held {
        let mut held = Held::default();
        for entry in fs::read_dir(format!("/proc/{pid}/fdinfo")).unwrap() {
            let info = fs::read_to_string(entry.unwrap().path()).unwrap_or_default();
            for line in info.lines() {
                let ids = match line.split_once(':') {
                    // A link's file has its program's id, too.
                    Some(("prog_id", id)) => Some((&mut held.programs, id)),
                    Some(("map_id", id)) => Some((&mut held.maps, id)),
                    Some(("link_id", id)) => Some((&mut held.links, id)),
                    _ => None,
                };
                if let Some((ids, id)) = ids {
                    ids.insert(id.trim().parse().unwrap());
                }
            }
        }
        for thread in threads(pid) {
            let file = format!("/proc/{pid}/task/{thread}/children");
            let children = fs::read_to_string(file).unwrap_or_default();
            let children = children
                .split_whitespace()
                .map(|pid| Pid(pid.parse().unwrap()));
            held.helpers
                .extend(children.filter(|child| Some(*child) != but));
        }
        held
    }

    /// Waits until nothing of it is there.
    #[track_caller]
    pub fn is_gone(&self) {
        eventually(LIMIT, &format!("something of {self:?} is left"), || {
            let programs = ProgInfoIter::default().map(|program| program.id);
            let maps = MapInfoIter::default().map(|map| map.id);
            let links = LinkInfoIter::default().map(|link| link.id);
            let none = |ids: &BTreeSet<u32>, mut all: Box<dyn Iterator<Item = u32>>| {
                !all.any(|id| ids.contains(&id))
            };
            none(&self.programs, Box::new(programs))
                && none(&self.maps, Box::new(maps))
                && none(&self.links, Box::new(links))
                && self
                    .helpers
                    .iter()
                    .all(|pid| matches!(state(*pid), 'X' | 'Z'))
        });
    }
}

/// The files below a directory.
pub fn files_in(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}
