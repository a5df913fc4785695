//! What the kernel makes of the programs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};

use libbpf_rs::query::{ProgInfoIter, ProgInfoQueryOptions};
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, MapType};

use super::{Probe, ProbeConfig};
use crate::probe::source::SOURCES;
use crate::probe::wire::MemprofSkelBuilder;
use crate::skip::skip;
use memprof_sys::kernel_version::KernelVersion;

/// From this version on, x86-64 has private stacks; see `compat.bpf.h`.
const PRIVATE_STACKS: KernelVersion = KernelVersion(6, 13);

/// Where code for x86-64 begins to use the private stack of its processor: `add %gs:…, %r9`.
const USES_PRIVATE_STACK: [u8; 5] = [0x65, 0x4c, 0x03, 0x0c, 0x25];

/// The loaded programs, by their numbers: name and section.
fn loaded(probe: &Probe) -> BTreeMap<u32, (String, String)> {
    let programs = probe.skel.object().progs().filter(|p| p.autoload());
    let numbered = programs.map(|program| {
        let info = format!("/proc/self/fdinfo/{}", program.as_fd().as_raw_fd());
        let info = fs::read_to_string(info).unwrap();
        let number = info.lines().find_map(|line| line.strip_prefix("prog_id:"));
        let text = |text: &std::ffi::OsStr| text.to_str().unwrap().to_string();
        let names = (text(program.name()), text(program.section()));
        (number.unwrap().trim().parse().unwrap(), names)
    });
    numbered.collect()
}

/// The numbers of the programs that others reach by tail calls.
fn reached_by_tail_calls(probe: &Probe) -> BTreeSet<u32> {
    let maps = probe.skel.object().maps();
    let arrays = maps.filter(|map| map.map_type() == MapType::ProgArray);
    let first = |map: libbpf_rs::Map<'_>| map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).unwrap();
    let found = arrays.filter_map(first);
    found
        .map(|number| u32::from_ne_bytes(number.try_into().unwrap()))
        .collect()
}

/// The numbers of all programs with a private stack; `None` if the kernel does not show their code.
fn with_private_stacks() -> Option<BTreeSet<u32>> {
    let options = ProgInfoQueryOptions::default().include_jited_prog_insns(true);
    let programs: Vec<_> = ProgInfoIter::with_query_opts(options).collect();
    programs
        .iter()
        .any(|program| program.jited_prog_insns.iter().any(|byte| *byte != 0))
        .then(|| {
            let private = programs.iter().filter(|program| {
                let mut code = program.jited_prog_insns.windows(USES_PRIVATE_STACK.len());
                code.any(|bytes| bytes == USES_PRIVATE_STACK)
            });
            private.map(|program| program.id).collect()
        })
}

/// Two runs of such a program on one processor would share the stack, and the kernel panics.
#[test]
fn no_program_that_may_run_twice_at_once_has_a_private_stack() {
    let config = ProbeConfig {
        sources: SOURCES.to_vec(),
        ..ProbeConfig::default()
    };
    let probe = Probe::load(&config).unwrap();
    let (programs, targets) = (loaded(&probe), reached_by_tail_calls(&probe));
    let Some(private) = with_private_stacks() else {
        return skip("the kernel does not show the machine code of BPF programs");
    };
    let private: Vec<_> = programs
        .iter()
        .filter(|(number, _)| private.contains(number))
        .collect();
    if private.is_empty()
        && (KernelVersion::running() < PRIVATE_STACKS || !cfg!(target_arch = "x86_64"))
    {
        return skip(
            "no program has a private stack on this kernel, or code in which this test finds it",
        );
    }
    assert!(
        !private.is_empty(),
        "this test does not find private stacks"
    );
    let at_uprobes = programs
        .values()
        .filter(|(_, section)| section.starts_with("uprobe"));
    assert!(at_uprobes.count() >= 8 && !targets.is_empty());
    let wrong: Vec<&String> = private
        .iter()
        .filter(|(number, (_, section))| section.starts_with("uprobe") || targets.contains(number))
        .map(|(_, (name, _))| name)
        .collect();
    assert_eq!(wrong, [""; 0]);
}

#[test]
fn every_program_has_a_row_where_it_says_what_may_interrupt_it() {
    let text = include_str!("../bpf/README.md");
    let mut object = MaybeUninit::uninit();
    let open = MemprofSkelBuilder::default().open(&mut object).unwrap();
    let programs = open.open_object().progs();
    let names: Vec<_> = programs.map(|p| p.name().to_str().unwrap()).collect();
    let rows: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("| `"))
        .collect();
    let row = |name: &&str| rows.iter().any(|row| row.contains(&format!("`{name}`")));
    let missing: Vec<&str> = names.iter().copied().filter(|name| !row(name)).collect();
    assert_eq!(missing, [""; 0]);
    assert!(names.len() > 25, "{names:?}");
}
