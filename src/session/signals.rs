//! The signals that end memprof: SIGINT, SIGTERM, SIGHUP and SIGQUIT, all alike.
//!
//! The first one ends the run in order: last report, outputs, summary. A later one ends it at once. What
//! comes within [`REPEAT`] is the same wish: `timeout` sends its signal to the process and to its group, and
//! of a terminal's end both the shell and the kernel tell.

use std::future::poll_fn;
use std::sync::atomic::{AtomicI32, Ordering};
use std::task::{Context as Wake, Poll};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{SigHandler, Signal};
use signal_hook_registry::register_sigaction;
use tokio::signal::unix::{self, SignalKind};

/// Every ending signal, with where the origin of its newest occurrence is noted.
static ENDING: [(Signal, &AtomicI32); 4] = {
    static ORIGINS: [AtomicI32; 4] = [const { AtomicI32::new(0) }; 4];
    [
        (Signal::SIGINT, &ORIGINS[0]),
        (Signal::SIGTERM, &ORIGINS[1]),
        (Signal::SIGHUP, &ORIGINS[2]),
        (Signal::SIGQUIT, &ORIGINS[3]),
    ]
};

/// How long after an ending signal further ones count as the same.
const REPEAT: Duration = Duration::from_millis(500);

/// `si_code` of what the kernel sends by itself, not for a process that called `kill`.
const SI_KERNEL: i32 = 0x80;

/// An ending signal that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    /// Which one.
    pub signal: Signal,
    /// It came from the terminal (a key, or its end), which sends it to every process of the foreground
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

    /// What a command under `--` is to be sent, if anything: only what it did not get itself.
    ///
    /// It is in memprof's process group. Ctrl-C, Ctrl-\ and the end of the terminal reach the whole group
    /// from the kernel; a second SIGINT would be taken for the user's second Ctrl-C. What a process sent
    /// (`kill -HUP` of memprof, a service manager) reached memprof alone, as far as can be told. It is passed
    /// on as it is: memprof stands in the command's place. A shell that ends sends SIGHUP to the whole group by
    /// `kill` as well. That cannot be told apart, and the command gets two, mostly merged into one: a
    /// command that SIGHUP ends is ending, one that ignores it does so twice. And if memprof leads the session
    /// (`xterm -e memprof …`), the end of the terminal reaches memprof alone.
    pub fn for_command(self) -> Option<Signal> {
        let whole_group = match self.signal {
            Signal::SIGHUP => self.from_terminal && !leads_session(),
            _ => self.from_terminal,
        };
        (!whole_group).then_some(self.signal)
    }

    /// The exit status of what the signal ended, as a shell would say it.
    pub fn status(self) -> u8 {
        128 + self.signal as i32 as u8
    }
}

/// Waits for ending signals.
pub struct Signals {
    waited: Vec<(Signal, &'static AtomicI32, unix::Signal)>,
    /// One has come.
    came: bool,
}

impl Signals {
    /// Takes the ending signals over. SIGHUP stays ignored where it was (`nohup`). Needs a tokio runtime.
    ///
    /// # Errors
    /// The system does not let it handle signals.
    pub fn new() -> Result<Signals> {
        let mut waited = Vec::new();
        for (signal, origin) in ENDING {
            if signal == Signal::SIGHUP && is_ignored(signal) {
                continue;
            }
            let what = || format!("cannot wait for {signal}");
            // Before tokio's own action, so that the origin is known when the signal is seen.
            // SAFETY: the action only stores to an atomic, which is async-signal-safe, and cannot panic.
            unsafe {
                register_sigaction(signal as i32, |info| {
                    origin.store(info.si_code, Ordering::Relaxed);
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

    /// The next one.
    pub async fn next(&mut self) -> Ending {
        poll_fn(|cx| self.poll(cx)).await
    }

    /// The next one that is no repetition of one that came just now.
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

    /// If one has come, another one ends the process at once, from a moment on.
    pub fn restore(self) {
        if !self.came {
            return;
        }
        let signals: Vec<Signal> = self.waited.iter().map(|(signal, ..)| *signal).collect();
        // The main thread is busy with the last report. Without this thread nothing ends that sooner.
        let _ = thread::Builder::new()
            .name("memprof-signals".into())
            .spawn(move || {
                thread::sleep(REPEAT);
                signals.into_iter().for_each(default);
            });
    }
}

fn default(signal: Signal) {
    // SAFETY: the default action is no code of this process's; nobody waits for the handler any more. A
    // signal that stays handled does nothing.
    let _ = unsafe { nix::sys::signal::signal(signal, SigHandler::SigDfl) };
}

fn leads_session() -> bool {
    nix::unistd::getsid(None).is_ok_and(|session| session == nix::unistd::getpid())
}

fn is_ignored(signal: Signal) -> bool {
    let mut now = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: with no new action it only fills in the one that is there; all zeroes is a valid value of
    // the structure (the default action), should it fail.
    unsafe {
        libc::sigaction(signal as i32, std::ptr::null(), now.as_mut_ptr());
        now.assume_init().sa_sigaction == libc::SIG_IGN
    }
}
