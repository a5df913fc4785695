//! Answers typed requests with typed replies or errors, independent of HTTP.
//!
//! A path selects a [`Route`], which parses the parameters into a request ([`Endpoint`]). A reply made from a report is
//! built once per (report, request) and shared by all clients that request it, so that many clients cost about as much
//! as one.

mod allocations;
mod cache;
mod call_tree;
mod cgroup;
mod chosen;
mod common;
mod diff;
mod events;
mod export;
mod files;
mod fixed;
mod functions;
mod growth;
mod health;
mod heap;
mod heap_diff;
mod mappings;
mod marks;
mod memory;
mod memory_budget;
mod metrics;
mod oom_kills;
mod open;
mod opened;
mod overview;
mod own;
mod poller;
mod processes;
mod provider;
mod query;
mod recorded;
mod reply;
mod reply_builder;
mod request;
mod route;
mod schema;
mod series;
mod shape;
mod source;
mod store;
mod summary;
mod v1;
mod view;

use std::sync::{Arc, Mutex};
use std::time::Instant;

use tokio::sync::Semaphore;

use crate::collect::ProviderError;
use crate::http::series::Series;
use events::Events;
use heap::Heaps;
pub(crate) use heap::write_heap;
use marks::{Mark, Marks};
use reply_builder::{Again, Queue, ReplyBuilder, Shown};

pub use futures_util::future::BoxFuture;
pub use marks::peak;
pub use memprof_profile::Report;
pub use opened::Opened;
pub use provider::Provider;
pub use recorded::Recorded;
pub use reply::{ApiError, Body, EVENTS, Reply};
pub use request::{Endpoint, Request, RequestParts};
pub use route::{Method, ROUTES, Route, SMALL_BODY};
pub use schema::OPENAPI_V2;

// The views that the offline page contains.
pub(super) use call_tree::Tree;
pub(super) use files::{Files, Stacks, id as file_id};
pub(super) use functions::Functions;
pub(super) use mappings::Maps;
pub(super) use memory_budget::Out;
pub(super) use overview::OverviewView;
pub(super) use summary::Summary;
pub(super) use view::View;

/// The OpenAPI document of the `/v1` routes.
pub(crate) const OPENAPI_V1: &str = include_str!("web/openapi-v1.json");

/// Maximum bytes of cached replies.
const CACHED: usize = 24 << 20;

/// Memory budget, in bytes, of all replies being built, cached or sent; further replies wait until earlier ones are
/// sent.
const ROOM: usize = 80 << 20;

/// Settings of the API.
#[derive(Clone, Copy, Debug, Default)]
pub struct ApiOptions {
    /// Number of functions that `/metrics` lists (`--metrics-functions`).
    pub metrics_functions: usize,
}

/// Answers requests.
pub struct Api {
    options: ApiOptions,
    provider: Arc<dyn Provider>,
    reply_builder: ReplyBuilder,
    /// Admits one request at a time to filter the sampled allocations, which takes seconds if there are many.
    filtering: Queue,
    marks: Marks,
    heaps: Heaps,
    /// Limits the large `/v1` replies that are being sent.
    streams: Arc<Semaphore>,
    series: Mutex<Series>,
    events: Events,
    started: Instant,
}

impl Api {
    /// Creates an API that takes its reports from `provider`.
    pub fn new(provider: Arc<dyn Provider>, options: ApiOptions) -> Arc<Api> {
        Api::with(provider, options, ReplyBuilder::new(CACHED, ROOM))
    }

    fn with(
        provider: Arc<dyn Provider>,
        options: ApiOptions,
        reply_builder: ReplyBuilder,
    ) -> Arc<Api> {
        Arc::new(Api {
            options,
            provider,
            reply_builder,
            filtering: Queue::default(),
            marks: Marks::default(),
            heaps: Heaps::default(),
            streams: Arc::new(Semaphore::new(v1::STREAMS)),
            series: Mutex::default(),
            events: Events::default(),
            started: Instant::now(),
        })
    }

    /// Ends event streams and waits for reply memory, for server shutdown.
    pub(crate) fn close(&self) {
        self.reply_builder.close();
        self.events.close();
    }

    /// Whether new replies wait for memory that replies to slow clients occupy.
    pub(crate) fn is_short_of_room(&self) -> bool {
        self.reply_builder.is_short()
    }

    /// The reply to a request. Needs a tokio runtime.
    ///
    /// # Errors
    /// [`ApiError::Unavailable`] if there is no report, [`ApiError::Internal`] if the reply cannot be built,
    /// and the request's own errors.
    pub async fn answer(&self, request: Request) -> Result<Reply, ApiError> {
        request.answer(self).await
    }

    fn provider(&self) -> &dyn Provider {
        self.provider.as_ref()
    }

    /// The recording of the target.
    ///
    /// # Errors
    /// [`ApiError::Failed`] if there is none.
    fn recorded(&self) -> Result<Arc<Recorded>, ApiError> {
        self.provider().recorded().ok_or_else(|| {
            let why = "nothing is recorded here: run memprof with --record FILE, or open a recording with `memprof open FILE`";
            ApiError::Failed(why.to_owned())
        })
    }

    /// The error for requests before there is a target.
    fn no_target(&self) -> ApiError {
        match self.provider().awaited() {
            Some(awaited) => ApiError::Unavailable(format!("waiting for {awaited}")),
            None => ProviderError::NoTarget.into(),
        }
    }

    /// The report of a mark, or the newest report.
    async fn state(&self, mark: Option<&Mark>) -> Result<Arc<Report>, ApiError> {
        match mark {
            Some(mark) => Ok(Arc::clone(&mark.report)),
            None => Ok(self.provider().profile().await?),
        }
    }

    /// Returns a function that fetches the report of a mark, or the newest report, again.
    fn state_again<'a>(
        &'a self,
        mark: Option<Mark>,
    ) -> impl Fn() -> BoxFuture<'a, Result<Arc<Report>, ApiError>> + Send + Sync + 'a {
        move || {
            let mark = mark.clone();
            Box::pin(async move { self.state(mark.as_ref()).await })
        }
    }

    /// Replies with a view of a report. `again` fetches the report again if it was dropped while the request waited.
    async fn show<'a>(
        &self,
        report: Arc<Report>,
        again: &Again<'a>,
        view: Arc<dyn View>,
    ) -> Result<Reply, ApiError> {
        let shown = Shown {
            sequence: report.sequence,
            report: Arc::downgrade(&report),
            again,
        };
        drop(report);
        let content_type = view.content_type();
        let made = self
            .reply_builder
            .shared(shown, view, self.provider())
            .await?;
        Ok(reply::made(content_type, made))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::export::tree::v1::{EMPTY_TREE, Short};
    use crate::testing::{at, kib, profile, symbols};
    use memprof_profile::Frame;
    use memprof_sys::ids::Pid;

    struct Fixed(Result<Arc<Report>, ProviderError>);

    impl Provider for Fixed {
        fn profile(&self) -> BoxFuture<'_, Result<Arc<Report>, ProviderError>> {
            Box::pin(async { self.0.clone() })
        }

        fn pid(&self) -> Option<Pid> {
            self.0.as_ref().ok().map(|r| r.profile.target.pid)
        }
    }

    /// A provider with numbered reports, each 4 KiB larger than the previous one.
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

    fn ask(path: &str, query: &str) -> Request {
        let given = RequestParts {
            query,
            ..RequestParts::default()
        };
        let (route, name) = Route::at(path).next().unwrap();
        route.request(name, given).unwrap()
    }

    fn tree(threshold: u64) -> Request {
        ask("/v1/tree", &format!("threshold={threshold}"))
    }

    async fn body(api: &Api, request: Request) -> bytes::Bytes {
        api.answer(request).await.unwrap().bytes()
    }

    #[tokio::test]
    async fn before_a_target_everything_is_empty() {
        let api = Api::new(
            Arc::new(Fixed(Err(ProviderError::NoTarget))),
            ApiOptions::default(),
        );
        assert_eq!(body(&api, tree(0)).await, EMPTY_TREE);
        assert_eq!(body(&api, ask("/v1/pid", "")).await, "0");
        let short = serde_json::to_string(&Short::default()).unwrap();
        assert_eq!(body(&api, ask("/v1/tree", "short=true")).await, short);
    }

    #[tokio::test]
    async fn failure_is_said() {
        let failed = ProviderError::Failed("smaps: permission denied".into());
        let api = Api::new(Arc::new(Fixed(Err(failed))), ApiOptions::default());
        let error = api.answer(tree(0)).await.unwrap_err();
        assert!(error.to_string().contains("smaps: permission denied"));
    }

    #[tokio::test]
    async fn a_reply_is_built_once_and_never_stale() {
        let provider = Arc::new(Growing::default());
        let api = Api::new(
            Arc::clone(&provider) as Arc<dyn Provider>,
            ApiOptions::default(),
        );
        provider.0.store(1, Ordering::Relaxed);
        let first = body(&api, tree(0)).await;
        let again = body(&api, tree(0)).await;
        assert_eq!(first.as_ptr(), again.as_ptr());
        assert_ne!(first, body(&api, tree(8)).await);
        provider.0.store(2, Ordering::Relaxed);
        let next = body(&api, tree(0)).await;
        assert!(
            std::str::from_utf8(&next)
                .unwrap()
                .starts_with(r#"{"value":8,"#)
        );
    }

    #[tokio::test]
    async fn who_asks_at_the_same_time_shares_one_build() {
        let api = Api::new(Arc::new(Fixed(Ok(report(1)))), ApiOptions::default());
        let mut asking = tokio::task::JoinSet::new();
        for number in 0..1000 {
            let api = Arc::clone(&api);
            let task = asking.spawn(async move { body(&api, tree(0)).await.as_ptr() as usize });
            // Some clients disconnect while they wait.
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
        // The budget fits three replies of up to 1 KiB; nothing is cached.
        let reply_builder = ReplyBuilder::new(0, 3 << 10);
        let api = Api::with(
            Arc::new(Fixed(Ok(report(1)))),
            ApiOptions::default(),
            reply_builder,
        );
        let mut under_way = Vec::new();
        for threshold in 0..3 {
            under_way.push(body(&api, tree(threshold)).await);
        }
        let mut further = std::pin::pin!(api.answer(tree(3)));
        let soon = std::time::Duration::from_millis(100);
        assert!(tokio::time::timeout(soon, &mut further).await.is_err());
        under_way.pop();
        further.await.unwrap();
    }

    /// A tree larger than the budget is written while it is sent, and equals a tree that fits.
    #[tokio::test]
    async fn a_tree_of_any_size_is_answered() {
        let stacks: Vec<Vec<Frame>> = (0..3_000)
            .map(|n| (0..20).map(|depth| at(0, 0x1000 + n * depth)).collect())
            .collect();
        let samples: Vec<_> = stacks.iter().map(|s| (s.as_slice(), kib(4, 0))).collect();
        let report = Arc::new(Report {
            profile: Arc::new(profile(&samples, &[])),
            symbols: Arc::new(symbols(&[])),
            sequence: 1,
        });
        let with_room = |room| {
            let provider = Arc::new(Fixed(Ok(Arc::clone(&report))));
            Api::with(provider, ApiOptions::default(), ReplyBuilder::new(0, room))
        };
        let whole = body(&with_room(ROOM), tree(0)).await;
        assert!(whole.len() > 4 << 20, "{}", whole.len());
        let api = with_room(1 << 20);
        let mut unread = Vec::new();
        for _ in 0..v1::STREAMS {
            unread.push(api.answer(tree(0)).await.unwrap());
        }
        let refused = api.answer(tree(0)).await.unwrap_err();
        assert!(matches!(refused, ApiError::Busy(_)), "{refused}");
        let Some(Body::Live(mut pieces)) = unread.pop().map(|reply| reply.body) else {
            panic!("the reply is not sent piece by piece");
        };
        drop(unread);
        let mut sent = Vec::new();
        while let Some(piece) = pieces.recv().await {
            assert!(piece.len() <= 64 << 10);
            sent.extend_from_slice(&piece);
        }
        assert!(sent == whole);
        // The streams of disconnected clients have ended as well.
        while api.streams.available_permits() < v1::STREAMS {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_huge_threshold_is_no_overflow() {
        let api = Api::new(Arc::new(Fixed(Ok(report(1)))), ApiOptions::default());
        let found = body(&api, tree(u64::MAX)).await;
        let wanted = r#"{"value":4,"cacheValue":0,"frames":[{"name":"underThreshold","value":4,"cacheValue":0}]}"#;
        assert_eq!(found, wanted);
        assert_eq!(body(&api, ask("/v1/pid", "")).await, "42");
    }
}
