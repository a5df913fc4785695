//! The memory budget of replies: limits the bytes of all replies being built, cached or sent.

use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::cache::Cache;
use super::{ApiError, ROOM};

/// Maximum time that a reply under construction waits for others to be sent.
const PATIENCE: Duration = Duration::from_secs(30);

/// Minimum and maximum bytes to take at once.
const STEP: (usize, usize) = (1 << 10, 1 << 20);

/// A memory budget for replies. Waiting for memory blocks the thread.
#[derive(Debug)]
pub(super) struct MemoryBudget {
    state: Mutex<BudgetState>,
    freed: Condvar,
    size: usize,
}

#[derive(Debug)]
struct BudgetState {
    free: usize,
    waiting: usize,
    closed: bool,
}

/// Bytes reserved from a budget; returned on drop.
#[derive(Debug)]
pub(super) struct Reservation {
    room: Arc<MemoryBudget>,
    bytes: usize,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.room.lock().free += self.bytes;
        self.room.freed.notify_all();
    }
}

impl MemoryBudget {
    /// A budget of `size` bytes.
    pub(super) fn new(size: usize) -> Arc<MemoryBudget> {
        let state = BudgetState {
            free: size,
            waiting: 0,
            closed: false,
        };
        Arc::new(MemoryBudget {
            state: Mutex::new(state),
            freed: Condvar::new(),
            size,
        })
    }

    fn lock(&self) -> MutexGuard<'_, BudgetState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a reply waits for memory.
    pub(super) fn is_short(&self) -> bool {
        self.lock().waiting > 0
    }

    /// Ends all waits.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.freed.notify_all();
    }

    /// Takes `bytes` if they are free.
    pub(super) fn try_take(self: &Arc<MemoryBudget>, bytes: usize) -> Option<Reservation> {
        let mut state = self.lock();
        state.free = state.free.checked_sub(bytes)?;
        Some(Reservation {
            room: Arc::clone(self),
            bytes,
        })
    }

    /// Takes `bytes`, and waits for them if necessary; `None` after [`PATIENCE`] or when the budget is closed.
    fn take(self: &Arc<MemoryBudget>, bytes: usize) -> Option<Reservation> {
        let end = Instant::now() + PATIENCE;
        let mut state = self.lock();
        state.waiting += 1;
        while state.free < bytes && !state.closed && Instant::now() < end {
            let left = end.saturating_duration_since(Instant::now());
            let woken = self.freed.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.waiting -= 1;
        state.free = state.free.checked_sub(bytes)?;
        Some(Reservation {
            room: Arc::clone(self),
            bytes,
        })
    }
}

/// Destination of a reply; reserves memory for everything written.
#[derive(Debug)]
pub(in crate::http) struct Out {
    body: Vec<u8>,
    held: Reservation,
    cache: Arc<Cache>,
    refused: Option<ApiError>,
}

impl Out {
    /// An empty reply; clears `cache` when the budget is exhausted.
    pub(super) fn new(room: &Arc<MemoryBudget>, cache: &Arc<Cache>) -> Out {
        let held = Reservation {
            room: Arc::clone(room),
            bytes: 0,
        };
        Out {
            body: Vec::new(),
            held,
            cache: Arc::clone(cache),
            refused: None,
        }
    }

    /// An empty reply with a budget of its own.
    pub(in crate::http) fn alone() -> Out {
        Out::new(&MemoryBudget::new(ROOM), &Arc::new(Cache::new(0)))
    }

    /// Reserves memory for `more` further bytes.
    fn grow(&mut self, more: usize) -> Result<(), ApiError> {
        let room = &self.held.room;
        let step = (room.size / 64).clamp(STEP.0, STEP.1);
        let wanted = (self.body.len() + more - self.held.bytes).next_multiple_of(step);
        if self.held.bytes + wanted > room.size {
            let most = room.size >> 20;
            return Err(ApiError::TooLarge(format!(
                "the reply would be larger than {most} MiB: reduce it with threshold, max_nodes, kind or \
                 pid if the path has these parameters, or write a profile to a file with --output"
            )));
        }
        let free = room.try_take(wanted).or_else(|| {
            self.cache.clear();
            room.take(wanted)
        });
        let mut further = free.ok_or_else(|| {
            ApiError::Busy(
                "large replies to other clients take all memory for replies: try again later"
                    .to_owned(),
            )
        })?;
        self.held.bytes += std::mem::take(&mut further.bytes);
        Ok(())
    }

    /// The finished reply; its memory returns to the budget when the last reader drops it.
    ///
    /// # Errors
    /// The reply did not fit the budget.
    pub(super) fn finish(mut self) -> Result<Bytes, ApiError> {
        if let Some(refused) = self.refused {
            return Err(refused);
        }
        self.body.shrink_to_fit();
        let (body, mut held) = (self.body, self.held);
        let surplus = held.bytes - body.len().next_multiple_of(STEP.0).min(held.bytes);
        held.bytes -= surplus;
        drop(Reservation {
            room: Arc::clone(&held.room),
            bytes: surplus,
        });
        Ok(Bytes::from_owner(Roomed { body, _held: held }))
    }
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_all(bytes).map(|()| bytes.len())
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.body.len() + bytes.len() > self.held.bytes
            && let Err(e) = self.grow(bytes.len())
        {
            let error = io::Error::other(e.to_string());
            self.refused = Some(e);
            return Err(error);
        }
        self.body.extend_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A reply with its reservation.
pub(super) struct Roomed {
    body: Vec<u8>,
    _held: Reservation,
}

impl Roomed {
    /// A small, complete reply whose memory is already reserved.
    pub(super) fn bytes(body: Vec<u8>, held: Reservation) -> Bytes {
        Bytes::from_owner(Roomed { body, _held: held })
    }
}

impl AsRef<[u8]> for Roomed {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(
        room: &Arc<MemoryBudget>,
        cache: &Arc<Cache>,
        bytes: usize,
    ) -> Result<Bytes, ApiError> {
        let mut out = Out::new(room, cache);
        let done = out.write_all(&vec![b'x'; bytes]);
        assert_eq!(done.is_err(), out.refused.is_some());
        out.finish()
    }

    #[test]
    fn room_is_taken_while_writing_and_given_back() {
        let (room, cache) = (MemoryBudget::new(64 << 10), Arc::new(Cache::new(1 << 20)));
        let first = written(&room, &cache, 40_000).unwrap();
        assert_eq!(
            room.lock().free,
            (64 << 10) - 40_000usize.next_multiple_of(1 << 10)
        );
        let copy = first.clone();
        drop(first);
        assert!(room.try_take(40_000).is_none());
        drop(copy);
        assert_eq!(room.lock().free, 64 << 10);
    }

    #[test]
    fn a_reply_that_has_no_room_at_all_is_refused() {
        let (room, cache) = (MemoryBudget::new(64 << 10), Arc::new(Cache::new(1 << 20)));
        let error = written(&room, &cache, 65 << 10).unwrap_err();
        assert!(matches!(error, ApiError::TooLarge(_)), "{error}");
        assert_eq!(room.lock().free, 64 << 10);
    }

    #[test]
    fn what_is_kept_makes_room_and_what_is_sent_is_waited_for() {
        let (room, cache) = (MemoryBudget::new(64 << 10), Arc::new(Cache::new(1 << 20)));
        let kept = written(&room, &cache, 40_000).unwrap();
        cache.cell(1, "kept").set((kept, None)).unwrap();
        let sent = written(&room, &cache, 40_000).unwrap();
        let waiting = std::thread::spawn({
            let (room, cache) = (Arc::clone(&room), Arc::clone(&cache));
            move || written(&room, &cache, 40_000).map(|body| body.len())
        });
        while !room.is_short() {
            std::thread::yield_now();
        }
        drop(sent);
        assert_eq!(waiting.join().unwrap(), Ok(40_000));
        assert!(!room.is_short());
    }

    #[test]
    fn at_the_end_nobody_waits() {
        let (room, cache) = (MemoryBudget::new(64 << 10), Arc::new(Cache::new(1 << 20)));
        let _sent = written(&room, &cache, 40_000).unwrap();
        room.close();
        let error = written(&room, &cache, 40_000).unwrap_err();
        assert!(matches!(error, ApiError::Busy(_)), "{error}");
    }
}
