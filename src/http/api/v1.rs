//! `/v1`: the API of the original memory profiler.

use std::fmt;
use std::io::{self, BufWriter, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::memory_budget::Out;
use super::reply::{Body, JSON, internal};
use super::request::RequestContext;
use super::view::{ReportSelector, View, view_v1};
use super::{Api, ApiError, BoxFuture, Endpoint, Reply, Request};
use crate::export::tree::v1::{DEPTH, EMPTY_TREE, Short, TreeShape, write_tree};
use memprof_profile::tree::Direction;
use memprof_profile::{FrameFilter, Report};

/// Parameters of `/v1/tree`.
pub(super) const TREE: &[&str] = &["threshold", "reverse", "short", "depth"];

/// Default threshold, in KiB.
const DEFAULT_THRESHOLD: u64 = 256;

/// Maximum number of concurrent streams of trees that exceed the reply budget; each is sent while it is written.
pub(super) const STREAMS: usize = 4;

/// Bytes per piece of such a tree, and maximum number of pieces waiting to be sent.
const PIECE: usize = 64 << 10;
const PIECES: usize = 4;

/// Maximum time for a client to receive such a tree.
const LONGEST: Duration = Duration::from_secs(600);

/// The call tree.
#[derive(Clone, Copy, Debug)]
struct Tree(TreeShape);

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
    let direction = match query.boolean("reverse")? {
        Some(true) => Direction::OutermostFirst,
        _ => Direction::InnermostFirst,
    };
    let depth = query.number("depth", " of frames", u64::MAX)?;
    let tree = Tree(TreeShape {
        direction,
        threshold: threshold.unwrap_or(DEFAULT_THRESHOLD).saturating_mul(1024),
        depth: depth.map_or(DEPTH, |depth| usize::try_from(depth).unwrap_or(usize::MAX)),
    });
    match query.boolean("short")? {
        Some(true) => view_v1(asked, Totals),
        _ => Ok(Arc::new(AnySize {
            fitting: view_v1(asked, tree)?,
            which: ReportSelector::read(query)?,
            tree,
        })),
    }
}

/// `/v1/pid`.
pub(super) fn pid(_: &RequestContext<'_>) -> Result<Request, ApiError> {
    Ok(Arc::new(TargetPid))
}

/// A tree of any size: a tree that fits the budget is built once for all clients; a larger one is sent while it is
/// written.
struct AnySize {
    fitting: Request,
    which: ReportSelector,
    tree: Tree,
}

impl fmt::Debug for AnySize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fitting.fmt(f)
    }
}

impl Endpoint for AnySize {
    fn answer<'a>(&'a self, api: &'a Api) -> BoxFuture<'a, Result<Reply, ApiError>> {
        Box::pin(async {
            match self.fitting.answer(api).await {
                Err(ApiError::TooLarge(_)) => self.stream(api).await,
                reply => reply,
            }
        })
    }
}

impl AnySize {
    async fn stream(&self, api: &Api) -> Result<Reply, ApiError> {
        let permit = Arc::clone(&api.streams).try_acquire_owned();
        let permit = permit.map_err(|_| {
            ApiError::Busy(format!(
                "{STREAMS} other clients are receiving large trees: try again later, or ask with a threshold"
            ))
        })?;
        let report = self.which.report(api).await?;
        let (pieces, body) = mpsc::channel(PIECES);
        let (Tree(shape), since) = (self.tree, Instant::now());
        // Ends when the tree is written, or with the connection, when no receiver is left.
        tokio::task::spawn_blocking(move || {
            let pieces = Pieces {
                pieces,
                since,
                _permit: permit,
            };
            let mut out = BufWriter::with_capacity(PIECE, pieces);
            let written = write_tree(&report.showing(FrameFilter::All), shape, &mut out);
            if let Err(e) = written.and_then(|()| out.flush()) {
                tracing::debug!("a large tree was not sent to its end: {e}");
            }
        });
        Ok(Reply {
            body: Body::Live(body),
            ..Reply::new(JSON, "")
        })
    }
}

/// Sends output piece by piece; blocks until the client has received earlier pieces.
struct Pieces {
    pieces: mpsc::Sender<Bytes>,
    since: Instant,
    _permit: OwnedSemaphorePermit,
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.since.elapsed() > LONGEST {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let sent = self.pieces.blocking_send(Bytes::copy_from_slice(bytes));
        sent.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl View for Tree {
    fn write(&self, report: &Report, out: &mut Out) -> Result<(), ApiError> {
        write_tree(report, self.0, out).map_err(internal)
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

impl Endpoint for TargetPid {
    fn answer<'a>(&'a self, api: &'a Api) -> BoxFuture<'a, Result<Reply, ApiError>> {
        let pid = api.provider().pid().map_or(0, |pid| pid.0);
        Box::pin(async move { Ok(Reply::new(JSON, Bytes::from(pid.to_string()))) })
    }
}
