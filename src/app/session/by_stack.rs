//! A session that takes one heap snapshot with the stacks of sampled allocations: `memprof heap --by-stack`.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use tokio::time::sleep;

use super::command::{ExitStatus, Launch};
use super::{Session, command_snapshot, require, runtime};
use crate::app::config::Config;
use crate::collect::collector::{Command, Progress};
use memprof_heap::{At, HeapOptions, HeapSnapshot, Moment};
use memprof_sys::ids::Pid;
use memprof_sys::privileges::{self, ThreadRole};
use memprof_sys::process::Selector;
use memprof_sys::{messages, priority};

/// Time to look for the sampler of a process, and the poll interval. The process's code files are read while it is
/// followed.
const LOOKS: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(50);
/// Maximum time for the collector to report whether the process has a sampler.
const ANSWER: Duration = Duration::from_secs(5);

/// Takes a snapshot of a command at this moment, or of a process after sampling. Also returns the exit status of a
/// command that has ended.
///
/// # Errors
/// The process or the command cannot be profiled, or it yields no snapshot; the message says what to do.
pub fn take(
    config: &Config,
    at: At,
    how: HeapOptions,
) -> Result<(Arc<HeapSnapshot>, Option<ExitStatus>)> {
    require()?;
    let (mut session, _) = Session::start(config)?;
    let runtime = runtime()?;
    priority::restore();
    let taken = runtime.block_on(async {
        match (&config.target, at) {
            (Selector::Command(argv), _) => session.of_command(argv, at, how).await,
            (Selector::Pid(pid), At::After(time)) => {
                let taken = session.of_process(*pid, time, how).await;
                taken.map(|taken| (taken, None))
            }
            _ => {
                bail!("a heap snapshot by stack is that of a command, or of a process after a time")
            }
        }
    });
    session.end();
    // A symbol lookup that is still running must not delay the exit.
    runtime.shutdown_background();
    taken
}

impl Session<'_> {
    async fn of_command(
        &self,
        argv: &[OsString],
        at: At,
        how: HeapOptions,
    ) -> Result<(Arc<HeapSnapshot>, Option<ExitStatus>)> {
        let launch = Launch {
            argv,
            quiet: false,
            sampler: self.sampler.as_ref(),
        };
        let look = async |pid, moment| Ok(self.reports.take_heap(pid, moment, how).await?);
        command_snapshot::run_until(launch, Some(&self.collecting), at, look).await
    }

    async fn of_process(
        &self,
        pid: Pid,
        time: Duration,
        how: HeapOptions,
    ) -> Result<Arc<HeapSnapshot>> {
        privileges::reduce(ThreadRole::Server {
            writes_files: false,
        });
        self.must_have_sampler(pid).await?;
        let seconds = time.as_secs_f64();
        messages::print(&format!(
            "process {pid} is sampled for {seconds} s (--for); what it has allocated before has no stack"
        ));
        let mut progress = self.progress.clone();
        let ended = progress.wait_for(|progress| matches!(progress, Progress::Ended { .. }));
        tokio::select! {
            () = sleep(time) => {}
            ended = ended => {
                ended.context("the collector has ended")?;
                bail!("process {pid} ended before it had been sampled for {seconds} s (--for)");
            }
        }
        Ok(self.reports.take_heap(pid, Moment::Running, how).await?)
    }

    async fn must_have_sampler(&self, pid: Pid) -> Result<()> {
        let looks = async {
            while self.collecting.wait_for(ANSWER, Command::HasSampler) == Some(false) {
                sleep(PAUSE).await;
            }
        };
        tokio::time::timeout(LOOKS, looks).await.map_err(|_| {
            anyhow!(
                "process {pid} has no sampler of allocations, so its heap has no stacks: `memprof attach-heap --pid {pid}` \
                 gives it one while it runs; `memprof heap --by-stack -- COMMAND` starts a command with one; `memprof heap \
                 --pid {pid}` shows its heap without stacks"
            )
        })
    }
}
