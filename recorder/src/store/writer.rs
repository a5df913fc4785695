//! The thread that writes.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::connections::Connections;
use super::entry::Entry;
use super::error::StoreError;
use super::family::Segments;
use super::queue::Batch;
use super::segment::{self, Family};
use super::shared::{Catalog, Heads, Shared};

/// How often the age of segments is checked while there is nothing to write.
const IDLE: Duration = Duration::from_secs(1);

/// Gives entries to a store. Clones give to the same store.
#[derive(Clone, Debug)]
pub struct Writer(pub(super) Arc<Shared>);

impl Writer {
    /// Gives an entry to the store, and never waits: returns false if there is no room in the queue. The entry is then counted as
    /// dropped.
    pub fn put(&self, entry: Entry) -> bool {
        self.0.queue.put(entry)
    }

    /// Waits until all entries that were given before are written, or counted as failed.
    pub fn flush(&self) {
        self.0.queue.flush();
    }
}

/// The state of the thread.
pub(super) struct WriterThread {
    shared: Arc<Shared>,
    connections: Connections,
    messages: Segments,
    logs: Segments,
    catalog: Catalog,
}

impl WriterThread {
    pub(super) fn open(shared: &Arc<Shared>) -> Result<Self, StoreError> {
        let main = shared.main();
        let (connections, damage) = Connections::open(&main)?;
        if let Some(damage) = damage {
            shared.note(&damage);
            shared.note_damaged(&main);
        }
        let mut catalog = Catalog {
            messages: segment::list(&shared.dir, Family::Messages)?.into(),
            logs: segment::list(&shared.dir, Family::Logs)?.into(),
            ..Catalog::default()
        };
        for damaged in catalog
            .messages
            .iter()
            .chain(catalog.logs.iter())
            .filter(|s| s.damaged)
        {
            shared.note_damaged(&damaged.path);
        }
        let open = |family| {
            let next = connections
                .next_id(family)
                .map_err(StoreError::of("read", &main))?;
            Ok(Segments::open(shared, family, &catalog, next))
        };
        let (messages, logs) = (open(Family::Messages)?, open(Family::Logs)?);
        catalog.heads = Heads {
            messages: messages.next,
            logs: logs.next,
        };
        catalog.main_bytes = segment::bytes(&main);
        shared.publish(&catalog);
        let shared = shared.clone();
        Ok(Self {
            shared,
            connections,
            messages,
            logs,
            catalog,
        })
    }

    /// Writes until the queue is closed and empty.
    pub(super) fn run(mut self) {
        let _end = End(self.shared.clone());
        while let Some(batch) = self.shared.queue.take(IDLE) {
            let (entries, bytes) = (batch.entries.len(), batch.bytes);
            self.write(batch);
            self.shared.queue.done(entries, bytes);
        }
        self.messages.close();
        self.logs.close();
    }

    fn write(&mut self, batch: Batch) {
        let now = now();
        let idle = batch.entries.is_empty();
        let (mut messages, mut logs, mut connections) = (Vec::new(), Vec::new(), Vec::new());
        for entry in batch.entries {
            match entry {
                Entry::Message(_) | Entry::Chunk(_) => messages.push(entry),
                Entry::Log(_) => logs.push(entry),
                Entry::Connection(_) => connections.push(entry),
            }
        }
        self.messages.write(&mut self.catalog, &messages, now);
        self.logs.write(&mut self.catalog, &logs, now);
        let oldest = self.messages.retain(&mut self.catalog, now);
        let deleted = self.logs.retain(&mut self.catalog, now).is_some() || oldest.is_some();
        if !idle || deleted {
            self.write_main(&connections, oldest);
            self.catalog.main_bytes = segment::bytes(&self.shared.main());
        }
        self.catalog.heads = Heads {
            messages: self.messages.next,
            logs: self.logs.next,
        };
        self.shared.publish(&self.catalog);
    }

    fn write_main(&mut self, connections: &[Entry], oldest: Option<u64>) {
        let main = self.shared.main();
        let written = self.try_write_main(connections, oldest);
        let Err(error) = written.map_err(StoreError::of("write", &main)) else {
            return;
        };
        self.shared.note(&error);
        self.shared.note_failed(connections.len());
        if error.is_damage() {
            self.shared.note_damaged(&main);
            self.shared.pool.forget(&main);
            match Connections::anew(&main) {
                Ok(connections) => self.connections = connections,
                Err(error) => self.shared.note(&error),
            }
        }
    }

    /// Writes connections and the next ids. The segments were written before: a lower id than theirs is never used again.
    fn try_write_main(
        &mut self,
        connections: &[Entry],
        oldest: Option<u64>,
    ) -> rusqlite::Result<()> {
        self.connections.begin_write()?;
        // The last segment's number; of a store without messages, the first one's.
        let segment = self.messages.number.saturating_sub(1);
        for entry in connections {
            if let Entry::Connection(connection) = entry {
                self.connections.put(connection, segment)?;
            }
        }
        for (connection, segment) in self.messages.take_connections() {
            self.connections.note(connection, segment)?;
        }
        if let Some(oldest) = oldest {
            self.connections.retain(oldest)?;
        }
        let next = [
            (Family::Messages, self.messages.next),
            (Family::Logs, self.logs.next),
        ];
        self.connections.commit(next)
    }
}

/// Ends the queue, even if the thread panics.
struct End(Arc<Shared>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.queue.end();
    }
}

/// Nanoseconds since 1970.
fn now() -> u64 {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}
