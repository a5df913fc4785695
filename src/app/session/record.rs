//! Records reports to the file of `--record`.
//!
//! A recording takes no scans of its own: it has the collector's periodic ones, and those that clients request. A thread
//! writes the file; if it cannot, the recording stops, and memprof goes on.

use std::fs;
use std::future::pending;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::sync::watch;
use tokio::task::{JoinHandle as Task, spawn_blocking};
use tokio::time::{Instant, sleep_until, timeout};

use super::output;
use super::reports::Reports;
use crate::app::config::{Config, RecordConfig};
use crate::collect::collector::Numbered;
use memprof_code::layout;
use memprof_profile::{Profile, Report};
use memprof_recording::{Options, Place, Recorder, RunInfo};
use memprof_sys::messages;
use memprof_sys::privileges::{self, ThreadRole};
use memprof_sys::process::Selector;

/// The option that names the file.
pub(super) const OPTION: &str = "--record";
/// Minimum time between two recorded reports, except for that of the peak and the last one.
const INTERVAL: Duration = Duration::from_secs(1);
/// Maximum time to name the last report, and again to write it.
const LAST: Duration = Duration::from_secs(10);
/// The files that SQLite has beside a recording.
const BESIDE: [&str; 3] = ["-wal", "-shm", "-journal"];

/// The bounds of the recording in memory that the page and the API have without `--record`.
const IN_MEMORY: Options = Options {
    size: 8 << 20,
    keep: Duration::from_secs(30 * 86_400),
};

/// Opens the recording, or creates it: in the file of `--record`, otherwise in memory if somebody may ask for moments,
/// or what grows is to be shown.
///
/// # Errors
/// The file cannot be written, is no recording, or may have been planted by another user.
pub(super) fn open(config: &Config) -> Result<Option<Recorder>> {
    let run = RunInfo {
        memprof: env!("CARGO_PKG_VERSION").to_owned(),
        host: kernel_text("hostname"),
        boot: kernel_text("random/boot_id"),
        target: target_text(&config.target),
    };
    let Some(RecordConfig { path, options }) = &config.record else {
        if config.listen.is_none() && config.screen.is_none() && config.growth.is_none() {
            return Ok(None);
        }
        let recorder = Recorder::in_memory(IN_MEMORY, &run, layout::of_module);
        return recorder
            .map(Some)
            .context("cannot record moments in memory");
    };
    let opened = check(path)
        .and_then(|()| Recorder::open(path, *options, &run, layout::of_module).map_err(Into::into));
    let opened = opened.with_context(|| {
        format!(
            "cannot record to {}; name another file with {OPTION}",
            path.display()
        )
    });
    opened.map(Some)
}

/// Refuses files that another user may have planted: the recording itself, or what SQLite would read beside it.
fn check(path: &Path) -> Result<()> {
    output::refuse_planted(path)?;
    for suffix in BESIDE {
        let mut beside = path.as_os_str().to_owned();
        beside.push(suffix);
        let beside = PathBuf::from(beside);
        output::refuse_planted(&beside).with_context(|| beside.display().to_string())?;
    }
    match fs::metadata(path) {
        Ok(there) if !there.is_file() => bail!("it is not a regular file"),
        _ => Ok(()),
    }
}

fn kernel_text(name: &str) -> String {
    let text = fs::read_to_string(Path::new("/proc/sys/kernel").join(name));
    text.unwrap_or_default().trim().to_owned()
}

/// The target as on the command line.
fn target_text(target: &Selector) -> String {
    match target {
        Selector::Comm(name) => format!("--comm {name}"),
        Selector::Pid(pid) => format!("--pid {pid}"),
        Selector::Cgroup(group) => format!("--cgroup {group}"),
        Selector::All => "--all".to_owned(),
        Selector::Command(words) => {
            let words = words.iter().map(|word| word.to_string_lossy());
            format!("-- {}", words.collect::<Vec<_>>().join(" "))
        }
    }
}

/// How the recording of a file ended, for the user; `None` while it goes on.
type Outcome = Arc<Mutex<Option<Option<String>>>>;

/// Maximum number of stacks of a report that is recorded in memory: the recorder keeps the newest state besides. With more, a target
/// is recorded in files only.
const MAX_STACKS: usize = 4096;

/// A recording that is being made.
pub(super) struct RecordLoop {
    stop: watch::Sender<bool>,
    feeding: Task<()>,
    writing: JoinHandle<()>,
    outcome: Outcome,
}

impl RecordLoop {
    /// Starts to record the newest profiles, with names from `reports`. Needs a tokio runtime.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn start(
        reports: Arc<Reports>,
        newest: watch::Receiver<Option<Numbered>>,
        recorder: Recorder,
    ) -> Result<Self> {
        let (stop, stopped) = watch::channel(false);
        let max_stacks = match recorder.place() {
            Place::File(_) => usize::MAX,
            Place::Memory(_) => MAX_STACKS,
        };
        // One report: a disk that does not keep up gets fewer reports.
        let (to, from) = sync_channel(1);
        let outcome = Outcome::default();
        let result = Arc::clone(&outcome);
        let writing = thread::Builder::new()
            .name("memprof-record".into())
            .spawn(move || {
                let writes_files = matches!(recorder.place(), Place::File(_));
                privileges::reduce(ThreadRole::Record { writes_files });
                let line = match writes_files {
                    true => privileges::writing_files(|| write(recorder, &from)),
                    false => write(recorder, &from),
                };
                *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(line);
            })
            .context("cannot start the thread that records")?;
        Ok(RecordLoop {
            stop,
            feeding: tokio::spawn(feed(reports, newest, max_stacks, to, stopped)),
            writing,
            outcome,
        })
    }

    /// Records the last report. Returns a summary for the user.
    pub(super) async fn finish(self) -> Option<String> {
        self.stop.send_replace(true);
        let _ = self.feeding.await;
        let written = timeout(LAST, spawn_blocking(|| self.writing.join())).await;
        let mut outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        match (written, outcome.take()) {
            (Ok(_), Some(line)) => line,
            _ => {
                Some("the recording may lack its last report: its disk does not answer".to_owned())
            }
        }
    }
}

/// Writes reports until there are no more; then finishes the file. Returns a summary, of a file.
fn write(mut recorder: Recorder, reports: &Receiver<Arc<Report>>) -> Option<String> {
    let place = recorder.place().clone();
    let file = match &place {
        Place::File(path) => path.display().to_string(),
        Place::Memory(_) => "in memory".to_owned(),
    };
    for report in reports {
        if let Err(e) = recorder.record(&report) {
            let line = format!(
                "the recording {file} stopped after {} reports: {e}",
                recorder.recorded()
            );
            messages::print(&format!("{line}; memprof goes on without it"));
            return Some(line);
        }
    }
    if let Place::Memory(_) = place {
        return None;
    }
    let number = recorder.recorded();
    Some(match recorder.finish() {
        Ok(size) => format!("recorded {number} reports to {file} ({} KiB)", size >> 10),
        Err(e) => format!("recorded {number} reports to {file}, but its log stays beside it: {e}"),
    })
}

/// Sends new reports of at most `max_stacks` stacks to the thread that writes, and the last one at the end.
async fn feed(
    reports: Arc<Reports>,
    mut newest: watch::Receiver<Option<Numbered>>,
    max_stacks: usize,
    to: SyncSender<Arc<Report>>,
    mut stopped: watch::Receiver<bool>,
) {
    let mut due = Instant::now();
    let mut last = None;
    let mut sent_until = Duration::ZERO;
    let mut more = true;
    while more {
        tokio::select! {
            () = next(&mut newest, due) => due = Instant::now() + INTERVAL,
            _ = stopped.changed() => more = false,
        }
        let is_small = |profile: &Profile| profile.samples.len() <= max_stacks;
        let is_wanted = |(number, profile): &Numbered| last != Some(*number) && is_small(profile);
        let scanned = newest.borrow_and_update().clone();
        let Some(scanned) = scanned.filter(is_wanted) else {
            continue;
        };
        let Ok(Ok(report)) = timeout(LAST, reports.named_for_recording(scanned)).await else {
            // Later, even if there is no newer one.
            newest.mark_changed();
            continue;
        };
        let (number, observed) = (report.sequence, report.profile.observed);
        let peak = peak_between(&reports, sent_until, &report).await;
        let peak = peak.filter(|peak| is_small(&peak.profile));
        let sent = if more {
            // If the writer is not ready for the second one, that comes later.
            let sent = peak.map_or(Ok(None), |peak| {
                let until = peak.profile.observed;
                to.try_send(peak).map(|()| Some(until))
            });
            sent.map(|until| sent_until = until.unwrap_or(sent_until))
                .and_then(|()| to.try_send(report))
        } else {
            let to = to.clone();
            let both = peak.into_iter().chain([report]);
            let send = move || both.into_iter().try_for_each(|report| to.send(report));
            drop(timeout(LAST, spawn_blocking(send)).await);
            break;
        };
        match sent {
            Ok(()) => (last, sent_until) = (Some(number), observed),
            Err(TrySendError::Full(_)) => newest.mark_changed(),
            Err(TrySendError::Disconnected(_)) => break,
        }
    }
}

/// Waits until there is a new profile, and one is due: in most cases it is when it comes, and no timer wakes this task.
async fn next(newest: &mut watch::Receiver<Option<Numbered>>, due: Instant) {
    // After the end of the collector, there are no more.
    if newest.changed().await.is_err() {
        pending::<()>().await;
    }
    sleep_until(due).await;
}

/// The report of the peak, if that was between two reports: after `sent_until`, and before `report`.
async fn peak_between(
    reports: &Reports,
    sent_until: Duration,
    report: &Report,
) -> Option<Arc<Report>> {
    let is_between = |after: Duration| sent_until < after && after < report.profile.observed;
    let peak = report.profile.peak?;
    let usage = &report.profile.total.usage;
    if peak.rss <= usage.resident() + usage.file
        || !is_between(Duration::from_millis(peak.after_ms))
    {
        return None;
    }
    // A newer one comes with the next report.
    let at_peak = timeout(LAST, reports.at_peak(None)).await.ok()?.ok()??;
    is_between(at_peak.profile.observed).then_some(at_peak)
}
