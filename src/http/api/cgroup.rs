//! `/v2/cgroup`: the memory charged to the followed control group, beside memprof's sums.

use std::borrow::Cow;

use serde::Serialize;

use super::common::ReportInfo;
use super::memory_budget::Out;
use super::reply::internal;
use super::request::RequestContext;
use super::view::{View, view};
use super::{ApiError, Request};
use memprof_profile::{BalanceRow, CgroupMemory, Report};

/// Parameters of `/v2/cgroup`.
pub(super) const PARAMETERS: &[&str] = &["mark"];

/// `/v2/cgroup`.
pub(super) fn read(asked: &RequestContext<'_>) -> Result<Request, ApiError> {
    view(asked, Balance)
}

/// The view of `/v2/cgroup`.
#[derive(Clone, Copy, Debug)]
struct Balance;

impl View for Balance {
    fn write(&self, report: &Report, out: &mut Out) -> Result<(), ApiError> {
        let cgroup = report.profile.cgroup.as_deref();
        let reply = BalanceReply {
            report: report.into(),
            cgroup: cgroup.map(|group| Group::from_memory(group, report)),
        };
        serde_json::to_writer(out, &reply).map_err(internal)
    }

    /// Needs no tree.
    fn is_light(&self) -> bool {
        true
    }
}

#[derive(Serialize)]
struct BalanceReply {
    report: ReportInfo,
    cgroup: Option<Group>,
}

#[derive(Serialize)]
struct Group {
    path: String,
    version: Option<u8>,
    usage: Option<u64>,
    usage_file: Option<&'static str>,
    /// The reason why `usage` is missing.
    without_total: Option<String>,
    tolerance: Option<u64>,
    limit: Option<u64>,
    oom_kills: Option<u64>,
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    name: &'static str,
    charged: i64,
    memprof: Option<u64>,
    difference: Option<i64>,
    note: String,
    parts: Vec<ChargedPart>,
}

#[derive(Serialize)]
struct ChargedPart {
    name: Cow<'static, str>,
    bytes: u64,
}

impl Group {
    fn from_memory(group: &CgroupMemory, report: &Report) -> Group {
        let charged = group.charged.as_ref().ok();
        let rows = group.balance(&report.profile.total.usage);
        Group {
            path: group.dir.display().to_string(),
            version: charged.map(|(version, _)| version.number()),
            usage: charged.and_then(|(_, figures)| figures.usage),
            usage_file: charged.map(|(version, _)| version.usage_file()),
            without_total: group.without_total(),
            tolerance: charged.map(|(_, figures)| figures.tolerance),
            limit: charged.and_then(|(_, figures)| figures.limit),
            oom_kills: charged.and_then(|(_, figures)| figures.oom_kills),
            rows: rows.into_iter().map(Row::from).collect(),
        }
    }
}

impl From<BalanceRow> for Row {
    fn from(row: BalanceRow) -> Row {
        let part = |(name, bytes)| ChargedPart { name, bytes };
        Row {
            name: row.name,
            charged: row.charged,
            memprof: row.memprof,
            difference: row.difference(),
            parts: row.parts.into_iter().map(part).collect(),
            note: row.note,
        }
    }
}
