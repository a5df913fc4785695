//! The data of one report: every resident and cached byte of the target with the stack that brought it in.
//!
//! The aggregator hands a [`Profile`] to all views and exporters. Pages are already joined with stacks, and addresses are
//! converted to ([`Module`], file offset) pairs. Names are not looked up yet.

// The name that `testing` has for this crate in all that include it.
#[cfg(test)]
extern crate self as memprof_profile;

#[cfg(feature = "filters")]
pub mod allocations;
mod cgroup;
mod code_layout;
mod ended_processes;
pub(crate) mod estimate;
mod frame;
mod frame_filter;
mod freeze_outcome;
mod functions;
pub mod gate;
mod groups;
mod heap_labels;
mod kernel_figures;
mod kind;
mod losses;
pub mod measure;
mod members;
mod oom_kills;
mod outcome;
mod parts;
mod peak;
mod place;
mod report;
pub mod saved;
mod sizes;
pub mod symbol;
#[cfg(test)]
mod testing;
pub mod tree;
mod uncertainty;
mod usage;

pub use cgroup::{BalanceRow, CgroupMemory, UNEXPLAINED};
pub use code_layout::{CodeLayout, CodeSegment};
pub use ended_processes::{Ended, EndedProcess};
pub use estimate::Estimate;
pub use frame::{Frame, FrameKind, JIT, Module, ModuleId, Stack};
pub use frame_filter::FrameFilter;
pub use freeze_outcome::FreezeOutcome;
pub use functions::FunctionBudget as FunctionRoom;
pub use functions::{FunctionName, Functions, Origin, Position};
pub use groups::GroupTotal;
pub use kernel_figures::{Agreement, Verdict};
pub use kind::Kind;
pub use losses::Losses;
pub use members::Member;
pub use oom_kills::{LastFigures, OomKill, OomKills};
pub use outcome::{Outcome, PartialReason};
pub use parts::Subset;
pub use peak::{Peak, ProcessPeak};
pub use place::{CachedFile, KnownPath, MappedBytes, Mapping, PathFrom, Places};
pub use report::Report;
pub use sizes::StackSizes;
pub use uncertainty::{ErrorSum, Margin, Parts};
pub use uncertainty::{UncertainPart, Uncertainty, UncertaintyOf};
pub use usage::Amounts;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
    /// The figures of that stack.
    pub amounts: Amounts,
}

/// Why memory has no stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, JsonSchema)]
#[schemars(rename = "Reason", rename_all = "snake_case")]
pub enum Unobserved {
    /// The memory was resident before memprof attached.
    BeforeAttach,
    /// The memory became resident while memprof was attached, but no event that memprof observes reported it.
    NoEvent,
    /// An event was observed, but its stack did not fit into a table; see the losses.
    StackLost,
    /// No page fault in the mapping had its stack unwound (`--stacks`).
    NotWalked,
    /// The memory was resident at the shown moment, and gone before memprof could read which pages it was.
    Gone,
}

impl Unobserved {
    /// Looks up a reason by its label.
    pub(crate) fn by_label(label: &str) -> Option<Unobserved> {
        let mut all = [
            Unobserved::BeforeAttach,
            Unobserved::NoEvent,
            Unobserved::StackLost,
            Unobserved::NotWalked,
            Unobserved::Gone,
        ]
        .into_iter();
        all.find(|reason| reason.label() == label)
    }

    /// The name in the HTTP API and in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Unobserved::BeforeAttach => "before_attach",
            Unobserved::NoEvent => "no_event",
            Unobserved::StackLost => "stack_lost",
            Unobserved::NotWalked => "not_walked",
            Unobserved::Gone => "gone",
        }
    }

    /// A short lower-case label for reports.
    pub fn label(self) -> &'static str {
        match self {
            Unobserved::BeforeAttach => "before attach",
            Unobserved::NoEvent => "not observed",
            Unobserved::StackLost => "stack lost",
            Unobserved::NotWalked => "not walked",
            Unobserved::Gone => "gone before the scan",
        }
    }
}

/// Placeholder for the mapping of memory whose recorded stack was lost.
pub const LOST_STACK: &str = "[stack record lost]";

/// Memory of one mapping without a stack.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NotObserved {
    /// The figures of this memory.
    #[serde(rename = "bytes")]
    pub amounts: Amounts,
    /// The mapping: a path, `[heap]`, `[stack]`, `[anon]`, …
    pub mapping: String,
    /// Why there is no stack.
    pub reason: Unobserved,
}

/// The fill level of one BPF map of the probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapUsage {
    /// The name of the map.
    pub name: &'static str,
    /// Entries in use.
    pub entries: u64,
    /// Maximum number of entries.
    pub capacity: u64,
}

/// Page faults of the followed processes since attach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct Faults {
    /// All page faults.
    pub all: u64,
    /// Faults whose stack was not unwound (`--stacks`). Their pages are divided among the stacks of the other faults, so
    /// bytes by stack are estimates.
    pub unwalked: u64,
}

/// An unwind outcome, the number of distinct stacks with it, and their bytes.
pub(crate) type OutcomeRow = (Outcome, u64, u64);

/// The process (or tree of processes) a profile is about.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[schemars(rename = "Target")]
pub struct TargetInfo {
    /// The process id.
    #[schemars(with = "u32")]
    pub pid: Pid,
    /// The process name (`/proc/PID/comm`).
    pub comm: String,
    /// All followed processes; the first one is `pid`.
    #[schemars(with = "Vec<u32>")]
    pub pids: Vec<Pid>,
    /// False once the target has ended; the profile is then the last one that was taken.
    pub alive: bool,
}

/// One report of the target's memory.
#[derive(Clone, Debug)]
pub struct Profile {
    /// When the page scan ended.
    pub taken: SystemTime,
    /// The same moment in ns of `CLOCK_MONOTONIC`, or 0 in an opened profile. Ages and durations are measured with it,
    /// because the wall clock may be set at any time.
    pub taken_ns: u64,
    /// Time for which memprof had followed the target at that moment.
    pub observed: Duration,
    /// The target.
    pub target: TargetInfo,
    /// Memory by stack.
    pub samples: Vec<Sample>,
    /// Memory without a stack, by mapping.
    pub not_observed: Vec<NotObserved>,
    /// The sum of `samples` and `not_observed`.
    pub total: Amounts,
    /// The errors of `samples`; empty if no figure is estimated.
    pub uncertainties: Vec<Uncertainty>,
    /// The kernel's figures, read just before the page scan.
    pub kernel_before: KernelFigures,
    /// The kernel's figures, read just after the page scan.
    pub kernel_after: KernelFigures,
    /// Events and stacks that are missing from the figures.
    pub losses: Losses,
    /// Page faults in total and without an unwound stack; `None` if faults have no hook (`--stacks off`).
    pub faults: Option<Faults>,
    /// The files that frames refer to.
    pub modules: Arc<[Arc<Module>]>,
    /// The same memory by mapping and by file.
    pub places: Arc<Places>,
    /// The share of each process, in the order of `target.pids`; empty if there is only one process. No share contains page
    /// cache that ended processes brought in.
    pub processes: Vec<ProcessProfile>,
    /// Followed processes that have ended. No figure includes their memory.
    pub ended: Ended,
    /// Followed processes that the kernel's out-of-memory killer has killed.
    pub oom_kills: OomKills,
    /// Whether the target was frozen for this report.
    pub freeze: FreezeOutcome,
    /// The measures that were counted. Figures of other measures are 0.
    pub measures: Vec<&'static Measure>,
    /// The memory of the followed control group (`--cgroup`); `None` if none is followed.
    pub cgroup: Option<Arc<CgroupMemory>>,
    /// The highest resident memory so far; `None` if it is unknown.
    pub peak: Option<Peak>,
    /// The own peak of the only process. It differs from `peak` if there were others before.
    pub own_peak: Option<Peak>,
}

/// One process's share of a [`Profile`] of several processes. A page that several processes map is in the share of each,
/// under the stack that brought it in.
#[derive(Clone, Debug)]
pub struct ProcessProfile {
    /// The process.
    pub pid: Pid,
    /// The process name.
    pub comm: String,
    /// The container; `None` if unknown.
    pub container: Option<Container>,
    /// The memory of the process by stack.
    pub samples: Vec<Sample>,
    /// The memory of the process without a stack, by mapping.
    pub not_observed: Vec<NotObserved>,
    /// The sum of `samples` and `not_observed`.
    pub total: Amounts,
    /// The errors of `samples`.
    pub uncertainties: Vec<Uncertainty>,
    /// The kernel's figures for the process, read just before its page scan.
    pub kernel_before: KernelFigures,
    /// The kernel's figures for the process, read just after its page scan.
    pub kernel_after: KernelFigures,
    /// Whether the process was frozen.
    pub freeze: FreezeOutcome,
    /// The process's own peak; `None` if it is unknown.
    pub peak: Option<Peak>,
}

impl Faults {
    /// Faults whose stack was unwound.
    pub fn walked(&self) -> u64 {
        self.all.saturating_sub(self.unwalked)
    }
}

impl Profile {
    /// Builds a separate profile from the page cache of one file.
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
            peak: None,
            own_peak: None,
        }
    }

    /// The same profile without its mappings: their addresses would tell an attacker the location of code.
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

    /// Whether the figures of this kind were counted.
    pub fn counts(&self, kind: Kind) -> bool {
        self.fills(kind.measure())
    }

    fn fills(&self, wanted: &Measure) -> bool {
        let mut counted = self.measures.iter();
        counted.any(|measure| measure.name == wanted.name)
    }

    /// The columns that were counted in addition to resident bytes.
    pub fn columns(&self) -> impl Iterator<Item = (Kind, &'static Column)> {
        let counted = Kind::ALL.into_iter().filter(|kind| self.counts(*kind));
        counted.filter_map(|kind| match kind {
            Kind::Column(id) => Some((kind, id.column())),
            _ => None,
        })
    }

    /// Every optional measure, each with whether it was counted.
    pub fn optional_measures(&self) -> impl Iterator<Item = (&'static Measure, bool)> {
        let optional = MEASURES
            .into_iter()
            .filter(|measure| measure.option.is_some());
        optional.map(|measure| (measure, self.fills(measure)))
    }

    /// A note with the fraction of page faults whose stack was unwound; `None` if bytes by stack are not estimates.
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

    /// Looks up the module of a code frame.
    pub fn module(&self, id: ModuleId) -> Option<&Arc<Module>> {
        self.modules.get(usize::from(id.0))
    }

    /// Every sample: of all processes together, of each process, and of each cached file.
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

    /// Memory of stacks whose unwinding stopped before the outermost frame.
    pub fn incomplete(&self) -> Amounts {
        let partial = |s: &&Sample| !s.stack.outcome.is_complete();
        sum(self.samples.iter().filter(partial).map(|s| &s.amounts))
    }

    /// Compares memprof's resident total with the kernel's.
    pub fn agreement(&self) -> Agreement {
        let (before, after) = (self.kernel_before.resident(), self.kernel_after.resident());
        Agreement {
            ours: self.total.usage.resident(),
            low: before.min(after),
            high: before.max(after),
            complete: self.losses.have_all_processes(),
        }
    }

    /// Whether the profile is the exact state of one moment. All processes were frozen at the same time, the kernel's
    /// resident figures are the same before and after the scan, and the kernel's anonymous memory equals memprof's.
    ///
    /// The kernel's figure is its `RssAnon` counter, exact since Linux 6.16. If that counter differs and there is time, it
    /// is the figure of the kernel's own page table walk (`smaps_rollup`). `RssShmem` is not compared, because it is
    /// approximate up to Linux 6.15.
    pub fn is_exact(&self) -> bool {
        let (before, after) = (&self.kernel_before, &self.kernel_after);
        let anonymous = |k: &KernelFigures| k.anonymous.unwrap_or(k.rss_anon);
        matches!(self.freeze, FreezeOutcome::Still { .. })
            && self.losses.have_all_processes()
            && before.resident() == after.resident()
            && [anonymous(before), anonymous(after)] == [self.total.usage.anon; 2]
    }

    /// Number of distinct stacks and of bytes ([`Usage::value`]) per unwind outcome, in the order of [`Outcome`].
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
