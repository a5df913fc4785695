//! Views of a report; each reply is built once and shared.

use std::borrow::Cow;
use std::fmt::Debug;
use std::sync::Arc;

use bytes::Bytes;

use super::chosen::{self, Chosen};
use super::memory_budget::Out;
use super::query::{Query, bad, quoted};
use super::reply::JSON;
use super::request::RequestContext;
use super::{Api, ApiError, BoxFuture, Endpoint, Reply, Request};
use crate::collect::ProviderError;
use memprof_profile::allocations::Filter;
use memprof_profile::{FrameFilter, Report, Subset};
use memprof_sys::ids::Pid;

/// A view of a report. The `Debug` form identifies the view: equal forms share a reply.
pub(in crate::http) trait View: Debug + Send + Sync + 'static {
    /// MIME type of the output.
    fn content_type(&self) -> &'static str {
        JSON
    }

    /// Writes the view. Runs on a blocking thread.
    fn write(&self, report: &Report, out: &mut Out) -> Result<(), ApiError>;

    /// The view as the body of a reply.
    fn body(&self, report: &Report, mut out: Out) -> Result<Bytes, ApiError> {
        let written = self.write(report, &mut out);
        // If both failed, the lack of memory is the more informative error.
        out.finish().and_then(|body| written.map(|()| body))
    }

    /// Whether the report needs source lines and inlined functions.
    fn needs_lines(&self) -> bool {
        false
    }

    /// The baseline, if the view is a difference.
    fn baseline(&self) -> Option<Arc<Report>> {
        None
    }

    /// The same view, with this version of its baseline.
    fn compared_with(&self, _baseline: Arc<Report>) -> Option<Arc<dyn View>> {
        None
    }

    /// Whether the view is built alongside trees instead of after them.
    fn is_light(&self) -> bool {
        false
    }

    /// The reply while there is no target yet; `None` for the error that there is no report.
    fn before_target(&self) -> Option<&'static str> {
        None
    }

    /// File name to save the reply under.
    fn file_name(&self, _: &Report) -> Option<String> {
        None
    }
}

/// The requested report and processes: the parameters `mark`, `report`, `pid` and `cgroup`.
#[derive(Clone, Debug, Default)]
pub(super) struct ReportSelector {
    /// Id of a mark; `None` for the newest report.
    mark: Option<String>,
    /// Number of a report that is reused if it is the newest one.
    known: Option<u64>,
    /// One process of the report; `None` for all of them together.
    pub(super) pid: Option<Pid>,
    /// Selects the processes of this control group and of the groups below it.
    cgroup: Option<Arc<str>>,
    /// Which frames of interpreted programs to show.
    pub(super) frames: FrameFilter,
    /// Selects sampled allocations; `None` for all.
    filter: Option<Filter>,
}

/// The parameter `mark`, or the recorded moment of the parameter `at`, which is a mark, too.
fn mark_of(query: &Query) -> Result<Option<String>, ApiError> {
    match (query.text("mark"), query.text("at")) {
        (Some(_), Some(_)) => Err(bad("parameters mark and at exclude each other".to_owned())),
        (None, Some(at)) => Ok(Some(format!("@{at}"))),
        (mark, None) => Ok(mark.map(str::to_owned)),
    }
}

impl ReportSelector {
    pub(super) fn read(query: &Query) -> Result<ReportSelector, ApiError> {
        let pid = query.number("pid", "", i32::MAX as u64)?;
        let cgroup = query.text("cgroup").map(Arc::from);
        for other in ["pid", "filter"] {
            if cgroup.is_some() && query.text(other).is_some() {
                return Err(bad(format!(
                    "parameters cgroup and {other} exclude each other"
                )));
            }
        }
        Ok(ReportSelector {
            mark: mark_of(query)?,
            known: query.number("report", "", u64::MAX)?,
            pid: pid.map(|pid| Pid(pid as u32)),
            cgroup,
            frames: frames(query)?.unwrap_or_default(),
            filter: chosen::filter(query)?,
        })
    }

    /// The selection of sampled allocations, if there is a filter.
    pub(super) fn chosen(&self) -> Option<Chosen> {
        let (filter, pid) = (self.filter.clone()?, self.pid);
        let part = ReportPart {
            processes: None,
            ..self.shown()
        };
        Some(Chosen { filter, pid, part })
    }

    /// Whether it is the newest report with all its processes.
    pub(super) fn is_whole_and_now(&self) -> bool {
        self.mark.is_none() && self.pid.is_none() && self.cgroup.is_none()
    }

    /// The report with all its processes.
    pub(super) async fn report(&self, api: &Api) -> Result<Arc<Report>, Missing> {
        if let Some(id) = &self.mark {
            return Ok(api.mark(id, self.pid).await?.report);
        }
        if let Some(number) = self.known
            && let Some(report) = api.provider().known(number).await
        {
            return Ok(report);
        }
        Ok(api.provider().profile().await?)
    }

    /// The part that views show: the selected processes and frames.
    pub(super) fn shown(&self) -> ReportPart {
        let group = || self.cgroup.clone().map(Subset::Group);
        ReportPart {
            processes: self.pid.map(Subset::Process).or_else(group),
            frames: Some(self.frames),
        }
    }

    /// The selected processes with all frames, as recorded.
    pub(super) fn recorded(&self) -> ReportPart {
        self.shown().recorded()
    }
}

/// A part of a report.
#[derive(Clone, Debug)]
pub(super) struct ReportPart {
    /// The selected processes; `None` for all of them together.
    processes: Option<Subset>,
    /// Which frames of interpreted programs to show; `None` for all, as recorded.
    frames: Option<FrameFilter>,
}

impl ReportPart {
    /// The same part with all frames, as recorded.
    pub(super) fn recorded(self) -> ReportPart {
        ReportPart {
            frames: None,
            ..self
        }
    }

    /// This part of a report.
    ///
    /// # Errors
    /// [`ApiError::NotFound`] if the report has no such process or control group.
    pub(super) fn select<'r>(&self, report: &'r Report) -> Result<Cow<'r, Report>, ApiError> {
        let Some(processes) = &self.processes else {
            return Ok(self.showing(report));
        };
        let profile = report.profile.part(processes);
        let profile = profile.ok_or_else(|| match processes {
            Subset::Process(pid) => no_process(*pid),
            Subset::Group(group) => no_group(group),
        })?;
        let report = Report {
            profile: Arc::new(profile),
            ..report.clone()
        };
        Ok(Cow::Owned(self.showing(&report).into_owned()))
    }

    fn showing<'r>(&self, report: &'r Report) -> Cow<'r, Report> {
        match self.frames {
            Some(frames) => report.showing(frames),
            None => Cow::Borrowed(report),
        }
    }

    /// A view of this part.
    pub(super) fn in_view(self, view: Arc<dyn View>) -> Arc<dyn View> {
        Arc::new(PartView { part: self, view })
    }
}

pub(super) fn no_process(pid: Pid) -> ApiError {
    ApiError::NotFound(Some(format!(
        "there is no process {pid} in this report: /v2/processes lists the processes"
    )))
}

fn no_group(group: &str) -> ApiError {
    ApiError::NotFound(Some(format!(
        "no process of this report is known to be in the control group {}: /v2/processes lists the groups",
        quoted(group)
    )))
}

/// The parameter `frames`.
pub(super) fn frames(query: &Query) -> Result<Option<FrameFilter>, ApiError> {
    let choices = FrameFilter::ALL.map(|frames| (frames.name(), frames));
    query.word("frames", choices)
}

/// Why no report can be shown.
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

/// A view of a part of a report.
#[derive(Debug)]
struct PartView {
    part: ReportPart,
    view: Arc<dyn View>,
}

impl View for PartView {
    fn content_type(&self) -> &'static str {
        self.view.content_type()
    }

    fn write(&self, report: &Report, out: &mut Out) -> Result<(), ApiError> {
        self.view.write(&*self.part.select(report)?, out)
    }

    fn needs_lines(&self) -> bool {
        self.view.needs_lines()
    }

    fn baseline(&self) -> Option<Arc<Report>> {
        self.view.baseline()
    }

    fn compared_with(&self, baseline: Arc<Report>) -> Option<Arc<dyn View>> {
        Some(
            self.part
                .clone()
                .in_view(self.view.compared_with(baseline)?),
        )
    }

    fn is_light(&self) -> bool {
        self.view.is_light()
    }

    fn before_target(&self) -> Option<&'static str> {
        self.view.before_target()
    }

    fn file_name(&self, report: &Report) -> Option<String> {
        self.view.file_name(&*self.part.select(report).ok()?)
    }
}

#[derive(Debug)]
struct ViewEndpoint<V> {
    which: ReportSelector,
    view: Arc<V>,
}

/// A request for a view of the report that the parameters select.
pub(super) fn view(asked: &RequestContext<'_>, view: impl View) -> Result<Request, ApiError> {
    Ok(Arc::new(ViewEndpoint {
        which: ReportSelector::read(&asked.query)?,
        view: Arc::new(view),
    }))
}

/// A request of `/v1`, whose views have no parameter for frames: they show native ones, too.
pub(super) fn view_v1(asked: &RequestContext<'_>, view: impl View) -> Result<Request, ApiError> {
    let which = ReportSelector {
        frames: FrameFilter::All,
        ..ReportSelector::read(&asked.query)?
    };
    let view = Arc::new(view);
    Ok(Arc::new(ViewEndpoint { which, view }))
}

impl<V: View> Endpoint for ViewEndpoint<V> {
    fn answer<'a>(&'a self, api: &'a Api) -> BoxFuture<'a, Result<Reply, ApiError>> {
        Box::pin(async { show(api, &self.which, self.view.clone()).await })
    }
}

/// Replies with a view of what the parameters select.
pub(super) async fn show(
    api: &Api,
    which: &ReportSelector,
    view: Arc<dyn View>,
) -> Result<Reply, ApiError> {
    if let Some(chosen) = which.chosen() {
        return chosen.show(api, view).await;
    }
    let again = || -> BoxFuture<'_, _> { Box::pin(async { Ok(which.report(api).await?) }) };
    match which.report(api).await {
        Ok(report) => api.show(report, &again, which.shown().in_view(view)).await,
        Err(Missing::NoTarget) if view.before_target().is_some() => {
            let text = view.before_target().unwrap_or_default();
            Ok(Reply::new(view.content_type(), text))
        }
        Err(Missing::NoTarget) => Err(api.no_target()),
        Err(e) => Err(e.into()),
    }
}

impl From<ProviderError> for ApiError {
    fn from(e: ProviderError) -> ApiError {
        ApiError::Unavailable(e.to_string())
    }
}
