//! Handles the signals that end memprof: SIGINT, SIGTERM, SIGHUP and SIGQUIT, all in the same way.
//!
//! The first signal ends the session in order: last report, outputs, summary. A later signal ends it at once. Signals
//! within [`REPEAT`] after the first count as repeats: `timeout` signals both the process and its group, and when a
//! terminal closes, both the shell and the kernel send a signal.

use std::future::poll_fn;
use std::sync::atomic::{AtomicI32, Ordering};
use std::task::{Context as Wake, Poll};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal};
use signal_hook_registry::register_sigaction;
use tokio::signal::unix::{self, SignalKind};

use memprof_sys::interruptible_writer::SIGNALLED;

/// The ending signals, each with the `si_code` of its newest occurrence, or [`NEVER`].
static ENDING: [(Signal, &AtomicI32); 4] = {
    static ORIGINS: [AtomicI32; 4] = [const { AtomicI32::new(NEVER) }; 4];
    [
        (Signal::SIGINT, &ORIGINS[0]),
        (Signal::SIGTERM, &ORIGINS[1]),
        (Signal::SIGHUP, &ORIGINS[2]),
        (Signal::SIGQUIT, &ORIGINS[3]),
    ]
};

/// Not an `si_code`: the signal has not arrived.
const NEVER: i32 = i32::MIN;

/// How long after an ending signal further signals count as repeats.
const REPEAT: Duration = Duration::from_millis(500);

/// Poll interval for a signal while memprof writes its results.
const LOOK: Duration = Duration::from_millis(100);

/// `si_code` of a signal sent by the kernel itself, not by a process that called `kill`.
const SI_KERNEL: i32 = 0x80;

/// A received ending signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    /// The signal.
    pub signal: Signal,
    /// Whether the signal came from the terminal (a key, or hangup), which signals every process of the foreground
    /// group.
    pub from_terminal: bool,
}

impl Ending {
    /// SIGTERM, as if a process had sent it to memprof.
    pub fn terminate() -> Ending {
        Ending {
            signal: Signal::SIGTERM,
            from_terminal: false,
        }
    }

    /// The signal to pass on to a command under `--`, if any: only a signal that the command did not receive itself.
    ///
    /// The command is in memprof's process group. On Ctrl-C, Ctrl-\ and hangup the kernel signals the whole group; a
    /// second SIGINT would look like a second Ctrl-C by the user. A signal from a process (`kill -HUP` of memprof, a
    /// service manager) is assumed to have reached memprof alone and is passed on unchanged, because memprof stands in
    /// for the command. A shell that exits also sends SIGHUP to the whole group by `kill`. memprof cannot distinguish
    /// these cases, so when a shell exits, the command gets SIGHUP twice, usually merged into one. This is harmless,
    /// whether SIGHUP ends the command or is ignored. If memprof leads the session (as under `xterm -e`), hangup
    /// signals memprof alone.
    pub fn for_command(self) -> Option<Signal> {
        let whole_group = match self.signal {
            Signal::SIGHUP => self.from_terminal && !leads_session(),
            _ => self.from_terminal,
        };
        (!whole_group).then_some(self.signal)
    }

    /// The exit status for this signal, as a shell would report it.
    pub fn status(self) -> u8 {
        128 + self.signal as i32 as u8
    }
}

/// Waits for ending signals.
pub struct Signals {
    waited: Vec<(Signal, &'static AtomicI32, unix::Signal)>,
    /// Whether a signal was received.
    came: bool,
}

impl Signals {
    /// Handles the ending signals. SIGHUP stays ignored if it was ignored before (`nohup`). Needs a tokio runtime.
    ///
    /// # Errors
    /// A signal handler cannot be installed.
    pub fn new() -> Result<Signals> {
        let mut waited = Vec::new();
        for (signal, origin) in ENDING {
            if signal == Signal::SIGHUP && is_ignored(signal) {
                continue;
            }
            let what = || format!("cannot wait for {signal}");
            // Registered before tokio's own action, so that the origin is stored before the signal is seen.
            // SAFETY: the action only stores to atomics, which is async-signal-safe, and cannot panic.
            unsafe {
                register_sigaction(signal as i32, |info| {
                    origin.store(info.si_code, Ordering::Relaxed);
                    SIGNALLED.store(true, Ordering::Relaxed);
                })
            }
            .with_context(what)?;
            let kind = SignalKind::from_raw(signal as i32);
            waited.push((signal, origin, unix::signal(kind).with_context(what)?));
        }
        Ok(Signals {
            waited,
            came: false,
        })
    }

    /// Waits for the next ending signal.
    pub async fn next(&mut self) -> Ending {
        poll_fn(|cx| self.poll(cx)).await
    }

    /// The ending signal that has arrived, if any. Unlike [`Signals::next`], needs no turn of the runtime.
    pub fn arrived(&self) -> Option<Signal> {
        let mut all = self.waited.iter();
        let came = all.find(|(_, origin, _)| origin.load(Ordering::Relaxed) != NEVER);
        came.map(|(signal, ..)| *signal)
    }

    /// Waits for the next ending signal that does not repeat the previous one.
    pub async fn another(&mut self) -> Ending {
        tokio::time::sleep(REPEAT).await;
        poll_fn(|cx| {
            while self.poll(cx).is_ready() {}
            Poll::Ready(())
        })
        .await;
        self.next().await
    }

    fn poll(&mut self, cx: &mut Wake<'_>) -> Poll<Ending> {
        for (signal, origin, came) in &mut self.waited {
            if came.poll_recv(cx).is_ready() {
                self.came = true;
                return Poll::Ready(Ending {
                    signal: *signal,
                    from_terminal: origin.load(Ordering::Relaxed) == SI_KERNEL,
                });
            }
        }
        Poll::Pending
    }

    /// Restores the default actions: the next signal ends the process.
    pub fn restore_now(self) {
        self.waited.iter().for_each(|(signal, ..)| default(*signal));
    }

    /// After a signal has been received, restores the default actions with a delay of [`REPEAT`]: a further signal then
    /// ends the process.
    pub fn restore(self) {
        self.restore_once(|| SIGNALLED.load(Ordering::Relaxed));
    }

    /// Restores the default actions with a delay of [`REPEAT`]: a signal then ends the process. An earlier signal
    /// counts as a repeat of the signal that ended the command.
    pub fn restore_later(self) {
        self.restore_once(|| true);
    }

    fn restore_once(self, due: impl Fn() -> bool + Send + 'static) {
        let signals: Vec<Signal> = self.waited.iter().map(|(signal, ..)| *signal).collect();
        // A separate thread, because the main thread is busy with the last report.
        let _ = thread::Builder::new()
            .name("memprof-signals".into())
            .spawn(move || {
                while !due() {
                    thread::sleep(LOOK);
                }
                thread::sleep(REPEAT);
                signals.into_iter().for_each(default);
            });
    }
}

/// Blocks the ending signals in this thread, so that in a forked child memprof's handlers handle none of them. Returns
/// the mask to restore.
pub(super) fn hold() -> nix::Result<SigSet> {
    let ending: SigSet = ENDING.iter().map(|(signal, _)| *signal).collect();
    ending.thread_swap_mask(SigmaskHow::SIG_BLOCK)
}

/// In the child of a fork: restores the default actions, as `exec` will, and then the mask. Otherwise memprof's
/// handlers would swallow a Ctrl-C or Ctrl-Z meant for the command. Calls only async-signal-safe functions.
pub(super) fn release_in_child(mask: &SigSet) {
    let ending = ENDING.iter().map(|(signal, _)| *signal);
    for signal in ending.chain([Signal::SIGTSTP]) {
        if !is_ignored(signal) {
            default(signal);
        }
    }
    let _ = mask.thread_set_mask();
}

fn default(signal: Signal) {
    // SAFETY: the default action runs no code of this process, and nothing waits for the handler any more, or this
    // is a child in which nothing does. If the call fails, the signal stays handled, which is harmless.
    let _ = unsafe { nix::sys::signal::signal(signal, SigHandler::SigDfl) };
}

fn leads_session() -> bool {
    nix::unistd::getsid(None).is_ok_and(|session| session == nix::unistd::getpid())
}

pub(super) fn is_ignored(signal: Signal) -> bool {
    let mut now = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: without a new action the call only fills in the current one; if it fails, all zeroes is a valid
    // value of the structure (the default action).
    unsafe {
        libc::sigaction(signal as i32, std::ptr::null(), now.as_mut_ptr());
        now.assume_init().sa_sigaction == libc::SIG_IGN
    }
}
