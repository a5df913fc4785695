//! The store of a node: connections, chunks, messages and logs, in SQLite.
//!
//! One thread writes [`Entry`]s; readers have connections of their own and take [`MessageQuery`]s and [`LogQuery`]s.
//!
//! ```text
//!   Writer::put ── queue ── writer ── connections            main.db
//!                             ├────── family ── insert       messages-NUMBER-FIRST.db, logs-NUMBER-FIRST.db
//!                           shared    which segments there are, what went wrong
//!   Reader ───────────────────┴────── filter, search ── pool
//! ```
//!
//! Rows are in segments, files of bounded size, of which the oldest are deleted beyond the limits. Ids of messages and of lines are
//! dense, begin at 0, and go on after a restart.

mod bounds;
mod connections;
mod details;
mod entry;
mod error;
mod family;
mod filter;
mod insert;
mod lists;
mod lock;
mod message;
mod pool;
mod query;
mod queue;
mod reader;
mod rows;
mod schema;
mod search;
mod segment;
mod settings;
mod shared;
mod summary;
mod values;
mod writer;

use std::fs::File;
use std::path::{self, Path};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use nix::fcntl::Flock;
use tokio::sync::watch;

pub use entry::{
    ChunkEntry, ConnectionEntry, ConnectionId, ConnectionStatus, Entry, Level, LogEntry,
    MessageEntry,
};
pub use error::{StoreError, StoreResult};
pub use lists::Totals;
pub use query::{
    ChunkQuery, ConnectionQuery, Direction, LogQuery, LogRow, MessageDetails, MessageQuery,
    MessageRow, Position,
};
pub use queue::QueueStatus;
pub use reader::{Counts, Found, Reader};
pub use settings::{Keep, Settings};
pub use shared::{Heads, Health};
pub use writer::Writer;

use shared::Shared;
use writer::WriterThread;

/// The store of a node. Ends when it is dropped, as by [`Store::close`].
#[derive(Debug)]
pub struct Store {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// Released last.
    _lock: Flock<File>,
}

impl Store {
    /// Opens the store in a directory, which is created if there is none, and starts to write.
    ///
    /// # Errors
    ///
    /// If another recorder uses the directory, if it has other files or such of a newer version, or if the system refuses. Damaged
    /// files are no error: they are set aside, and [`Store::health`] tells which.
    pub fn open(dir: &Path, settings: Settings) -> Result<Self, StoreError> {
        // The working directory may change.
        let dir = &path::absolute(dir).map_err(StoreError::io("find", dir))?;
        let lock = lock::lock(dir)?;
        let shared = Arc::new(Shared::new(dir, settings));
        let writer = WriterThread::open(&shared)?;
        let thread = thread::Builder::new()
            .name("store".into())
            .spawn(|| writer.run());
        let thread = thread.map_err(StoreError::io("start the writer of", dir))?;
        Ok(Self {
            shared,
            thread: Some(thread),
            _lock: lock,
        })
    }

    /// Gives entries.
    pub fn writer(&self) -> Writer {
        Writer(self.shared.clone())
    }

    /// Asks questions.
    ///
    /// # Errors
    ///
    /// None so far: files are opened when they are needed.
    pub fn reader(&self) -> Result<Reader, StoreError> {
        Ok(Reader(self.shared.clone()))
    }

    /// The ids that come next, after each commit.
    pub fn subscribe(&self) -> watch::Receiver<Heads> {
        self.shared.heads.subscribe()
    }

    /// How the store is.
    pub fn health(&self) -> Health {
        self.shared.health()
    }

    /// Writes what waits, and ends.
    pub fn close(self) {
        drop(self);
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.shared.queue.close();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was already printed.
            let _ = thread.join();
        }
        self.shared.pool.clear();
    }
}
