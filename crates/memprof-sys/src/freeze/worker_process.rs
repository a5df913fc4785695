//! A separate process for work that stops other processes. It is not stopped when memprof is, and the kernel can kill it without
//! killing memprof.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process;

use anyhow::{Context, Result, anyhow, bail};
use nix::fcntl::OFlag;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid as NixPid, fork, getpid, getppid, pipe2, setsid};

use super::freezer::{raise_priority, raise_priority_of_session};
use super::threads::threads;
use crate::ids::Pid;

/// A process that waits for the id of the process to work on.
#[derive(Debug)]
pub struct WorkerProcess {
    child: NixPid,
    begin: OwnedFd,
    said: File,
}

impl WorkerProcess {
    /// Starts the process, which is killed when memprof exits. memprof must have a single thread.
    ///
    /// # Errors
    /// memprof has several threads, or the kernel refuses a process.
    pub fn start(work: impl FnOnce(Pid) -> Result<Vec<u8>>) -> Result<WorkerProcess> {
        let memprof = getpid();
        if threads(Pid(process::id())).len() != 1 {
            bail!("memprof has several threads");
        }
        let (wait, begin) = pipe2(OFlag::O_CLOEXEC)?;
        let (said, say) = pipe2(OFlag::O_CLOEXEC)?;
        // SAFETY: this process has one thread, so no other thread holds a lock.
        match unsafe { fork() }.context("memprof cannot start a process")? {
            ForkResult::Parent { child } => Ok(WorkerProcess {
                child,
                begin,
                said: said.into(),
            }),
            ForkResult::Child => {
                drop((begin, said));
                let mut pid = [0; 4];
                let is_told = File::from(wait).read_exact(&mut pid).is_ok();
                // A signal that stops memprof must not stop this process; the end of memprof must kill it.
                let _ = (setsid(), set_pdeathsig(Signal::SIGKILL));
                // A thread of the target is stopped until this process has continued it.
                raise_priority();
                raise_priority_of_session();
                if is_told && getppid() == memprof {
                    let said = work(Pid(u32::from_ne_bytes(pid)));
                    let said = said.map_err(|e| format!("{e:#}"));
                    let _ = serde_json::to_writer(File::from(say), &said);
                }
                process::exit(0)
            }
        }
    }

    /// Starts the work on process `pid`, and waits for its result.
    ///
    /// # Errors
    /// The work failed, or the process was killed.
    pub fn work(mut self, pid: Pid) -> Result<Vec<u8>> {
        File::from(self.begin).write_all(&pid.0.to_ne_bytes())?;
        let mut said = Vec::new();
        self.said.read_to_end(&mut said)?;
        let _ = waitpid(self.child, None);
        if said.is_empty() {
            bail!(
                "the process of memprof that held a thread of it was killed: it made no progress, because it was stopped, frozen or \
                 blocked in the kernel, or had no processor; the thread goes on as before, or with the library"
            );
        }
        serde_json::from_slice::<Result<Vec<u8>, String>>(&said)?.map_err(|why| anyhow!(why))
    }
}
