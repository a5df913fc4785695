//! What a memprof holds of the kernel, and whether anything of it is there after its end.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use libbpf_rs::libbpf_sys::{bpf_link_get_next_id, bpf_map_get_next_id, bpf_prog_get_next_id};

use crate::common::process::{LIMIT, comm, state, threads};
use memprof_sys::ids::Pid;

/// Ids of BPF objects, and processes.
#[derive(Debug, Default)]
pub struct KernelObjects {
    pub programs: BTreeSet<u32>,
    maps: BTreeSet<u32>,
    links: BTreeSet<u32>,
    /// memprof's guard for heap snapshots, and whatever else it has started.
    helpers: Vec<Pid>,
}

impl KernelObjects {
    /// What a process holds, which is stopped: it must not change meanwhile. Its child `but` is no helper.
    pub fn by(pid: Pid, but: Option<Pid>) -> KernelObjects {
        let mut held = KernelObjects::default();
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

    /// What of it is there.
    fn left(&self) -> String {
        let among = |ids: &BTreeSet<u32>, next: Next| -> Vec<u32> {
            all(next).filter(|id| ids.contains(id)).collect()
        };
        let left = [
            ("programs", among(&self.programs, bpf_prog_get_next_id)),
            ("maps", among(&self.maps, bpf_map_get_next_id)),
            ("links", among(&self.links, bpf_link_get_next_id)),
        ];
        let left = left.iter().filter(|(_, ids)| !ids.is_empty());
        let left = left.map(|(what, ids)| format!("{what} {ids:?}"));
        let helpers = self.helpers.iter().map(|pid| (pid, state(*pid)));
        let helpers = helpers.filter(|(_, state)| !matches!(state, 'X' | 'Z'));
        let helpers =
            helpers.map(|(pid, state)| format!("process {pid} ({}, {state})", comm(*pid)));
        left.chain(helpers).collect::<Vec<_>>().join(", ")
    }

    /// Waits until nothing of it is there.
    #[track_caller]
    pub fn is_gone(&self) {
        let end = Instant::now() + LIMIT;
        let mut left = self.left();
        while !left.is_empty() {
            assert!(Instant::now() < end, "left: {left}");
            sleep(Duration::from_millis(5));
            left = self.left();
        }
    }
}

type Next = unsafe extern "C" fn(u32, *mut u32) -> i32;

/// All ids of a kind. None of the objects is opened: a map of programs that is closed by memprof, opened by somebody else, and
/// closed again, while the kernel has not yet emptied it, stays for ever (`prog_array_map_clear` of Linux 6.18 takes a reference
/// each time, and its work gives one back).
fn all(next: Next) -> impl Iterator<Item = u32> {
    let mut id = 0;
    std::iter::from_fn(move || {
        // SAFETY: `id` is valid for the write.
        let found = unsafe { next(id, &raw mut id) } == 0;
        found.then_some(id)
    })
}

/// The files below a directory.
pub fn files_in(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}
