//! Logs of nodes: lines from datagrams, files and the journal, with their time, level and section.
//!
//! [`syslog::read`] and [`text::read`] only read text. [`start`] follows a source on a thread of its own.

mod datagram;
mod file;
mod journal;
mod lines;
mod position;
mod reading;
pub mod syslog;
pub mod text;
mod times;
mod wait;

use std::fmt;
use std::io::{self, PipeWriter};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

pub use times::{Clock, full as full_time};
use wait::Stopped;

use crate::privileges;
use crate::store::LogEntry;

/// Maximum size of a line in bytes; the rest of a longer one is cut off.
pub const MAX_LINE: usize = 1 << 16;

/// Where lines come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// UDP datagrams at this address.
    Udp(SocketAddr),
    /// Datagrams at a Unix socket.
    Socket {
        /// Where the socket is made.
        path: PathBuf,
        /// Its permissions: who may write to it may log.
        mode: u32,
    },
    /// A file to which lines are appended.
    File(PathBuf),
    /// The newest `daily-YYYYMMDD.log` in a directory, as Octez writes them.
    Daily(PathBuf),
    /// The journal of a systemd unit.
    Journal {
        /// Its name, such as `octez-node.service`.
        unit: String,
    },
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Udp(address) => write!(f, "UDP {address}"),
            Self::Socket { path, .. } => write!(f, "socket {}", path.display()),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Daily(path) => write!(f, "daily logs in {}", path.display()),
            Self::Journal { unit } => write!(f, "journal of {unit}"),
        }
    }
}

/// Why a source cannot be followed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {what}: {error}; {remedy}")]
pub struct LogError {
    action: &'static str,
    what: String,
    error: io::Error,
    remedy: &'static str,
}

/// What was received and what was lost since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counts {
    /// Lines or datagrams received.
    pub received: u64,
    /// Those of them that were no UTF-8, or lacked the form of their source. What could be read of them was passed on.
    pub malformed: u64,
    /// Those that were cut off at [`MAX_LINE`].
    pub cut: u64,
    /// Those that the store did not take.
    pub dropped: u64,
    /// Datagrams that the kernel dropped because the receive buffer was full.
    pub overruns: u64,
    /// How often a file was replaced or truncated, or the reader of the journal started again. Lines may have been lost.
    pub interruptions: u64,
}

/// The counters of a source, and its latest error.
#[derive(Debug, Default)]
struct Shared {
    received: AtomicU64,
    malformed: AtomicU64,
    cut: AtomicU64,
    dropped: AtomicU64,
    overruns: AtomicU64,
    interruptions: AtomicU64,
    error: Mutex<Option<String>>,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Whether a log file can be read now.
///
/// # Errors
/// Why not.
pub fn probe_file(path: &Path) -> io::Result<()> {
    reading::Reading::open(path).map(drop)
}

/// Takes lines; false if it had no room. It must not block.
type Sink = Box<dyn FnMut(LogEntry) -> bool + Send>;

/// Takes an error.
type Warn = Box<dyn FnOnce(&str) + Send>;

/// Where a thread puts its lines and errors.
struct Output {
    shared: Arc<Shared>,
    sink: Sink,
    /// Takes the first error.
    warn: Option<Warn>,
}

impl Output {
    fn set_error(&mut self, error: Option<String>) {
        if let Some(text) = &error
            && let Some(warn) = self.warn.take()
        {
            warn(text);
        }
        let present = self.shared.error.lock();
        *present.unwrap_or_else(PoisonError::into_inner) = error;
    }

    fn put(&mut self, entry: LogEntry, well_formed: bool) {
        count(&self.shared.received);
        if !well_formed {
            count(&self.shared.malformed);
        }
        if !(self.sink)(entry) {
            count(&self.shared.dropped);
        }
    }
}

/// A source that is followed. Dropping it ends its thread.
#[derive(Debug)]
pub struct Running {
    address: Option<SocketAddr>,
    shared: Arc<Shared>,
    stop: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    /// The address of a UDP socket.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// What was received and lost so far.
    pub fn counts(&self) -> Counts {
        let Shared {
            received,
            malformed,
            cut,
            dropped,
            overruns,
            interruptions,
            ..
        } = &*self.shared;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            received: get(received),
            malformed: get(malformed),
            cut: get(cut),
            dropped: get(dropped),
            overruns: get(overruns),
            interruptions: get(interruptions),
        }
    }

    /// Why nothing can be read at present.
    pub fn error(&self) -> Option<String> {
        let error = self.shared.error.lock();
        error.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends the thread, and waits for its end.
    pub fn stop(self) {}
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // A panic was printed when it happened.
            let _ = thread.join();
        }
    }
}

/// Follows a source. The positions of files and journals are kept in files in the directory `state`, so that no line is missed between
/// two runs. `sink` takes the lines and returns false if it has no room; it must not block. `warn` takes the first error: later ones are in
/// [`Running::error`] only.
///
/// # Errors
/// If a socket cannot be opened, or no thread started. A file may come later, and a journal's reader is started until it runs.
pub fn start(
    source: &Source,
    state: &Path,
    sink: impl FnMut(LogEntry) -> bool + Send + 'static,
    warn: impl FnOnce(&str) + Send + 'static,
) -> Result<Running, LogError> {
    let shared = Arc::<Shared>::default();
    let mut output = Output {
        shared: shared.clone(),
        sink: Box::new(sink),
        warn: Some(Box::new(warn)),
    };
    let failed = |action, remedy| {
        move |error| LogError {
            action,
            what: source.to_string(),
            error,
            remedy,
        }
    };
    let (stopped, stop) = io::pipe().map_err(failed("follow", "raise the limit of open files"))?;
    let stopped = Stopped(stopped);
    let mut address = None;
    let work: Box<dyn FnOnce() + Send> = match source {
        Source::Udp(at) => {
            let socket = datagram::Socket::udp(*at);
            let socket = socket.map_err(failed(
                "listen at",
                "choose an address of this machine and a free port",
            ))?;
            address = socket.address();
            Box::new(move || socket.follow(output, &stopped))
        }
        Source::Socket { path, mode } => {
            let socket = datagram::Socket::unix(path, *mode);
            let socket = socket.map_err(failed(
                "make",
                "choose a path in a writable directory that nothing else uses",
            ))?;
            Box::new(move || socket.follow(output, &stopped))
        }
        Source::File(_) | Source::Daily(_) => {
            let position = position::Position::new(state, source);
            let file = file::Follower::new(source.clone(), position, &mut output);
            Box::new(move || file.follow(output, &stopped))
        }
        Source::Journal { unit } => {
            let position = position::Position::new(state, source);
            let journal = journal::Journal::new(unit.clone(), position);
            Box::new(move || journal.follow(output, &stopped))
        }
    };
    let state = state.to_path_buf();
    let thread = thread::Builder::new().name("logs".to_owned());
    let thread = thread.spawn(move || {
        privileges::reduce(&privileges::for_logs(&state));
        work();
    });
    Ok(Running {
        address,
        shared,
        stop: Some(stop),
        thread: Some(thread.map_err(failed("follow", "raise the limit of threads"))?),
    })
}
