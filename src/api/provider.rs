//! Where the API gets what it shows.

use std::sync::Arc;
use std::time::Duration;

use super::{BoxFuture, Report};
use crate::event::Pid;
use crate::freeze::Freeze;
use crate::profile::{MapUsage, Profile};

/// Where reports come from.
pub trait Provider: Send + Sync + 'static {
    /// The newest report. Called for every request: whoever scans shares one scan among all who
    /// wait for it.
    fn profile(&self) -> BoxFuture<'_, Result<Arc<Report>, ProviderError>>;

    /// As [`Provider::profile`], of a target that is held still for it. Where it could not be, or has
    /// ended, [`Profile::hold`] says so.
    fn frozen(&self, _how: Freeze) -> BoxFuture<'_, Result<Arc<Report>, ProviderError>> {
        self.profile()
    }

    /// The target's process id, as soon as there is a target.
    fn pid(&self) -> Option<Pid>;

    /// The same report with source lines and inlined functions, where files have debug information.
    /// That may take seconds.
    fn with_lines(&self, report: Arc<Report>) -> BoxFuture<'_, Result<Arc<Report>, ProviderError>> {
        Box::pin(async { Ok(report) })
    }

    /// What is known without a scan; `None` where nothing is.
    fn glance(&self) -> BoxFuture<'_, Option<Status>> {
        Box::pin(async { None })
    }

    /// How full the probe's tables are; what was counted a moment ago may do.
    fn tables(&self) -> BoxFuture<'_, Vec<MapUsage>> {
        Box::pin(async { Vec::new() })
    }
}

/// Why there is no report.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProviderError {
    /// The target has not started yet.
    #[error("the target has not started yet")]
    NoTarget,
    /// The report could not be made; what failed.
    #[error("{0}")]
    Failed(String),
}

/// What is known without a scan.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// The followed processes; none when they have ended.
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
    /// Whether no hook has seen the target's memory change since.
    pub current: bool,
}
