//! One report's data: every resident and cached byte of the target with the stack that brought it in.
//!
//! The aggregator hands a [`Profile`] to all views and exporters: pages are joined with stacks, addresses
//! are converted to ([`Module`], file offset) pairs, and names are not looked up yet.

#[cfg(feature = "filters")]
pub mod allocations;
mod cgroup;
mod code_layout;
mod counted;
mod ended;
pub(crate) mod estimate;
mod frame;
mod freeze_outcome;
mod functions;
pub mod gate;
mod groups;
mod kernel_figures;
mod kind;
mod losses;
pub mod measure;
mod members;
mod oom_kills;
mod outcome;
mod parts;
mod place;
mod report;
pub mod saved;
mod shown;
mod sizes;
pub mod symbol;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod tree;
mod uncertainty;
mod usage;

pub use cgroup::{BalanceRow, CgroupMemory, UNEXPLAINED};
pub use code_layout::{CodeLayout, CodeSegment};
pub use ended::{Ended, EndedProcess};
pub use estimate::Estimate;
pub use frame::{Frame, FrameKind, JIT, Module, ModuleId, Stack};
pub use freeze_outcome::FreezeOutcome;
pub use functions::Room as FunctionRoom;
pub use functions::{FunctionName, Functions, Origin, Position};
pub use groups::GroupTotal;
pub use kernel_figures::{Agreement, Verdict};
pub use kind::Kind;
pub use losses::Losses;
pub use members::Member;
pub use oom_kills::{LastFigures, OomKill, OomKills};
pub use outcome::{Outcome, PartialReason};
pub use parts::Subset;
pub use place::{CachedFile, KnownPath, MappedBytes, Mapping, PathFrom, Places};
pub use report::Report;
pub use shown::Frames;
pub use sizes::StackSizes;
pub use uncertainty::{ErrorSum, Margin, Parts};
pub use uncertainty::{UncertainPart, Uncertainty, UncertaintyOf};
pub use usage::Amounts;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::measure::{Column, MEASURES, Measure};
use memprof_sys::ids::Pid;
use memprof_sys::kernel_figures::KernelFigures;
use memprof_sys::process::Container;
use memprof_sys::usage::Usage;

/// The memory attributed to one stack.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The stack.
    pub stack: Arc<Stack>,
    /// Its figures.
    pub amounts: Amounts,
}

/// Why memory has no stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Unobserved {
    /// It was resident before memprof attached.
    BeforeAttach,
    /// It became resident while memprof was attached, but without an event that memprof sees.
    NoEvent,
    /// An event was seen, but its stack did not fit a table; see [`Losses`].
    StackLost,
    /// No fault of its mapping had its stack walked (`--stacks`).
    NotWalked,
}

impl Unobserved {
    /// Looks up a reason by its label.
    pub(crate) fn by_label(label: &str) -> Option<Unobserved> {
        let mut all = [
            Unobserved::BeforeAttach,
            Unobserved::NoEvent,
            Unobserved::StackLost,
            Unobserved::NotWalked,
        ]
        .into_iter();
        all.find(|reason| reason.label() == label)
    }

    /// Its name in the HTTP API and in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Unobserved::BeforeAttach => "before_attach",
            Unobserved::NoEvent => "no_event",
            Unobserved::StackLost => "stack_lost",
            Unobserved::NotWalked => "not_walked",
        }
    }

    /// Short lower-case label for reports.
    pub fn label(self) -> &'static str {
        match self {
            Unobserved::BeforeAttach => "before attach",
            Unobserved::NoEvent => "not observed",
            Unobserved::StackLost => "stack lost",
            Unobserved::NotWalked => "not walked",
        }
    }
}

/// Placeholder for the mapping of memory whose stack was recorded and lost.
pub const LOST_STACK: &str = "[stack record lost]";

/// Memory of one mapping without a stack.
#[derive(Clone, Debug)]
pub struct NotObserved {
    /// The mapping: a path, `[heap]`, `[stack]`, `[anon]`, …
    pub mapping: String,
    /// Why there is no stack.
    pub reason: Unobserved,
    /// Its figures.
    pub amounts: Amounts,
}

/// How full a BPF map of the probe is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapUsage {
    /// Its name.
    pub name: &'static str,
    /// Entries in use.
    pub entries: u64,
    /// Maximum number of entries.
    pub capacity: u64,
}

/// Page faults of the followed processes since attach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// All of them.
    pub all: u64,
    /// Those whose stack was not walked (`--stacks`): their pages are divided among the stacks of the others, so bytes by
    /// stack are estimates.
    pub unwalked: u64,
}

/// An unwind outcome, the number of distinct stacks with it, and their bytes.
pub(crate) type OutcomeRow = (Outcome, u64, u64);

/// The process (or tree of processes) a profile is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetInfo {
    /// The process id.
    pub pid: Pid,
    /// Its name (`/proc/PID/comm`).
    pub comm: String,
    /// Every followed process; the first one is `pid`.
    pub pids: Vec<Pid>,
    /// False once the target has ended; the profile is then the last one taken.
    pub alive: bool,
}

/// One report of the target's memory.
#[derive(Clone, Debug)]
pub struct Profile {
    /// When the page scan ended.
    pub taken: SystemTime,
    /// The same moment in ns of `CLOCK_MONOTONIC`, by which ages and durations are measured: the system's clock may be set at
    /// any time. 0 in an opened profile.
    pub taken_ns: u64,
    /// How long memprof had followed its target by then.
    pub observed: Duration,
    /// The target.
    pub target: TargetInfo,
    /// Memory by stack.
    pub samples: Vec<Sample>,
    /// Memory without a stack, by mapping.
    pub not_observed: Vec<NotObserved>,
    /// The sum of `samples` and `not_observed`.
    pub total: Amounts,
    /// The errors of `samples`: empty if every stack was walked.
    pub uncertainties: Vec<Uncertainty>,
    /// The kernel's figures read just before the page scan.
    pub kernel_before: KernelFigures,
    /// The kernel's figures read just after the page scan.
    pub kernel_after: KernelFigures,
    /// What was lost.
    pub losses: Losses,
    /// How many page faults there were, and how many of their stacks were not walked; `None` if faults have no hook
    /// (`--stacks off`).
    pub faults: Option<Faults>,
    /// The files that frames refer to.
    pub modules: Arc<[Arc<Module>]>,
    /// The same memory, by mapping and by file.
    pub places: Arc<Places>,
    /// Each process's share, in the order of `target.pids`; empty if there is only one process. Page cache
    /// that ended processes brought in is in no share.
    pub processes: Vec<Share>,
    /// Followed processes that have ended. Their memory is in no figure.
    pub ended: Ended,
    /// Followed processes that the kernel has killed because memory had run out.
    pub oom_kills: OomKills,
    /// Whether the target was frozen for this report.
    pub freeze: FreezeOutcome,
    /// The measures that were counted; figures of others are 0.
    pub measures: Vec<&'static Measure>,
    /// The memory of the followed control group, if one is followed (`--cgroup`). Saved profiles do not have it.
    pub cgroup: Option<Arc<CgroupMemory>>,
}

/// One process's share of a [`Profile`] of several processes. A page that several processes map is in
/// each of their shares, under the stack that brought it in.
#[derive(Clone, Debug)]
pub struct Share {
    /// The process.
    pub pid: Pid,
    /// Its name.
    pub comm: String,
    /// Where it runs; `None` if that is not known.
    pub container: Option<Container>,
    /// Its memory by stack.
    pub samples: Vec<Sample>,
    /// Its memory without a stack, by mapping.
    pub not_observed: Vec<NotObserved>,
    /// The sum of both.
    pub total: Amounts,
    /// The errors of `samples`.
    pub uncertainties: Vec<Uncertainty>,
    /// The kernel's figures for it read just before its page scan.
    pub kernel_before: KernelFigures,
    /// The kernel's figures for it read just after its page scan.
    pub kernel_after: KernelFigures,
    /// Whether it was frozen.
    pub freeze: FreezeOutcome,
}

impl Faults {
    /// Those whose stack was walked.
    pub fn walked(&self) -> u64 {
        self.all.saturating_sub(self.unwalked)
    }
}

impl Profile {
    /// The page cache of one file, as a separate profile.
    pub fn of_file(&self, file: &CachedFile) -> Profile {
        let cache = |bytes| {
            Amounts::from(Usage {
                cache: bytes,
                ..Usage::default()
            })
        };
        let lost = NotObserved {
            mapping: LOST_STACK.to_owned(),
            reason: Unobserved::StackLost,
            amounts: cache(file.lost),
        };
        Profile {
            taken: self.taken,
            taken_ns: self.taken_ns,
            observed: self.observed,
            target: self.target.clone(),
            samples: file.samples.clone(),
            not_observed: (file.lost > 0).then_some(lost).into_iter().collect(),
            total: cache(file.cached()),
            uncertainties: Vec::new(),
            kernel_before: self.kernel_before,
            kernel_after: self.kernel_after,
            losses: self.losses.clone(),
            faults: self.faults,
            modules: Arc::clone(&self.modules),
            places: Arc::default(),
            processes: Vec::new(),
            ended: Ended::default(),
            oom_kills: self.oom_kills.clone(),
            freeze: self.freeze.clone(),
            measures: self.measures.clone(),
            cgroup: None,
        }
    }

    /// The same profile without its mappings, whose addresses tell an attacker where code is.
    pub fn without_mappings(&self) -> Profile {
        let places = Places {
            mappings: Vec::new(),
            ..Places::clone(&self.places)
        };
        Profile {
            places: Arc::new(places),
            ..self.clone()
        }
    }

    /// Whether figures of this kind were counted.
    pub fn counts(&self, kind: Kind) -> bool {
        self.fills(kind.measure())
    }

    fn fills(&self, wanted: &Measure) -> bool {
        let mut counted = self.measures.iter();
        counted.any(|measure| measure.name == wanted.name)
    }

    /// The columns that were counted beside resident bytes.
    pub fn columns(&self) -> impl Iterator<Item = (Kind, &'static Column)> {
        let counted = Kind::ALL.into_iter().filter(|kind| self.counts(*kind));
        counted.filter_map(|kind| match kind {
            Kind::Column(id) => Some((kind, id.column())),
            _ => None,
        })
    }

    /// Every optional measure, and whether it was counted.
    pub fn optional_measures(&self) -> impl Iterator<Item = (&'static Measure, bool)> {
        let optional = MEASURES
            .into_iter()
            .filter(|measure| measure.option.is_some());
        optional.map(|measure| (measure, self.fills(measure)))
    }

    /// If bytes by stack are estimates: what share of the page faults had its stack walked.
    pub fn estimates(&self) -> Option<String> {
        match self.faults {
            None => Some("estimates by stack: page faults were not hooked".to_owned()),
            Some(Faults { unwalked: 0, .. }) => None,
            Some(faults) => Some(format!(
                "estimates by stack: the stacks of {} of {} page faults were walked",
                faults.walked(),
                faults.all
            )),
        }
    }

    /// The module a code frame refers to.
    pub fn module(&self, id: ModuleId) -> Option<&Arc<Module>> {
        self.modules.get(usize::from(id.0))
    }

    /// Every row with a stack: of all processes together, of each one, and of each cached file.
    pub fn all_samples(&self) -> impl Iterator<Item = &Sample> {
        let shares = self.processes.iter().map(|share| &share.samples);
        let files = self.places.files.iter().map(|file| &file.samples);
        let all = [&self.samples].into_iter().chain(shares).chain(files);
        all.flatten()
    }

    /// Memory with a stack.
    pub fn attributed(&self) -> Amounts {
        sum(self.samples.iter().map(|s| &s.amounts))
    }

    /// Memory without a stack.
    pub fn unattributed(&self) -> Amounts {
        sum(self.not_observed.iter().map(|n| &n.amounts))
    }

    /// Memory of stacks whose unwinding ended before the outermost frame.
    pub fn incomplete(&self) -> Amounts {
        let partial = |s: &&Sample| !s.stack.outcome.is_complete();
        sum(self.samples.iter().filter(partial).map(|s| &s.amounts))
    }

    /// Compares the resident total with the kernel's.
    pub fn agreement(&self) -> Agreement {
        let (before, after) = (self.kernel_before.resident(), self.kernel_after.resident());
        Agreement {
            ours: self.total.usage.resident(),
            low: before.min(after),
            high: before.max(after),
            complete: self.losses.have_all_processes(),
        }
    }

    /// Whether this is the exact state of one moment: all processes were frozen at the same time, the kernel's
    /// resident figures are the same before and after, and its anonymous memory equals memprof's. The kernel's
    /// figure is its counter (`RssAnon`, exact since Linux 6.16) or, if that differs and there is time, from its page table
    /// walk (`smaps_rollup`). `RssShmem` is not compared: up to Linux 6.15 it is approximate.
    pub fn is_exact(&self) -> bool {
        let (before, after) = (&self.kernel_before, &self.kernel_after);
        let anonymous = |k: &KernelFigures| k.anonymous.unwrap_or(k.rss_anon);
        matches!(self.freeze, FreezeOutcome::Still(_))
            && self.losses.have_all_processes()
            && before.resident() == after.resident()
            && [anonymous(before), anonymous(after)] == [self.total.usage.anon; 2]
    }

    /// Distinct stacks and bytes (`Usage::value`) per unwind outcome, in outcome order.
    pub fn outcomes(&self) -> Vec<OutcomeRow> {
        let mut rows = std::collections::BTreeMap::new();
        for s in &self.samples {
            let row: &mut (u64, u64) = rows.entry(s.stack.outcome).or_default();
            row.0 += 1;
            row.1 += s.amounts.usage.value();
        }
        rows.into_iter().map(|(o, (n, b))| (o, n, b)).collect()
    }
}

fn sum<'a>(parts: impl Iterator<Item = &'a Amounts>) -> Amounts {
    let mut sum = Amounts::default();
    parts.for_each(|part| sum += *part);
    sum
}
