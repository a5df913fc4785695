//! Reports made by tests. Benchmarks also use this file, so it does not depend on its sibling modules.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use memprof_profile::measure::RESIDENCY;
use memprof_profile::symbol::{Function, Language, Symbol};
use memprof_profile::*;
use memprof_sys::ids::Pid;
use memprof_sys::kernel_figures::KernelFigures;
use memprof_sys::usage::Usage;

pub fn at(module: u16, offset: u64) -> Frame {
    Frame::code(ModuleId(module), offset)
}

/// `anon`, `shmem` and page cache in KiB.
pub fn kib(anon: u64, shmem: u64, cache: u64) -> Usage {
    Usage {
        anon: anon << 10,
        shmem: shmem << 10,
        cache: cache << 10,
        ..Usage::default()
    }
}

/// A report with these stacks (innermost frame first) and this memory without a stack. Module 0 is the
/// program's own executable, module 1 a library.
pub fn report(
    samples: &[(Vec<Frame>, Usage)],
    not_observed: &[Usage],
    names: &[(Frame, &str, Language)],
) -> Arc<Report> {
    let sample = |(frames, usage): &(Vec<Frame>, Usage)| Sample {
        stack: Arc::new(Stack {
            frames: frames.clone().into(),
            outcome: Outcome::Complete,
        }),
        amounts: (*usage).into(),
    };
    let lost = |usage: &Usage| NotObserved {
        mapping: "[anon]".to_owned(),
        reason: Unobserved::BeforeAttach,
        amounts: (*usage).into(),
    };
    let symbol = |(frame, name, language): &(Frame, &str, Language)| {
        let function = Function {
            name: (*name).to_owned(),
            language: *language,
            offset_in_function: 0,
            first_line: None,
            inlined: Vec::new(),
            location: None,
        };
        (*frame, Arc::new(Symbol::Known(function)))
    };
    let profile = profile(
        samples.iter().map(sample).collect(),
        not_observed.iter().map(lost).collect(),
        [module("node", true), module("libc-2.31.so", false)],
    );
    Arc::new(Report {
        profile: Arc::new(profile),
        symbols: Arc::new(names.iter().map(symbol).collect()),
        sequence: 1,
    })
}

/// A profile of a process `node` with this memory. The kernel's figures equal it.
pub fn profile(
    samples: Vec<Sample>,
    not_observed: Vec<NotObserved>,
    modules: [Arc<Module>; 2],
) -> Profile {
    let observed = samples.iter().map(|sample| sample.amounts);
    let lost = not_observed.iter().map(|row| row.amounts);
    let mut total = Amounts::default();
    observed.chain(lost).for_each(|amounts| total += amounts);
    let kernel = KernelFigures {
        rss_anon: total.usage.anon,
        rss_shmem: total.usage.shmem,
        ..KernelFigures::default()
    };
    Profile {
        taken: SystemTime::now(),
        taken_ns: 0,
        observed: Duration::ZERO,
        target: TargetInfo {
            pid: Pid(4711),
            comm: "node".to_owned(),
            pids: vec![Pid(4711)],
            alive: true,
        },
        samples,
        not_observed,
        total,
        uncertainties: Vec::new(),
        kernel_before: kernel,
        kernel_after: kernel,
        losses: Losses::default(),
        faults: Some(Faults::default()),
        modules: Arc::new(modules),
        processes: Vec::new(),
        ended: Default::default(),
        oom_kills: Default::default(),
        freeze: FreezeOutcome::Ran,
        measures: vec![&RESIDENCY],
        cgroup: None,
        own_peak: None,
        peak: None,
        places: Arc::default(),
    }
}

pub fn module(name: &str, own_executable: bool) -> Arc<Module> {
    Arc::new(Module {
        path: format!("/opt/{name}").into(),
        tree: None,
        name: name.to_owned(),
        dev_ino: (1, 1),
        file: None,
        layout: None,
        functions: None,
        own_executable,
    })
}
