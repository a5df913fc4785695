//! The thread that owns the BPF programs: it gives what was captured to the decoders, and says what it captures.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use super::say;
use super::shared::Shared;
use crate::api::CaptureHealth;
use crate::capture::{Capture, CaptureFacts, CaptureOptions, Source};
use crate::privileges;
use crate::workers::Workers;

/// Maximum time for which a record waits in the ring buffer.
const POLL: Duration = Duration::from_millis(50);
/// Interval at which the state of the capture is told.
const TELL: Duration = Duration::from_millis(500);
/// Interval at which the open sockets are listed, to find connections whose end was not seen. They are found within two of them.
const LIST: Duration = Duration::from_secs(30);

/// The thread.
pub(super) struct CaptureThread {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
    workers: Arc<Workers>,
}

impl CaptureThread {
    /// Starts to capture.
    ///
    /// # Errors
    /// The programs cannot be loaded.
    pub(super) fn start(
        options: CaptureOptions,
        shared: Arc<Shared>,
        workers: Arc<Workers>,
    ) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (opened, is_open) = sync_channel(1);
        let reader = Reader {
            shared,
            workers: workers.clone(),
            stop: stop.clone(),
            facts: None,
        };
        let thread = thread::Builder::new().name("capture".into());
        let thread = thread
            .spawn(move || reader.run(&options, &opened))
            .context("cannot start the thread that captures")?;
        let opened = is_open.recv();
        opened.map_err(|_| anyhow!("the thread that captures has ended"))??;
        Ok(Self {
            stop,
            thread,
            workers,
        })
    }

    /// Ends it, and waits until the decoders have finished.
    pub(super) fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        // A panic was printed when it happened.
        let _ = self.thread.join();
        self.workers.stop();
    }
}

struct Reader {
    shared: Arc<Shared>,
    workers: Arc<Workers>,
    stop: Arc<AtomicBool>,
    facts: Option<CaptureFacts>,
}

impl Reader {
    fn run(mut self, options: &CaptureOptions, opened: &SyncSender<Result<()>>) {
        let mut capture = match Capture::open(options) {
            Ok(capture) => capture,
            Err(failure) => {
                let _ = opened.send(Err(failure.into()));
                return;
            }
        };
        privileges::reduce(privileges::CAPTURE);
        self.tell(&capture);
        let _ = opened.send(Ok(()));
        if let Err(failure) = self.read(&mut capture) {
            self.shared.fail(failure);
        }
    }

    fn read(&mut self, capture: &mut Capture) -> Result<()> {
        let (mut told, mut listed) = (Instant::now(), Instant::now());
        while !self.stop.load(Ordering::Relaxed) {
            let workers = &self.workers;
            // Before the poll: those whose end is in the ring are still among them.
            let open = (listed.elapsed() >= LIST).then(|| capture.open_sockets());
            capture.poll(POLL, &mut |captured| workers.put(&captured))?;
            for socket in self.workers.take_ignored() {
                // Without an entry its bytes go on to be captured, and are dropped here.
                let _ = capture.ignore(socket);
            }
            if let Some(open) = open {
                listed = Instant::now();
                // Without the list, connections whose end was not seen go on.
                open.into_iter()
                    .for_each(|open| self.workers.keep_open(open));
            }
            if told.elapsed() >= TELL {
                told = Instant::now();
                self.tell(capture);
            }
        }
        // What is in the ring now.
        capture.poll(Duration::ZERO, &mut |captured| self.workers.put(&captured))?;
        self.tell(capture);
        Ok(())
    }

    /// Tells the server the state, and the user what has changed in it.
    fn tell(&mut self, capture: &Capture) {
        let facts = capture.facts();
        let before = self.facts.as_ref();
        if before.is_none_or(|before| before.cgroups != facts.cgroups) {
            for directory in &facts.cgroups {
                say(&format!(
                    "capturing in control group {}",
                    directory.display()
                ));
            }
        }
        if before.is_none_or(|before| before.processes != facts.processes) {
            for process in &facts.processes {
                say(&format!("capturing the system calls of process {process}"));
            }
        }
        if before.is_none_or(|before| before.missing != facts.missing) {
            for problem in &facts.missing {
                say(&format!("not captured now: {problem}"));
            }
        }
        self.shared
            .set_health(health(capture, &facts, &self.workers));
        self.facts = Some(facts);
    }
}

fn health(capture: &Capture, facts: &CaptureFacts, workers: &Workers) -> CaptureHealth {
    let mut problems = facts.missing.clone();
    problems.extend(facts.reason.clone());
    let losses = capture.losses();
    if let Err(failure) = &losses {
        problems.push(failure.to_string());
    }
    let (losses, dropped) = (losses.unwrap_or_default(), workers.dropped());
    let connections = workers.counts();
    if losses.malformed > 0 {
        let malformed = losses.malformed;
        problems.push(format!(
            "{malformed} records could not be decoded, which is a defect"
        ));
    }
    CaptureHealth {
        source: match facts.source {
            Source::Calls => "calls".into(),
            Source::Auto | Source::Sockets => "sockets".into(),
        },
        cgroups: facts
            .cgroups
            .iter()
            .map(|directory| directory.display().to_string())
            .collect(),
        lost_events: losses.records,
        lost_bytes: losses.bytes + losses.unreadable_bytes,
        dropped_events: dropped.records,
        dropped_bytes: dropped.bytes,
        unread_packets: losses.extended_packets,
        skipped_events: losses.skipped_events,
        missed_calls: losses.missed_calls,
        open_connections: connections.open,
        ignored_connections: connections.ignored,
        given_up_connections: connections.given_up,
        problems,
    }
}
