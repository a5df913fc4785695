//! The threads that decode: each has a part of the connections.

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::captured::{Captured, Socket};
use crate::connection::Nodes;
use crate::queue::{Dropped, Queue, Task};
use crate::reconnect::Note;
use crate::recording::{Counts, Recording, Settings};
use crate::store::Entry;
use crate::time::Timestamp;

/// Interval at which a worker looks for late records.
const TICK: Duration = Duration::from_millis(100);

/// A receiver of entries, with the name of the node. Called by all workers.
pub type Sink = Arc<dyn Fn(&str, Entry) + Send + Sync>;

/// The workers.
pub struct Workers {
    workers: Vec<Arc<Shared>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workers")
            .field("number", &self.workers.len())
            .finish_non_exhaustive()
    }
}

/// What a worker shares with the others.
struct Shared {
    queue: Queue,
    said: Mutex<Said>,
}

/// What a worker says.
#[derive(Default)]
struct Said {
    ignored: Vec<Socket>,
    counts: Counts,
}

impl Workers {
    /// Starts `number` workers, with queues of `queue` bytes in all. `prepare` runs first in each thread.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn start(
        number: usize,
        queue: usize,
        settings: &Settings,
        nodes: &Arc<Nodes>,
        sink: &Sink,
        prepare: fn(),
    ) -> io::Result<Self> {
        let (mut workers, mut threads) = (Vec::new(), Vec::new());
        for _ in 0..number {
            let shared = Arc::new(Shared {
                queue: Queue::new(queue / number),
                said: Mutex::default(),
            });
            let recording = Recording::new(settings.clone(), nodes.clone());
            let (own, sink) = (shared.clone(), sink.clone());
            let thread = std::thread::Builder::new()
                .name("decoder".into())
                .spawn(move || {
                    prepare();
                    own.run(recording, &*sink);
                })?;
            workers.push(shared);
            threads.push(thread);
        }
        Ok(Self {
            workers,
            threads: Mutex::new(threads),
        })
    }

    /// Gives a worker what was captured: of one connection always the same.
    pub fn put(&self, captured: &Captured<'_>) {
        self.worker(captured.socket).queue.put_captured(captured);
    }

    /// Gives a worker a note on one of its connections.
    pub fn note(&self, note: Note) {
        self.worker(note.socket).queue.put(Task::Note(note));
    }

    fn worker(&self, socket: Socket) -> &Shared {
        &self.workers[socket.0 as usize % self.workers.len()]
    }

    /// Replaces the nodes, because an identity was found.
    pub fn set_nodes(&self, nodes: &Arc<Nodes>) {
        for worker in &self.workers {
            worker.queue.put(Task::Nodes(nodes.clone()));
        }
    }

    /// Tells which sockets are open: see [`Recording::keep_open`].
    pub fn keep_open(&self, open: HashSet<Socket>) {
        let open = Arc::new(open);
        for worker in &self.workers {
            worker.queue.put(Task::Open(open.clone()));
        }
    }

    /// The sockets of which nothing more needs to be captured, since the last call.
    pub fn take_ignored(&self) -> Vec<Socket> {
        let take = |worker: &Arc<Shared>| std::mem::take(&mut worker.said().ignored);
        self.workers.iter().flat_map(take).collect()
    }

    /// The numbers of connections, of all workers.
    pub fn counts(&self) -> Counts {
        let counts = self.workers.iter().map(|worker| worker.said().counts);
        counts.fold(Counts::default(), |sum, counts| sum + counts)
    }

    /// The captured bytes for which the queues had no room.
    pub fn dropped(&self) -> Dropped {
        let dropped = self.workers.iter().map(|worker| worker.queue.dropped());
        dropped.fold(Dropped::default(), |sum, dropped| sum + dropped)
    }

    /// Waits until everything is decoded, and ends the threads.
    pub fn stop(&self) {
        for worker in &self.workers {
            worker.queue.put(Task::Stop);
        }
        let threads = self.threads.lock();
        for thread in threads.unwrap_or_else(PoisonError::into_inner).drain(..) {
            // A panic was printed when it happened.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn said(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, mut recording: Recording, sink: &dyn Fn(&str, Entry)) {
        let entries = &mut |node: &str, entry| sink(node, entry);
        let mut wait = TICK;
        loop {
            for task in self.queue.take(wait) {
                match task {
                    Task::Captured(owned) => {
                        recording.take(&owned.captured(), Timestamp::steady(), entries);
                    }
                    Task::Nodes(nodes) => recording.set_nodes(nodes, entries),
                    Task::Open(open) => recording.keep_open(&open, Timestamp::now(), entries),
                    Task::Note(note) => recording.note(note, Timestamp::now(), entries),
                    Task::Stop => {
                        while recording.tick(Timestamp::steady(), entries) {}
                        recording.stop(Timestamp::now(), entries);
                        return;
                    }
                }
            }
            let more = recording.tick(Timestamp::steady(), entries);
            wait = if more { Duration::ZERO } else { TICK };
            let mut said = self.said();
            said.ignored.extend(recording.take_ignored());
            said.counts = recording.counts();
        }
    }
}
