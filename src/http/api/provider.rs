//! The interface through which the API gets reports.

use std::sync::Arc;

use super::{ApiError, BoxFuture, Recorded};
use crate::collect::{ProviderError, Status};
use crate::export::push;
use crate::probe::{FaultsSeen, Missing, SyscallHooks};
use memprof_code::debuginfod;
use memprof_heap::{HeapOptions, HeapSnapshot};
use memprof_profile::allocations::NamedAllocations;
use memprof_profile::{MapUsage, Report};
use memprof_sys::freeze::Freeze;
use memprof_sys::ids::Pid;

/// Provides reports.
pub trait Provider: Send + Sync + 'static {
    /// The newest report. Called for every request; concurrent callers share one scan.
    fn profile(&self) -> BoxFuture<'_, Result<Arc<Report>, ProviderError>>;

    /// The newest report, if it has this number.
    fn known(&self, _number: u64) -> BoxFuture<'_, Option<Arc<Report>>> {
        Box::pin(async { None })
    }

    /// Like [`Provider::profile`], with the target frozen for the scan.
    /// [`Profile::freeze`](memprof_profile::Profile::freeze) tells whether freezing succeeded.
    fn frozen(&self, _how: Freeze) -> BoxFuture<'_, Result<Arc<Report>, ProviderError>> {
        self.profile()
    }

    /// The report of the moment with the most resident memory so far, of a process or of all together; `None` if there is none.
    fn peak(&self, _of: Option<Pid>) -> BoxFuture<'_, Result<Option<Arc<Report>>, ProviderError>> {
        let why =
            "the peak is known while memprof profiles; a saved profile has only its own state";
        Box::pin(async move { Err(ProviderError::Failed(why.to_owned())) })
    }

    /// The recorded moments of the target, if there are any.
    fn recorded(&self) -> Option<Arc<Recorded>> {
        None
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

    /// The individual sampled allocations in memory, with the names of their stacks.
    fn allocations(&self) -> BoxFuture<'_, Result<NamedAllocations, ApiError>> {
        let why = "sampled allocations are kept one by one while memprof profiles, not in files";
        Box::pin(async move { Err(ApiError::Failed(why.to_owned())) })
    }

    /// The target's process id; `None` before there is a target.
    fn pid(&self) -> Option<Pid>;

    /// The awaited target before there is one, such as `a process named NAME`; `None` if unknown.
    fn awaited(&self) -> Option<String> {
        None
    }

    /// The same report with source lines and inlined functions, for files with debug information. May take seconds.
    fn with_lines(&self, report: Arc<Report>) -> BoxFuture<'_, Result<Arc<Report>, ProviderError>> {
        Box::pin(async { Ok(report) })
    }

    /// The status available without a scan; `None` if there is none.
    fn status(&self) -> BoxFuture<'_, Option<Status>> {
        Box::pin(async { None })
    }

    /// The file of a saved profile; `None` for a live target.
    fn opened(&self) -> Option<&str> {
        None
    }

    /// Status of debuginfod downloads; `None` if debuginfod is disabled.
    fn debuginfod(&self) -> Option<debuginfod::Status> {
        None
    }

    /// Status of pushing to a store of profiles; `None` if pushing is disabled.
    fn pushed(&self) -> Option<push::Status> {
        None
    }

    /// Where the probe hooks system calls; `None` without a probe.
    fn syscall_hooks(&self) -> Option<SyscallHooks> {
        None
    }

    /// Where the probe sees page faults.
    fn faults_seen(&self) -> FaultsSeen {
        FaultsSeen::Nowhere
    }

    /// Optional programs of the probe that could not be attached on this kernel, with reasons.
    fn missing_programs(&self) -> Vec<Missing> {
        Vec::new()
    }

    /// Fill levels of the probe's tables; may be slightly out of date.
    fn tables(&self) -> BoxFuture<'_, Vec<MapUsage>> {
        Box::pin(async { Vec::new() })
    }
}
