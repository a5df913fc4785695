//! Small profiles, and random ones, for tests of this crate and of those above, which include this file: what it needs would
//! otherwise have to be part of the library.

#![allow(dead_code, reason = "each crate uses its own part")]

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use memprof_profile::measure::{ColumnId, HEAP, RESIDENCY};
use memprof_profile::symbol::{Function, Language, Symbol, Symbols};
use memprof_profile::{
    Amounts, Ended, Faults, Frame, FreezeOutcome, Losses, Module, ModuleId, NotObserved, OomKills,
    Outcome, PartialReason, Profile, Report, Sample, Stack, TargetInfo, Uncertainty, Unobserved,
};
use memprof_sys::ids::Pid;
use memprof_sys::kernel_figures::KernelFigures;
use memprof_sys::usage::Usage;
use proptest::prelude::*;

pub const KIB: u64 = 1024;

/// Frame `offset` of module `module`; module 0 is the program's own executable.
pub fn at(module: u16, offset: u64) -> Frame {
    Frame::code(ModuleId(module), offset)
}

/// Usage with `anon` and `cache` KiB.
pub fn kib(anon: u64, cache: u64) -> Usage {
    Usage {
        anon: anon * KIB,
        cache: cache * KIB,
        ..Usage::default()
    }
}

/// A file of this name, or the program's own executable.
pub fn module(name: &str, own_executable: bool) -> Arc<Module> {
    Arc::new(Module {
        path: format!("/usr/lib/{name}").into(),
        name: name.to_owned(),
        dev_ino: (1, 1),
        file: None,
        tree: None,
        layout: None,
        functions: None,
        own_executable,
    })
}

/// A profile with these samples (frames, innermost first; usage) and this memory without a stack.
pub fn profile(samples: &[(&[Frame], Usage)], not_observed: &[Usage]) -> Profile {
    let mut total = Usage::default();
    samples.iter().for_each(|(_, usage)| total += *usage);
    not_observed.iter().for_each(|usage| total += *usage);
    let kernel = KernelFigures {
        anonymous: Some(total.anon),
        rss_anon: total.anon,
        rss_shmem: total.shmem,
        ..KernelFigures::default()
    };
    Profile {
        taken: SystemTime::UNIX_EPOCH,
        taken_ns: 0,
        observed: Duration::ZERO,
        target: TargetInfo {
            pid: Pid(42),
            comm: "node".into(),
            pids: vec![Pid(42)],
            alive: true,
        },
        samples: samples
            .iter()
            .map(|(frames, usage)| Sample {
                stack: Arc::new(Stack {
                    frames: (*frames).into(),
                    outcome: Outcome::Complete,
                }),
                amounts: (*usage).into(),
            })
            .collect(),
        not_observed: not_observed
            .iter()
            .map(|usage| NotObserved {
                mapping: "[heap]".into(),
                reason: Unobserved::BeforeAttach,
                amounts: (*usage).into(),
            })
            .collect(),
        total: total.into(),
        uncertainties: Vec::new(),
        kernel_before: kernel,
        kernel_after: kernel,
        losses: Losses::default(),
        faults: Some(Faults::default()),
        modules: Arc::new([module("node", true), module("libc-2.31.so", false)]),
        processes: Vec::new(),
        ended: Ended::default(),
        oom_kills: OomKills::default(),
        freeze: FreezeOutcome::Ran,
        measures: vec![&RESIDENCY],
        cgroup: None,
        peak: None,
        own_peak: None,
        places: Arc::default(),
    }
}

/// Sets the unwind outcome of a sample.
pub fn ended(profile: &mut Profile, sample: usize, outcome: Outcome) {
    let frames = profile.samples[sample].stack.frames.clone();
    profile.samples[sample].stack = Arc::new(Stack { frames, outcome });
}

/// Symbols with these names.
pub fn symbols(names: &[(Frame, &str, Language)]) -> Symbols {
    names
        .iter()
        .map(|(frame, name, language)| {
            let function = Function {
                name: (*name).to_owned(),
                language: *language,
                offset_in_function: 0,
                first_line: None,
                inlined: Vec::new(),
                location: None,
            };
            (*frame, Arc::new(Symbol::Known(function)))
        })
        .collect()
}

/// A figure of a column: the column, the figure, and its standard error.
pub type Figure = (ColumnId, u64, u64);

/// Enables the heap measure, and adds estimated figures to each sample.
pub fn with_heap(profile: &mut Profile, samples: &[&[Figure]]) {
    profile.measures.push(&HEAP);
    for (at, figures) in samples.iter().enumerate() {
        for (column, figure, error) in *figures {
            let amounts = Amounts::in_column(*column, *figure);
            profile.samples[at].amounts += amounts;
            profile.total += amounts;
            let variance = (*error as f64).powi(2);
            let uncertainty = Uncertainty::in_column(*column, at as u32, variance);
            profile.uncertainties.push(uncertainty);
        }
    }
}

/// A report of a profile. The functions' language is [`Language::Other`].
pub fn report(profile: Profile, names: &[(Frame, &str)]) -> Report {
    let names: Vec<_> = names
        .iter()
        .map(|(f, n)| (*f, *n, Language::Other))
        .collect();
    Report {
        profile: Arc::new(profile),
        symbols: Arc::new(symbols(&names)),
        sequence: 1,
    }
}

fn frame() -> impl Strategy<Value = Frame> {
    prop_oneof![
        8 => (0u16..2, 0u64..6).prop_map(|(m, o)| at(m, o)),
        1 => (0u64..3).prop_map(Frame::unmapped),
        // A module that is not in the profile.
        1 => Just(at(7, 1)),
    ]
}

fn outcome() -> impl Strategy<Value = Outcome> {
    const CUT_OFF: &[Outcome] = &[
        Outcome::Partial(PartialReason::DepthLimit),
        Outcome::Partial(PartialReason::NoTable),
    ];
    prop_oneof![
        4 => Just(Outcome::Complete),
        1 => proptest::sample::select(CUT_OFF),
    ]
}

fn pages() -> impl Strategy<Value = Usage> {
    (0u64..4, 0u64..4, 0u64..4, 0u64..4).prop_map(|(a, s, c, w)| Usage {
        shmem: s * 4096,
        swap: w * 4096,
        ..kib(a * 4, c * 4)
    })
}

/// Any profile with a few dozen short stacks.
pub fn any_profile() -> impl Strategy<Value = Profile> {
    let stack = proptest::collection::vec(frame(), 0..8);
    let samples = proptest::collection::vec((stack, pages(), outcome()), 0..40);
    (samples, proptest::collection::vec(pages(), 0..3)).prop_map(|(samples, rest)| {
        let stacks: Vec<_> = samples.iter().map(|(f, u, _)| (f.as_slice(), *u)).collect();
        let mut profile = profile(&stacks, &rest);
        for (at, (_, _, outcome)) in samples.iter().enumerate() {
            ended(&mut profile, at, *outcome);
        }
        profile
    })
}
