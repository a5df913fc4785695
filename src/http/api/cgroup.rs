//! `/v2/cgroup`: the memory charged to the followed control group, beside memprof's sums.

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::Serialize;

use super::common::ReportInfo;
use super::memory_budget::Out;
use super::reply::internal;
use super::request::RequestContext;
use super::view::{View, view};
use super::{ApiError, Request};
use memprof_profile::{BalanceRow, CgroupMemory, Report};

/// Parameters of `/v2/cgroup`.
pub(super) const PARAMETERS: &[&str] = &["mark", "at"];

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

#[derive(JsonSchema, Serialize)]
#[schemars(rename = "Cgroup")]
pub(super) struct BalanceReply {
    report: ReportInfo,
    /// The followed control group; null without --cgroup, and for a mark that is a saved profile.
    cgroup: Option<Group>,
}

/// The balance of a control group.
#[derive(JsonSchema, Serialize)]
#[schemars(rename = "CgroupBalance")]
struct Group {
    /// Directory of the group.
    path: String,
    /// Version of the group's memory controller; null if it has none.
    #[schemars(extend("enum" = [1, 2, null]))]
    version: Option<u8>,
    /// Bytes charged to the group and to the groups below; null if the kernel does not say.
    usage: Option<u64>,
    /// The kernel's own peak: the highest usage since the group was made (memory.peak); null if the kernel does not say.
    peak: Option<u64>,
    /// The file of the usage.
    usage_file: Option<&'static str>,
    /// Why there is no usage.
    without_total: Option<String>,
    /// By how much the usage and the sum of the other rows can differ, in bytes: what CPUs charge in advance (64 pages
    /// for each CPU and group), statistics that are not flushed yet (128 pages for each CPU), and by how much the usage
    /// changed while they were read.
    tolerance: Option<u64>,
    /// The lowest memory limit of the group and those above it, in bytes; null if there is none.
    limit: Option<u64>,
    /// Processes that the kernel's out-of-memory killer has killed in the group since it was made; version 1 does not
    /// count those of groups below.
    oom_kills: Option<u64>,
    /// The rows add up to the usage. Empty if the group has no memory controller.
    rows: Vec<CgroupRow>,
}

#[derive(JsonSchema, Serialize)]
#[schemars(rename = "CgroupRow")]
struct CgroupRow {
    #[schemars(extend("enum" = ["anon", "shmem", "file", "kernel", "sock", "hugetlb", "unexplained"]))]
    name: &'static str,
    /// The kernel's figure in memory.stat, in bytes; that of unexplained can be negative.
    charged: i64,
    /// memprof's sum by stack over the followed processes, in bytes; null if it counts no such memory.
    memprof: Option<u64>,
    /// `charged` without `memprof`.
    difference: Option<i64>,
    /// Explanation of the row, or of the difference.
    note: String,
    /// Parts of the row, as far as the kernel counts them.
    parts: Vec<ChargedPart>,
}

#[derive(JsonSchema, Serialize)]
#[schemars(rename = "CgroupPart")]
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
            peak: charged.and_then(|(_, figures)| figures.peak),
            usage_file: charged.map(|(version, _)| version.usage_file()),
            without_total: group.without_total(),
            tolerance: charged.map(|(_, figures)| figures.tolerance),
            limit: charged.and_then(|(_, figures)| figures.limit),
            oom_kills: charged.and_then(|(_, figures)| figures.oom_kills),
            rows: rows.into_iter().map(CgroupRow::from).collect(),
        }
    }
}

impl From<BalanceRow> for CgroupRow {
    fn from(row: BalanceRow) -> CgroupRow {
        let part = |(name, bytes)| ChargedPart { name, bytes };
        CgroupRow {
            name: row.name,
            charged: row.charged,
            memprof: row.memprof,
            difference: row.difference(),
            parts: row.parts.into_iter().map(part).collect(),
            note: row.note,
        }
    }
}
