//! Replies of bounded memory: all that are being made or sent share one budget.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use memprof_server::Reply;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::failure::Failure;

/// The content type of JSON.
pub(super) const JSON: &str = "application/json";

/// Memory of all replies that are being made or sent, in KiB.
const LIMIT: usize = 64 << 10;

/// A budget for the memory of all replies.
#[derive(Debug)]
pub(super) struct ReplyBudget {
    free: Arc<Semaphore>,
    waiting: AtomicUsize,
}

/// A part of the budget, which is free again when it is dropped.
#[derive(Debug)]
pub(super) struct Reservation(OwnedSemaphorePermit);

impl Default for ReplyBudget {
    fn default() -> Self {
        Self {
            free: Arc::new(Semaphore::new(LIMIT)),
            waiting: AtomicUsize::new(0),
        }
    }
}

impl ReplyBudget {
    /// Waits for so many bytes, at most a fourth of the budget.
    pub(super) async fn take(&self, bytes: usize) -> Result<Reservation, Failure> {
        struct Waiting<'a>(&'a AtomicUsize);
        impl Drop for Waiting<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::Relaxed);
            }
        }
        let kib = bytes.div_ceil(1 << 10).min(LIMIT / 4) as u32;
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let _waiting = Waiting(&self.waiting);
        let taken = Arc::clone(&self.free).acquire_many_owned(kib).await;
        taken
            .map(Reservation)
            .map_err(|_| Failure::Busy("the recorder is stopping"))
    }

    /// Whether replies wait.
    pub(super) fn is_short(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Lets nothing wait any more.
    pub(super) fn close(&self) {
        self.free.close();
    }
}

impl Reservation {
    /// The bytes, which hold no more of the budget than they need.
    pub(super) fn bytes(mut self, body: Vec<u8>) -> Bytes {
        struct Body {
            bytes: Vec<u8>,
            _reservation: Reservation,
        }
        impl AsRef<[u8]> for Body {
            fn as_ref(&self) -> &[u8] {
                &self.bytes
            }
        }
        let needed = body.len().div_ceil(1 << 10);
        let surplus = self.0.num_permits().saturating_sub(needed);
        drop(self.0.split(surplus));
        Bytes::from_owner(Body {
            bytes: body,
            _reservation: self,
        })
    }
}

/// A reply of JSON text.
pub(super) fn json_text(body: impl Into<Bytes>) -> Reply {
    Reply::new(JSON, body)
}

/// A small reply of JSON.
pub(super) fn json(value: &impl Serialize) -> Result<Reply, Failure> {
    Ok(json_text(serde_json::to_vec(value).map_err(internal)?))
}

pub(super) fn internal(error: impl fmt::Display) -> Failure {
    Failure::Internal(error.to_string())
}
