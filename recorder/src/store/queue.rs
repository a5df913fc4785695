//! The queue before the writer: bounded by entries and by bytes, so that a slow disk never slows the capture.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::entry::{ConnectionEntry, Entry};
use super::settings::Settings;

/// Number of entries that are written at once.
pub(super) const BATCH_ENTRIES: usize = 1000;
/// Size of the entries that are written at once, in bytes; one entry may be larger.
pub(super) const BATCH_BYTES: usize = 4 << 20;
/// How long an entry waits for others.
const BATCH_TIME: Duration = Duration::from_millis(200);

/// Entries that wait to be written.
#[derive(Debug)]
pub(super) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    max_entries: usize,
    max_bytes: usize,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Entry>,
    /// When the first of these came.
    since: Option<Instant>,
    /// Of those that wait and those that are being written.
    entries: usize,
    bytes: usize,
    dropped: u64,
    dropped_bytes: u64,
    /// Number of entries that were ever put, that were ever done, and that shall be done at once.
    put: u64,
    done: u64,
    urgent: u64,
    closed: bool,
    /// Nobody takes entries any more.
    ended: bool,
}

/// How full the queue is, and how much did not fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueStatus {
    /// Number of entries that are not committed yet.
    pub entries: u64,
    /// Size of these entries, in bytes.
    pub bytes: u64,
    /// Number of entries that did not fit, and were dropped.
    pub dropped: u64,
    /// Size of the dropped entries, in bytes.
    pub dropped_bytes: u64,
}

impl Queue {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            state: Mutex::default(),
            changed: Condvar::new(),
            max_entries: settings.queue_entries,
            max_bytes: settings.queue_bytes,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends an entry, unless it does not fit; then it is counted as dropped. An entry too large for the queue fits into an empty
    /// one.
    pub(super) fn put(&self, entry: Entry) -> bool {
        let size = size(&entry);
        let mut state = self.state();
        let full = state.entries >= self.max_entries || state.bytes + size > self.max_bytes;
        if state.closed || full && state.entries > 0 {
            state.dropped += 1;
            state.dropped_bytes += size as u64;
            return false;
        }
        state.waiting.push_back(entry);
        state.put += 1;
        state.entries += 1;
        state.bytes += size;
        let first = state.since.is_none();
        if first {
            state.since = Some(Instant::now());
        }
        let wake = first || state.waiting.len() == BATCH_ENTRIES;
        drop(state);
        if wake {
            self.changed.notify_all();
        }
        true
    }

    /// Waits for entries: at most `idle`, and for further ones until a batch is full or its first has waited long enough. Nothing
    /// at the end.
    pub(super) fn take(&self, idle: Duration) -> Option<Batch> {
        let began = Instant::now();
        let mut state = self.state();
        loop {
            let wait = match state.since {
                Some(since) => BATCH_TIME.saturating_sub(since.elapsed()),
                None if state.closed => return None,
                None => idle.saturating_sub(began.elapsed()),
            };
            let full = state.waiting.len() >= BATCH_ENTRIES || state.bytes >= BATCH_BYTES;
            if wait.is_zero() || full || state.done < state.urgent || state.closed {
                break;
            }
            let waited = self.changed.wait_timeout(state, wait);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Some(state.batch())
    }

    /// Frees the room of a batch that was written.
    pub(super) fn done(&self, entries: usize, bytes: usize) {
        let mut state = self.state();
        state.entries -= entries;
        state.done += entries as u64;
        state.bytes -= bytes;
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until everything that was put before is written.
    pub(super) fn flush(&self) {
        let mut state = self.state();
        let put = state.put;
        state.urgent = state.urgent.max(put);
        self.changed.notify_all();
        while state.done < put && !state.ended {
            let waited = self.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes no further entries; those that wait are still written.
    pub(super) fn close(&self) {
        self.state().closed = true;
        self.changed.notify_all();
    }

    /// Takes no further entries, and lets nobody wait any more: nothing will be written.
    pub(super) fn end(&self) {
        let mut state = self.state();
        (state.closed, state.ended) = (true, true);
        drop(state);
        self.changed.notify_all();
    }

    pub(super) fn status(&self) -> QueueStatus {
        let state = self.state();
        QueueStatus {
            entries: state.entries as u64,
            bytes: state.bytes as u64,
            dropped: state.dropped,
            dropped_bytes: state.dropped_bytes,
        }
    }
}

/// Entries that are written at once.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) entries: Vec<Entry>,
    pub(super) bytes: usize,
}

impl State {
    fn batch(&mut self) -> Batch {
        let mut batch = Batch::default();
        while batch.entries.len() < BATCH_ENTRIES && batch.bytes < BATCH_BYTES {
            let Some(entry) = self.waiting.pop_front() else {
                break;
            };
            batch.bytes += size(&entry);
            batch.entries.push(entry);
        }
        if self.waiting.is_empty() {
            self.since = None;
        }
        batch
    }
}

/// Approximate size of an entry in memory, in bytes.
pub(super) fn size(entry: &Entry) -> usize {
    let own = match entry {
        Entry::Connection(entry) => size_of_val(entry.as_ref()) + heap(entry),
        Entry::Chunk(entry) => entry.raw.len() + entry.plain.as_ref().map_or(0, Vec::len),
        Entry::Message(entry) => {
            let texts = [&entry.preview, &entry.hash, &entry.error];
            size_of_val(entry.as_ref())
                + texts.into_iter().flatten().map(String::len).sum::<usize>()
        }
        Entry::Log(entry) => entry.section.len() + entry.message.len(),
    };
    size_of::<Entry>() + own
}

fn heap(entry: &ConnectionEntry) -> usize {
    let both = [&entry.connection_messages, &entry.metadata, &entry.acks];
    let both = both
        .into_iter()
        .flat_map(|both| [&both.local, &both.remote]);
    let texts = both.chain([&entry.peer_id, &entry.ignored]).flatten();
    let remarks = entry.remarks.iter().map(|(_, text)| 32 + text.len());
    texts.map(String::len).chain(remarks).sum()
}
