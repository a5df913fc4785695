//! Makes replies: each once, one at a time, and no more bytes of them than there is room for.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::cache::Cache;
use super::reply::internal;
use super::room::{Out, Reservation, Room};
use super::view::View;
use super::{ApiError, BoxFuture, Provider, Report};
use crate::allocator;

/// Replies that wait for their turn, all of different requests: so long that the last one has its turn
/// before its client's time is up.
const QUEUED: usize = 64;

/// What is asked so often that it waits for no tree: metrics. Bytes of such replies.
const LIGHT_ROOM: usize = 16 << 20;

/// A reply took much memory when it has so many bytes, or took so long to make.
const LARGE: usize = 1 << 20;
const LONG: Duration = Duration::from_millis(20);

/// How long after the last such reply the allocator is searched for freed memory to give back: once for
/// many replies in a row.
const QUIET: Duration = Duration::from_secs(1);

/// A reply, and the name to store it under.
pub(super) type Made = (Bytes, Option<String>);

/// Gets a report anew, or a newer one.
pub(super) type Again<'a> =
    dyn Fn() -> BoxFuture<'a, Result<Arc<Report>, ApiError>> + Send + Sync + 'a;

/// A report that is shown. Requests that wait keep no report alive: each may be of another moment.
pub(super) struct Shown<'s, 'a> {
    pub(super) sequence: u64,
    pub(super) report: Weak<Report>,
    pub(super) again: &'s Again<'a>,
}

pub(super) struct ReplyBuilder {
    cache: Arc<Cache>,
    heavy: Lane,
    light: Lane,
    /// How many replies took much memory so far.
    large: Arc<AtomicU64>,
}

/// Where one reply is made at a time.
struct Lane {
    turn: Arc<Semaphore>,
    places: Arc<Semaphore>,
    room: Arc<Room>,
}

/// The right to make a reply, and the place in the queue.
type Turn = (OwnedSemaphorePermit, OwnedSemaphorePermit);

impl Lane {
    fn new(room: usize) -> Lane {
        Lane {
            turn: Arc::new(Semaphore::new(1)),
            places: Arc::new(Semaphore::new(QUEUED + 1)),
            room: Room::new(room),
        }
    }

    /// # Errors
    /// [`ApiError::Busy`]: too many wait already.
    async fn turn(&self) -> Result<Turn, ApiError> {
        let place = Arc::clone(&self.places).try_acquire_owned();
        let place = place.map_err(|_| {
            ApiError::Busy(format!("{QUEUED} other replies wait to be made: try again"))
        })?;
        let turn = Arc::clone(&self.turn).acquire_owned().await;
        Ok((turn.map_err(internal)?, place))
    }
}

impl ReplyBuilder {
    /// Keeps `cached` bytes of replies, and has room for `room` bytes in all.
    pub(super) fn new(cached: usize, room: usize) -> ReplyBuilder {
        ReplyBuilder {
            cache: Arc::new(Cache::new(cached)),
            heavy: Lane::new(room),
            light: Lane::new(LIGHT_ROOM),
            large: Arc::default(),
        }
    }

    /// Whether a reply waits for others to have been sent.
    pub(super) fn is_short(&self) -> bool {
        self.heavy.room.is_short() || self.light.room.is_short()
    }

    /// Lets no reply wait for room any more: the server ends.
    pub(super) fn close(&self) {
        self.heavy.room.close();
        self.light.room.close();
    }

    /// Room for a small reply of so many bytes.
    ///
    /// # Errors
    /// [`ApiError::Busy`]: there is none.
    pub(super) fn room(&self, bytes: usize) -> Result<Reservation, ApiError> {
        let room = &self.heavy.room;
        let free = room.try_take(bytes).or_else(|| {
            self.cache.clear();
            room.try_take(bytes)
        });
        free.ok_or_else(|| ApiError::Busy("other replies are on their way: try again".to_owned()))
    }

    /// The reply that all who ask the same of the same report share. Whoever asks first makes it;
    /// when he goes away, the next one who waits does.
    pub(super) async fn shared(
        &self,
        shown: Shown<'_, '_>,
        view: Arc<dyn View>,
        provider: &dyn Provider,
    ) -> Result<Made, ApiError> {
        let cell = self.cache.cell(shown.sequence, &format!("{view:?}"));
        let made = cell
            .get_or_try_init(|| self.make(shown, view, provider))
            .await?;
        Ok(made.clone())
    }

    /// Makes a reply on a thread where that may take its time, once it is its turn.
    async fn make(
        &self,
        shown: Shown<'_, '_>,
        view: Arc<dyn View>,
        provider: &dyn Provider,
    ) -> Result<Made, ApiError> {
        let lane = match view.is_light() {
            true => &self.light,
            false => &self.heavy,
        };
        let turn = lane.turn().await?;
        let report = match shown.report.upgrade() {
            Some(report) => report,
            None => (shown.again)().await?,
        };
        let (report, view) = with_lines(report, view, provider).await?;
        let mut out = Out::new(&lane.room, &self.cache);
        // The turn goes along: the thread works on even when nobody waits for it any more.
        let made = tokio::task::spawn_blocking(move || {
            let start = Instant::now();
            let name = view.file_name(&report);
            let written = view.write(&report, &mut out);
            // Of the two, the reason why there was no room says more.
            let body = out.finish().and_then(|body| written.map(|()| body));
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

    /// Gives freed memory back unless there is another large reply soon, which will.
    fn give_back_later(&self) {
        let number = self.large.fetch_add(1, Ordering::Relaxed) + 1;
        let newest = Arc::clone(&self.large);
        tokio::spawn(async move {
            tokio::time::sleep(QUIET).await;
            if newest.load(Ordering::Relaxed) == number {
                // When it ends is nobody's business.
                drop(tokio::task::spawn_blocking(allocator::give_back));
            }
        });
    }
}

/// The report and what it is compared with, with source lines where the view needs them.
async fn with_lines(
    report: Arc<Report>,
    view: Arc<dyn View>,
    provider: &dyn Provider,
) -> Result<(Arc<Report>, Arc<dyn View>), ApiError> {
    if !view.needs_lines() {
        return Ok((report, view));
    }
    let report = provider.with_lines(report).await?;
    let Some(baseline) = view.baseline() else {
        return Ok((report, view));
    };
    let baseline = provider.with_lines(baseline).await?;
    let compared = view.compared_with(baseline);
    Ok((report, compared.unwrap_or(view)))
}
