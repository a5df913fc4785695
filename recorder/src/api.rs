//! The HTTP API and the page, as a service of [`memprof_server`].
//!
//! `/v2` and `/v3` are those of the original network recorder; what is new is under `/v4`. One server answers for all nodes; a server
//! of one node has `/v3` alone, without `node_name`. Questions to a store block, so they run on threads of their own, and replies are
//! of bounded size.

mod chunks;
pub mod export;
mod failure;
mod filters;
mod health;
mod items;
mod metrics;
mod nodes;
mod old;
mod page;
pub mod pcapng;
mod peers;
mod query;
mod reply;
mod rows;
mod stream;
mod v4;

use std::fmt;
use std::sync::Arc;

use memprof_server::{Asset, Method, Refusal, Reply, Request, Service};
use tokio::sync::{Semaphore, watch};

use self::failure::Failure;
use self::nodes::Nodes;
use self::old::OldPath;
use self::reply::{ReplyBudget, json_text};

pub use health::CaptureHealth;
pub use nodes::{ApiNode, LogHealth, NodeState};
pub use page::ASSETS;

/// The OpenAPI document of `/v2` and `/v3`.
pub const OPENAPI_OLD: &str = include_str!("api/openapi.json");
/// The OpenAPI document of `/v4`.
pub const OPENAPI: &str = include_str!("api/openapi-v4.json");

/// Settings of the API.
#[derive(Clone, Default)]
pub struct ApiOptions {
    /// The recorder's version.
    pub version: String,
    /// The commit that it was built from, or the version if that is not known, for `/v2/version`.
    pub commit: String,
    /// The state of the capture at this time.
    pub capture: Option<Arc<dyn Fn() -> CaptureHealth + Send + Sync>>,
}

impl fmt::Debug for ApiOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiOptions")
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

/// Answers requests for the records of nodes.
#[derive(Debug)]
pub struct Api {
    shared: Arc<Shared>,
    /// The only node that is served, by its number.
    only: Option<usize>,
}

/// State of all servers.
#[derive(Debug)]
struct Shared {
    nodes: Nodes,
    options: ApiOptions,
    budget: ReplyBudget,
    /// Admits clients of the stream.
    clients: Arc<Semaphore>,
    /// Admits exports.
    exports: Arc<Semaphore>,
    /// Whether the recorder stops.
    closed: watch::Sender<bool>,
}

impl Shared {
    fn capture(&self) -> CaptureHealth {
        let capture = self.options.capture.as_ref();
        capture.map(|state| state()).unwrap_or_default()
    }
}

/// A path of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path<'a> {
    Old(OldPath<'a>),
    Version,
    Rpc,
    OpenapiOld,
    New(v4::Path<'a>),
    Stream,
    Export,
    Health,
    Metrics,
    Openapi,
}

impl Api {
    /// An API for all nodes.
    pub fn new(nodes: Vec<ApiNode>, options: ApiOptions) -> Arc<Self> {
        let shared = Shared {
            nodes: Nodes::new(nodes),
            options,
            budget: ReplyBudget::default(),
            clients: Arc::new(Semaphore::new(stream::MAX_CLIENTS)),
            exports: Arc::new(Semaphore::new(export::AT_ONCE)),
            closed: watch::channel(false).0,
        };
        Arc::new(Self {
            shared: Arc::new(shared),
            only: None,
        })
    }

    /// The API of one node: `/v3` without `node_name`. `number` is its index in the list of nodes.
    pub fn of_node(&self, number: usize) -> Arc<Self> {
        Arc::new(Self {
            shared: Arc::clone(&self.shared),
            only: Some(number),
        })
    }

    fn path<'a>(&self, path: &'a str) -> Option<Path<'a>> {
        let path = path.strip_suffix('/').unwrap_or(path);
        let parts: Vec<&str> = path.strip_prefix('/')?.split('/').collect();
        if parts.contains(&"") {
            return None;
        }
        let found = match parts.as_slice() {
            ["v2", "version"] => return Some(Path::Version),
            ["openapi", "network-recorder-openapi.json"] => return Some(Path::OpenapiOld),
            ["v3", "messages"] => return Some(Path::Old(OldPath::Messages)),
            ["v3", "message", id] => return Some(Path::Old(OldPath::Message(id))),
            ["v3", "logs"] => return Some(Path::Old(OldPath::Logs)),
            ["v3", "connections"] => return Some(Path::Old(OldPath::Connections)),
            ["v3", "chunks"] => return Some(Path::Old(OldPath::Chunks)),
            ["v3", "chunk", id] => return Some(Path::Old(OldPath::Chunk(id))),
            ["v2", "p2p"] => Path::Old(OldPath::Messages),
            ["v2", "p2p", id] => Path::Old(OldPath::Message(id)),
            ["v2", "log"] => Path::Old(OldPath::Logs),
            ["v2", "rpc"] => Path::Rpc,
            ["v4", "nodes"] => Path::New(v4::Path::Nodes),
            ["v4", "messages"] => Path::New(v4::Path::Messages),
            ["v4", "messages", id] => Path::New(v4::Path::Message(id)),
            ["v4", "connections"] => Path::New(v4::Path::Connections),
            ["v4", "connections", id] => Path::New(v4::Path::Connection(id)),
            ["v4", "logs"] => Path::New(v4::Path::Logs),
            ["v4", "stream"] => Path::Stream,
            ["v4", "export.pcapng"] => Path::Export,
            ["v4", "health"] => Path::Health,
            ["v4", "openapi.json"] => Path::Openapi,
            ["metrics"] => Path::Metrics,
            _ => return None,
        };
        self.only.is_none().then_some(found)
    }

    async fn old(&self, path: OldPath<'_>, query: &str) -> Result<Reply, Failure> {
        let shared = &self.shared;
        let only = self.only.and_then(|number| shared.nodes.all().get(number));
        old::answer(&shared.nodes, &shared.budget, only, path, query).await
    }
}

impl Service for Api {
    const PROGRAM: &'static str = "tezos-recorder";
    const VITAL: &'static [&'static str] = &["/v4/health", "/metrics"];

    fn asset(&self, path: &str) -> Option<&'static Asset> {
        let asset = ASSETS.iter().find(|asset| asset.path == path);
        asset.filter(|_| self.only.is_none())
    }

    fn methods(&self, path: &str) -> Vec<Method> {
        self.path(path).map(|_| Method::Get).into_iter().collect()
    }

    async fn answer(&self, request: Request<'_>) -> Result<Reply, Refusal> {
        let Some(path) = self.path(request.path) else {
            return Err(Failure::Absent("no such path".to_owned()).into());
        };
        let shared = &self.shared;
        let reply = match path {
            Path::Old(path) => match self.old(path, request.query).await {
                Ok(reply) => reply,
                Err(failure) => failure.in_json(),
            },
            Path::Version => reply::json(&shared.options.commit)?,
            Path::Rpc => json_text("[]"),
            Path::OpenapiOld => json_text(OPENAPI_OLD),
            Path::New(path) => v4::answer(shared, path, request.query).await?,
            Path::Stream => stream::answer(shared, request.query, request.headers)?,
            Path::Export => export::answer(shared, request.query)?,
            Path::Health => health::answer(shared)?,
            Path::Metrics => metrics::answer(shared).await?,
            Path::Openapi => json_text(OPENAPI),
        };
        Ok(reply)
    }

    fn is_short_of_room(&self) -> bool {
        self.shared.budget.is_short()
    }

    fn close(&self) {
        self.shared.closed.send_replace(true);
        self.shared.budget.close();
    }
}
