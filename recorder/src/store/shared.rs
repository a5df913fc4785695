//! State that the writer shares with the readers: which segments there are, and what went wrong.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::error::StoreError;
use super::pool::Pool;
use super::queue::{Queue, QueueStatus};
use super::segment::{Family, Segment};
use super::settings::Settings;

/// Ids that the next message and the next line of the log will have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heads {
    /// The id of the next message.
    pub messages: u64,
    /// The id of the next line.
    pub logs: u64,
}

/// Committed segments, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Catalog {
    pub(super) messages: Arc<Vec<Segment>>,
    pub(super) logs: Arc<Vec<Segment>>,
    pub(super) heads: Heads,
    /// Size of the file with connections.
    pub(super) main_bytes: u64,
}

impl Catalog {
    pub(super) fn of(&self, family: Family) -> &Arc<Vec<Segment>> {
        match family {
            Family::Messages => &self.messages,
            Family::Logs => &self.logs,
        }
    }

    pub(super) fn of_mut(&mut self, family: Family) -> &mut Vec<Segment> {
        Arc::make_mut(match family {
            Family::Messages => &mut self.messages,
            Family::Logs => &mut self.logs,
        })
    }
}

/// The state of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// The queue, and what did not fit into it.
    pub queue: QueueStatus,
    /// Number of entries that could not be written.
    pub failed: u64,
    /// Number of errors, of writing and of reading.
    pub errors: u64,
    /// The last error.
    pub last_error: Option<String>,
    /// Files that are damaged, and are not read.
    pub damaged: Vec<PathBuf>,
    /// Number of files of messages and logs.
    pub segments: u64,
    /// Size on disk, in bytes.
    pub bytes: u64,
}

/// Problems so far.
#[derive(Debug, Default)]
struct Problems {
    failed: u64,
    errors: u64,
    last_error: Option<String>,
    damaged: Vec<PathBuf>,
}

/// State that all parts of a store share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) dir: PathBuf,
    pub(super) settings: Settings,
    pub(super) queue: Queue,
    pub(super) pool: Pool,
    pub(super) heads: watch::Sender<Heads>,
    catalog: Mutex<Catalog>,
    problems: Mutex<Problems>,
}

impl Shared {
    pub(super) fn new(dir: &Path, settings: Settings) -> Self {
        Self {
            dir: dir.to_path_buf(),
            queue: Queue::new(&settings),
            pool: Pool::default(),
            heads: watch::Sender::default(),
            catalog: Mutex::default(),
            problems: Mutex::default(),
            settings,
        }
    }

    /// The file with connections.
    pub(super) fn main(&self) -> PathBuf {
        self.dir.join("main.db")
    }

    /// The segments at this moment.
    pub(super) fn catalog(&self) -> Catalog {
        let catalog = self.catalog.lock();
        catalog.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Shows readers what is committed.
    pub(super) fn publish(&self, catalog: &Catalog) {
        let mut published = self.catalog.lock().unwrap_or_else(PoisonError::into_inner);
        *published = catalog.clone();
        drop(published);
        self.heads.send_if_modified(|heads| {
            let changed = *heads != catalog.heads;
            *heads = catalog.heads;
            changed
        });
    }

    fn problems(&self) -> MutexGuard<'_, Problems> {
        self.problems.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an error.
    pub(super) fn note(&self, error: &StoreError) {
        let mut problems = self.problems();
        problems.errors += 1;
        problems.last_error = Some(error.to_string());
    }

    /// Counts entries that could not be written.
    pub(super) fn note_failed(&self, entries: usize) {
        self.problems().failed += entries as u64;
    }

    /// Notes that a file is damaged.
    pub(super) fn note_damaged(&self, path: &Path) {
        let mut problems = self.problems();
        if !problems.damaged.iter().any(|known| known == path) {
            problems.damaged.push(path.to_path_buf());
        }
    }

    /// Forgets a file that was deleted.
    pub(super) fn forget(&self, path: &Path) {
        self.pool.forget(path);
        self.problems().damaged.retain(|known| known != path);
    }

    pub(super) fn health(&self) -> Health {
        let catalog = self.catalog();
        let segments = catalog.messages.iter().chain(catalog.logs.iter());
        let problems = self.problems();
        Health {
            queue: self.queue.status(),
            failed: problems.failed,
            errors: problems.errors,
            last_error: problems.last_error.clone(),
            damaged: problems.damaged.clone(),
            segments: segments.clone().count() as u64,
            bytes: segments.map(|segment| segment.bytes).sum::<u64>() + catalog.main_bytes,
        }
    }
}
