//! `/v1`: the API of the original memory profiler.

use std::sync::Arc;

use bytes::Bytes;

use super::reply::{JSON, internal};
use super::request::RequestContext;
use super::room::Out;
use super::view::{View, view};
use super::{Api, ApiError, Ask, BoxFuture, Reply, Report, Request};
use crate::export::json::{DEPTH, EMPTY_TREE, Short, TreeShape, write_tree};
use crate::tree::Direction;

/// Parameters of `/v1/tree`.
pub(super) const TREE: &[&str] = &["threshold", "reverse", "short", "depth"];

/// Default threshold, in KiB.
const DEFAULT_THRESHOLD: u64 = 256;

/// The call tree: `threshold` in KiB, `depth` in levels of frames.
#[derive(Clone, Copy, Debug)]
struct Tree {
    threshold: u64,
    reverse: bool,
    depth: u64,
}

/// Totals only.
#[derive(Clone, Copy, Debug)]
struct Totals;

/// The target's process id.
#[derive(Clone, Copy, Debug)]
struct TargetPid;

/// Reads the parameters of `/v1/tree`.
pub(super) fn tree(asked: &RequestContext<'_>) -> Result<Request, ApiError> {
    let query = &asked.query;
    let threshold = query.number("threshold", " of KiB", u64::MAX)?;
    let reverse = query.boolean("reverse")?.unwrap_or(false);
    let depth = query.number("depth", " of frames", u64::MAX)?;
    let tree = Tree {
        threshold: threshold.unwrap_or(DEFAULT_THRESHOLD),
        reverse,
        depth: depth.unwrap_or(DEPTH as u64),
    };
    match query.boolean("short")? {
        Some(true) => view(asked, Totals),
        _ => view(asked, tree),
    }
}

/// `/v1/pid`.
pub(super) fn pid(_: &RequestContext<'_>) -> Result<Request, ApiError> {
    Ok(Arc::new(TargetPid))
}

impl View for Tree {
    fn write(&self, report: &Report, out: &mut Out) -> Result<(), ApiError> {
        let direction = match self.reverse {
            false => Direction::InnermostFirst,
            true => Direction::OutermostFirst,
        };
        let shape = TreeShape {
            direction,
            threshold: self.threshold.saturating_mul(1024),
            depth: usize::try_from(self.depth).unwrap_or(usize::MAX),
        };
        write_tree(report, shape, out).map_err(internal)
    }

    fn before_target(&self) -> Option<&'static str> {
        Some(EMPTY_TREE)
    }
}

impl View for Totals {
    fn write(&self, report: &Report, out: &mut Out) -> Result<(), ApiError> {
        let short = Short::from(report.profile.as_ref());
        serde_json::to_writer(out, &short).map_err(internal)
    }

    fn before_target(&self) -> Option<&'static str> {
        Some(r#"{"total":0,"cache":0,"anon":0,"systemReportAnon":0}"#)
    }
}

impl Ask for TargetPid {
    fn answer<'a>(&'a self, api: &'a Api) -> BoxFuture<'a, Result<Reply, ApiError>> {
        let pid = api.provider().pid().map_or(0, |pid| pid.0);
        Box::pin(async move { Ok(Reply::new(JSON, Bytes::from(pid.to_string()))) })
    }
}
