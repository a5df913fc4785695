//! Hooks of system calls at their functions by BPF trampolines (fentry, fexit): a program for each function.

use std::fs;
use std::os::fd::{AsFd, AsRawFd};

use anyhow::{Result, anyhow};
use libbpf_rs::skel::Skel;
use libbpf_rs::{Link, Map, MapCore, libbpf_sys};

use super::{ENTERS, RETURNS};
use crate::probe::load::{attach, program, set_program};
use crate::probe::wire::MemprofSkel;
use memprof_sys::close_later::close_later;

/// Shows how the kernel preempts its own code, if that can be chosen: the mode in use is in parentheses.
const PREEMPTION: &str = "/sys/kernel/debug/sched/preempt";

/// The hook of the returns of `write`, attached on demand.
const AFTER_WRITE: &str = "after_write";

/// The sets of programs with the work: for each prototype of system calls in the kernel's BTF.
const WORK: [&str; 2] = ["regs", "unused"];

/// The programs at the functions.
fn at_functions() -> impl Iterator<Item = String> {
    let before = ENTERS.iter().map(|call| format!("before_{call}"));
    before.chain(RETURNS.iter().map(|call| format!("after_{call}")))
}

/// All programs of these hooks.
pub(super) fn programs() -> Vec<String> {
    let work = WORK.into_iter().flat_map(|set| {
        let parts = ["before", "after", "after_range"];
        parts.map(|part| format!("{set}_{part}"))
    });
    let on_demand = [AFTER_WRITE.to_owned()];
    at_functions().chain(on_demand).chain(work).collect()
}

/// Checks whether the kernel would run such programs, and at each call. Does not attach one, because that takes long to detach.
pub(super) fn try_hooks() -> Result<(), String> {
    if !cfg!(target_arch = "x86_64") {
        return Err("used on x86-64 only".to_owned());
    }
    let uname = nix::sys::utsname::uname().map_err(|e| e.to_string())?;
    stays_on_processor(
        &uname.version().to_string_lossy(),
        fs::read_to_string(PREEMPTION).ok().as_deref(),
    )?;
    // The request names no function. A kernel that has such programs rejects it as invalid.
    let loaded = super::load_trial(
        libbpf_sys::BPF_PROG_TYPE_TRACING,
        libbpf_sys::BPF_TRACE_FENTRY,
    );
    match loaded {
        Err(e) if e.raw_os_error() != Some(libc::EINVAL) => Err(e.to_string()),
        _ => Ok(()),
    }
}

/// Checks that the kernel does not preempt its own code. Otherwise another thread may call the function while a program is
/// preempted, and the kernel skips the program's second run. `version` is from uname(2), and `modes` is the text of
/// [`PREEMPTION`].
fn stays_on_processor(version: &str, modes: Option<&str>) -> Result<(), String> {
    let mode = modes.and_then(|modes| modes.split_once('(')?.1.split_once(')'));
    match mode.map(|(mode, _)| mode) {
        Some("none" | "voluntary") => Ok(()),
        Some(mode) => Err(format!(
            "with preemption ({mode}), the kernel skips some of the programs"
        )),
        // The version of a kernel that may preempt contains PREEMPT, PREEMPT_DYNAMIC or PREEMPT_RT.
        None if version.contains("PREEMPT") => Err(format!(
            "{PREEMPTION} does not show whether the kernel preempts its own code"
        )),
        None => Ok(()),
    }
}

/// The attached programs. When they are dropped, another process detaches them, because the kernel takes a tenth of a second
/// for each function.
pub(in crate::probe) struct TrampolineHooks {
    links: Vec<Link>,
    sees_writes: bool,
}

impl TrampolineHooks {
    /// Attaches the programs to the functions of the system calls.
    pub(in crate::probe) fn attach(skel: &MemprofSkel<'static>) -> Result<TrampolineHooks> {
        for set in WORK {
            let walk = program(skel, &format!("{set}_after_range"))?;
            set_program(&map(skel, &format!("{set}_walk"))?, walk.as_fd())?;
        }
        let mut hooks = TrampolineHooks {
            links: Vec::new(),
            sees_writes: false,
        };
        for name in at_functions() {
            hooks.links.push(attach_with_work(skel, &name)?);
        }
        Ok(hooks)
    }

    pub(super) fn sees_writes(&self) -> bool {
        self.sees_writes
    }

    pub(super) fn see_writes(&mut self, skel: &MemprofSkel<'static>) -> Result<()> {
        self.sees_writes = true;
        self.links.push(attach_with_work(skel, AFTER_WRITE)?);
        Ok(())
    }
}

/// Attaches a program at a function. It calls the set with its prototype: the kernel refuses the other one as invalid.
fn attach_with_work(skel: &MemprofSkel<'static>, name: &str) -> Result<Link> {
    let next = map(skel, &format!("{name}_next"))?;
    let (part, _) = name.split_once('_').unwrap_or_default();
    let mut set = Err(anyhow!("the BPF program {name} has no work to do"));
    for prototype in WORK {
        let work = program(skel, &format!("{prototype}_{part}"))?;
        set = set.or_else(|_| set_program(&next, work.as_fd()));
    }
    set?;
    attach(skel, name)
}

fn map<'a>(skel: &'a MemprofSkel<'static>, name: &str) -> Result<Map<'a>> {
    let mut maps = skel.object().maps();
    maps.find(|map| map.name() == name)
        .ok_or_else(|| anyhow!("memprof has no BPF map {name}"))
}

impl Drop for TrampolineHooks {
    fn drop(&mut self) {
        let links = self.links.iter().map(|link| link.as_fd().as_raw_fd());
        let other = close_later(links.collect());
        self.links.clear();
        drop(other);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_that_preempt_their_own_code_are_known() {
        let dynamic = "#1 SMP PREEMPT_DYNAMIC Debian 6.1.192-3";
        for (version, modes, stays) in [
            (dynamic, Some("none (voluntary) full \n"), true),
            (dynamic, Some("(none) voluntary full \n"), true),
            (dynamic, Some("none voluntary (full) \n"), false),
            (dynamic, Some("full (lazy) \n"), false),
            (dynamic, Some(""), false),
            (dynamic, None, false),
            ("#1 SMP PREEMPT Debian", None, false),
            ("#1 SMP Debian 5.10.262-1", None, true),
        ] {
            let told = stays_on_processor(version, modes);
            assert_eq!(told.is_ok(), stays, "{version} {modes:?}: {told:?}");
        }
    }

    #[test]
    fn every_call_has_its_programs() {
        let text = include_str!("../../bpf/calls.bpf.h");
        for (calls, kind) in [(&ENTERS[..], "BEFORE"), (&RETURNS[..], "AFTER")] {
            let start = format!("{kind}(");
            let named = text
                .lines()
                .filter_map(|line| line.strip_prefix(&start)?.strip_suffix(')'));
            let mut named: Vec<&str> = named.filter(|call| *call != "write").collect();
            let mut calls = calls.to_vec();
            named.sort_unstable();
            calls.sort_unstable();
            assert_eq!(named, calls, "{kind}");
        }
    }
}
