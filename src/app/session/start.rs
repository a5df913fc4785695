//! Starts the collector thread, and a command.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use nix::sys::eventfd::{EfdFlags, EventFd};
use tokio::sync::{mpsc, watch};

use super::command::{self, Launch, Prepared, Stop, Traced};
use crate::app::config::{Config, PssMode};
use crate::collect::CollectorHandle;
use crate::collect::collector::{
    Collector, Command, Killed, Numbered, Pace, Progress, SamplerOptions,
};
use crate::collect::program::Program;
use crate::collect::unwinding::{self, MappedFiles, Unwinding};
use crate::probe::event::MarkSet;
use crate::probe::{Missing, Probe, ProbeConfig, SharedFaultsSeen, SyscallHooks};
use memprof_code::allocators::{Detours, ThreadStates};
use memprof_heap::sampler::{self, Library, Preloaded, Unfit};
use memprof_profile::measure::TEMPORARY;
use memprof_sys::freeze::{Freeze, Guard};
use memprof_sys::ids::Pid;
use memprof_sys::messages;
use memprof_sys::privileges::{self, ThreadRole};
use memprof_sys::proc_dir;
use memprof_sys::residency::MapCounts;
use memprof_sys::target_file::TargetFile;

/// Capacity of the collector's command queue.
const QUEUE: usize = 64;
/// Maximum time to hold a command stopped, at its start and at its end.
const HOLD: Duration = unwinding::PREPARE.saturating_add(Duration::from_secs(10));

/// Capacity of the queue of marks set by programs that wait for their report.
const MARKS: usize = 16;
/// Capacity of the queue of kills to report.
const KILLS: usize = 16;

/// The started collector thread.
pub struct Started {
    /// A handle to the thread.
    pub collecting: CollectorHandle,
    /// The target's progress, as the thread publishes it.
    pub progress: watch::Receiver<Progress>,
    /// The most recent profile, from a periodic scan or from a request.
    pub newest: watch::Receiver<Option<Numbered>>,
    /// BPF programs that could not be attached on this kernel.
    pub missing: Vec<Missing>,
    /// Where the probe hooks system calls.
    pub syscall_hooks: SyscallHooks,
    /// Where the probe sees page faults, now and later.
    pub faults_seen: SharedFaultsSeen,
    /// Receives kills of followed processes by the OOM killer.
    pub kills: mpsc::Receiver<Killed>,
    /// Receives marks that followed processes set; none arrive if allocations are not sampled.
    pub marks: mpsc::Receiver<(Pid, MarkSet)>,
}

/// Starts the thread that owns the probe; returns once the target is followed or memprof waits for the target. A
/// command is followed by [`start_command`]. `sampler` is the library that the command has preloaded.
///
/// # Errors
/// The probe cannot be loaded, or the target cannot be followed.
pub fn start_collector(config: &Config, sampler: Option<&Library>) -> Result<Started> {
    let wake = Arc::new(EventFd::from_flags(
        EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK,
    )?);
    let (commands, inbox) = sync_channel(QUEUE);
    let (tell, progress) = watch::channel(Progress::Waiting);
    let (started, ready) = sync_channel(1);
    let (set_marks, marks) = mpsc::channel(MARKS);
    let (tell_kill, kills) = mpsc::channel(KILLS);
    let exact = config.heap.as_ref().and_then(|heap| heap.exact.clone());
    let probe_config = ProbeConfig {
        follow_forks: config.follow_forks || config.target.wants_children(),
        unwind: config.unwind,
        max_frames: config.max_frames,
        stacks: config.stacks,
        sources: config.sources.clone(),
        exact: exact.clone().unwrap_or_default(),
        temporary: config
            .heap
            .as_ref()
            .map_or(TEMPORARY, |heap| heap.temporary),
        wanted_comm: config.target.comm(),
    };
    let (selector, follow_forks) = (config.target.clone(), config.follow_forks);
    let heap = config.heap.clone();
    let pace = match (&config.on_oom, &config.growth) {
        (Some(_), _) => Pace::CLOSE,
        (None, Some(_)) => Pace::STEADY,
        (None, None) => Pace::default(),
    };
    let preloaded = sampler.map(Library::preloaded);
    let shared_once = config.shared_once;
    let (max_freeze, interpreters) = (config.max_freeze, config.interpreters);
    // Without these, nothing can request a heap snapshot.
    let takes_heaps = config.listen.is_some() || config.screen.is_some() || config.takes_heap;
    // Over HTTP, marks can request a freeze.
    let freezes = config.freeze != Freeze::No || config.listen.is_some();
    let woken = Arc::clone(&wake);
    thread::Builder::new()
        .name("memprof-collect".into())
        .spawn(move || {
            let begin = || -> Result<Collector> {
                let probe = Probe::load(&probe_config)?;
                // If a guard cannot be started, a later heap snapshot or report says why the process was not stopped.
                let (mut forking, mut freezing) = (Guard::default(), Guard::default());
                if takes_heaps {
                    let _ = forking.start();
                }
                if freezes {
                    let _ = freezing.start();
                }
                let map_counts = map_counts(shared_once)?;
                privileges::reduce(ThreadRole::Collector);
                let unwinding = match probe_config.unwind.needs_tables() {
                    true => Some(Unwinding::start(&probe, Arc::clone(&woken), interpreters)?),
                    false => None,
                };
                let mut collector =
                    Collector::new(probe, selector, follow_forks, tell.clone(), unwinding);
                if let Some(counts) = map_counts {
                    collector.aggregator.count_maps(counts);
                }
                collector.freezing.max = max_freeze;
                collector.pace = pace;
                collector.tell_of_kills(tell_kill);
                collector.stop_by(forking, freezing);
                if exact.is_some() {
                    collector.count_all_calls();
                } else if let Some(heap) = &heap {
                    collector
                        .aggregator
                        .samples_mut()
                        .set_temporary(heap.temporary);
                    collector.listen_to_samplers(Some(SamplerOptions {
                        providers: heap.providers.clone(),
                        preloaded,
                        marks: Some(set_marks),
                    }))?;
                }
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
            let probe = &collector.probe;
            let _ = started.send(Ok((
                collector.newest.subscribe(),
                probe.missing().to_vec(),
                probe.syscall_hooks().clone(),
                probe.faults_seen(),
            )));
            collector.run(&inbox, &woken);
        })
        .context("cannot start the collector thread")?;
    let (newest, missing, syscall_hooks, faults_seen) = ready
        .recv()
        .map_err(|_| anyhow!("the collector thread ended early"))??;
    Ok(Started {
        collecting: CollectorHandle::new(commands, wake),
        progress,
        newest,
        missing,
        syscall_hooks,
        faults_seen,
        kills,
        marks,
    })
}

/// The source of map counts per page, if PSS is to be computed.
fn map_counts(wanted: PssMode) -> Result<Option<MapCounts>> {
    if wanted == PssMode::Off {
        return Ok(None);
    }
    match MapCounts::open() {
        Ok(counts) => Ok(Some(counts)),
        Err(e) if wanted == PssMode::IfAvailable => {
            messages::print(&format!(
                "shared pages are counted for each process that maps them: {e}"
            ));
            Ok(None)
        }
        Err(e) => Err(e).context("cannot count shared pages once (--pss)"),
    }
}

/// Starts a command and follows it from its first page.
///
/// # Errors
/// The process cannot be created or followed.
pub fn start_command(collecting: &CollectorHandle, launch: Launch<'_>) -> Result<Prepared> {
    let prepared = follow_command(collecting, launch)?;
    prepared.release();
    Ok(prepared)
}

/// Follows the process that becomes the command after its release.
///
/// # Errors
/// The process cannot be created or followed.
pub fn follow_command(collecting: &CollectorHandle, launch: Launch<'_>) -> Result<Prepared> {
    let at_stops = collecting.clone();
    let sampler = launch.sampler.map(Library::preloaded);
    let prepared = command::prepare(launch, move |pid, stop| {
        let kept = match stop {
            Stop::Exec => executed(&at_stops, pid, sampler.as_ref()),
            Stop::End => at_stops.wait_for(HOLD, Command::Final).is_some(),
        };
        match kept {
            true => Traced::Briefly,
            false => Traced::ToTheEnd,
        }
    })?;
    follow(collecting, prepared.pid)?;
    Ok(prepared)
}

/// Builds the unwind tables of a program that has just been executed and is stopped, and of its sampling library.
/// Returns whether its memory will remain available after its end.
pub(super) fn executed(
    collecting: &CollectorHandle,
    pid: Pid,
    sampler: Option<&Preloaded>,
) -> bool {
    let Some(mut program) = Program::for_process(pid) else {
        return false;
    };
    if let Some(library) = sampler {
        match sampler::check(&program.path) {
            Err(Unfit::Static(path)) => {
                if let Err(why) = library.place(pid, command::STOPS.bits()) {
                    messages::print(&format!(
                        "no allocation is sampled: {} is linked statically, and {why}",
                        path.display()
                    ));
                }
            }
            Err(unfit) => messages::print(&format!("no allocation is sampled: {unfit}")),
            Ok(()) => {
                program.libraries.push(library.path.clone());
                add_detours(library, pid);
            }
        }
    }
    let files = MappedFiles::new(program);
    let kept = collecting.wait_for(HOLD, |done| Command::Prepare(files, done));
    kept == Some(true)
}

/// Has an allocator inside the executable of a process lead to the library that the process is about to load.
fn add_detours(library: &Preloaded, pid: Pid) {
    let Ok(executable) = TargetFile::at_link(Path::new(&proc_dir::path(pid, "exe"))) else {
        return;
    };
    // Without a plan, the collector says what is not sampled.
    let Ok(detours) = Detours::plan(&executable, ThreadStates::ThreadLocal, |_, _| None) else {
        return;
    };
    if let Err(e) = library.add_detours(&detours) {
        messages::print(&format!(
            "the executable's own allocator is not sampled: {}: {e}",
            library.path.display()
        ));
    }
}

/// Follows the process that will become the command.
///
/// # Errors
/// The process cannot be followed.
pub(super) fn follow(collecting: &CollectorHandle, pid: Pid) -> Result<()> {
    let (reply, answer) = sync_channel(1);
    collecting.send(Command::Follow(pid, reply))?;
    answer.recv().context("the collector has ended")?
}
