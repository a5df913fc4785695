//! Programs that are not Python pay nothing for it.

use std::fs;

use libbpf_rs::{MapCore, MapHandle};

use crate::common::memprof::Memprof;
use crate::common::pythons::pythons;
use crate::common::skip::skip;
use crate::common::workload::program;
use crate::python::{OPTIONS, WORKLOAD};

/// The maps with what the probe knows of interpreters. (The kernel keeps 15 characters of a name.)
const MAPS: [&str; 3] = ["interpreter_fil", "interpreter_spa", "functions"];

/// Numbers of entries in these maps.
fn entries(m: &Memprof) -> [usize; 3] {
    // After a report, stacks were taken.
    m.tree();
    let mut entries = [0; 3];
    for fd in fs::read_dir(format!("/proc/{}/fdinfo", m.pid())).unwrap() {
        let info = fs::read_to_string(fd.unwrap().path()).unwrap_or_default();
        let Some(id) = info.lines().find_map(|line| line.strip_prefix("map_id:")) else {
            continue;
        };
        let map = MapHandle::from_map_id(id.trim().parse().unwrap()).unwrap();
        let name = map.name().to_string_lossy().into_owned();
        if let Some(at) = MAPS.iter().position(|wanted| *wanted == name) {
            entries[at] = map.keys().count();
        }
    }
    entries
}

#[test]
fn a_program_without_an_interpreter_has_none_looked_for() {
    let program = program("stacks");
    let command = [program.to_str().unwrap(), "4"];
    let (m, mut lines) = Memprof::start_command(&["--stacks", "all"], &command);
    lines.tell("touch 100");
    assert_eq!(entries(&m), [0; 3]);
    drop(m);
    let pythons = pythons();
    let Some(python) = pythons.values().next() else {
        return skip("no CPython that memprof knows is installed");
    };
    let command = [python.to_str().unwrap(), WORKLOAD];
    let (m, mut lines) = Memprof::start_command(OPTIONS, &command);
    while lines.line() != "ready" {}
    let found = entries(&m);
    assert!(!found.contains(&0), "{found:?}");
}
