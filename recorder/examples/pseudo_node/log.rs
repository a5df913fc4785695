//! The log: what this node has sent and received, one line of JSON per event.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;
use sha2::{Digest, Sha256};
use tezos_recorder::p2p::json::Hex;
use tezos_recorder::p2p::message::Kind;

use crate::Result;

/// Lines stay in memory no longer than this while others follow.
const DELAY: Duration = Duration::from_millis(100);

/// The time, in nanoseconds since 1970.
pub fn now() -> u64 {
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    since.as_nanos() as u64
}

/// The log of all connections.
pub struct Log {
    file: Mutex<(BufWriter<Box<dyn Write + Send>>, Instant)>,
    /// Every line is written at once.
    direct: bool,
}

impl Log {
    /// Creates the file. Without one, lines are made but not written.
    pub fn create(path: Option<&Path>, direct: bool) -> Result<Self> {
        let file: Box<dyn Write + Send> = match path {
            Some(path) => {
                let file = File::options().append(true).create(true).open(path);
                let file = file.and_then(|file| file.set_len(0).map(|()| file));
                Box::new(file.map_err(|e| format!("cannot write {}: {e}", path.display()))?)
            }
            None => Box::new(std::io::sink()),
        };
        let file = Mutex::new((BufWriter::with_capacity(1 << 16, file), Instant::now()));
        Ok(Self { file, direct })
    }

    /// Writes everything, so that a child process does not write it again.
    pub fn sync(&self) {
        self.write(&[], true);
    }

    fn write(&self, lines: &[u8], flush: bool) {
        let mut file: MutexGuard<'_, _> = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let (file, last) = &mut *file;
        // Whole lines: a forked child appends to the same file.
        let full = file.buffer().len() + lines.len() > file.capacity();
        let mut written = if full { file.flush() } else { Ok(()) };
        written = written.and_then(|()| file.write_all(lines));
        if flush || self.direct || last.elapsed() > DELAY {
            written = written.and_then(|()| file.flush());
            *last = Instant::now();
        }
        if let Err(e) = written {
            eprintln!("pseudo_node: cannot write the log: {e}");
            std::process::exit(1);
        }
    }
}

/// A line.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Line<'a> {
    Opened {
        time_ns: u64,
        initiator: bool,
        local: &'a str,
        remote: &'a str,
    },
    Message {
        /// Before it was sent, or after it was received.
        time_ns: u64,
        direction: &'static str,
        kind: &'static str,
        category: &'static str,
        size: usize,
        sha256: String,
        /// First and last.
        chunks: (u64, u64),
        valid: bool,
        local: &'a str,
        remote: &'a str,
    },
    Closed {
        time_ns: u64,
        /// Bytes of the TCP connection, as this node counts them.
        sent_bytes: u64,
        received_bytes: u64,
        sent_chunks: u64,
        received_chunks: u64,
        sent_messages: u64,
        received_messages: u64,
        error: Option<&'a str>,
        /// The process, which differs from the node's with `--fork`.
        pid: u32,
        local: &'a str,
        remote: &'a str,
    },
}

/// A message of which a line is written.
pub struct Entry<'a> {
    pub time: u64,
    pub sent: bool,
    pub kind: Kind,
    pub bytes: &'a [u8],
    pub chunks: (u64, u64),
    pub valid: bool,
}

/// Totals of one direction of a connection.
#[derive(Clone, Copy, Default)]
pub struct Counts {
    pub bytes: u64,
    pub chunks: u64,
    /// With those of the handshake.
    pub messages: u64,
}

/// The log of one connection, or of one direction of it.
#[derive(Clone)]
pub struct ConnectionLog<'a> {
    log: &'a Log,
    local: String,
    remote: String,
    lines: Vec<u8>,
    /// Numbers of messages, with those of the handshake.
    pub sent: u64,
    pub received: u64,
}

impl<'a> ConnectionLog<'a> {
    pub fn new(log: &'a Log, local: SocketAddr, remote: SocketAddr) -> Self {
        Self {
            log,
            local: local.to_string(),
            remote: remote.to_string(),
            lines: Vec::new(),
            sent: 0,
            received: 0,
        }
    }

    /// Both addresses, the own one first.
    pub fn addresses(&self) -> String {
        format!("{} {}", self.local, self.remote)
    }

    pub fn opened(&mut self, initiator: bool) {
        let (local, remote) = (self.local.as_str(), self.remote.as_str());
        add(
            &mut self.lines,
            &Line::Opened {
                time_ns: now(),
                initiator,
                local,
                remote,
            },
        );
        self.flush();
    }

    /// Adds a message; [`Self::flush`] writes it.
    pub fn message(&mut self, entry: &Entry<'_>) {
        self.sent += u64::from(entry.sent);
        self.received += u64::from(!entry.sent);
        add(
            &mut self.lines,
            &Line::Message {
                time_ns: entry.time,
                direction: if entry.sent { "sent" } else { "received" },
                kind: entry.kind.name(),
                category: entry.kind.category().name(),
                size: entry.bytes.len(),
                sha256: Hex(&Sha256::digest(entry.bytes)).to_string(),
                chunks: entry.chunks,
                valid: entry.valid,
                local: &self.local,
                remote: &self.remote,
            },
        );
    }

    /// Hands the lines to the log.
    pub fn flush(&mut self) {
        if !self.lines.is_empty() {
            self.log.write(&self.lines, false);
            self.lines.clear();
        }
    }

    /// Writes the sums, and everything before.
    pub fn closed(mut self, sent: Counts, received: Counts, error: Option<&str>) {
        add(
            &mut self.lines,
            &Line::Closed {
                time_ns: now(),
                sent_bytes: sent.bytes,
                received_bytes: received.bytes,
                sent_chunks: sent.chunks,
                received_chunks: received.chunks,
                sent_messages: sent.messages,
                received_messages: received.messages,
                error,
                pid: std::process::id(),
                local: &self.local,
                remote: &self.remote,
            },
        );
        self.log.write(&self.lines, true);
    }
}

fn add(lines: &mut Vec<u8>, line: &Line<'_>) {
    // A vector takes everything, and the line has nothing that is not JSON.
    if serde_json::to_writer(&mut *lines, line).is_ok() {
        lines.push(b'\n');
    }
}
