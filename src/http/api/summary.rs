//! `/v2/summary`: the target, its totals, and their comparison with the kernel's figures.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use super::common::{Agreement, Bracket, HighestMemory, Kinds, OutcomeRow, ReportInfo, outcomes};
use super::memory_budget::Out;
use super::oom_kills::OomKillsReply;
use super::reply::internal;
use super::request::RequestContext;
use super::view::{View, view};
use super::{ApiError, Request};
use memprof_profile::{Amounts, Profile, Report, TargetInfo, Unobserved};

/// Parameters of `/v2/summary`.
pub(super) const PARAMETERS: &[&str] = &["mark", "at", "pid", "cgroup"];

/// `/v2/summary`.
pub(super) fn read(asked: &RequestContext<'_>) -> Result<Request, ApiError> {
    view(asked, Summary)
}

/// The view of `/v2/summary`.
#[derive(Clone, Copy, Debug)]
pub(in crate::http) struct Summary;

impl View for Summary {
    fn write(&self, report: &Report, out: &mut Out) -> Result<(), ApiError> {
        serde_json::to_writer(out, &SummaryReply::from(report)).map_err(internal)
    }
}

/// A summary as one line of JSON.
pub(super) fn json(report: &Report) -> Option<Vec<u8>> {
    serde_json::to_vec(&SummaryReply::from(report)).ok()
}

#[derive(JsonSchema, Serialize)]
#[schemars(rename = "Summary")]
pub(super) struct SummaryReply<'a> {
    /// Version of memprof.
    version: &'static str,
    report: ReportInfo,
    target: &'a TargetInfo,
    total: Kinds,
    attributed: Kinds,
    /// Memory without a stack, by reason; total is the sum of these and attributed.
    not_observed: Vec<NotObserved>,
    kernel: Bracket,
    agreement: Agreement,
    /// The highest resident memory so far; null if it is unknown, and for a control group.
    peak: Option<HighestMemory>,
    /// Number of processes that have ended and are in /v2/processes.
    ended: usize,
    outcomes: Vec<OutcomeRow>,
    /// Followed processes that the kernel has killed because memory had run out, whichever process or control group is
    /// chosen.
    oom_kills: OomKillsReply<'a>,
    /// The files that have no symbols, with the share of bytes under their functions, the runtimes that write no names of
    /// code that they make at run time, and what would bring names; null if no file or code that matters is without
    /// names, or if nothing is known to help.
    names_advice: Option<&'a str>,
}

#[derive(JsonSchema, Serialize)]
struct NotObserved {
    #[schemars(with = "Unobserved")]
    reason: &'static str,
    bytes: Kinds,
}

impl<'a> From<&'a Report> for SummaryReply<'a> {
    fn from(report: &'a Report) -> SummaryReply<'a> {
        let profile = &report.profile;
        SummaryReply {
            version: env!("CARGO_PKG_VERSION"),
            report: report.into(),
            target: &profile.target,
            total: Kinds(profile.total),
            attributed: Kinds(profile.attributed()),
            not_observed: by_reason(profile),
            kernel: (&**profile).into(),
            agreement: profile.agreement().into(),
            peak: profile.peak.map(HighestMemory::from),
            ended: profile.ended.processes.len(),
            outcomes: outcomes(profile),
            oom_kills: (&profile.oom_kills).into(),
            names_advice: report.symbols.advice(),
        }
    }
}

fn by_reason(profile: &Profile) -> Vec<NotObserved> {
    let mut sums: BTreeMap<Unobserved, Amounts> = BTreeMap::new();
    for row in &profile.not_observed {
        *sums.entry(row.reason).or_default() += row.amounts;
    }
    let row = |(reason, amounts): (Unobserved, Amounts)| NotObserved {
        reason: reason.name(),
        bytes: Kinds(amounts),
    };
    sums.into_iter().map(row).collect()
}
