//! Answers made of a report: each made once and shared.

use std::fmt::Debug;
use std::sync::Arc;

use super::query::Query;
use super::reply::JSON;
use super::room::Out;
use super::route::RequestContext;
use super::{Api, ApiError, Ask, BoxFuture, ProviderError, Reply, Report, Request};
use crate::event::Pid;

/// Something that a report is shown as. Its `Debug` form tells it from every other one: replies are
/// shared by it.
pub(super) trait View: Debug + Send + Sync + 'static {
    /// MIME type of what is written.
    fn content_type(&self) -> &'static str {
        JSON
    }

    /// Writes it. Runs on a thread where it may take its time.
    fn write(&self, report: &Report, out: &mut Out) -> Result<(), ApiError>;

    /// Whether the report needs source lines and inlined functions.
    fn needs_lines(&self) -> bool {
        false
    }

    /// The report that the view compares with, if it does.
    fn baseline(&self) -> Option<Arc<Report>> {
        None
    }

    /// The same view, compared with this form of its baseline.
    fn compared_with(&self, _baseline: Arc<Report>) -> Option<Arc<dyn View>> {
        None
    }

    /// Whether it is made beside trees, not after them.
    fn is_light(&self) -> bool {
        false
    }

    /// What there is to say before a target exists; `None`: there is no report.
    fn before_target(&self) -> Option<&'static str> {
        None
    }

    /// Name to store it under.
    fn file_name(&self, _: &Report) -> Option<String> {
        None
    }
}

/// Which report is shown, and of which process: the parameters `mark` and `pid`.
#[derive(Clone, Debug, Default)]
pub(super) struct ReportSelector {
    /// Id of a mark; `None` for the newest report.
    mark: Option<String>,
    /// One of its processes; `None` for all of them together.
    pub(super) pid: Option<Pid>,
}

impl ReportSelector {
    pub(super) fn read(query: &Query) -> Result<ReportSelector, ApiError> {
        let pid = query.number("pid", "", i32::MAX as u64)?;
        Ok(ReportSelector {
            mark: query.text("mark").map(str::to_owned),
            pid: pid.map(|pid| Pid(pid as u32)),
        })
    }

    /// The report, of all its processes.
    pub(super) async fn report(&self, api: &Api) -> Result<Arc<Report>, Missing> {
        match &self.mark {
            Some(id) => Ok(api.marks.get(id)?.report),
            None => Ok(api.provider().profile().await?),
        }
    }

    /// A baseline, of the same process.
    ///
    /// # Errors
    /// It has no such process.
    pub(super) fn baseline(&self, report: &Arc<Report>) -> Result<Arc<Report>, ApiError> {
        match self.pid {
            Some(pid) => Ok(Arc::new(of_process(report, pid)?)),
            None => Ok(Arc::clone(report)),
        }
    }

    /// The view of the one process, or the view as it is.
    pub(super) fn narrow(&self, view: Arc<dyn View>) -> Arc<dyn View> {
        match self.pid {
            Some(pid) => Arc::new(OfProcess { pid, view }),
            None => view,
        }
    }
}

/// Why there is no report to be shown.
pub(super) enum Missing {
    NoTarget,
    Error(ApiError),
}

impl From<ProviderError> for Missing {
    fn from(e: ProviderError) -> Missing {
        match e {
            ProviderError::NoTarget => Missing::NoTarget,
            e => Missing::Error(e.into()),
        }
    }
}

impl From<ApiError> for Missing {
    fn from(e: ApiError) -> Missing {
        Missing::Error(e)
    }
}

impl From<Missing> for ApiError {
    fn from(missing: Missing) -> ApiError {
        match missing {
            Missing::NoTarget => ProviderError::NoTarget.into(),
            Missing::Error(e) => e,
        }
    }
}

/// A report of one of the processes alone.
///
/// # Errors
/// [`ApiError::NotFound`]: it has no such process.
fn of_process(report: &Report, pid: Pid) -> Result<Report, ApiError> {
    let profile = report.profile.of(pid).ok_or_else(|| {
        ApiError::NotFound(Some(format!(
            "there is no process {pid} in this report: see /v2/processes"
        )))
    })?;
    Ok(Report {
        profile: Arc::new(profile),
        symbols: Arc::clone(&report.symbols),
        sequence: report.sequence,
    })
}

/// A view of one process of a report.
#[derive(Debug)]
struct OfProcess {
    pid: Pid,
    view: Arc<dyn View>,
}

impl View for OfProcess {
    fn content_type(&self) -> &'static str {
        self.view.content_type()
    }

    fn write(&self, report: &Report, out: &mut Out) -> Result<(), ApiError> {
        self.view.write(&of_process(report, self.pid)?, out)
    }

    fn needs_lines(&self) -> bool {
        self.view.needs_lines()
    }

    fn baseline(&self) -> Option<Arc<Report>> {
        self.view.baseline()
    }

    fn compared_with(&self, baseline: Arc<Report>) -> Option<Arc<dyn View>> {
        let (pid, view) = (self.pid, self.view.compared_with(baseline)?);
        Some(Arc::new(OfProcess { pid, view }))
    }

    fn file_name(&self, report: &Report) -> Option<String> {
        self.view.file_name(&of_process(report, self.pid).ok()?)
    }
}

#[derive(Debug)]
struct Viewed<V> {
    which: ReportSelector,
    view: Arc<V>,
}

/// Asks for a view of the report that the request names.
pub(super) fn view(asked: &RequestContext<'_>, view: impl View) -> Result<Request, ApiError> {
    Ok(Arc::new(Viewed {
        which: ReportSelector::read(&asked.query)?,
        view: Arc::new(view),
    }))
}

impl<V: View> Ask for Viewed<V> {
    fn answer<'a>(&'a self, api: &'a Api) -> BoxFuture<'a, Result<Reply, ApiError>> {
        Box::pin(async {
            let view = Arc::clone(&self.view);
            let again =
                || -> BoxFuture<'a, _> { Box::pin(async { Ok(self.which.report(api).await?) }) };
            match self.which.report(api).await {
                Ok(report) => api.show(report, &again, self.which.narrow(view)).await,
                Err(Missing::NoTarget) if view.before_target().is_some() => {
                    let text = view.before_target().unwrap_or_default();
                    Ok(Reply::new(view.content_type(), text))
                }
                Err(e) => Err(e.into()),
            }
        })
    }
}

impl From<ProviderError> for ApiError {
    fn from(e: ProviderError) -> ApiError {
        ApiError::Unavailable(e.to_string())
    }
}
