//! `/v2/processes`: each followed process with its own totals.

use serde::Serialize;

use super::common::{Agreement, Bracket, Kinds, ReportInfo};
use super::reply::internal;
use super::request::RequestContext;
use super::room::Out;

use super::view::{View, view};
use super::{ApiError, Report, Request};
use crate::profile::Profile;

/// Parameters of `/v2/processes`.
pub(super) const PARAMETERS: &[&str] = &["mark"];

/// `/v2/processes`.
pub(super) fn read(asked: &RequestContext<'_>) -> Result<Request, ApiError> {
    view(asked, Processes)
}

#[derive(Debug)]
struct Processes;

#[derive(Serialize)]
struct ProcessesReply {
    report: ReportInfo,
    total: Kinds,
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    pid: u32,
    comm: String,
    total: Kinds,
    attributed: Kinds,
    kernel: Bracket,
    agreement: Agreement,
}

impl From<&Profile> for Row {
    fn from(profile: &Profile) -> Row {
        Row {
            pid: profile.target.pid.0,
            comm: profile.target.comm.clone(),
            total: Kinds(profile.total),
            attributed: Kinds(profile.attributed()),
            kernel: profile.into(),
            agreement: profile.agreement().into(),
        }
    }
}

impl View for Processes {
    fn write(&self, report: &Report, out: &mut Out) -> Result<(), ApiError> {
        let profile = &report.profile;
        let pids = profile.target.pids.iter();
        let reply = ProcessesReply {
            report: report.into(),
            total: Kinds(profile.total),
            rows: pids
                .filter_map(|pid| profile.of(*pid))
                .map(|one| Row::from(&one))
                .collect(),
        };
        serde_json::to_writer(out, &reply).map_err(internal)
    }
}
