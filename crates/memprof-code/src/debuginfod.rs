//! Fetches debug files from debuginfod servers, in a thread of its own, into the cache directory that gdb, perf and
//! `debuginfod-find` share.
//!
//! No report waits for a fetch: a report has the names of the files whose debug files have arrived. Each file is
//! requested once per session. Downloads are limited ([`Limits`]), checked by build id, and written to a temporary file
//! that is then renamed. Servers learn the build ids of the profiled files, so memprof requests nothing unless the user
//! enables it.
//!
//! The client is small because `ureq` does the work: connections, redirects, proxies, timeouts, and TLS by `rustls`
//! with the system's certificates. The crate `debuginfod` is not used: its client has no limits of size and time, and
//! sits on an asynchronous one with twice as many dependencies.

mod client;
mod servers;

use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;

pub use self::servers::{DebuginfodMode, Servers};
use crate::symbolize::fetch::{BuildId, Fetch, FetchRequest};
use client::{Answer, Client};
use memprof_sys::priority;
use memprof_sys::privileges::{self, ThreadRole};

/// Capacity of the request queue, in files.
const QUEUE: usize = 64;
/// Maximum number of failures recorded with their reason.
const KEPT_FAILURES: usize = 16;
/// A server that is unreachable this many times in a row is skipped from then on.
const MAX_UNREACHABLE: u32 = 3;

/// Limits of size, number and time for the fetches of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Maximum size of one file, in bytes.
    pub file: u64,
    /// Maximum size of all files together, in bytes.
    pub total: u64,
    /// Maximum number of files.
    pub files: u64,
    /// Maximum time without progress: to connect, to the first byte of a response, and between two reads.
    pub idle: Duration,
    /// Maximum time to fetch one file.
    pub whole: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            file: 1 << 30,
            total: 4 << 30,
            files: 256,
            idle: Duration::from_secs(30),
            whole: Duration::from_secs(600),
        }
    }
}

impl Limits {
    /// The default limits, lowered by the environment variables of elfutils' client: `DEBUGINFOD_MAXSIZE` (bytes),
    /// `DEBUGINFOD_TIMEOUT` and `DEBUGINFOD_MAXTIME` (seconds). Zero and non-numeric values are ignored.
    pub fn of_environment() -> Limits {
        let number = |name| {
            let value = std::env::var(name).ok()?.parse::<u64>().ok()?;
            (value > 0).then_some(value)
        };
        let usual = Limits::default();
        let seconds = |name, usual: Duration| {
            number(name).map_or(usual, |secs| Duration::from_secs(secs).min(usual))
        };
        Limits {
            file: number("DEBUGINFOD_MAXSIZE").map_or(usual.file, |size| size.min(usual.file)),
            idle: seconds("DEBUGINFOD_TIMEOUT", usual.idle),
            whole: seconds("DEBUGINFOD_MAXTIME", usual.whole),
            ..usual
        }
    }
}

/// What has been requested and fetched so far.
#[derive(Debug, Clone, Default, PartialEq, Eq, JsonSchema, Serialize)]
#[schemars(rename = "DebuginfodStatus")]
pub struct Status {
    /// The servers, in the order in which they are queried.
    pub servers: Vec<String>,
    /// Directory of the fetched files.
    pub directory: PathBuf,
    /// Number of files that are queued or being fetched.
    pub pending: u64,
    /// Number of files fetched.
    pub fetched: u64,
    /// Total size of the fetched files, in bytes.
    pub bytes: u64,
    /// Number of files that no server has.
    pub missing: u64,
    /// Number of files that could not be fetched.
    pub failed: u64,
    /// The first files that could not be fetched.
    pub failures: Vec<Failure>,
}

/// A file that could not be fetched.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize)]
#[schemars(rename = "DebuginfodFailure")]
pub struct Failure {
    /// Base name of the profiled file.
    pub file: String,
    /// Build id of the profiled file, in hexadecimal digits.
    pub build_id: String,
    /// Reason, including the server.
    pub why: String,
}

impl Status {
    /// One line for the end of a session; `None` if no file was requested.
    pub fn line(&self) -> Option<String> {
        let mut parts = Vec::new();
        let files = |n: u64| if n == 1 { "file" } else { "files" };
        if self.fetched > 0 {
            let (n, kib) = (self.fetched, self.bytes.div_ceil(1024));
            let directory = self.directory.display();
            parts.push(format!(
                "fetched {n} {} ({kib} KiB) into {directory}",
                files(n)
            ));
        }
        if self.missing > 0 {
            parts.push(format!(
                "no server has {} {}",
                self.missing,
                files(self.missing)
            ));
        }
        if let Some(Failure { file, why, .. }) = self.failures.first() {
            let first = if self.failed > 1 { "the first " } else { "" };
            let (n, of) = (self.failed, files(self.failed));
            parts.push(format!("{n} {of} failed, {first}{file}: {why}"));
        }
        if self.pending > 0 {
            let (n, of) = (self.pending, files(self.pending));
            parts.push(format!("{n} {of} had not arrived yet"));
        }
        (!parts.is_empty()).then(|| format!("debuginfod: {}", parts.join("; ")))
    }
}

/// A handle to the status of the fetch thread.
#[derive(Debug, Clone)]
pub struct FetchStatus(Arc<Mutex<Status>>);

impl FetchStatus {
    /// Returns a copy of the current status.
    pub fn status(&self) -> Status {
        self.update(|status| status.clone())
    }

    fn update<T>(&self, change: impl FnOnce(&mut Status) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Starts the fetch thread, which writes to the cache directory `directory`. It ends with the symbol thread, which owns
/// the other end of the channels.
///
/// # Errors
/// The thread cannot be started.
pub fn start(
    servers: Servers,
    directory: PathBuf,
    limits: Limits,
) -> io::Result<(Fetch, FetchStatus)> {
    let (wanted, inbox) = sync_channel(QUEUE);
    let (tell, arrived) = sync_channel(usize::try_from(limits.files).unwrap_or(QUEUE));
    let fetching = FetchStatus(Arc::new(Mutex::new(Status {
        servers: servers.urls.clone(),
        directory: directory.clone(),
        ..Status::default()
    })));
    let handle = fetching.clone();
    let worker = thread::Builder::new().name("memprof-fetch".into());
    worker.spawn(move || {
        priority::restore();
        privileges::reduce(ThreadRole::Fetch);
        let client = Client::new(&servers.urls, directory, limits.clone());
        let mut fetcher = Fetcher {
            unreachable: vec![0; servers.urls.len()],
            servers: servers.urls,
            client,
            limits,
            handle,
        };
        fetcher.run(&inbox, &tell);
    })?;
    Ok((Fetch { wanted, arrived }, fetching))
}

struct Fetcher {
    servers: Vec<String>,
    /// For each server, how many times in a row it was unreachable.
    unreachable: Vec<u32>,
    client: Client,
    limits: Limits,
    handle: FetchStatus,
}

impl Fetcher {
    fn run(&mut self, inbox: &Receiver<FetchRequest>, arrived: &SyncSender<BuildId>) {
        let mut waiting = std::collections::VecDeque::new();
        loop {
            if waiting.is_empty() {
                match inbox.recv() {
                    Ok(wanted) => waiting.push_back(wanted),
                    Err(_) => return,
                }
            }
            waiting.extend(inbox.try_iter());
            self.handle
                .update(|status| status.pending = waiting.len() as u64);
            let Some(wanted) = waiting.pop_front() else {
                continue;
            };
            let outcome = self.fetch(&wanted);
            tracing::debug!(file = wanted.name, id = %wanted.id, ?outcome, "asked for a debug file");
            let there = matches!(outcome, Ok(Some(_)));
            self.handle.update(|status| {
                status.pending -= 1;
                match outcome {
                    Ok(Some(bytes)) => {
                        status.fetched += 1;
                        status.bytes += bytes;
                    }
                    Ok(None) => status.missing += 1,
                    Err(why) => {
                        status.failed += 1;
                        if status.failures.len() < KEPT_FAILURES {
                            status.failures.push(Failure {
                                file: wanted.name,
                                build_id: wanted.id.to_string(),
                                why,
                            });
                        }
                    }
                }
            });
            if there && arrived.try_send(wanted.id).is_err() {
                return;
            }
        }
    }

    /// Queries one server after the other. Returns the size of the file, in bytes; `None` if no server has it.
    fn fetch(&mut self, wanted: &FetchRequest) -> Result<Option<u64>, String> {
        let (fetched, bytes) = self.handle.update(|s| (s.fetched, s.bytes));
        if fetched >= self.limits.files {
            return Err(format!("the limit of {fetched} files is reached"));
        }
        let room = self
            .limits
            .total
            .saturating_sub(bytes)
            .min(self.limits.file);
        if room == 0 {
            return Err("the limit of all files' size is reached".into());
        }
        let mut failed = None;
        let mut asked = false;
        for (server, unreachable) in self.servers.iter().zip(&mut self.unreachable) {
            if *unreachable >= MAX_UNREACHABLE {
                continue;
            }
            asked = true;
            let answer = self.client.fetch(server, &wanted.id, room);
            match &answer {
                Answer::Unreachable(_) => *unreachable += 1,
                _ => *unreachable = 0,
            }
            match answer {
                Answer::Fetched(bytes) => return Ok(Some(bytes)),
                Answer::Missing => {}
                Answer::Unreachable(why) | Answer::Failed(why) => {
                    failed.get_or_insert_with(|| format!("{server}: {why}"));
                }
            }
        }
        match failed {
            Some(why) => Err(why),
            None if asked => Ok(None),
            None => Err(format!(
                "the servers are no longer asked: they could not be reached {MAX_UNREACHABLE} times"
            )),
        }
    }
}
