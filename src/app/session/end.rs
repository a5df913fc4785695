//! The main loop of a session: runs until the session ends.

use std::ffi::OsString;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use tokio::time::Instant;

use super::command::{ExitStatus, Launch, Prepared};
use super::failure::Failure;
use super::live::Live;
use super::pause::{self, Pauses};
use super::signals::{Ending, Signals};
use super::{Session, follow_command};
use crate::collect::collector::Progress;
use crate::http::api::Provider;
use crate::http::server::Listen;
use memprof_sys::ids::Pid;
use memprof_sys::messages;
use memprof_sys::privileges::{self, ThreadRole};
use memprof_sys::process::Selector;
use memprof_sys::text::printable;

/// How long memprof waits for a command to end after an ending signal.
pub(super) const COMMAND_GRACE: Duration = Duration::from_secs(10);
/// memprof prints that it waits only if the command takes longer than this.
pub(super) const SILENT: Duration = Duration::from_millis(300);
/// How long memprof waits for a command to execute its program before it announces its server.
const EXEC: Duration = Duration::from_secs(1);

/// Why a session ends.
enum End {
    Signal(Ending),
    Duration,
    TargetEnded,
    Quit,
    Command(ExitStatus),
}

impl Session<'_> {
    /// Starts the command, if any, and profiles until the session ends; returns the exit status.
    pub(super) async fn profile_until_end(
        &mut self,
        signals: &mut Signals,
        addresses: &[Listen],
    ) -> Result<u8> {
        let mut command = match &self.config.target {
            Selector::Command(argv) => Some(self.start_command(argv, signals)?),
            _ => None,
        };
        // No request has been answered yet. Threads started from here on inherit the reduced privileges.
        privileges::reduce(ThreadRole::Server {
            writes_files: self.config.writes_files(),
        });
        if let Some(command) = &mut command {
            wait_until_executed(command).await?;
        }
        self.announce(addresses);
        self.manager.ready(&self.collecting);
        if let Some(options) = self.config.screen {
            self.live = Some(Live::start(
                options,
                Arc::clone(&self.reports) as Arc<dyn Provider>,
            )?);
        }
        let end = self.wait_for_end(signals, command.as_mut()).await?;
        match (end, command) {
            (End::Command(status), _) => Ok(status),
            (End::Signal(ending), Some(command)) => {
                self.end_command(ending, command, signals).await
            }
            (End::Quit, Some(command)) => {
                // Restores the terminal while the command is given time to end.
                self.live = None;
                self.end_command(Ending::terminate(), command, signals)
                    .await
            }
            (End::Duration, Some(_)) => {
                messages::print(
                    "the time of --duration is over; the command continues without memprof",
                );
                Ok(0)
            }
            _ => Ok(0),
        }
    }

    /// Starts the command, unless a signal has already arrived: the command did not exist then to receive a Ctrl-C.
    fn start_command(&self, argv: &[OsString], signals: &Signals) -> Result<Prepared> {
        // The live view owns the terminal.
        let quiet = self.config.screen.is_some();
        let launch = Launch {
            argv,
            quiet,
            sampler: self.sampler.as_ref(),
        };
        let prepared = follow_command(&self.collecting, launch);
        if let Some(signal) = signals.arrived() {
            return Err(Failure::NotStarted(signal).into());
        }
        let prepared = prepared?;
        prepared.release();
        Ok(prepared)
    }

    async fn wait_for_end(
        &mut self,
        signals: &mut Signals,
        command: Option<&mut Prepared>,
    ) -> Result<End> {
        let mut ended = command.map(|c| &mut c.ended);
        let mut following = None;
        let mut deadline = None;
        let mut exited = None;
        let mut patience = self.config.wait.map(|wait| Instant::now() + wait);
        let stays = self.stays();
        let mut pauses = match self.config.target {
            Selector::Command(_) => Some(Pauses::new()?),
            _ => None,
        };
        self.progress.mark_changed();
        loop {
            let (time_up, waited) = (sleep_until(deadline), sleep_until(patience));
            let command_ended = async {
                match ended.as_mut() {
                    Some(ended) => (&mut **ended).await,
                    None => std::future::pending().await,
                }
            };
            let live = &mut self.live;
            let quit = async {
                match live {
                    Some(live) => live.ended().await,
                    None => std::future::pending().await,
                }
            };
            // Once the command has ended, its exit status becomes memprof's.
            let end = |end| exited.map_or(end, End::Command);
            let paused = async {
                match &mut pauses {
                    Some(pauses) => pauses.next().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                ending = signals.next() => return Ok(end(End::Signal(ending))),
                () = paused => pause::stop(&self.collecting),
                () = waited => {
                    if let Some(failure) = self.not_found() {
                        return Err(failure.into());
                    }
                    patience = None;
                }
                () = time_up => return Ok(end(End::Duration)),
                done = quit => {
                    // If the terminal is lost, only the view ends; the outputs are still written.
                    if let Err(e) = done {
                        messages::print(&format!("the view ended: {e:#}"));
                    }
                    return Ok(end(End::Quit));
                }
                status = command_ended => {
                    let status = status.context("the command's thread ended early")??;
                    if !stays {
                        return Ok(End::Command(status));
                    }
                    exited = Some(status);
                    ended = None;
                    messages::print(&format!("the command ended with status {status}; q ends memprof"));
                }
                changed = self.progress.changed() => {
                    changed.context("the collector has ended")?;
                    let progress = self.progress.borrow_and_update().clone();
                    if let Some(end) = self.note(&progress, &mut following)? {
                        return Ok(end);
                    }
                    if deadline.is_none() && following.is_some() {
                        deadline = self.config.duration.map(|d| Instant::now() + d);
                    }
                }
            }
        }
    }

    /// The failure to report if the target was never found.
    fn not_found(&self) -> Option<Failure> {
        let waits = matches!(*self.progress.borrow(), Progress::Waiting);
        let (what, wait) = (self.config.target.awaited()?, self.config.wait?);
        waits.then_some(Failure::NotFound { what, wait })
    }

    /// Whether memprof keeps showing the last profile after the target has ended.
    fn stays(&self) -> bool {
        self.config.screen.is_some() && self.config.listen.is_some()
    }

    /// Prints changes in the target's state. Returns the reason if the session ends.
    fn note(&self, progress: &Progress, following: &mut Option<Pid>) -> Result<Option<End>> {
        self.manager.shows(&self.config.target, progress);
        match progress {
            Progress::Waiting => {}
            Progress::Following { pid, comm } => self.note_following(*pid, comm, following),
            Progress::Ended { pid, comm } => {
                self.note_following(*pid, comm, following);
                // The same process may enter the control group again.
                *following = None;
                return Ok(self.note_end(*pid));
            }
        }
        Ok(None)
    }

    fn note_following(&self, pid: Pid, comm: &str, following: &mut Option<Pid>) {
        if *following != Some(pid) {
            let name = match &self.config.target {
                // The process has not called `exec` yet: its name is that of memprof.
                Selector::Command(argv) => argv[0].to_string_lossy(),
                _ => comm.into(),
            };
            messages::print(&format!("following {} (pid {pid})", printable(&name)));
        }
        *following = Some(pid);
    }

    fn note_end(&self, pid: Pid) -> Option<End> {
        match &self.config.target {
            Selector::Command(_) => {}
            _ if self.config.listen.is_none() => return Some(End::TargetEnded),
            Selector::Comm(name) => {
                messages::print(&format!(
                    "pid {pid} ended; its last profile stays; waiting for the next {name}"
                ));
            }
            Selector::Cgroup(group) => {
                messages::print(&format!(
                    "{group} is empty; its last profile stays; waiting for the next process in it"
                ));
            }
            Selector::All => messages::print("no process is left; the last profile stays"),
            Selector::Pid(_) => {
                let key = match self.config.screen {
                    Some(_) => "q",
                    None => "Ctrl-C",
                };
                messages::print(&format!(
                    "pid {pid} ended; its last profile stays; {key} ends memprof"
                ));
            }
        }
        None
    }

    /// Handles a signal while a command runs: takes a last profile, then gives the command time to end. A second signal
    /// ends the wait.
    async fn end_command(
        &self,
        ending: Ending,
        mut command: Prepared,
        signals: &mut Signals,
    ) -> Result<u8> {
        let _ = self.reports.profile().await;
        if let Some(signal) = ending.for_command() {
            let pid = nix::unistd::Pid::from_raw(command.pid.0 as i32);
            let _ = nix::sys::signal::kill(pid, signal);
        }
        let pid = command.pid;
        let mut wait = pin!(async {
            tokio::select! {
                status = &mut command.ended => Some(status),
                _ = signals.another() => None,
                () = tokio::time::sleep(COMMAND_GRACE) => {
                    tell_not_ended(pid);
                    None
                }
            }
        });
        let ended = match tokio::time::timeout(SILENT, &mut wait).await {
            Ok(ended) => ended,
            Err(_) => {
                tell_wait(pid);
                wait.await
            }
        };
        match ended {
            Some(status) => status.context("the command's thread ended early")?,
            None => {
                tell_left(pid);
                Ok(ending.status())
            }
        }
    }
}

/// Prints that memprof waits for a command.
pub(super) fn tell_wait(pid: Pid) {
    messages::print(&format!(
        "waiting for the command (pid {pid}) to end, at most {} s; another Ctrl-C or signal ends memprof at once and \
         lets the command run on",
        COMMAND_GRACE.as_secs()
    ));
}

/// Prints that the command has not ended in time.
pub(super) fn tell_not_ended(pid: Pid) {
    messages::print(&format!("the command (pid {pid}) has not ended"));
}

/// Prints that memprof ends before the command.
pub(super) fn tell_left(pid: Pid) {
    messages::print(&format!("memprof ends; the command (pid {pid}) runs on"));
}

/// Completes at this time, or never for `None`.
pub(super) async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Waits until the command has executed its program, for at most [`EXEC`]: a stopped command may never do so.
///
/// # Errors
/// The reason why the command did not execute its program.
pub(super) async fn wait_until_executed(command: &mut Prepared) -> Result<()> {
    match tokio::time::timeout(EXEC, &mut command.executed).await {
        Ok(Ok(())) | Err(_) => return Ok(()),
        Ok(Err(_)) => {}
    }
    let status = (&mut command.ended).await;
    let status = status.context("the command's thread ended early")??;
    let signal = Signal::try_from(i32::from(status) - 128).unwrap_or(Signal::SIGKILL);
    Err(Failure::NotStarted(signal).into())
}
