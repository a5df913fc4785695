//! `/v2/tree`: the call tree of a report.

use super::common::ReportInfo;
use super::common::counted;
use super::memory_budget::Out;
use super::reply::internal;
use super::request::RequestContext;
use super::shape::shape;
use super::view::{View, view};
use super::{ApiError, Request};
use crate::export::tree::v2::{Shape, write_tree};
use memprof_profile::Report;

/// Parameters of `/v2/tree`.
pub(super) const PARAMETERS: &[&str] = &[
    "direction",
    "merge",
    "inlined",
    "kind",
    "threshold",
    "max_nodes",
    "search",
    "function",
    "path",
    "focus",
    "frames",
    "mark",
    "at",
    "report",
    "pid",
    "cgroup",
    "filter",
];

/// `/v2/tree`.
pub(super) fn read(asked: &RequestContext<'_>) -> Result<Request, ApiError> {
    view(asked, Tree(shape(&asked.query)?))
}

/// The view of `/v2/tree`.
#[derive(Debug)]
pub(in crate::http) struct Tree(pub(in crate::http) Shape);

impl View for Tree {
    fn needs_lines(&self) -> bool {
        true
    }

    fn write(&self, report: &Report, out: &mut Out) -> Result<(), ApiError> {
        counted(self.0.reading.kind, &report.profile)?;
        write_tree(report, ReportInfo::from(report), &self.0, out).map_err(internal)
    }
}
