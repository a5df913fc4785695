//! Provides the API with the report of a saved profile, which never changes.

use std::sync::Arc;
use std::time::Duration;

use super::Recorded;
use super::{BoxFuture, Provider};
use crate::collect::{LastScan, ProviderError, Status};
use memprof_profile::Report;
use memprof_recording::Recording;
use memprof_sys::ids::Pid;

/// An opened saved profile.
#[derive(Clone, Debug)]
pub struct Opened {
    name: String,
    report: Arc<Report>,
    recorded: Option<Arc<Recorded>>,
}

impl Opened {
    /// The report of a file called `name`.
    pub fn new(name: String, report: Arc<Report>) -> Opened {
        Opened {
            name,
            report,
            recorded: None,
        }
    }

    /// Adds the other moments of the recording that the file is.
    #[must_use]
    pub fn with_moments(self, recording: Recording) -> Opened {
        Opened {
            recorded: Some(Arc::new(Recorded::new(recording))),
            ..self
        }
    }

    /// The report.
    pub fn report(&self) -> &Arc<Report> {
        &self.report
    }
}

impl Provider for Opened {
    fn profile(&self) -> BoxFuture<'_, Result<Arc<Report>, ProviderError>> {
        Box::pin(async { Ok(Arc::clone(&self.report)) })
    }

    fn pid(&self) -> Option<Pid> {
        Some(self.report.profile.target.pid)
    }

    /// No process is followed: a running process with the same id is a different process.
    fn status(&self) -> BoxFuture<'_, Option<Status>> {
        let last = LastScan {
            sequence: self.report.sequence,
            profile: Arc::clone(&self.report.profile),
            took: Duration::ZERO,
            current: true,
        };
        Box::pin(async {
            Some(Status {
                pids: Vec::new(),
                last: Some(last),
            })
        })
    }

    fn recorded(&self) -> Option<Arc<Recorded>> {
        self.recorded.clone()
    }

    fn opened(&self) -> Option<&str> {
        Some(&self.name)
    }
}
