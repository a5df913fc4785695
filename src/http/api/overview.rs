//! `/v2/overview`: what the report says, in sentences and short lists.

use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use super::common::ReportInfo;
use super::marks::peak;
use super::memory_budget::Out;
use super::reply::internal;
use super::request::RequestContext;
use super::view::{ReportSelector, View, show};
use super::{Api, ApiError, BoxFuture, Endpoint, Reply, Request};
use crate::export::growth::GrowthTable;
use crate::export::overview::Overview;
use memprof_profile::Report;

/// Parameters of `/v2/overview`.
pub(super) const PARAMETERS: &[&str] = &["mark", "at", "pid", "cgroup"];

/// `/v2/overview`.
pub(super) fn read(asked: &RequestContext<'_>) -> Result<Request, ApiError> {
    Ok(Arc::new(OverviewEndpoint(ReportSelector::read(
        &asked.query,
    )?)))
}

#[derive(Debug)]
struct OverviewEndpoint(ReportSelector);

impl Endpoint for OverviewEndpoint {
    fn answer<'a>(&'a self, api: &'a Api) -> BoxFuture<'a, Result<Reply, ApiError>> {
        Box::pin(async {
            let which = &self.0;
            let at_peak = peak(api.provider(), which.pid).await.ok().flatten();
            let at_peak = match at_peak {
                Some(report) if !report.symbols.is_final() => {
                    Some(api.provider().with_lines(report).await?)
                }
                other => other,
            };
            // The recorded trend is that of the whole target now.
            let growth = match (which.is_whole_and_now(), api.recorded()) {
                (true, Ok(recorded)) => recorded.growth_lately().await.ok(),
                _ => None,
            };
            let view = OverviewView {
                at_peak,
                growth,
                heap: api.newest_heap(which.pid),
            };
            show(api, which, Arc::new(view)).await
        })
    }
}

/// The view of `/v2/overview`.
#[derive(Default)]
pub(in crate::http) struct OverviewView {
    at_peak: Option<Arc<Report>>,
    growth: Option<Arc<GrowthTable>>,
    heap: Option<HeapCard>,
}

/// What distinguishes two replies for the same report.
impl fmt::Debug for OverviewView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heap = self.heap.as_ref().map(|heap| &heap.id);
        f.debug_struct("OverviewView")
            .field("at_peak", &self.at_peak.as_ref().map(|r| r.sequence))
            .field("growth", &self.growth.as_ref().map(|table| table.to))
            .field("heap", &heap)
            .finish()
    }
}

#[derive(JsonSchema, Serialize)]
#[schemars(rename = "Overview")]
pub(super) struct OverviewReply<'a> {
    report: ReportInfo,
    #[serde(flatten)]
    overview: Overview,
    /// The newest heap snapshot; null if there is none.
    heap: &'a Option<HeapCard>,
}

/// The newest heap snapshot.
#[derive(Clone, Debug, JsonSchema, Serialize)]
#[schemars(rename = "OverviewHeap")]
pub(super) struct HeapCard {
    /// Id of the snapshot.
    pub id: String,
    /// When it was taken, in milliseconds since 1970-01-01 UTC.
    pub taken: u64,
    /// The process.
    pub pid: u32,
    /// What it says, in sentences.
    pub sentences: Vec<String>,
}

impl View for OverviewView {
    fn write(&self, report: &Report, out: &mut Out) -> Result<(), ApiError> {
        let peak = self
            .at_peak
            .as_deref()
            .map(|peak| peak.showing(Default::default()));
        let reply = OverviewReply {
            report: report.into(),
            overview: Overview::new(report, peak.as_deref(), self.growth.as_deref()),
            heap: &self.heap,
        };
        serde_json::to_writer(out, &reply).map_err(internal)
    }

    fn needs_lines(&self) -> bool {
        true
    }

    fn is_light(&self) -> bool {
        true
    }
}
