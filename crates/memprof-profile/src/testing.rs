//! Small profiles for tests.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::measure::{ColumnId, HEAP, RESIDENCY};
use crate::symbol::{Function, Language, Symbol, Symbols};
pub use crate::{
    Amounts, Ended, Faults, Frame, FreezeOutcome, Losses, Module, ModuleId, NotObserved, OomKills,
    Outcome, Profile, Report, Sample, Stack, TargetInfo, Uncertainty, Unobserved,
};
use memprof_sys::ids::Pid;
use memprof_sys::kernel_figures::KernelFigures;
use memprof_sys::usage::Usage;

pub(crate) const KIB: u64 = 1024;

/// Frame `offset` of module `module`; module 0 is the program's own executable.
pub fn at(module: u16, offset: u64) -> Frame {
    Frame::code(ModuleId(module), offset)
}

/// Bytes of `anon` and `cache` KiB.
pub fn kib(anon: u64, cache: u64) -> Usage {
    Usage {
        anon: anon * KIB,
        cache: cache * KIB,
        ..Usage::default()
    }
}

/// A profile with these samples (frames, innermost first; usage) and this memory without a stack.
pub fn profile(samples: &[(&[Frame], Usage)], not_observed: &[Usage]) -> Profile {
    let mut total = Usage::default();
    samples.iter().for_each(|(_, usage)| total += *usage);
    not_observed.iter().for_each(|usage| total += *usage);
    let module = |name: &str, own| {
        Arc::new(Module {
            path: format!("/usr/lib/{name}").into(),
            name: name.to_owned(),
            dev_ino: (1, 1),
            file: None,
            tree: None,
            layout: None,
            functions: None,
            own_executable: own,
        })
    };
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
        places: Arc::default(),
    }
}

/// Sets how the walk of a sample's stack ended.
pub(crate) fn ended(profile: &mut Profile, sample: usize, outcome: Outcome) {
    let frames = profile.samples[sample].stack.frames.clone();
    profile.samples[sample].stack = Arc::new(Stack { frames, outcome });
}

/// Names for frames.
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

/// Figures of a column: which one, the figure, and its standard error.
pub(crate) type Figure = (ColumnId, u64, u64);

/// Counts the heap as well: adds to each sample its figures, which are estimates.
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

/// A report of a profile; the functions' language is unknown.
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
