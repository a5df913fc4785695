//! Wiring of a session: its threads, the channels between them, and shutdown.
//!
//! The collector thread owns the probe and the aggregator; the symbol thread owns the names; the main thread
//! serves HTTP, feeds the live view of `memprof top` and waits for signals. The threads communicate over
//! bounded channels.

mod collection;
pub mod collector;
pub mod command;
mod live;
mod output;
mod reconcile;
pub mod reports;
mod signals;
mod sweep;
pub mod unwinding;

use std::net::TcpListener;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use nix::sys::eventfd::{EfdFlags, EventFd};
use tokio::sync::watch;

use crate::api::{Api, ApiOptions, Provider, ProviderError};
use crate::capability;
use crate::config::{Config, Output};
use crate::console;
use crate::export::printable;
use crate::priority;
use crate::privileges::{self, Role};
use crate::probe::{Missing, Probe, ProbeConfig};
use crate::screen;
use crate::server::{self, ServerOptions};
use crate::symbolize::Symbolizer;
use crate::target::{Program, Selector};
use collector::{Collector, Command, Progress};
use command::{Prepared, Stop};
use live::Live;
use reports::{Collecting, Reports};
use signals::{Ending, Signals};
use unwinding::{MappedFiles, Unwinding};

/// Privileges of the threads that build replies: they write no files.
const HELPER: Role = Role::Server {
    writes_files: false,
};
/// Capacity of the collector's command queue.
const QUEUE: usize = 64;
/// Upper limit for holding a command stopped, at its start and at its end.
const HOLD: Duration = unwinding::PREPARE.saturating_add(Duration::from_secs(10));
/// How long memprof waits for a command to end after an ending signal.
const COMMAND_GRACE: Duration = Duration::from_secs(10);

/// Runs a profiling session as configured, until it ends.
///
/// # Errors
/// A start-up failure, with what to do about it, or a failure of the collector.
pub fn run(config: &Config) -> Result<ExitCode> {
    console::show_diagnostics(config.verbosity)?;
    if config.screen.is_some() {
        screen::require()?;
    }
    capability::require()?;
    priority::raise();
    raise_file_limit();
    for output in config.outputs.iter().filter(|o| !o.is_stdout()) {
        output::check(&output.path)?;
    }
    let listeners = config
        .listen
        .iter()
        .map(|a| server::bind(*a))
        .collect::<Result<Vec<_>, _>>()?;
    if let Selector::Pid(pid) = config.target {
        capability::require_access(pid)?
            .iter()
            .for_each(|less| console::print(less));
    }
    let symbolizer = Symbolizer::start().context("cannot start the symbol thread")?;
    let (collecting, progress, missing) = start_collector(config)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // These threads build replies; they write no files.
        .on_thread_start(|| {
            priority::restore();
            drop(privileges::limit_capabilities(HELPER));
        })
        .build()
        .context("cannot start the HTTP server's runtime")?;
    for (program, why) in &missing {
        console::print(&format!(
            "continuing without the BPF program {program}: {why}"
        ));
    }
    let reports = Arc::new(Reports::new(
        collecting.clone(),
        progress.clone(),
        symbolizer,
        config.freeze,
    ));
    let session = Session {
        config,
        collecting,
        progress,
        reports,
        live: None,
    };
    priority::restore();
    let code = runtime.block_on(session.live(listeners));
    // Neither a client that is still reading nor a running lookup may delay the exit.
    runtime.shutdown_timeout(Duration::from_secs(1));
    code
}

/// Starts the thread that owns the probe; returns once the target is followed or memprof waits for it. (A
/// command is followed by [`start_command`].)
///
/// # Errors
/// The probe cannot be loaded, or the target cannot be followed.
pub fn start_collector(
    config: &Config,
) -> Result<(Collecting, watch::Receiver<Progress>, Vec<Missing>)> {
    let wake = Arc::new(EventFd::from_flags(
        EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK,
    )?);
    let (commands, inbox) = sync_channel(QUEUE);
    let (tell, progress) = watch::channel(Progress::Waiting);
    let (started, ready) = sync_channel(1);
    let probe_config = ProbeConfig {
        follow_forks: config.follow_forks || matches!(config.target, Selector::Cgroup(_)),
        unwind: config.unwind,
        max_frames: config.max_frames,
        sources: config.sources.clone(),
        wanted_comm: config.target.comm(),
    };
    let (selector, follow_forks) = (config.target.clone(), config.follow_forks);
    let max_freeze = config.max_freeze;
    let woken = Arc::clone(&wake);
    thread::Builder::new()
        .name("memprof-collect".into())
        .spawn(move || {
            let begin = || -> Result<Collector> {
                let probe = Probe::load(&probe_config)?;
                privileges::reduce(Role::Collector);
                let unwinding = match probe_config.unwind.needs_tables() {
                    true => Some(Unwinding::start(&probe, Arc::clone(&woken))?),
                    false => None,
                };
                let mut collector =
                    Collector::new(probe, selector, follow_forks, tell.clone(), unwinding);
                collector.holding.max = max_freeze;
                collector.begin()?;
                Ok(collector)
            };
            let mut collector = match begin() {
                Ok(collector) => collector,
                Err(e) => {
                    let _ = started.send(Err(e));
                    return;
                }
            };
            let _ = started.send(Ok(collector.probe.missing().to_vec()));
            collector.run(&inbox, &woken);
        })
        .context("cannot start the collector thread")?;
    let missing = ready
        .recv()
        .map_err(|_| anyhow!("the collector thread ended early"))??;
    Ok((Collecting::new(commands, wake), progress, missing))
}

/// Starts a command and follows it from its first page on. A `quiet` command has no standard streams.
///
/// # Errors
/// The process cannot be created or followed.
pub fn start_command(collecting: &Collecting, argv: &[String], quiet: bool) -> Result<Prepared> {
    let at_stops = collecting.clone();
    let prepared = command::prepare(argv, quiet, move |pid, stop| {
        let kept = match stop {
            Stop::Exec => Program::of(pid).and_then(|program| {
                let files = MappedFiles::new(program);
                at_stops.wait_for(HOLD, |done| Command::Prepare(files, done))
            }),
            Stop::End => at_stops.wait_for(HOLD, Command::Final).map(|()| true),
        };
        kept.unwrap_or(false)
    })?;
    let (reply, answer) = sync_channel(1);
    collecting.send(Command::Follow(prepared.pid, reply))?;
    answer.recv().context("the collector has ended")??;
    prepared.release();
    Ok(prepared)
}

/// A running session.
struct Session<'a> {
    config: &'a Config,
    collecting: Collecting,
    progress: watch::Receiver<Progress>,
    reports: Arc<Reports>,
    /// The live view, while it owns the terminal.
    live: Option<Live>,
}

/// Why a session ends.
enum End {
    Signal(Ending),
    Duration,
    TargetEnded,
    Quit,
    Command(command::ExitStatus),
}

impl Session<'_> {
    async fn live(mut self, listeners: Vec<TcpListener>) -> Result<ExitCode> {
        let mut signals = Signals::new()?;
        let (stop, mut stopped) = watch::channel(false);
        let addresses: Vec<_> = listeners
            .iter()
            .filter_map(|l| l.local_addr().ok())
            .collect();
        let server = tokio::spawn(server::serve(
            listeners,
            Api::new(
                Arc::clone(&self.reports) as Arc<dyn Provider>,
                ApiOptions {
                    metrics_functions: self.config.metrics_functions,
                },
            ),
            self.server_options(),
            async move {
                let _ = stopped.wait_for(|stop| *stop).await;
            },
        ));
        self.announce(&addresses);
        let outcome = self.profile_until_end(&mut signals).await;
        // Restores the terminal before anything else is printed.
        self.live = None;
        // After a first signal, a further one now kills memprof: the last report and the outputs take time.
        signals.restore();
        // The server keeps answering while the last report is made.
        let written = match &outcome {
            Ok(_) => self.write_results().await,
            Err(_) => Ok(()),
        };
        stop.send_replace(true);
        let _ = server.await;
        let _ = self.collecting.send(Command::Stop);
        let code = outcome?;
        written?;
        Ok(ExitCode::from(code))
    }

    fn server_options(&self) -> ServerOptions {
        ServerOptions {
            allow_hosts: self.config.allow_hosts.clone(),
            cors_origins: self.config.cors_origins.clone(),
            warn: Some(Arc::new(console::print)),
            ..ServerOptions::default()
        }
    }

    fn announce(&self, addresses: &[std::net::SocketAddr]) {
        if let Progress::Waiting = *self.progress.borrow() {
            match &self.config.target {
                Selector::Comm(name) => {
                    console::print(&format!("waiting for a process named {name}"))
                }
                Selector::Cgroup(group) => {
                    console::print(&format!("waiting for a process in {group}"))
                }
                Selector::Pid(_) | Selector::Command(_) => {}
            }
        }
        for address in addresses {
            console::print(&format!("serving http://{address}/"));
        }
    }

    async fn profile_until_end(&mut self, signals: &mut Signals) -> Result<u8> {
        // The live view owns the terminal.
        let quiet = self.config.screen.is_some();
        let mut command = match &self.config.target {
            Selector::Command(argv) => Some(start_command(&self.collecting, argv, quiet)?),
            _ => None,
        };
        // No request has been answered yet. Threads started from here on inherit the reduced privileges.
        privileges::reduce(Role::Server {
            writes_files: self.config.outputs.iter().any(|o| !o.is_stdout()),
        });
        if let Some(options) = self.config.screen {
            self.live = Some(Live::start(options, Arc::clone(&self.reports))?);
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
                console::print(
                    "the time of --duration is over; the command continues without memprof",
                );
                Ok(0)
            }
            _ => Ok(0),
        }
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
        let stays = self.stays();
        self.progress.mark_changed();
        loop {
            let time_up = async {
                match deadline {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
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
            tokio::select! {
                ending = signals.next() => return Ok(end(End::Signal(ending))),
                () = time_up => return Ok(end(End::Duration)),
                done = quit => {
                    // If the terminal is gone, only the view ends; the outputs are still written.
                    if let Err(e) = done {
                        console::print(&format!("the view ended: {e:#}"));
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
                    console::print(&format!("the command ended with status {status}; q ends memprof"));
                }
                changed = self.progress.changed() => {
                    changed.context("the collector has ended")?;
                    let progress = self.progress.borrow_and_update().clone();
                    if let Some(end) = self.note(&progress, &mut following)? {
                        return Ok(end);
                    }
                    if deadline.is_none() && following.is_some() {
                        deadline = self.config.duration.map(|d| tokio::time::Instant::now() + d);
                    }
                }
            }
        }
    }

    /// Whether memprof keeps showing the last profile after the target has ended.
    fn stays(&self) -> bool {
        self.config.screen.is_some() && self.config.listen.is_some()
    }

    /// Prints changes in the target's life; returns why the session ends, if it does.
    fn note(
        &self,
        progress: &Progress,
        following: &mut Option<crate::event::Pid>,
    ) -> Result<Option<End>> {
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

    fn note_following(
        &self,
        pid: crate::event::Pid,
        comm: &str,
        following: &mut Option<crate::event::Pid>,
    ) {
        if *following != Some(pid) {
            let name = match &self.config.target {
                // The process has not called `exec` yet: its name is still memprof's.
                Selector::Command(argv) => argv[0].as_str(),
                _ => comm,
            };
            console::print(&format!("following {} (pid {pid})", printable(name)));
        }
        *following = Some(pid);
    }

    fn note_end(&self, pid: crate::event::Pid) -> Option<End> {
        match &self.config.target {
            Selector::Command(_) => {}
            _ if self.config.listen.is_none() => return Some(End::TargetEnded),
            Selector::Comm(name) => {
                console::print(&format!(
                    "pid {pid} ended; its last profile stays; waiting for the next {name}"
                ));
            }
            Selector::Cgroup(group) => {
                console::print(&format!(
                    "{group} is empty; its last profile stays; waiting for the next process in it"
                ));
            }
            Selector::Pid(_) => {
                let key = match self.config.screen {
                    Some(_) => "q",
                    None => "Ctrl-C",
                };
                console::print(&format!(
                    "pid {pid} ended; its last profile stays; {key} ends memprof"
                ));
            }
        }
        None
    }

    /// Handles a signal while a command runs: takes a last profile, then gives the command time to end. A
    /// second signal ends the wait.
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
        tokio::select! {
            status = &mut command.ended => status.context("the command's thread ended early")?,
            _ = signals.another() => Ok(ending.status()),
            () = tokio::time::sleep(COMMAND_GRACE) => {
                console::print("the command is still running; memprof ends");
                Ok(ending.status())
            }
        }
    }

    async fn write_results(&self) -> Result<()> {
        let report = match self.reports.profile().await {
            Ok(report) => report,
            Err(e) => {
                let e = match (&*self.progress.borrow(), e) {
                    (Progress::Ended { pid, .. }, ProviderError::NoTarget) => {
                        format!("pid {pid} ended before its memory could be read")
                    }
                    (_, e) => e.to_string(),
                };
                console::print(&format!("no profile: {e}"));
                return match self.config.outputs.first() {
                    Some(output) => Err(anyhow!("cannot write {}: {e}", output.path.display())),
                    None => Ok(()),
                };
            }
        };
        let outputs = &self.config.outputs;
        let mut report = report;
        if outputs.iter().any(|o| o.format.wants_lines) {
            match self.reports.with_lines(&report).await {
                Ok(with_lines) => report = with_lines,
                Err(e) => console::print(&format!("the profile has no source lines: {e}")),
            }
        }
        for output in outputs {
            privileges::writing_files(|| output::write_profile(output, &report))?;
        }
        // If a command runs, stdout belongs to its output.
        let stdout_taken = matches!(self.config.target, Selector::Command(_))
            || outputs.iter().any(Output::is_stdout);
        output::write_summary(&report, stdout_taken).context("cannot write the summary")
    }
}

/// Raises the descriptor limit to the hard limit: perf events, open modules and connections all need
/// descriptors.
fn raise_file_limit() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}
