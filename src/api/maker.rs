//! Makes replies: each once, a few at a time, and no more bytes of them than there is room for.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::cache::Cache;
use super::reply::internal;
use super::view::View;
use super::{ApiError, BUILDS, Provider, Report};

/// Bytes that one permit of [`Maker::room`] stands for.
const UNIT: usize = 1 << 10;

pub(super) struct Maker {
    cache: Cache,
    builds: Arc<Semaphore>,
    room: Arc<Semaphore>,
    /// The most that one reply takes of the room, in units: what is kept beside it stays possible.
    largest: u32,
}

/// A reply that gives its room back when the last who reads it is done.
struct Roomed {
    body: Vec<u8>,
    _room: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Roomed {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

impl Maker {
    /// Keeps `cached` bytes of replies, and has room for `room` bytes in all.
    pub(super) fn new(cached: usize, room: usize) -> Maker {
        let units = room / UNIT;
        let largest = units.saturating_sub(cached.div_ceil(UNIT)).max(1);
        Maker {
            cache: Cache::new(cached),
            builds: Arc::new(Semaphore::new(BUILDS)),
            room: Arc::new(Semaphore::new(units)),
            largest: u32::try_from(largest).unwrap_or(u32::MAX),
        }
    }

    /// The reply that all who ask the same of the same report share. Whoever asks first makes it;
    /// when he goes away, the next one who waits does.
    pub(super) async fn shared(
        &self,
        report: Arc<Report>,
        view: Arc<dyn View>,
        provider: &dyn Provider,
    ) -> Result<Bytes, ApiError> {
        let cell = self.cache.cell(report.sequence, &format!("{view:?}"));
        let body = cell
            .get_or_try_init(|| self.make(report, view, provider))
            .await?;
        Ok(body.clone())
    }

    /// Makes a reply on a thread where that may take its time, then waits until it has room.
    async fn make(
        &self,
        mut report: Arc<Report>,
        view: Arc<dyn View>,
        provider: &dyn Provider,
    ) -> Result<Bytes, ApiError> {
        if view.needs_lines() {
            report = provider.with_lines(report).await?;
        }
        let turn = Arc::clone(&self.builds).acquire_owned().await;
        let turn = turn.map_err(internal)?;
        // The turn goes along: the thread works on even when nobody waits for it any more.
        let made = tokio::task::spawn_blocking(move || (body(&report, view.as_ref()), turn));
        let (body, _turn) = made.await.map_err(internal)?;
        let body = body?;
        self.cache.trim();
        let units = u32::try_from(body.len().div_ceil(UNIT)).unwrap_or(u32::MAX);
        let units = units.min(self.largest);
        let room = Arc::clone(&self.room).acquire_many_owned(units).await;
        let _room = room.map_err(internal)?;
        Ok(Bytes::from_owner(Roomed { body, _room }))
    }
}

fn body(report: &Report, view: &dyn View) -> Result<Vec<u8>, ApiError> {
    let mut out = Vec::new();
    view.write(report, &mut out)?;
    out.shrink_to_fit();
    Ok(out)
}
