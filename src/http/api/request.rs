//! Requests: the parts that come from HTTP, the parsed parameters, and the trait that answers them.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use super::query::Query;
use super::{Api, ApiError, BoxFuture, Reply};

/// The parts of a request besides its path.
#[derive(Clone, Debug, Default)]
pub struct RequestParts<'a> {
    /// The text after the first `?` of the target.
    pub query: &'a str,
    /// The body.
    pub body: Bytes,
    /// Whether the request came from this machine, over a loopback address.
    pub local: bool,
    /// Whether the client prefers plain text to OpenMetrics.
    pub plain_text: bool,
}

/// The parsed parts of a request, passed to its route.
pub(super) struct RequestContext<'a> {
    pub(super) query: Query,
    /// The path segment that matches `{}`.
    pub(super) name: &'a str,
    pub(super) body: Bytes,
    pub(super) local: bool,
    pub(super) plain_text: bool,
}

/// A request, ready to be answered.
pub type Request = Arc<dyn Endpoint>;

/// A parsed request. The `Debug` form shows the parsed parameters and identifies equal requests.
pub trait Endpoint: fmt::Debug + Send + Sync {
    /// Answers the request. Needs a tokio runtime.
    fn answer<'a>(&'a self, api: &'a Api) -> BoxFuture<'a, Result<Reply, ApiError>>;
}
