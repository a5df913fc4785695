//! Sets up a session: its threads, the channels between them, and shutdown.
//!
//! The collector thread owns the probe and the aggregator; the symbol thread owns the names; the main thread
//! serves HTTP, feeds the live view of `memprof top` and waits for signals. The threads communicate over
//! bounded channels.

pub mod by_stack;
pub mod command;
pub mod command_snapshot;
mod end;
pub mod failure;
mod growth;
mod live;
mod manager;
mod marks;
mod naming;
pub mod oom;
mod output;
mod pause;
mod push;
mod record;
pub mod reports;
mod saved_sessions;
mod signals;
mod start;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};

use crate::app::capability;
use crate::app::config::{Config, Output, OutputMoment};
use crate::collect::collector::{Command, Killed, Numbered, Progress};
use crate::collect::{CollectorHandle, ProviderError};
use crate::export::push::{PushHandle, Pusher};
use crate::http::api::{Api, ApiOptions, Provider};
use crate::http::server::{self, Listen, Listener, ServerOptions, Token};
use crate::probe::SyscallHooks;
use crate::probe::event::MarkSet;
use crate::probe::source::resident_pages::OOM_HOOK;
use crate::tui;
pub use command::Launch;
pub use growth::growth;
use live::Live;
use manager::Manager;
use memprof_heap::headroom;
use memprof_heap::sampler::{self, Library};
use memprof_profile::{Kind, Profile, Report};
use memprof_recording::{Place, Recorder, Recording};
use memprof_sys::ids::Pid;
use memprof_sys::privileges::{self, ThreadRole};
use memprof_sys::process::{Presence, Selector};
use memprof_sys::text::printable;
use memprof_sys::{messages, priority};
use push::PushLoop;
use record::RecordLoop;
use reports::Reports;
use saved_sessions::GATE_FIRED;
pub use saved_sessions::{diff, open};
use signals::Signals;
pub use start::{Started, follow_command, start_collector, start_command};

/// Maximum time to detach from the samplers and functions of processes.
const DETACH: Duration = Duration::from_secs(5);

/// Privileges of the threads that build replies: they cannot write files.
const HELPER: ThreadRole = ThreadRole::Server {
    writes_files: false,
};

/// Runs a profiling session as configured, until it ends.
///
/// # Errors
/// A start-up failure with its remedy, or a failure of the collector.
pub fn run(config: &Config) -> Result<ExitCode> {
    messages::show_diagnostics(config.verbosity)?;
    if config.screen.is_some() {
        tui::require()?;
    }
    require()?;
    for output in config.outputs.iter().filter(|o| !o.is_stdout()) {
        output::check(&output.path, output::OUTPUT)?;
    }
    if let Some(path) = config.heap.as_ref().and_then(|heap| heap.sizes.as_deref()) {
        output::check(path, output::SIZES)?;
    }
    if let Some(to) = &config.on_oom {
        oom::check(to)?;
    }
    let listeners = config
        .listen
        .iter()
        .map(server::bind)
        .collect::<Result<Vec<_>, _>>()?;
    let (session, happened) = Session::start(config)?;
    let runtime = runtime()?;
    priority::restore();
    let code = runtime.block_on(session.live(listeners, happened));
    // Neither a slow client nor a running symbol lookup may delay the exit.
    runtime.shutdown_timeout(Duration::from_secs(1));
    code
}

/// Checks that memprof can profile on this machine, and prepares for it.
///
/// # Errors
/// What is missing and how to get it.
fn require() -> Result<()> {
    capability::require()?;
    priority::raise();
    raise_file_limit();
    if let Some(scarce) = headroom::scarce() {
        messages::print(&scarce);
    }
    Ok(())
}

/// The runtime of the main thread; its blocking threads build replies.
fn runtime() -> Result<Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .on_thread_start(|| {
            priority::restore();
            drop(privileges::limit_capabilities(HELPER));
        })
        .build()
        .context("cannot start the runtime of the main thread")
}

/// Events in followed processes that the session reacts to.
struct Happened {
    /// Marks that the processes set.
    marks: mpsc::Receiver<(Pid, MarkSet)>,
    /// Kills by the OOM killer.
    kills: mpsc::Receiver<Killed>,
}

/// A running session.
struct Session<'a> {
    config: &'a Config,
    collecting: CollectorHandle,
    progress: watch::Receiver<Progress>,
    /// The most recent profile, from a periodic scan or from a request.
    newest: watch::Receiver<Option<Numbered>>,
    reports: Arc<Reports>,
    /// The sampling library that the command has preloaded.
    sampler: Option<Library>,
    /// The pusher of profiles to a store, until pushing begins.
    pushing: Option<(Pusher, PushHandle)>,
    /// The recording, until it begins.
    recorder: Option<Recorder>,
    /// Where the recording is.
    recorded: Option<Place>,
    /// The token that clients must present.
    token: Option<Arc<Token>>,
    /// The service manager that started memprof.
    manager: Manager,
    /// The live view, while it owns the terminal.
    live: Option<Live>,
}

impl<'a> Session<'a> {
    /// Starts the session's threads and loads the probe. Also returns the receivers of events from followed processes.
    ///
    /// # Errors
    /// The target cannot be followed, or the probe cannot be loaded.
    fn start(config: &'a Config) -> Result<(Session<'a>, Happened)> {
        let token = config.token_file.as_deref().map(Token::read).transpose()?;
        let token = token.map(Arc::new);
        match config.target {
            Selector::Pid(pid) => {
                if let Some(why) = Presence::look_up(pid).refusal(pid) {
                    bail!("cannot profile process {pid}: {why}");
                }
                capability::require_access(pid)?
                    .iter()
                    .for_each(|less| messages::print(less));
            }
            Selector::Comm(_) | Selector::Cgroup(_) | Selector::All => {
                Presence::overlooked().into_iter().for_each(messages::print);
            }
            Selector::Command(_) => {}
        }
        let recorder = record::open(config)?;
        let (symbolizer, fetching) = naming::start(config)?;
        let pushing = push::start(config)?;
        let sampler = match (&config.heap, &config.target) {
            (Some(heap), Selector::Command(_)) if heap.exact.is_none() => {
                Some(Library::place(&sampler::Options {
                    interval: heap.interval,
                    // The command is often a script that executes the actual program.
                    children: true,
                    ..sampler::Options::default()
                })?)
            }
            _ => None,
        };
        let Started {
            collecting,
            progress,
            newest,
            missing,
            syscall_hooks,
            faults_seen,
            marks,
            kills,
        } = start_collector(config, sampler.as_ref())?;
        for (program, why) in &missing {
            messages::print(&format!(
                "continuing without the BPF program {program}: {why}"
            ));
            if *program == OOM_HOOK && config.on_oom.is_some() {
                messages::print("nothing will be written by --on-oom");
            }
        }
        let reports = Reports::new(
            &config.target,
            collecting.clone(),
            progress.clone(),
            symbolizer,
            config.freeze,
        );
        let pushed = pushing.as_ref().map(|(_, pushing)| pushing.clone());
        let reports = reports.with_clients(fetching, pushed);
        let recorded = recorder.as_ref().map(|to| to.place().clone());
        let inlined = config.heap.as_ref().is_none_or(|heap| heap.inlined);
        let reports = reports.with_inlined(inlined);
        let reports = reports.with_moments(recorded.clone());
        let reports = Arc::new(reports.with_hooks(syscall_hooks, faults_seen, missing));
        let session = Session {
            config,
            collecting,
            progress,
            newest,
            reports,
            sampler,
            pushing,
            recorder,
            recorded,
            token,
            manager: Manager::of_environment(&config.target),
            live: None,
        };
        Ok((session, Happened { marks, kills }))
    }
}

impl Session<'_> {
    async fn live(mut self, listeners: Vec<Listener>, happened: Happened) -> Result<ExitCode> {
        let mut signals = Signals::new()?;
        let (stop, mut stopped) = watch::channel(false);
        let addresses: Vec<_> = listeners.iter().filter_map(Listener::address).collect();
        let options = ApiOptions {
            metrics_functions: self.config.metrics_functions,
        };
        let api = Api::new(Arc::clone(&self.reports) as Arc<dyn Provider>, options);
        marks::make(&api, happened.marks)?;
        let oom_reporter = oom::OomReporter::start(
            Arc::clone(&api),
            Arc::clone(&self.reports),
            self.config.on_oom.as_ref(),
            happened.kills,
        );
        // The first answers, which requests have while the collector is busy.
        let reports = Arc::clone(&self.reports);
        tokio::spawn(async move { (reports.status().await, reports.tables().await) });
        let server = tokio::spawn(server::serve(
            listeners,
            Arc::clone(&api),
            self.server_options(),
            async move {
                let _ = stopped.wait_for(|stop| *stop).await;
            },
        ));
        let push_loop = self.pushing.take().zip(self.config.push.as_ref());
        let push_loop = push_loop.map(|((pusher, pushing), options)| {
            PushLoop::start(Arc::clone(&self.reports), pusher, pushing, options.interval)
        });
        let recorder = self.recorder.take();
        let record_loop = recorder.map(|recorder| {
            RecordLoop::start(Arc::clone(&self.reports), self.newest.clone(), recorder)
        });
        let record_loop = record_loop.transpose()?;
        let outcome = self.profile_until_end(&mut signals, &addresses).await;
        // Restores the terminal before anything else is printed.
        self.live = None;
        self.manager.stopping();
        self.stop_counting();
        let serves_on = self.config.serve_after_exit && outcome.is_ok();
        let mut waiting = None;
        match serves_on && signals.arrived().is_none() {
            true => waiting = Some(signals),
            // After a first signal, a second one now kills memprof: the last report and the outputs may take long.
            false => signals.restore(),
        }
        // The server keeps answering while the last report is made.
        let written = match &outcome {
            Ok(_) => self.write_results(&api).await,
            Err(_) => Ok(false),
        };
        if let (Some(mut signals), Ok(status)) = (waiting, &outcome) {
            messages::print(&format!(
                "the command ended with status {status}; its last profile and its peak stay; Ctrl-C ends memprof"
            ));
            self.greet(&addresses);
            signals.next().await;
            signals.restore();
        }
        // By now the last report includes the end of the target.
        let _ = self.collecting.wait_for(DETACH, Command::ReportVictims);
        oom_reporter.finish().await;
        let pushed = match push_loop {
            Some(push_loop) => Some(push_loop.finish().await),
            None => None,
        };
        let recorded = match record_loop {
            Some(record_loop) => record_loop.finish().await,
            None => None,
        };
        stop.send_replace(true);
        let _ = server.await;
        self.end();
        for line in [pushed, recorded].into_iter().flatten() {
            messages::print(&line);
        }
        let code = match (outcome?, written?) {
            (0, true) => GATE_FIRED,
            (code, _) => code,
        };
        Ok(ExitCode::from(code))
    }

    /// Detaches from the target and ends the threads.
    fn end(&mut self) {
        // Only the collector has another process detach in the background.
        let takes_long = self.reports.syscall_hooks() == Some(SyscallHooks::Trampolines);
        if self.config.heap.is_some() || takes_long {
            // If memprof exited first, the kernel would detach from samplers at an arbitrary time afterwards.
            let _ = self.collecting.wait_for(DETACH, Command::Detach);
        }
        let _ = self.collecting.send(Command::Stop);
        if let Some(library) = self.sampler.take().filter(Library::is_mapped) {
            let path = library.keep();
            messages::print(&format!("{} stays: processes still use it", path.display()));
        }
        if let Some(line) = self.reports.debuginfod().and_then(|status| status.line()) {
            messages::print(&line);
        }
    }

    /// Ends an exact window before the last report, and prints its result.
    fn stop_counting(&self) {
        let exact = self
            .config
            .heap
            .as_ref()
            .and_then(|heap| heap.exact.as_ref());
        if exact.is_none() {
            return;
        }
        if let Some(Some(seen)) = self.collecting.wait_for(DETACH, Command::StopCounting) {
            messages::print(&seen.to_string());
        }
    }

    fn server_options(&self) -> ServerOptions {
        ServerOptions {
            allow_hosts: self.config.allow_hosts.clone(),
            cors_origins: self.config.cors_origins.clone(),
            token: self.token.clone(),
            warn: Some(Arc::new(messages::print)),
            ..ServerOptions::default()
        }
    }

    fn announce(&self, addresses: &[Listen]) {
        if let Progress::Waiting = *self.progress.borrow()
            && let Some(what) = self.config.target.awaited()
        {
            let limit = match self.config.wait {
                Some(wait) => format!(" for at most {} s (--wait)", wait.as_secs_f64()),
                None => "; Ctrl-C ends memprof, --wait SECS limits the wait".to_owned(),
            };
            let then = match self.config.duration {
                Some(_) => "; --duration begins when it is there",
                None => "",
            };
            messages::print(&format!("waiting for {what}{limit}{then}"));
        }
        self.greet(addresses);
    }

    /// Prints where the server is.
    fn greet(&self, addresses: &[Listen]) {
        for address in addresses {
            let lines = server::greeting(address, self.config.token_file.as_deref());
            lines.iter().for_each(|line| messages::print(line));
        }
    }

    /// Writes the outputs and the summary. Returns whether a gate has fired.
    async fn write_results(&self, api: &Api) -> Result<bool> {
        let report = match self.reports.profile().await {
            Ok(report) => report,
            Err(e) => {
                let e = match (&*self.progress.borrow(), e) {
                    (Progress::Ended { pid, .. }, ProviderError::NoTarget) => {
                        format!("pid {pid} ended before its memory could be read")
                    }
                    (_, e) => e.to_string(),
                };
                messages::print(&format!("no profile: {e}"));
                return match (self.config.outputs.first(), self.config.gates.first()) {
                    (Some(output), _) => {
                        Err(anyhow!("cannot write {}: {e}", output.path.display()))
                    }
                    (None, Some(gate)) => Err(anyhow!("cannot check {:?}: {e}", gate.text)),
                    (None, None) => Ok(false),
                };
            }
        };
        if let (Some(shown), Some(place)) = (&self.config.growth, &self.recorded) {
            let recording = Recording::at(place).context("cannot read the recording in memory")?;
            return growth::of_session(&recording, shown);
        }
        let fired = self.check_gates(&report);
        let outputs = &self.config.outputs;
        let report = self.with_lines(report).await;
        let peak = self.peak(None).await;
        let largest = match outputs.iter().any(Output::is_of_largest_process) {
            true => self.largest_process(&report.profile).await,
            false => None,
        };
        let largest = largest.or_else(|| peak.clone());
        let profiles = self.write_profiles(api, &report, [&peak, &largest]).await;
        let sizes = self.write_sizes(&report);
        // With a command, stdout belongs to the command's output.
        let stdout_taken = matches!(self.config.target, Selector::Command(_))
            || outputs.iter().any(Output::is_stdout);
        let of_ended = peak.filter(|_| self.has_ended(&report));
        let summary = output::write_summary(&report, of_ended.as_deref(), stdout_taken)
            .context("cannot write the summary");
        output::all([profiles, sizes, summary])?;
        fired
    }

    /// The state at the peak of the process that had the highest one; `None` if there was a single process.
    async fn largest_process(&self, profile: &Profile) -> Option<Arc<Report>> {
        for process in profile.process_peaks() {
            if let Some(peak) = self.peak(Some(process.pid)).await {
                return Some(peak);
            }
        }
        None
    }

    /// The state at the peak, with source lines.
    async fn peak(&self, of: Option<Pid>) -> Option<Arc<Report>> {
        let peak = self.reports.at_peak(of).await.ok().flatten()?;
        Some(self.with_lines(peak).await)
    }

    /// Adds source lines to a report.
    async fn with_lines(&self, report: Arc<Report>) -> Arc<Report> {
        match self.reports.with_lines(&report).await {
            Ok(with_lines) => with_lines,
            Err(e) => {
                messages::print(&format!("the profile has no source lines: {e}"));
                report
            }
        }
    }

    /// Whether the target is a command that has ended.
    fn has_ended(&self, report: &Report) -> bool {
        matches!(self.config.target, Selector::Command(_)) && !report.profile.target.alive
    }

    /// Checks the gates and prints those that fire. Returns whether one has.
    fn check_gates(&self, report: &Report) -> Result<bool> {
        let mut fired = false;
        for gate in &self.config.gates {
            let both = [report, report];
            gate.check(both, Kind::All).map_err(|why| anyhow!(why))?;
            let finding = gate.evaluate(both, Kind::All);
            if finding.is_missing {
                let subject = printable(&gate.text);
                messages::print(&format!("the profile has no function of {subject:?}"));
            }
            if finding.fires {
                messages::print(&format!("gate fired: {}", printable(&finding.to_string())));
                fired = true;
            }
        }
        Ok(fired)
    }

    /// Writes each output at its moment. The peaks are that of all processes together, and that of the largest one.
    async fn write_profiles(
        &self,
        api: &Api,
        report: &Arc<Report>,
        [peak, largest]: [&Option<Arc<Report>>; 2],
    ) -> Result<()> {
        let filter = self.config.heap.as_ref().and_then(|h| h.filter.as_ref());
        let chosen = match filter {
            Some(filter) => {
                let named = self.reports.allocations().await;
                let named = named.map_err(|e| anyhow!("cannot apply --filter: {e}"))?;
                Arc::new(filter.choose(&named, None, &api.mark_times())?)
            }
            None => Arc::clone(report),
        };
        // Sums of allocations are complete at the end.
        let default = match self.has_ended(report) && self.config.heap.is_none() {
            true => OutputMoment::Peak,
            false => OutputMoment::End,
        };
        let outputs = self.config.outputs.iter();
        output::all(outputs.map(|output| {
            let shown = match output.at.unwrap_or(default) {
                OutputMoment::Peak => peak.as_ref(),
                OutputMoment::LargestProcess => largest.as_ref(),
                OutputMoment::End | OutputMoment::Now => None,
            };
            let shown = shown.unwrap_or(&chosen);
            privileges::writing_files(|| output::write_profile(output, shown, output::OUTPUT))
        }))
    }

    fn write_sizes(&self, report: &Report) -> Result<()> {
        let Some(path) = self.config.heap.as_ref().and_then(|h| h.sizes.as_deref()) else {
            return Ok(());
        };
        let sizes = self.collecting.wait_for(DETACH, Command::Sizes);
        let sizes = sizes.context("the collector has ended")??;
        privileges::writing_files(|| output::write_sizes(path, report, &sizes))
    }
}

/// Raises the descriptor limit to the hard limit: perf events, opened code files and connections all need descriptors.
fn raise_file_limit() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}
