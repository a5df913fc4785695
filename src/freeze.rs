//! Stops processes for a bounded time while their pages are scanned, so that a report is exact.
//!
//! Each thread is seized and interrupted, as a debugger does. No other process notices: the parent sees
//! no stop, a stopped process stays stopped, and if memprof dies, the kernel resumes the threads. Only
//! memprof's own command already has a tracer, memprof itself. SIGSTOP stops it; at its start it requested a
//! SIGCONT from the kernel for memprof's death (see `session::command`).
//!
//! A separate thread of memprof, the holder, stops and releases the processes. It releases them when the time
//! is up, whatever the rest of memprof does. When it ends, the kernel releases threads that did not stop in time.

mod estimate;
mod holder;
mod threads;
mod tracees;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use nix::unistd::Pid as NixPid;

use crate::event::Pid;
pub use estimate::{Costs, Need};
pub use threads::stands_still;

/// Default maximum time for which processes are stopped.
pub const MAX_FREEZE: Duration = Duration::from_millis(50);

/// Polling interval for the end of the holder's thread.
const PAUSE: Duration = Duration::from_micros(100);

/// Whether a target is stopped for a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Freeze {
    /// It runs.
    #[default]
    No,
    /// It is stopped: several processes at once if that is short enough, else one after another.
    Each,
    /// It is stopped: all processes at once or none.
    Group,
}

/// Stopped processes. They resume when this is dropped, or when the time is up.
#[derive(Debug)]
pub struct Frozen {
    orders: Option<SyncSender<Vec<Pid>>>,
    answers: Receiver<Answer>,
    /// Set when the processes are released.
    let_go: Arc<AtomicBool>,
    until: Instant,
    holder: Option<thread::JoinHandle<()>>,
    /// The `/proc` directory of the holder thread, which exists while it lives.
    shown: PathBuf,
}

/// Statistics of a hold.
#[derive(Clone, Debug, Default)]
pub struct Stood {
    /// Time from the first stop request to the last release.
    pub lasted: Duration,
    /// Threads that were requested to stop.
    pub threads: usize,
    /// Time for stopping and releasing.
    pub stopping: Duration,
}

/// The error if processes could not be stopped; they run.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{why}")]
pub struct NotHeld {
    /// The reason.
    pub why: String,
    /// Statistics of the attempt.
    pub stood: Stood,
    /// The total number of threads to stop.
    pub of: usize,
    /// Whether the time ran out; a longer limit might help.
    pub late: bool,
}

/// A message from the holder.
#[derive(Debug)]
enum Answer {
    /// The processes are stopped until this time at the latest.
    Still(Instant),
    Failed(NotHeld),
    LetGo(Stood),
}

impl Frozen {
    /// Stops every thread of these processes, for `max` at most. A process that was stopped before stays stopped
    /// afterwards.
    ///
    /// # Errors
    /// Not every thread stopped in time, or one may not be traced (by another debugger); all run.
    pub fn stop(pids: &[Pid], max: Duration) -> Result<Frozen, NotHeld> {
        let (orders, inbox) = sync_channel(1);
        let (answer, answers) = sync_channel(2);
        let let_go = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&let_go);
        let (tell, told) = sync_channel(1);
        let holder = thread::Builder::new()
            .name("memprof-freeze".into())
            .spawn(move || {
                let _ = tell.send(nix::unistd::gettid());
                holder::run(max, &inbox, &answer, &seen);
            })
            .map_err(|e| NotHeld::because(format!("cannot start a thread: {e}")))?;
        let own = told.recv().unwrap_or(NixPid::from_raw(0));
        let mut frozen = Frozen {
            orders: Some(orders),
            answers,
            let_go,
            until: Instant::now(),
            holder: Some(holder),
            shown: PathBuf::from(format!("/proc/self/task/{own}")),
        };
        frozen.stop_more(pids.to_vec())?;
        Ok(frozen)
    }

    /// Stops further processes, within the same time.
    ///
    /// # Errors
    /// As for [`Frozen::stop`].
    pub fn stop_more(&mut self, pids: Vec<Pid>) -> Result<(), NotHeld> {
        let gone = || NotHeld::because("the thread that holds them ended".to_owned());
        let orders = self.orders.as_ref().ok_or_else(gone)?;
        let sent = orders.send(pids);
        match self.answers.recv() {
            Ok(Answer::Still(until)) => {
                self.until = until;
                Ok(())
            }
            Ok(Answer::Failed(why)) => Err(why),
            Ok(Answer::LetGo(stood)) => Err(NotHeld {
                late: true,
                stood,
                ..NotHeld::because("the time was up".to_owned())
            }),
            Err(_) => {
                drop(sent);
                Err(gone())
            }
        }
    }

    /// The latest time of the release.
    pub fn until(&self) -> Instant {
        self.until
    }

    /// Whether all of the processes have been stopped up to now.
    pub fn is_held(&self) -> bool {
        !self.let_go.load(Ordering::SeqCst)
    }

    /// Releases the processes unless that has happened; returns the statistics.
    pub fn release(mut self) -> Stood {
        self.orders = None;
        loop {
            match self.answers.recv() {
                Ok(Answer::LetGo(stood)) => return stood,
                Ok(_) => {}
                Err(_) => return Stood::default(),
            }
        }
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(holder) = self.holder.take() {
            let _ = holder.join();
        }
        // The kernel releases the holder's remaining tracees only after its thread can be joined.
        while self.shown.exists() {
            thread::sleep(PAUSE);
        }
    }
}

impl NotHeld {
    fn because(why: String) -> NotHeld {
        NotHeld {
            why,
            stood: Stood::default(),
            of: 0,
            late: false,
        }
    }
}

#[cfg(test)]
mod tests;
