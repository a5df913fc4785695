//! The queue between the thread that reads captured bytes and a worker. Putting never waits: bytes for which there is no room are
//! dropped and counted, and their offsets make them a gap of exact size.

use std::collections::{HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::captured::{Captured, Socket, What};
use crate::connection::Nodes;
use crate::reconnect::Note;
use crate::side::{Both, Side};
use crate::time::Timestamp;

/// What an entry of the queue takes beside its bytes.
const OVERHEAD: usize = size_of::<Owned>();

/// Something for a worker.
#[derive(Debug)]
pub enum Task {
    /// Something that was captured.
    Captured(Owned),
    /// An identity was found: these are the nodes now.
    Nodes(Arc<Nodes>),
    /// These sockets are open, and no others.
    Open(Arc<HashSet<Socket>>),
    /// A node was asked to drop the peer of a connection.
    Note(Note),
    /// The recorder ends.
    Stop,
}

/// Captured bytes, or a change of a connection.
#[derive(Debug)]
pub struct Owned {
    socket: Socket,
    time: Timestamp,
    local: SocketAddr,
    remote: SocketAddr,
    what: OwnedWhat,
}

#[derive(Debug)]
enum OwnedWhat {
    Opened {
        initiator: Option<Side>,
    },
    Data {
        sender: Side,
        offset: u64,
        in_order: u64,
        data: Box<[u8]>,
        initiator: Option<Side>,
    },
    Closed {
        sent: Both<Option<u64>>,
    },
}

impl Owned {
    fn copy(captured: &Captured<'_>) -> Self {
        let what = match captured.what {
            What::Opened { initiator } => OwnedWhat::Opened { initiator },
            What::Data {
                sender,
                offset,
                in_order,
                data,
                initiator,
            } => OwnedWhat::Data {
                sender,
                offset,
                in_order,
                data: data.into(),
                initiator,
            },
            What::Closed { sent } => OwnedWhat::Closed { sent },
        };
        Self {
            socket: captured.socket,
            time: captured.time,
            local: captured.local,
            remote: captured.remote,
            what,
        }
    }

    /// A view of it.
    pub fn captured(&self) -> Captured<'_> {
        let what = match &self.what {
            OwnedWhat::Opened { initiator } => What::Opened {
                initiator: *initiator,
            },
            OwnedWhat::Data {
                sender,
                offset,
                in_order,
                data,
                initiator,
            } => What::Data {
                sender: *sender,
                offset: *offset,
                in_order: *in_order,
                data,
                initiator: *initiator,
            },
            OwnedWhat::Closed { sent } => What::Closed { sent: *sent },
        };
        Captured {
            socket: self.socket,
            time: self.time,
            local: self.local,
            remote: self.remote,
            what,
        }
    }

    fn size(&self) -> usize {
        let data = match &self.what {
            OwnedWhat::Data { data, .. } => data.len(),
            _ => 0,
        };
        OVERHEAD + data
    }
}

impl std::ops::Add for Dropped {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            records: self.records + other.records,
            bytes: self.bytes + other.bytes,
        }
    }
}

/// The queue of a worker.
#[derive(Debug)]
pub struct Queue {
    limit: usize,
    inner: Mutex<Inner>,
    filled: Condvar,
}

#[derive(Debug, Default)]
struct Inner {
    tasks: VecDeque<Task>,
    size: usize,
    dropped: Dropped,
}

/// Captured bytes for which there was no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Number of records.
    pub records: u64,
    /// Number of bytes.
    pub bytes: u64,
}

impl Queue {
    /// A queue that holds about `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            inner: Mutex::default(),
            filled: Condvar::new(),
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a copy of something captured. Beginnings and ends of connections always have room: their number is that of the
    /// connections.
    pub fn put_captured(&self, captured: &Captured<'_>) {
        let owned = Owned::copy(captured);
        let size = owned.size();
        let mut inner = self.inner();
        if let What::Data { data, .. } = captured.what
            && inner.size + size > self.limit
        {
            inner.dropped.records += 1;
            inner.dropped.bytes += data.len() as u64;
            return;
        }
        inner.size += size;
        inner.tasks.push_back(Task::Captured(owned));
        drop(inner);
        self.filled.notify_one();
    }

    /// Puts another task, which always has room.
    pub fn put(&self, task: Task) {
        self.inner().tasks.push_back(task);
        self.filled.notify_one();
    }

    /// Takes all tasks, after waiting for the first one for at most `wait`.
    pub fn take(&self, wait: Duration) -> VecDeque<Task> {
        let inner = self.inner();
        let empty = |inner: &mut Inner| inner.tasks.is_empty();
        let waited = self.filled.wait_timeout_while(inner, wait, empty);
        let (mut inner, _) = waited.unwrap_or_else(PoisonError::into_inner);
        inner.size = 0;
        std::mem::take(&mut inner.tasks)
    }

    /// What was dropped so far.
    pub fn dropped(&self) -> Dropped {
        self.inner().dropped
    }
}
