//! `memprof attach-heap`: a running process loads the sampling library, and is not harmed, however memprof ends.
//!
//! Needs root and a compiler. `MEMPROF_TEST_ROUNDS=200` for more rounds.

mod inside;
mod kills;
mod listened;
mod refusals;
mod releases;
mod rounds;
mod servers;
mod sleepers;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::ops::Range;
use std::path::PathBuf;

use crate::common::binary::{Ended, memprof};
use crate::common::effort;
use crate::common::process::{LIMIT, eventually, runs, threads};
use memprof_sys::ids::Pid;

/// How often the library is loaded into each kind of process.
fn rounds() -> u32 {
    effort::rounds(8)
}

/// Has a process load the library.
fn attach(pid: Pid, more: &[&str]) -> Ended {
    let pid = pid.to_string();
    memprof(&[&["attach-heap", "--yes", "--pid", &pid], more].concat())
}

/// As [`attach`], which must succeed.
#[track_caller]
fn attached(pid: Pid, more: &[&str]) -> String {
    let ended = attach(pid, more);
    ended.must(0, &[]);
    assert!(ended.stdout.contains("lead to the library"), "{ended:?}");
    assert!(is_loaded(pid));
    nothing_left(pid);
    ended.stdout
}

fn maps(pid: Pid) -> String {
    fs::read_to_string(format!("/proc/{pid}/maps")).unwrap()
}

fn is_loaded(pid: Pid) -> bool {
    maps(pid).contains("/memfd:libmemprof_heap.so")
}

/// Whether there is code that is in no file.
fn code_without_a_file(pid: Pid) -> bool {
    maps(pid).lines().any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields[1].contains('x') && fields[4] == "0" && fields.len() == 5
    })
}

/// What a process has before something is done to it.
struct Before {
    pid: Pid,
    /// Its descriptors, and where they lead.
    files: BTreeMap<OsString, PathBuf>,
    mappings: Vec<Range<u64>>,
}

impl Before {
    fn read(pid: Pid) -> Before {
        Before {
            pid,
            files: files(pid),
            mappings: mappings(pid),
        }
    }

    /// It has no descriptor more, and no mapping far from those that it had: memprof maps its memory there. (Arenas and
    /// libraries come beside others.)
    #[track_caller]
    fn nothing_new(&self) {
        const FAR: u64 = 256 << 20;
        // (The C library may open a file for a moment.)
        eventually(LIMIT, "no other descriptor is open", || {
            let mut files = files(self.pid).into_iter();
            files.all(|(number, leads)| self.files.get(&number) == Some(&leads))
        });
        for new in mappings(self.pid) {
            let near = |old: &Range<u64>| {
                new.start < old.end.saturating_add(FAR) && old.start < new.end.saturating_add(FAR)
            };
            assert!(self.mappings.iter().any(near), "{new:x?}");
        }
    }
}

fn files(pid: Pid) -> BTreeMap<OsString, PathBuf> {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let files = files.map(|file| file.unwrap());
    let leads = files.map(|file| (file.file_name(), fs::read_link(file.path())));
    leads
        .filter_map(|(number, leads)| Some((number, leads.ok()?)))
        .collect()
}

fn mappings(pid: Pid) -> Vec<Range<u64>> {
    let maps = maps(pid);
    let ranges = maps.lines().map(|line| {
        let (start, rest) = line.split_once('-').unwrap();
        let (end, _) = rest.split_once(' ').unwrap();
        let [start, end] = [start, end].map(|hex| u64::from_str_radix(hex, 16).unwrap());
        start..end
    });
    ranges.collect()
}

/// The process runs, nobody traces it, and nothing but the library is left in it.
#[track_caller]
fn nothing_left(pid: Pid) {
    assert!(runs(pid));
    for tid in threads(pid) {
        let status = fs::read_to_string(format!("/proc/{tid}/status")).unwrap_or_default();
        let traced = status.lines().find(|line| line.starts_with("TracerPid:"));
        assert!(
            traced.is_none_or(|line| line == "TracerPid:\t0"),
            "{status}"
        );
    }
    assert!(!code_without_a_file(pid));
    for leads in files(pid).values() {
        let leads = leads.to_string_lossy();
        assert!(!leads.contains("libmemprof_heap"), "{leads}");
    }
}
