//! Builds replies: each reply once, one at a time, within the memory budget for replies.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::cache::Cache;
use super::memory_budget::{MemoryBudget, Out, Reservation};
use super::reply::internal;
use super::view::View;
use super::{ApiError, BoxFuture, Provider};
use memprof_profile::Report;
use memprof_sys::allocator;

/// Maximum number of queued replies, all for different requests: few enough that the last one is built before its
/// client times out.
const QUEUED: usize = 64;

/// Memory budget of light replies, in bytes. Metrics are polled too often to wait for trees.
const LIGHT_ROOM: usize = 16 << 20;

/// A reply counts as large, and so as memory-intensive, if it has at least `LARGE` bytes or takes at least `LONG` to
/// build.
const LARGE: usize = 1 << 20;
const LONG: Duration = Duration::from_millis(20);

/// Time after the last large reply until the allocator returns free memory to the kernel: once per series of replies.
const QUIET: Duration = Duration::from_secs(1);

/// A reply and the file name to save it under.
pub(super) type NamedReply = (Bytes, Option<String>);

/// Fetches a report again, or a newer one.
pub(super) type Again<'a> =
    dyn Fn() -> BoxFuture<'a, Result<Arc<Report>, ApiError>> + Send + Sync + 'a;

/// A report to show. Queued requests do not keep their reports alive, because each may be a different one.
pub(super) struct Shown<'s, 'a> {
    pub(super) sequence: u64,
    pub(super) report: Weak<Report>,
    pub(super) again: &'s Again<'a>,
}

pub(super) struct ReplyBuilder {
    cache: Arc<Cache>,
    heavy: Lane,
    light: Lane,
    /// Number of large replies so far.
    large: Arc<AtomicU64>,
}

/// Builds one reply at a time.
struct Lane {
    queue: Queue,
    room: Arc<MemoryBudget>,
}

/// Admits requests one at a time. A few wait; further requests are refused.
pub(super) struct Queue {
    turn: Arc<Semaphore>,
    places: Arc<Semaphore>,
}

/// Permits to build a reply and to occupy a place in the queue.
pub(super) type Turn = (OwnedSemaphorePermit, OwnedSemaphorePermit);

impl Lane {
    fn new(room: usize) -> Lane {
        Lane {
            queue: Queue::default(),
            room: MemoryBudget::new(room),
        }
    }
}

impl Default for Queue {
    fn default() -> Queue {
        Queue {
            turn: Arc::new(Semaphore::new(1)),
            places: Arc::new(Semaphore::new(QUEUED + 1)),
        }
    }
}

impl Queue {
    /// Waits for the caller's turn, which lasts until the returned value is dropped.
    ///
    /// # Errors
    /// [`ApiError::Busy`]: too many requests are waiting.
    pub(super) async fn turn(&self) -> Result<Turn, ApiError> {
        let place = Arc::clone(&self.places).try_acquire_owned();
        let place = place.map_err(|_| {
            ApiError::Busy(format!(
                "{QUEUED} other requests are queued: try again later"
            ))
        })?;
        let turn = Arc::clone(&self.turn).acquire_owned().await;
        Ok((turn.map_err(internal)?, place))
    }
}

impl ReplyBuilder {
    /// A builder that caches up to `cached` bytes of replies and uses up to `room` bytes in total.
    pub(super) fn new(cached: usize, room: usize) -> ReplyBuilder {
        ReplyBuilder {
            cache: Arc::new(Cache::new(cached)),
            heavy: Lane::new(room),
            light: Lane::new(LIGHT_ROOM),
            large: Arc::default(),
        }
    }

    /// Whether a reply waits for memory until other replies are sent.
    pub(super) fn is_short(&self) -> bool {
        self.heavy.room.is_short() || self.light.room.is_short()
    }

    /// Ends all waits for memory, for server shutdown.
    pub(super) fn close(&self) {
        self.heavy.room.close();
        self.light.room.close();
    }

    /// Reserves memory for a small reply of `bytes` bytes.
    ///
    /// # Errors
    /// [`ApiError::Busy`] if the budget is exhausted.
    pub(super) fn room(&self, bytes: usize) -> Result<Reservation, ApiError> {
        let room = &self.heavy.room;
        let free = room.try_take(bytes).or_else(|| {
            self.cache.clear();
            room.try_take(bytes)
        });
        free.ok_or_else(|| {
            ApiError::Busy("too many large replies are being sent: try again later".to_owned())
        })
    }

    /// The reply shared by equal requests for the same report. The first request builds it; if its client
    /// disconnects, the next waiting request does.
    pub(super) async fn shared(
        &self,
        shown: Shown<'_, '_>,
        view: Arc<dyn View>,
        provider: &dyn Provider,
    ) -> Result<NamedReply, ApiError> {
        let cell = self.cache.cell(shown.sequence, &format!("{view:?}"));
        let made = cell
            .get_or_try_init(|| self.make(shown, view, provider))
            .await?;
        Ok(made.clone())
    }

    /// Builds a reply on a blocking thread when its turn comes.
    pub(super) async fn make(
        &self,
        shown: Shown<'_, '_>,
        view: Arc<dyn View>,
        provider: &dyn Provider,
    ) -> Result<NamedReply, ApiError> {
        let lane = match view.is_light() {
            true => &self.light,
            false => &self.heavy,
        };
        let turn = lane.queue.turn().await?;
        let report = match shown.report.upgrade() {
            Some(report) => report,
            None => (shown.again)().await?,
        };
        let (report, view) = with_lines(report, view, provider).await?;
        let out = Out::new(&lane.room, &self.cache);
        // The thread holds the turn: it continues even if all clients have disconnected.
        let made = tokio::task::spawn_blocking(move || {
            let start = Instant::now();
            let name = view.file_name(&report);
            let body = view.body(&report, out);
            drop((report, view));
            let large = body.as_ref().is_ok_and(|body| body.len() >= LARGE);
            let large = large || start.elapsed() >= LONG;
            (body.map(|body| (body, name)), large, turn)
        });
        let (made, large, _turn) = made.await.map_err(internal)?;
        self.cache.trim();
        if large {
            self.give_back_later();
        }
        made
    }

    /// Returns free memory to the kernel after [`QUIET`]. If another large reply follows sooner, that reply takes over
    /// the task.
    fn give_back_later(&self) {
        let number = self.large.fetch_add(1, Ordering::Relaxed) + 1;
        let newest = Arc::clone(&self.large);
        tokio::spawn(async move {
            tokio::time::sleep(QUIET).await;
            if newest.load(Ordering::Relaxed) == number {
                // Not awaited.
                drop(tokio::task::spawn_blocking(allocator::give_back));
            }
        });
    }
}

/// The report and its baseline, with source lines if the view needs them.
async fn with_lines(
    report: Arc<Report>,
    view: Arc<dyn View>,
    provider: &dyn Provider,
) -> Result<(Arc<Report>, Arc<dyn View>), ApiError> {
    if !view.needs_lines() {
        return Ok((report, view));
    }
    let lines = |report: Arc<Report>| async {
        match report.symbols.is_final() {
            true => Ok(report),
            false => provider.with_lines(report).await,
        }
    };
    let report = lines(report).await?;
    let Some(baseline) = view.baseline() else {
        return Ok((report, view));
    };
    let baseline = lines(baseline).await?;
    let compared = view.compared_with(baseline);
    Ok((report, compared.unwrap_or(view)))
}
