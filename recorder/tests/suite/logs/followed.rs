//! A source of logs that is followed, and what came from it.

use std::fs::OpenOptions;
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

use tezos_recorder::logs::{self, Counts, Running, Source};
use tezos_recorder::store::LogEntry;

pub type Kept = Arc<Mutex<Vec<LogEntry>>>;

/// A source that is followed, and what came from it.
pub struct Followed {
    pub running: Running,
    pub kept: Kept,
    /// Errors that were warned of.
    pub warned: Arc<Mutex<Vec<String>>>,
}

impl Followed {
    pub fn start(source: Source, state: &Path) -> Self {
        let kept = Kept::default();
        let sink = kept.clone();
        let warned = Arc::<Mutex<Vec<String>>>::default();
        let warnings = warned.clone();
        let sink = move |entry| {
            sink.lock().unwrap().push(entry);
            true
        };
        let warn = move |error: &str| warnings.lock().unwrap().push(error.into());
        Self {
            running: logs::start(&source, state, sink, warn).unwrap(),
            kept,
            warned,
        }
    }

    /// Waits for so many lines; returns all messages.
    pub fn messages(&self, count: usize) -> Vec<String> {
        until(|| self.kept.lock().unwrap().len() >= count);
        let kept = self.kept.lock().unwrap();
        kept.iter().map(|entry| entry.message.clone()).collect()
    }

    /// Ends it; returns all messages and the counts.
    pub fn stop(self) -> (Vec<String>, Counts) {
        let counts = self.running.counts();
        self.running.stop();
        let kept = self.kept.lock().unwrap();
        (
            kept.iter().map(|entry| entry.message.clone()).collect(),
            counts,
        )
    }
}

/// Waits until something holds, at most ten seconds.
pub fn until(mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() && began.elapsed() < Duration::from_secs(10) {
        sleep(Duration::from_millis(10));
    }
}

pub fn any_port() -> Source {
    Source::Udp(SocketAddr::from(([127, 0, 0, 1], 0)))
}

pub fn append(path: &Path, text: &str) {
    let file = OpenOptions::new().append(true).create(true).open(path);
    file.unwrap().write_all(text.as_bytes()).unwrap();
}

/// Time in which the thread has certainly looked at a file.
pub fn pause() {
    sleep(Duration::from_millis(700));
}
