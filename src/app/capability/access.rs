//! Determines by trial which files and memory of a process memprof may access.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;

use super::facts::{Caps, Trial};
use super::program;
use memprof_sys::ids::Pid;
use memprof_sys::proc_dir;
use memprof_sys::procfs::StatusFile;
use memprof_sys::residency::{self, Method, Scanner};
use memprof_sys::target_file::{TargetFile, about_path};

/// Maximum number of processes to examine while searching for processes of other users.
const MAX_EXAMINED: usize = 10_000;
/// Maximum number of the found processes to try.
const MAX_TRIED: usize = 16;

/// memprof's access to one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// The process.
    pub pid: Pid,
    /// The user id of the process.
    pub uid: u32,
    /// Opening its `pagemap` for a scan; required for a report.
    pub pages: Trial,
    /// Opening its program file; required for unwind tables and function names.
    pub program: Trial,
    /// Opening a file through `/proc/PID/map_files`; required for unwind tables and names of files that no longer have
    /// a path.
    pub mapped_files: Trial,
    /// Opening its memory, which needs the same permission as `ptrace`; required to stop the process.
    pub memory: Trial,
}

impl Access {
    /// Tries the access; `None` if the process does not exist or has no memory of its own.
    pub fn to(pid: Pid) -> Option<Access> {
        let uid = fs::metadata(proc_dir::path(pid, "")).ok()?.uid();
        if !proc_dir::lives(pid) {
            return None;
        }
        let tried = |name: &str, outcome: io::Result<()>| -> Trial {
            let refused = |e| refused(&proc_dir::shown(pid, name), &e);
            outcome.map_err(refused).into()
        };
        let program = |dir: &str| about_path(format!("{dir}/exe")).map(drop);
        let access = Access {
            pid,
            uid: uid_of(pid).unwrap_or(uid),
            pages: pages(pid),
            program: tried("exe", proc_dir::with(pid, program)),
            mapped_files: tried("map_files", proc_dir::with(pid, mapped_file)),
            memory: tried("mem", proc_dir::open(pid, "mem").map(drop)),
        };
        // If the process has exited in the meantime, its failures are not refusals.
        proc_dir::lives(pid).then_some(access)
    }

    /// Access to a process of another user; if there is none and memprof runs as root, to one of root's processes. Some
    /// processes have additional protection, so this tries up to [`MAX_TRIED`] and returns the one with the fewest
    /// refusals.
    pub(crate) fn to_another_user() -> Option<Access> {
        let own = nix::unistd::geteuid().as_raw();
        let (mut others, mut roots) = (Vec::new(), Vec::new());
        for pid in processes().take(MAX_EXAMINED) {
            match uid_of(pid) {
                _ if pid.0 == std::process::id() || !proc_dir::lives(pid) => {}
                Some(uid) if uid != own => others.push(pid),
                Some(0) => roots.push(pid),
                _ => {}
            }
        }
        let tried = others.into_iter().chain(roots).take(MAX_TRIED);
        let mut best: Option<Access> = None;
        for access in tried.filter_map(Access::to) {
            let refused = access.refused().len();
            if best.as_ref().is_none_or(|b| refused < b.refused().len()) {
                best = Some(access);
            }
            if refused == 0 {
                break;
            }
        }
        best
    }

    /// The errors of the trials that a profile with function names depends on.
    pub fn refused(&self) -> Vec<&str> {
        [&self.pages, &self.program, &self.memory]
            .into_iter()
            .filter_map(Trial::why)
            .collect()
    }
}

/// Checks before profiling whether a process can be profiled; `Some` describes what will be missing. Returns `None` if
/// full access is granted or the process is gone; later code reports a gone process.
///
/// # Errors
/// The process's page tables cannot be read; the error has the reason and the remedy.
pub(crate) fn require_access(pid: Pid) -> anyhow::Result<Option<String>> {
    let Some(access) = Access::to(pid) else {
        return Ok(None);
    };
    let remedy = remedy(Caps::effective());
    if let Some(why) = access.pages.why() {
        anyhow::bail!(
            "cannot profile process {pid} of user id {}: cannot read {why}; {remedy}",
            access.uid
        );
    }
    let process = format!("process {pid} of user id {}", access.uid);
    let less = match (access.memory.why(), access.program.why()) {
        (Some(_), _) => format!(
            "{}: its functions may have no names, and --freeze cannot stop it; {remedy}",
            access.refused().join(", ")
        ),
        // `ptrace` access is granted, so the file system refuses access to the program.
        (None, Some(why)) => program::unreadable(pid, why),
        (None, None) => return Ok(None),
    };
    Ok(Some(format!("{process}: {less}")))
}

/// The remedy when access to a process is refused.
pub(super) fn remedy(caps: Caps) -> String {
    let missing: Vec<_> = [
        (Caps::SYS_PTRACE, "CAP_SYS_PTRACE"),
        (Caps::DAC_READ_SEARCH, "CAP_DAC_READ_SEARCH"),
    ]
    .into_iter()
    .filter(|(bit, _)| !caps.has(*bit))
    .map(|(_, name)| name)
    .collect();
    match missing.join(" and ") {
        names if names.is_empty() => residency::PROTECTED.to_owned(),
        names => format!("run memprof as root, or give it {names} (README, Privileges)"),
    }
}

fn refused(path: &str, e: &io::Error) -> String {
    match e.raw_os_error() {
        Some(errno @ (libc::EACCES | libc::EPERM)) => {
            format!("{path}: {}", residency::denial(errno))
        }
        _ => format!("{path}: {e}"),
    }
}

fn pages(pid: Pid) -> Trial {
    if let Err(e) = proc_dir::open(pid, "pagemap") {
        return Trial::Fails(refused(&proc_dir::shown(pid, "pagemap"), &e));
    }
    match Scanner::open(pid, Method::Auto) {
        // The access was not refused. The process has exited, which the caller finds out, or has called `execve`.
        Ok(_) | Err(residency::Error::Gone(_)) => Trial::Works,
        // The caller adds the remedy.
        Err(residency::Error::Denied { what, reason, .. }) => {
            Trial::Fails(format!("{what}: {reason}"))
        }
        Err(e) => Trial::Fails(e.to_string()),
    }
}

/// Opens the first regular file that a process has mapped, through `map_files`.
pub(super) fn mapped_file(dir: &str) -> io::Result<()> {
    for entry in fs::read_dir(format!("{dir}/map_files"))? {
        match TargetFile::at_link(&entry?.path()) {
            Ok(_) => return Ok(()),
            Err(e) if e.kind() == ErrorKind::PermissionDenied => return Err(e),
            // Unmapped meanwhile, or not a regular file.
            Err(_) => {}
        }
    }
    Ok(())
}

fn processes() -> impl Iterator<Item = Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|e| Some(Pid(e.file_name().to_str()?.parse().ok()?)))
}

/// The process's real user id. The owner of `/proc/PID` would not do: it is root if the process is not dumpable.
fn uid_of(pid: Pid) -> Option<u32> {
    let status = StatusFile::for_process(pid).ok()?;
    status.field("Uid")?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memprof_may_see_itself() {
        let own = Access::to(Pid(std::process::id())).unwrap();
        assert_eq!(own.refused(), Vec::<&str>::new());
        assert_eq!(own.uid, nix::unistd::getuid().as_raw());
    }

    #[test]
    fn a_process_that_executes_all_the_time_refuses_nothing() {
        let mut command = std::process::Command::new("/bin/sh");
        // `sh -c TEXT $0`: TEXT executes itself over and over.
        command.args(["-c", r#"exec sh -c "$0" "$0""#, r#"exec sh -c "$0" "$0""#]);
        let mut restless = command.spawn().unwrap();
        let refused: Vec<_> = (0..2000)
            .filter_map(|_| Access::to(Pid(restless.id())))
            .flat_map(|access| {
                access
                    .refused()
                    .into_iter()
                    .map(str::to_owned)
                    .collect::<Vec<_>>()
            })
            .collect();
        restless.kill().unwrap();
        restless.wait().unwrap();
        assert_eq!(refused, Vec::<String>::new());
    }

    #[test]
    fn kernel_threads_and_nobody_are_no_processes_to_see() {
        assert_eq!(Access::to(Pid(i32::MAX as u32)), None);
        if fs::read_to_string("/proc/2/stat").is_ok_and(|s| s.contains("(kthreadd)")) {
            assert_eq!(Access::to(Pid(2)), None);
        }
    }

    #[test]
    fn the_remedy_names_what_is_missing_and_nothing_else() {
        let caps = |bits: &[u32]| Caps(bits.iter().map(|bit| 1 << bit).sum());
        let text = remedy(caps(&[Caps::SYS_PTRACE]));
        assert!(text.contains("CAP_DAC_READ_SEARCH") && !text.contains("CAP_SYS_PTRACE"));
        let text = remedy(caps(&[]));
        assert!(text.contains("CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH"));
        let text = remedy(caps(&[Caps::SYS_PTRACE, Caps::DAC_READ_SEARCH]));
        assert!(text.contains("security module"), "{text}");
    }
}
