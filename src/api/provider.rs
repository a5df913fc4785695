//! Source of the API's reports.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::{ApiError, BoxFuture, GrownBy, Report};
use crate::allocations::NamedAllocations;
use crate::debuginfod;
use crate::event::Pid;
use crate::freeze::Freeze;
use crate::heap::{Approach, ByStack, Heap};
use crate::probe::{FaultsSeen, Missing, SyscallHooks};
use crate::profile::{MapUsage, Profile};
use crate::push;

/// Provides reports.
pub trait Provider: Send + Sync + 'static {
    /// The newest report. Called for every request; concurrent callers share one scan.
    fn profile(&self) -> BoxFuture<'_, Result<Arc<Report>, ProviderError>>;

    /// The newest report, if it has this number.
    fn known(&self, _number: u64) -> BoxFuture<'_, Option<Arc<Report>>> {
        Box::pin(async { None })
    }

    /// Like [`Provider::profile`], with the target frozen for the scan. [`Profile::freeze`] says whether
    /// it was.
    fn frozen(&self, _how: Freeze) -> BoxFuture<'_, Result<Arc<Report>, ProviderError>> {
        self.profile()
    }

    /// Takes a heap snapshot of a followed process, one at a time.
    fn heap(
        &self,
        _pid: Pid,
        _how: HeapOptions,
    ) -> BoxFuture<'_, Result<Arc<HeapSnapshot>, ApiError>> {
        let why = "a heap snapshot needs a running process, and memprof follows none here";
        Box::pin(async move { Err(ApiError::Failed(why.to_owned())) })
    }

    /// The sampled allocations that are kept one by one, with the names of their stacks.
    fn allocations(&self) -> BoxFuture<'_, Result<NamedAllocations, ApiError>> {
        let why = "sampled allocations are kept one by one while memprof profiles, not in files";
        Box::pin(async move { Err(ApiError::Failed(why.to_owned())) })
    }

    /// The target's process id; `None` before there is a target.
    fn pid(&self) -> Option<Pid>;

    /// What is awaited before there is a target, such as `a process named NAME`; `None` if that is not known.
    fn awaited(&self) -> Option<String> {
        None
    }

    /// The same report with source lines and inlined functions, for files with debug information. This may take
    /// seconds.
    fn with_lines(&self, report: Arc<Report>) -> BoxFuture<'_, Result<Arc<Report>, ProviderError>> {
        Box::pin(async { Ok(report) })
    }

    /// What is known without a scan; `None` if nothing is.
    fn status(&self) -> BoxFuture<'_, Option<Status>> {
        Box::pin(async { None })
    }

    /// The file whose saved profile this is; `None` for a live target.
    fn opened(&self) -> Option<&str> {
        None
    }

    /// What debuginfod servers were asked for; `None` if none is asked.
    fn debuginfod(&self) -> Option<debuginfod::Status> {
        None
    }

    /// What was pushed to a store of profiles; `None` if nothing is to be.
    fn pushed(&self) -> Option<push::Status> {
        None
    }

    /// Where the probe sees system calls; `None` without a probe.
    fn syscall_hooks(&self) -> Option<SyscallHooks> {
        None
    }

    /// Where the probe sees page faults.
    fn faults_seen(&self) -> FaultsSeen {
        FaultsSeen::Nowhere
    }

    /// Optional programs of the probe that this kernel did not attach, and why.
    fn missing_programs(&self) -> Vec<Missing> {
        Vec::new()
    }

    /// How full the probe's tables are; may be slightly out of date.
    fn tables(&self) -> BoxFuture<'_, Vec<MapUsage>> {
        Box::pin(async { Vec::new() })
    }
}

/// How a heap snapshot is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeapOptions {
    /// Whether the process is forked or its memory copied while it is stopped.
    pub approach: Approach,
    /// Maximum time for which the process is stopped; `None` for that of `--max-freeze`.
    pub max_stop: Option<Duration>,
    /// Number of chunks and of other single things that are listed.
    pub top: usize,
    /// Number of stacks that are listed in each table by stack.
    pub stacks: usize,
    /// What sets the limit of the stop, for messages.
    pub limit: &'static str,
    /// Whether to find out who made the heap grow.
    pub grown_by: bool,
}

/// A heap snapshot, and when it was taken.
#[derive(Clone, Debug)]
pub struct HeapSnapshot {
    /// What it found.
    pub heap: Heap,
    /// When the process was stopped for it, or shortly after.
    pub taken: SystemTime,
    /// Who made the heap grow, if that was asked for and the heap was read.
    pub grown_by: Option<GrownBy>,
    /// The heap by the stacks that allocated it, if allocations are sampled and the heap was read.
    pub by_stack: Option<ByStack>,
}

/// Why there is no report.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProviderError {
    /// The target has not started yet.
    #[error("the target has not started yet")]
    NoTarget,
    /// The report could not be made, with the reason.
    #[error("{0}")]
    Failed(String),
}

/// What is known without a scan.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// The followed processes; empty if they have ended.
    pub pids: Vec<Pid>,
    /// The newest scan.
    pub last: Option<LastScan>,
}

/// The newest scan.
#[derive(Clone, Debug)]
pub struct LastScan {
    /// Number of its report.
    pub sequence: u64,
    /// What it found.
    pub profile: Arc<Profile>,
    /// How long it took.
    pub took: Duration,
    /// Whether no hook has seen a change of the target's memory since.
    pub current: bool,
}
