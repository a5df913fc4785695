//! Typed request to typed reply or error; nothing here knows HTTP.
//!
//! A reply's bytes are made once per (report, request) and shared by everyone who asks for them,
//! so that many clients cost what one does.

mod cache;
mod maker;
mod query;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;

use crate::event::Pid;
use crate::export::json::{EMPTY_TREE, Short, write_tree};
use crate::tree::{CallTree, Direction, Names, Options};
use maker::Maker;

pub use crate::export::Report;
pub use query::{ROUTES, Route, RouteKind};

/// The OpenAPI document of the `/v1` routes.
pub const OPENAPI_V1: &str = include_str!("web/openapi-v1.json");

/// How many trees are built at a time; further builds wait.
const BUILDS: usize = 2;

/// Bytes of replies that are kept for those who ask next.
const CACHED: usize = 64 << 20;

/// Bytes of all replies that are kept or on their way; further ones wait until those have left.
/// A single reply of any size has room.
const ROOM: usize = 256 << 20;

/// A future that can be sent between threads.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Where reports come from.
pub trait Provider: Send + Sync + 'static {
    /// The newest report. Called for every request: whoever scans shares one scan among all who
    /// wait for it.
    fn profile(&self) -> BoxFuture<'_, Result<Arc<Report>, ProviderError>>;

    /// The target's process id, as soon as there is a target.
    fn pid(&self) -> Option<Pid>;
}

/// Why there is no report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProviderError {
    /// The target has not started yet.
    NoTarget,
    /// The report could not be made; what failed.
    Failed(String),
}

impl fmt::Display for ProviderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProviderError::NoTarget => f.write_str("the target has not started yet"),
            ProviderError::Failed(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for ProviderError {}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Request {
    /// The call tree.
    Tree {
        /// Keeps a node when it counts at least so many KiB.
        threshold: u64,
        /// False: innermost function first.
        reverse: bool,
    },
    /// Totals only.
    Short,
    /// The target's process id.
    Pid,
    /// The OpenAPI document.
    OpenApi,
}

/// Why there is no reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApiError {
    /// No such path.
    NotFound,
    /// A parameter is wrong; which, and how it should be.
    BadRequest(String),
    /// There is no report at this time; why.
    Unavailable(String),
    /// memprof failed; what.
    Internal(String),
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ApiError::NotFound => f.write_str("no such path"),
            ApiError::BadRequest(what) => f.write_str(what),
            ApiError::Unavailable(what) => write!(f, "no report at this time: {what}"),
            ApiError::Internal(what) => write!(f, "internal error: {what}"),
        }
    }
}

impl std::error::Error for ApiError {}

/// Answers requests.
pub struct Api {
    provider: Arc<dyn Provider>,
    maker: Maker,
}

impl Api {
    /// Answers from what the provider gives.
    pub fn new(provider: Arc<dyn Provider>) -> Arc<Api> {
        Api::with(provider, Maker::new(CACHED, ROOM))
    }

    fn with(provider: Arc<dyn Provider>, maker: Maker) -> Arc<Api> {
        Arc::new(Api { provider, maker })
    }

    /// The JSON text that answers the request. Needs a tokio runtime.
    ///
    /// Before there is a target the tree is empty, the totals are 0 and the process id is 0.
    ///
    /// # Errors
    /// [`ApiError::Unavailable`] when the provider fails, [`ApiError::Internal`] when a tree
    /// cannot be built.
    pub async fn answer(&self, request: Request) -> Result<Bytes, ApiError> {
        match request {
            Request::Pid => {
                let pid = self.provider.pid().map_or(0, |pid| pid.0);
                Ok(Bytes::from(pid.to_string()))
            }
            Request::OpenApi => Ok(Bytes::from_static(OPENAPI_V1.as_bytes())),
            Request::Tree { .. } | Request::Short => match self.provider.profile().await {
                Ok(report) => self.maker.shared(report, request).await,
                Err(ProviderError::NoTarget) => Ok(nothing(request)),
                Err(ProviderError::Failed(what)) => Err(ApiError::Unavailable(what)),
            },
        }
    }
}

fn internal(error: impl fmt::Display) -> ApiError {
    ApiError::Internal(error.to_string())
}

fn body(report: &Report, request: Request) -> Result<Vec<u8>, ApiError> {
    let mut out = Vec::new();
    match request {
        Request::Tree { threshold, reverse } => {
            let (profile, symbols) = (&report.profile, &report.symbols);
            let direction = match reverse {
                false => Direction::InnermostFirst,
                true => Direction::OutermostFirst,
            };
            let options = Options {
                direction,
                threshold: threshold.saturating_mul(1024),
            };
            let tree = CallTree::new(profile, symbols, options);
            write_tree(&tree, Names::new(profile, symbols), &mut out).map_err(internal)?;
        }
        _ => {
            let short = Short::from(report.profile.as_ref());
            serde_json::to_writer(&mut out, &short).map_err(internal)?;
        }
    }
    out.shrink_to_fit();
    Ok(out)
}

/// What there is to say before a target exists.
fn nothing(request: Request) -> Bytes {
    match request {
        Request::Short => {
            Bytes::from_static(br#"{"total":0,"cache":0,"anon":0,"systemReportAnon":0}"#)
        }
        _ => Bytes::from_static(EMPTY_TREE.as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::tree::testing::{at, kib, profile, symbols};

    struct Fixed(Result<Arc<Report>, ProviderError>);

    impl Provider for Fixed {
        fn profile(&self) -> BoxFuture<'_, Result<Arc<Report>, ProviderError>> {
            Box::pin(async { self.0.clone() })
        }

        fn pid(&self) -> Option<Pid> {
            self.0.as_ref().ok().map(|r| r.profile.target.pid)
        }
    }

    /// Numbers its reports, all of one memory that grows by 4 KiB with every report.
    #[derive(Default)]
    struct Growing(AtomicU64);

    impl Provider for Growing {
        fn profile(&self) -> BoxFuture<'_, Result<Arc<Report>, ProviderError>> {
            let sequence = self.0.load(Ordering::Relaxed);
            Box::pin(async move { Ok(report(sequence)) })
        }

        fn pid(&self) -> Option<Pid> {
            None
        }
    }

    fn report(sequence: u64) -> Arc<Report> {
        Arc::new(Report {
            profile: Arc::new(profile(&[(&[at(0, 1)], kib(4 * sequence, 0))], &[])),
            symbols: Arc::new(symbols(&[])),
            sequence,
        })
    }

    fn tree(threshold: u64) -> Request {
        Request::Tree {
            threshold,
            reverse: false,
        }
    }

    #[tokio::test]
    async fn before_a_target_everything_is_empty() {
        let api = Api::new(Arc::new(Fixed(Err(ProviderError::NoTarget))));
        assert_eq!(api.answer(tree(0)).await.unwrap(), EMPTY_TREE);
        assert_eq!(api.answer(Request::Pid).await.unwrap(), "0");
        let short = serde_json::to_string(&Short::default()).unwrap();
        assert_eq!(api.answer(Request::Short).await.unwrap(), short);
    }

    #[tokio::test]
    async fn failure_is_said() {
        let failed = ProviderError::Failed("smaps: permission denied".into());
        let api = Api::new(Arc::new(Fixed(Err(failed))));
        let error = api.answer(tree(0)).await.unwrap_err();
        assert!(error.to_string().contains("smaps: permission denied"));
    }

    #[tokio::test]
    async fn a_reply_is_built_once_and_never_stale() {
        let provider = Arc::new(Growing::default());
        let api = Api::new(Arc::clone(&provider) as Arc<dyn Provider>);
        provider.0.store(1, Ordering::Relaxed);
        let first = api.answer(tree(0)).await.unwrap();
        let again = api.answer(tree(0)).await.unwrap();
        assert_eq!(first.as_ptr(), again.as_ptr());
        assert_ne!(first, api.answer(tree(8)).await.unwrap());
        provider.0.store(2, Ordering::Relaxed);
        let next = api.answer(tree(0)).await.unwrap();
        assert!(
            std::str::from_utf8(&next)
                .unwrap()
                .starts_with(r#"{"value":8,"#)
        );
    }

    #[tokio::test]
    async fn who_asks_at_the_same_time_shares_one_build() {
        let api = Api::new(Arc::new(Fixed(Ok(report(1)))));
        let mut asking = tokio::task::JoinSet::new();
        for number in 0..1000 {
            let api = Arc::clone(&api);
            let task =
                asking.spawn(async move { api.answer(tree(0)).await.unwrap().as_ptr() as usize });
            // Some go away while they wait.
            if number % 10 == 0 {
                task.abort();
            }
        }
        let mut bodies = std::collections::HashSet::new();
        while let Some(body) = asking.join_next().await {
            bodies.extend(body.ok());
        }
        assert_eq!(bodies.len(), 1);
    }

    #[tokio::test]
    async fn replies_on_their_way_are_bounded() {
        // Room for three replies of up to a KiB, none of them kept.
        let maker = Maker::new(0, 3 << 10);
        let api = Api::with(Arc::new(Fixed(Ok(report(1)))), maker);
        let mut under_way = Vec::new();
        for threshold in 0..3 {
            under_way.push(api.answer(tree(threshold)).await.unwrap());
        }
        let mut further = std::pin::pin!(api.answer(tree(3)));
        let soon = std::time::Duration::from_millis(100);
        assert!(tokio::time::timeout(soon, &mut further).await.is_err());
        under_way.pop();
        further.await.unwrap();
    }

    #[tokio::test]
    async fn a_huge_threshold_is_no_overflow() {
        let api = Api::new(Arc::new(Fixed(Ok(report(1)))));
        let body = api.answer(tree(u64::MAX)).await.unwrap();
        let wanted = r#"{"value":4,"cacheValue":0,"frames":[{"name":"underThreshold","value":4,"cacheValue":0}]}"#;
        assert_eq!(body, wanted);
        assert_eq!(api.answer(Request::Pid).await.unwrap(), "42");
    }
}
