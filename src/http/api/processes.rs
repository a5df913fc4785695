//! `/v2/processes`: each followed process with its own totals, and each control group.

use schemars::JsonSchema;
use serde::Serialize;

use super::common::{
    Agreement, Bracket, ContainerLabels, HighestMemory, Kinds, ReportInfo, millis,
};
use super::memory_budget::Out;
use super::reply::internal;
use super::request::RequestContext;
use super::view::{View, view};
use super::{ApiError, Request};
use memprof_profile::{EndedProcess, GroupTotal, Member, Report};
use memprof_sys::process::Container;

/// Parameters of `/v2/processes`.
pub(super) const PARAMETERS: &[&str] = &["mark", "at", "cgroup"];

/// `/v2/processes`.
pub(super) fn read(asked: &RequestContext<'_>) -> Result<Request, ApiError> {
    view(asked, Processes)
}

#[derive(Debug)]
struct Processes;

#[derive(JsonSchema, Serialize)]
#[schemars(rename = "Processes")]
pub(super) struct ProcessesReply<'a> {
    report: ReportInfo,
    total: Kinds,
    rows: Vec<ProcessRow<'a>>,
    /// The control groups of several processes, by name. Each has the processes in the group itself; the parameter
    /// cgroup also chooses those in the groups below it.
    groups: Vec<GroupRow<'a>>,
    /// Processes that ended in the last ten minutes, the newest 1024, each with its memory at its last scan. These
    /// amounts are in no sum.
    ended: Vec<EndedRow<'a>>,
    /// Number of processes that have ended without a scan since memprof began.
    ended_unscanned: u64,
}

#[derive(JsonSchema, Serialize)]
#[schemars(rename = "Process")]
struct ProcessRow<'a> {
    pid: u32,
    /// Name, /proc/PID/comm.
    comm: &'a str,
    #[serde(flatten)]
    #[schemars(with = "ContainerLabels")]
    place: Option<&'a Container>,
    total: Kinds,
    attributed: Kinds,
    kernel: Bracket,
    agreement: Agreement,
    /// The highest resident memory of the process; null if it is unknown, as in files of versions that did not know it.
    peak: Option<HighestMemory>,
}

impl<'a> From<Member<'a>> for ProcessRow<'a> {
    fn from(member: Member<'a>) -> ProcessRow<'a> {
        let figures = member.figures();
        ProcessRow {
            pid: member.pid.0,
            comm: member.comm,
            place: member.container,
            total: Kinds(*member.total),
            attributed: Kinds(figures.attributed()),
            kernel: (&*figures).into(),
            agreement: figures.agreement().into(),
            peak: member.peak.map(HighestMemory::from),
        }
    }
}

/// A control group with the processes directly in it.
#[derive(JsonSchema, Serialize)]
#[schemars(rename = "ProcessGroup")]
struct GroupRow<'a> {
    #[serde(flatten)]
    #[schemars(with = "ContainerLabels")]
    place: Option<&'a Container>,
    #[schemars(range(min = 1))]
    processes: usize,
    total: Kinds,
}

impl<'a> From<GroupTotal<'a>> for GroupRow<'a> {
    fn from(group: GroupTotal<'a>) -> GroupRow<'a> {
        GroupRow {
            place: Some(group.container),
            processes: group.processes,
            total: Kinds(group.total),
        }
    }
}

/// A process that has ended.
#[derive(JsonSchema, Serialize)]
#[schemars(rename = "EndedProcess")]
struct EndedRow<'a> {
    pid: u32,
    /// Name of the process.
    comm: &'a str,
    #[serde(flatten)]
    #[schemars(with = "ContainerLabels")]
    place: Option<&'a Container>,
    total: Kinds,
    /// The highest resident memory of the process; null if it is unknown.
    peak: Option<HighestMemory>,
    /// When the process was scanned last, in milliseconds since 1970-01-01 UTC.
    scanned: u64,
    /// When the process had ended, in milliseconds since 1970-01-01 UTC.
    ended: u64,
}

impl<'a> From<&'a EndedProcess> for EndedRow<'a> {
    fn from(ended: &'a EndedProcess) -> EndedRow<'a> {
        EndedRow {
            pid: ended.pid.0,
            comm: &ended.comm,
            place: ended.container.as_ref(),
            total: Kinds(ended.total),
            peak: ended.peak.map(HighestMemory::from),
            scanned: millis(ended.scanned),
            ended: millis(ended.ended),
        }
    }
}

impl View for Processes {
    fn write(&self, report: &Report, out: &mut Out) -> Result<(), ApiError> {
        let profile = &report.profile;
        let reply = ProcessesReply {
            report: report.into(),
            total: Kinds(profile.total),
            rows: profile
                .members()
                .into_iter()
                .map(ProcessRow::from)
                .collect(),
            groups: profile.groups().into_iter().map(GroupRow::from).collect(),
            ended: profile.ended.processes.iter().map(EndedRow::from).collect(),
            ended_unscanned: profile.ended.unscanned,
        };
        serde_json::to_writer(out, &reply).map_err(internal)
    }
}
