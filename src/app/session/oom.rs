//! Reacts when the OOM killer has killed a followed process: sets a mark with its last profile, prints a message, and
//! writes the file of `--on-oom`.
//!
//! The profile is written with function names and without source lines: looking up source lines takes memory, of which
//! there may be none left.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::output;
use super::reports::Reports;
use crate::app::config::Output;
use crate::collect::collector::Killed;
use crate::http::api::Api;
use memprof_profile::Report;
use memprof_sys::ids::Pid;
use memprof_sys::text::printable;
use memprof_sys::{messages, privileges};

/// The option that names the file.
const OPTION: &str = "--on-oom";
/// The placeholder for the process id in the file name, as in `core_pattern`.
const PID: &[u8] = b"%p";
/// Maximum number of files written per session.
const MAX_FILES: usize = 16;

/// The file for a process: replaces `%p` with the process id.
fn path_for(pattern: &Path, pid: Pid) -> PathBuf {
    let bytes = pattern.as_os_str().as_bytes();
    let (mut path, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        if bytes[at..].starts_with(PID) {
            path.extend(pid.to_string().bytes());
            at += PID.len();
        } else {
            path.push(bytes[at]);
            at += 1;
        }
    }
    OsString::from_vec(path).into()
}

/// Checks at the start that the file can be written.
///
/// # Errors
/// The reason why the file cannot be written.
pub(super) fn check(to: &Output) -> Result<()> {
    output::check(&path_for(&to.path, Pid(std::process::id())), OPTION)
}

/// Handle of the task that reacts to kills.
pub(super) struct OomReporter {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl OomReporter {
    /// Starts the task. Needs a tokio runtime.
    pub(super) fn start(
        api: Arc<Api>,
        reports: Arc<Reports>,
        to: Option<&Output>,
        mut kills: mpsc::Receiver<Killed>,
    ) -> OomReporter {
        let (stop, mut stopped) = oneshot::channel();
        let mut teller = Teller {
            api,
            reports,
            to: to.cloned(),
            written: 0,
            told_of_limit: false,
        };
        let task = tokio::spawn(async move {
            loop {
                tokio::select! {
                    killed = kills.recv() => match killed {
                        Some(killed) => teller.tell(killed).await,
                        None => return,
                    },
                    _ = &mut stopped => break,
                }
            }
            while let Ok(killed) = kills.try_recv() {
                teller.tell(killed).await;
            }
        });
        OomReporter { stop, task }
    }

    /// Waits until every kill reported by the collector is printed and written.
    pub(super) async fn finish(self) {
        let _ = self.stop.send(());
        let _ = self.task.await;
    }
}

struct Teller {
    api: Arc<Api>,
    reports: Arc<Reports>,
    to: Option<Output>,
    /// Number of files written.
    written: usize,
    told_of_limit: bool,
}

impl Teller {
    async fn tell(&mut self, killed: Killed) {
        let kill = &killed.kill;
        let who = format!("process {} ({})", kill.pid, printable(&kill.comm));
        let told = format!("{who} was killed because memory had run out (OOM): {kill}");
        let Some(profile) = killed.profile else {
            return messages::print(&told);
        };
        let report = match self.reports.named(profile).await {
            Ok(report) => report,
            Err(e) => return messages::print(&format!("{told}; {e}")),
        };
        let mark = self
            .api
            .make_mark_of_kill(kill, Arc::clone(&report), killed.at_ns);
        match mark {
            Ok(id) => messages::print(&format!("{told}; mark {id}")),
            Err(e) => messages::print(&format!("{told}; no mark: {e}")),
        }
        if let Err(e) = self.write(kill.pid, &report) {
            messages::print(&format!("{e:#}"));
        }
    }

    fn write(&mut self, pid: Pid, report: &Report) -> Result<()> {
        let Some(to) = &self.to else { return Ok(()) };
        let path = path_for(&to.path, pid);
        let most = match path == to.path {
            true => 1,
            false => MAX_FILES,
        };
        if self.written == most {
            if !std::mem::replace(&mut self.told_of_limit, true) {
                messages::print(&limit(&to.path, most));
            }
            return Ok(());
        }
        let to = Output { path, ..to.clone() };
        privileges::writing_files(|| output::write_profile(&to, report, OPTION))?;
        self.written += 1;
        Ok(())
    }
}

fn limit(path: &Path, most: usize) -> String {
    match most {
        1 => format!(
            "{} keeps the profile of the first kill; with %p in its name, each process that is killed has a file of its own",
            path.display()
        ),
        most => {
            format!("{OPTION} writes at most {most} files: those of further kills are not written")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_id_is_a_part_of_the_name() {
        let path = |pattern: &str| path_for(Path::new(pattern), Pid(42));
        assert_eq!(path("oom.memprof.json"), Path::new("oom.memprof.json"));
        assert_eq!(path("/d/oom-%p.json"), Path::new("/d/oom-42.json"));
        assert_eq!(path("%p/%p%"), Path::new("42/42%"));
    }
}
