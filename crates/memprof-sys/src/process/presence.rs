//! Classifies a process id: a process with memory, or something that cannot be profiled.

use std::io::ErrorKind;

use nix::errno::Errno;

use super::comm;
use crate::ids::Pid;
use crate::proc_dir;
use crate::procfs::{Field, Stat, StatusFile};
use crate::text::printable;

/// Flag of kernel threads in `/proc/PID/stat`.
const PF_KTHREAD: u64 = 0x0020_0000;

/// The kind of object that a process id refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// A process, as far as memprof can see.
    Process,
    /// Nothing.
    Missing,
    /// A process that `/proc` hides from memprof.
    Hidden,
    /// A kernel thread: it has no user memory.
    KernelThread,
    /// A process that has ended and that its parent has not yet waited for.
    Zombie,
    /// A thread of this process.
    ThreadOf(Pid),
}

impl Presence {
    /// Looks up the id in `/proc`.
    pub fn look_up(pid: Pid) -> Presence {
        let stat = match Stat::read(pid) {
            Ok(stat) => stat,
            Err(e) if e.kind() == ErrorKind::NotFound => return Presence::without_proc(pid),
            Err(_) => return Presence::Process,
        };
        if let Some(leader) = leader(pid).filter(|leader| *leader != pid) {
            return Presence::ThreadOf(leader);
        }
        let flags = stat.number(Field::Flags).unwrap_or(0);
        match stat.state() {
            _ if flags & PF_KTHREAD != 0 => Presence::KernelThread,
            // A process whose first thread has ended continues if it has other threads.
            Some('Z' | 'X') if !proc_dir::lives(pid) => Presence::Zombie,
            _ => Presence::Process,
        }
    }

    /// If `/proc` hides processes: a message that a search for processes is incomplete, and how to change that.
    pub fn overlooked() -> Option<&'static str> {
        // Process 1 always exists and belongs to root.
        (Presence::look_up(Pid(1)) == Presence::Hidden).then_some(
            "/proc shows memprof only processes of its own user (hidepid), so that others are not found; run memprof as root, or \
             give it CAP_SYS_PTRACE",
        )
    }

    /// Decides whether an id without a directory in `/proc` is missing or hidden: `hidepid` hides the directory, but not the
    /// process from `kill`.
    fn without_proc(pid: Pid) -> Presence {
        match nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid.0 as i32), None) {
            Err(Errno::ESRCH) => Presence::Missing,
            _ => Presence::Hidden,
        }
    }

    /// The reason why the id cannot be inspected, and what to do; `None` for a process.
    pub fn refusal(self, pid: Pid) -> Option<String> {
        let name = || {
            let comm = comm(pid).unwrap_or_default();
            format!("process {pid} ({})", printable(&comm))
        };
        Some(match self {
            Presence::Process => return None,
            Presence::Missing => {
                format!("there is no such process: {pid}; `ps -e` lists all of them")
            }
            Presence::Hidden => format!(
                "process {pid} exists, but /proc does not show it (hidepid?); run memprof as root"
            ),
            Presence::KernelThread => {
                format!("{} is a kernel thread: it has no user memory", name())
            }
            Presence::Zombie => format!(
                "{} has ended (a zombie: its parent has not waited for it): it has no memory any more",
                name()
            ),
            Presence::ThreadOf(leader) => {
                format!("{pid} is a thread of process {leader}; use --pid {leader}")
            }
        })
    }
}

/// The process that a thread belongs to (`Tgid`).
fn leader(pid: Pid) -> Option<Pid> {
    StatusFile::for_process(pid).ok()?.number("Tgid").map(Pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_told_apart() {
        assert_eq!(
            Presence::look_up(Pid(std::process::id())),
            Presence::Process
        );
        assert_eq!(Presence::look_up(Pid(i32::MAX as u32)), Presence::Missing);
        let own = Pid(std::process::id());
        let thread =
            std::thread::spawn(|| Presence::look_up(Pid(nix::unistd::gettid().as_raw() as u32)));
        assert_eq!(thread.join().unwrap(), Presence::ThreadOf(own));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = Pid(child.id());
        while Presence::look_up(pid) != Presence::Zombie {
            std::thread::yield_now();
        }
        let said = Presence::Zombie.refusal(pid).unwrap();
        assert!(said.contains("(true)") && said.contains("zombie"), "{said}");
        child.wait().unwrap();
    }
}
