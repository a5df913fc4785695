//! The live view on a terminal: `memprof top`.
//!
//! In reading order: `model` is the content of a report under the chosen settings, `past` what the overview says beyond it,
//! `state` holds the user's settings and cursor positions, `keys` updates the state on key presses, `rows` lists the visible
//! rows, `list` and `processes` those of processes and control groups, `part` is one of these shown alone, `moments` steps
//! through recorded ones, `render` draws a state, `terminal` is the real terminal. All modules but `terminal` are pure. [`Screen`] runs them on its own thread. A second thread builds
//! models, so that the view responds to keys while a large report is processed.

mod heap;
mod history;
mod keys;
mod list;
mod list_position;
mod marks;
mod messages;
mod model;
mod moments;
mod part;
mod past;
mod processes;
mod render;
mod rows;
mod state;
mod terminal;
#[cfg(test)]
mod tests;
mod theme;
mod view;
mod words;
mod wrap;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use tokio::sync::{mpsc, oneshot, watch};

use memprof_heap::HeapSnapshot;
use memprof_profile::Report;
use memprof_sys::ids::Pid;
use model::{Job, Model};
pub use moments::{Step, StepTo};
pub use past::Past;
use state::{Input, UiState};
use terminal::Terminal;

pub use terminal::require;

/// Maximum time that the screen waits for a key before it checks for news.
const TICK: Duration = Duration::from_millis(50);
/// Capacity of the queue of news.
const QUEUE: usize = 64;

/// Default time between two requests for a report.
pub(crate) const INTERVAL: Duration = Duration::from_secs(1);

/// Settings of the view.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScreenOptions {
    /// Minimum time between requests for a new report.
    pub interval: Duration,
    /// Whether to use colours.
    pub colour: bool,
}

/// A running view. The terminal is restored when the view ends or is dropped.
pub struct Screen {
    news: News,
    thread: Option<JoinHandle<()>>,
    /// Completes when the user quits or the terminal fails.
    pub ended: oneshot::Receiver<Result<()>>,
    /// Receives the processes for which the user requests a heap snapshot; the task that takes the snapshots reads it.
    pub heaps: Option<mpsc::Receiver<Pid>>,
    /// Receives the steps to recorded moments; the task that reads the recording reads it.
    pub steps: Option<mpsc::Receiver<Step>>,
    /// The process that is shown alone; `None` while all are.
    pub alone: watch::Receiver<Option<Pid>>,
}

/// Sends news to the view. News is dropped if the queue is full, because newer news will follow; heap snapshots wait.
#[derive(Clone)]
pub struct News {
    to: SyncSender<Input>,
    stop: Arc<AtomicBool>,
}

impl News {
    fn send(&self, input: Input) {
        let _ = self.to.try_send(input);
    }

    /// Sends a new report.
    pub fn report(&self, report: Arc<Report>) {
        self.send(Input::Report(report));
    }

    /// Sends what the overview says beyond the report that follows.
    pub fn past(&self, past: Past) {
        self.send(Input::Past(past));
    }

    /// Sends the reason why there is no report.
    pub fn no_report(&self, why: String) {
        self.send(Input::ReportError(why));
    }

    /// Sends a heap snapshot, or the reason why there is none. Waits while the queue is full, because no newer snapshot
    /// follows.
    pub async fn heap(&self, taken: Result<Arc<HeapSnapshot>, String>) {
        self.wait_to_send(Input::Heap(taken)).await;
    }

    /// Sends the report of the requested moment, `None` if there is no further one, or the reason why it cannot be shown.
    pub async fn stepped(&self, stepped: Result<Option<Arc<Report>>, String>) {
        self.wait_to_send(Input::Stepped(stepped)).await;
    }

    async fn wait_to_send(&self, mut input: Input) {
        while let Err(TrySendError::Full(again)) = self.to.try_send(input) {
            input = again;
            tokio::time::sleep(TICK).await;
        }
    }

    /// Sends a message to the user.
    pub fn message(&self, text: &str) {
        self.send(Input::Message(text.to_owned()));
    }
}

impl Screen {
    /// Takes over the terminal and shows the `News` that it receives, of a running target or from a file.
    ///
    /// # Errors
    /// The terminal cannot be used.
    pub fn start(options: ScreenOptions, is_saved: bool) -> Result<Screen> {
        let (to, from) = sync_channel(QUEUE);
        let stop = Arc::new(AtomicBool::new(false));
        let news = News {
            to,
            stop: Arc::clone(&stop),
        };
        let builder = Builder::start(news.clone())?;
        let mut terminal = Terminal::enter()?;
        let (tell, ended) = oneshot::channel();
        let (heaps_wanted, heaps) = mpsc::channel(1);
        let (steps_wanted, steps) = mpsc::channel(1);
        let (alone_is, alone) = watch::channel(None);
        let wishes = Wishes {
            heaps: heaps_wanted,
            steps: steps_wanted,
            alone: alone_is,
        };
        let thread = thread::Builder::new()
            .name("memprof-screen".into())
            .spawn(move || {
                let mut state = UiState::new(options.colour, terminal.size());
                state.is_saved = is_saved;
                let done = show(&mut terminal, state, &from, &stop, builder, &wishes);
                // Restore the terminal before the end is signalled, so that later output is visible.
                drop(terminal);
                let _ = tell.send(done);
            })
            .context("cannot start the screen thread")?;
        Ok(Screen {
            news,
            thread: Some(thread),
            ended,
            heaps: Some(heaps),
            steps: Some(steps),
            alone,
        })
    }

    /// A sender of news for this view.
    pub fn news(&self) -> News {
        self.news.clone()
    }

    /// Ends the view and restores the terminal.
    pub fn end(&mut self) {
        self.news.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The panic hook has already reported a panic.
            let _ = thread.join();
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.end();
    }
}

/// What the user requests of the session.
struct Wishes {
    heaps: mpsc::Sender<Pid>,
    steps: mpsc::Sender<Step>,
    alone: watch::Sender<Option<Pid>>,
}

/// Runs until the user quits or `stop` is set.
fn show(
    terminal: &mut Terminal,
    mut state: UiState,
    news: &Receiver<Input>,
    stop: &AtomicBool,
    mut builder: Builder,
    wishes: &Wishes,
) -> Result<()> {
    terminal.draw(&state)?;
    while !stop.load(Ordering::Relaxed) {
        let mut changed = false;
        let input = terminal.input(TICK)?;
        for input in input.into_iter().chain(news.try_iter().take(QUEUE)) {
            changed = true;
            if let Input::Model(_) = input {
                builder.busy = false;
            }
            if state.update(input) {
                return Ok(());
            }
        }
        if let Some(job) = state.job.take() {
            builder.next = Some(job);
        }
        if let Some(pid) = state.heap.wanted.take() {
            // Snapshots are taken one at a time, so the queue has space. The receiving task ends with the view.
            let _ = wishes.heaps.try_send(pid);
        }
        if let Some(step) = state.moments.wanted.take() {
            // Like snapshots.
            let _ = wishes.steps.try_send(step);
        }
        let alone = state.process_alone();
        wishes.alone.send_if_modified(|known| {
            let is_new = *known != alone;
            *known = alone;
            is_new
        });
        builder.go_on()?;
        if changed {
            terminal.draw(&state)?;
        }
    }
    Ok(())
}

/// The thread that builds models, one at a time, always for the latest job.
struct Builder {
    jobs: SyncSender<Job>,
    next: Option<Job>,
    busy: bool,
}

impl Builder {
    fn start(news: News) -> Result<Builder> {
        let (jobs, inbox) = sync_channel::<Job>(1);
        thread::Builder::new()
            .name("memprof-model".into())
            .spawn(move || {
                while let Ok(job) = inbox.recv() {
                    let model = Arc::new(Model::new(job));
                    if news.to.send(Input::Model(model)).is_err() {
                        return;
                    }
                }
            })
            .context("cannot start the thread that prepares the view")?;
        Ok(Builder {
            jobs,
            next: None,
            busy: false,
        })
    }

    fn go_on(&mut self) -> Result<()> {
        if self.busy {
            return Ok(());
        }
        let Some(job) = self.next.take() else {
            return Ok(());
        };
        match self.jobs.try_send(job) {
            Ok(()) => self.busy = true,
            Err(TrySendError::Full(job)) => self.next = Some(job),
            Err(TrySendError::Disconnected(_)) => {
                return Err(anyhow!("the thread that prepares the view ended early"));
            }
        }
        Ok(())
    }
}
