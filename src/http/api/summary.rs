//! `/v2/summary`: the target, its totals, and their comparison with the kernel's figures.

use std::collections::BTreeMap;

use serde::Serialize;

use super::common::{Agreement, Bracket, Kinds, OutcomeRow, ReportInfo, outcomes};
use super::memory_budget::Out;
use super::oom_kills::OomKillsReply;
use super::reply::internal;
use super::request::RequestContext;
use super::view::{View, view};
use super::{ApiError, Request};
use memprof_profile::{Amounts, Profile, Report, TargetInfo, Unobserved};

/// Parameters of `/v2/summary`.
pub(super) const PARAMETERS: &[&str] = &["mark", "pid", "cgroup"];

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

#[derive(Serialize)]
struct SummaryReply<'a> {
    version: &'static str,
    report: ReportInfo,
    target: &'a TargetInfo,
    total: Kinds,
    attributed: Kinds,
    not_observed: Vec<NotObserved>,
    kernel: Bracket,
    agreement: Agreement,
    outcomes: Vec<OutcomeRow>,
    oom_kills: OomKillsReply<'a>,
    /// Which files have no symbols, and how to get names for them.
    names_advice: Option<&'a str>,
}

#[derive(Serialize)]
struct NotObserved {
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
