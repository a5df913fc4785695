//! Selection of the processes to follow, and search for processes by name and by cgroup.

mod cgroup;
mod container;
mod presence;
mod target;

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::path::Path;

use crate::ids::Pid;
use crate::procfs::{Auxv, Field, Stat};
use crate::{mmap_lock, proc_dir, procfs, target_file};

pub use cgroup::Cgroup;
pub use container::Container;
pub use presence::Presence;
pub use target::ProcessTarget;

/// The user's choice of the processes to follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    /// The running process with this name, or the next one to start.
    Comm(String),
    /// A running process.
    Pid(Pid),
    /// A command to start.
    Command(Vec<OsString>),
    /// Every process in this cgroup and its descendants, now and later.
    Cgroup(Cgroup),
    /// Every process of the machine (more precisely, of memprof's pid namespace), now and later.
    All,
}

/// Maximum length of a process's name (`comm`) in the kernel, in bytes.
const COMM_MAX: usize = 15;

impl Selector {
    /// Describes the process that memprof waits for if it does not exist yet; `None` if memprof does not wait.
    pub fn awaited(&self) -> Option<String> {
        match self {
            Selector::Comm(name) => Some(format!("a process named {name}")),
            Selector::Cgroup(group) => Some(format!("a process in {group}")),
            Selector::Pid(_) | Selector::Command(_) | Selector::All => None,
        }
    }

    /// The processes to follow now, if the selector is a group that processes enter and leave; `None` otherwise.
    pub fn members(&self) -> Option<Vec<Pid>> {
        match self {
            // A removed cgroup has no processes.
            Selector::Cgroup(group) => Some(group.processes().unwrap_or_default()),
            Selector::All => Some(processes()),
            Selector::Comm(_) | Selector::Pid(_) | Selector::Command(_) => None,
        }
    }

    /// Whether children of followed processes are followed regardless of other options.
    pub fn wants_children(&self) -> bool {
        matches!(self, Selector::Cgroup(_) | Selector::All)
    }

    /// The process name to look for, as the kernel's `comm` contains it: truncated to 15 bytes. `None` if the selector is not a
    /// name.
    ///
    /// # Examples
    ///
    /// ```
    /// use memprof_sys::ids::Pid;
    /// use memprof_sys::process::Selector;
    ///
    /// let selector = Selector::Comm("a-very-long-process-name".into());
    /// assert_eq!(selector.comm().as_deref(), Some("a-very-long-pro"));
    /// assert_eq!(Selector::Pid(Pid(1234)).to_string(), "process 1234");
    /// ```
    pub fn comm(&self) -> Option<String> {
        match self {
            Selector::Comm(name) => Some(cut(name)),
            Selector::Pid(_) | Selector::Command(_) | Selector::Cgroup(_) | Selector::All => None,
        }
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Selector::Comm(name) => write!(f, "process named {name}"),
            Selector::Pid(pid) => write!(f, "process {pid}"),
            Selector::Command(argv) => {
                write!(f, "command {}", argv.join(OsStr::new(" ")).display())
            }
            Selector::Cgroup(group) => write!(f, "cgroup {group}"),
            Selector::All => write!(f, "all processes"),
        }
    }
}

fn cut(name: &str) -> String {
    let mut end = name.len().min(COMM_MAX);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    name[..end].to_owned()
}

/// A process found by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its id.
    pub pid: Pid,
    /// Its parent's id.
    pub parent: Pid,
    /// Its command line, with spaces between arguments; its name if it has no command line.
    pub command: String,
}

/// The error that several processes have the name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Ambiguous {
    /// The name.
    pub name: String,
    /// The processes, ordered by id.
    pub candidates: Vec<Candidate>,
}

impl fmt::Display for Ambiguous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} processes are named {}:",
            self.candidates.len(),
            self.name
        )?;
        for c in &self.candidates {
            let command: String = c.command.chars().take(100).collect();
            let command = crate::text::printable(&command);
            write!(f, "\n  {:>8}  (parent {})  {command}", c.pid, c.parent)?;
        }
        write!(f, "\nChoose one with `--pid PID`")?;
        if let Some(root) = self.family_root() {
            // This is not always the lowest pid: pids wrap around.
            write!(
                f,
                ", or follow {} and its children with `--follow-forks`",
                root.pid
            )?;
        }
        Ok(())
    }
}

impl Ambiguous {
    /// The single process that all others descend from, if there is one.
    fn family_root(&self) -> Option<&Candidate> {
        let known = |pid| self.candidates.iter().any(|c| c.pid == pid);
        let mut roots = self.candidates.iter().filter(|c| !known(c.parent));
        roots.next().filter(|_| roots.next().is_none())
    }
}

/// Finds the running process with this name. `None` if there is none.
///
/// With `family`, if several processes match and all descend from one of them, that one is returned.
///
/// # Errors
/// [`Ambiguous`] if several processes match.
pub fn find(name: &str, family: bool) -> Result<Option<Candidate>, Ambiguous> {
    let all = processes();
    let those = |is: &dyn Fn(Pid) -> bool| -> Vec<Candidate> {
        let pids = all.iter().copied().filter(|pid| is(*pid));
        pids.filter_map(candidate).collect()
    };
    let mut candidates = those(&|pid| is_named(pid, name));
    if candidates.is_empty() {
        // The process may have changed its name since it executed its program.
        candidates = those(&|pid| exe_name(pid).as_deref() == Some(name));
    }
    candidates.sort_by_key(|c| c.pid);
    if candidates.len() < 2 {
        return Ok(candidates.pop());
    }
    let found = Ambiguous {
        name: name.to_owned(),
        candidates,
    };
    match found.family_root() {
        Some(root) if family => Ok(Some(root.clone())),
        _ => Err(found),
    }
}

/// Every process that descends from `pid`, parents before children.
pub fn descendants(pid: Pid) -> Vec<Pid> {
    let mut children: HashMap<Pid, Vec<Pid>> = HashMap::new();
    for child in processes() {
        if let Some(parent) = parent(child) {
            children.entry(parent).or_default().push(child);
        }
    }
    let mut family = vec![pid];
    let mut at = 0;
    while let Some(parent) = family.get(at) {
        family.extend(children.remove(parent).unwrap_or_default());
        at += 1;
    }
    family.remove(0);
    family
}

fn processes() -> Vec<Pid> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok())
        .map(Pid)
        .filter(|pid| !is_own(*pid))
        .collect()
}

/// Whether a process is memprof itself or one of its reader processes.
fn is_own(pid: Pid) -> bool {
    pid.0 == std::process::id() || target_file::is_reader(pid)
}

/// Whether a process has this name.
///
/// A name of up to 15 bytes must equal its `comm`. A longer one must also be the base name of its executable or script.
pub fn is_named(pid: Pid, name: &str) -> bool {
    let comm = comm(pid).unwrap_or_default();
    if name.len() <= COMM_MAX {
        return comm == name;
    }
    comm == cut(name) && (exe_name(pid).as_deref() == Some(name) || script_name(pid, name))
}

/// Whether a process has executed a program that gains privileges (`AT_SECURE`).
pub fn is_secure(pid: Pid) -> bool {
    let secure = Auxv::for_process(pid)
        .ok()
        .and_then(|auxv| auxv.get(libc::AT_SECURE));
    secure.is_some_and(|secure| secure != 0)
}

/// A process's name as the kernel stores it (`comm`); `None` if the process is gone.
pub fn comm(pid: Pid) -> Option<String> {
    procfs::comm(pid)
}

/// A process's arguments, each followed by a NUL. `None` if the process has ended or its mmap lock is held.
pub fn command_line(pid: Pid) -> Option<Vec<u8>> {
    if mmap_lock::is_held(pid) {
        return None;
    }
    proc_dir::read(pid, "cmdline").ok()
}

fn exe_name(pid: Pid) -> Option<String> {
    let exe = proc_dir::link(pid, "exe").ok()?;
    let name = exe.file_name()?.to_string_lossy().into_owned();
    Some(name.strip_suffix(" (deleted)").unwrap_or(&name).to_owned())
}

/// Whether a process runs a script with this name. Its executable is then the interpreter, and the script's path is among the
/// arguments.
fn script_name(pid: Pid, name: &str) -> bool {
    let Some(cmdline) = command_line(pid) else {
        return false;
    };
    cmdline.split(|&b| b == 0).take(3).any(|arg| {
        let arg = String::from_utf8_lossy(arg);
        Path::new(&*arg).file_name().is_some_and(|f| f == name)
    })
}

/// The parent of a process; `None` if the process has ended.
pub fn parent(pid: Pid) -> Option<Pid> {
    let stat = Stat::read(pid).ok()?;
    // A process whose first thread is a zombie continues if it has other threads.
    if stat.state()? == 'Z' && !proc_dir::lives(pid) {
        return None;
    }
    stat.number(Field::Parent).map(Pid)
}

fn candidate(pid: Pid) -> Option<Candidate> {
    let parent = parent(pid)?;
    let cmdline = command_line(pid).unwrap_or_default();
    let words: Vec<_> = cmdline
        .split(|&b| b == 0)
        .filter(|w| !w.is_empty())
        .map(String::from_utf8_lossy)
        .collect();
    let command = if words.is_empty() {
        comm(pid)?
    } else {
        words.join(" ")
    };
    Some(Candidate {
        pid,
        parent,
        command,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::programs::copy_program;

    fn c(pid: u32, parent: u32) -> Candidate {
        Candidate {
            pid: Pid(pid),
            parent: Pid(parent),
            command: format!("cmd {pid}"),
        }
    }

    #[test]
    fn long_names_are_cut_as_the_kernel_does() {
        let comm = |n: &str| Selector::Comm(n.into()).comm();
        assert_eq!(comm("light-node"), Some("light-node".into()));
        assert_eq!(comm("protocol-runner-4"), Some("protocol-runner".into()));
        assert_eq!(comm("aaaaaaaaaaaaaaéé"), Some("aaaaaaaaaaaaaa".into()));
    }

    #[test]
    fn one_that_was_renamed_is_found_by_its_program() {
        let dir = tempfile::tempdir().unwrap();
        let name = format!("renamed-{}", std::process::id());
        let shell = dir.path().join(&name);
        copy_program("/bin/sh", &shell);
        let script = "echo other > /proc/$$/comm; read line";
        let mut child = std::process::Command::new(&shell)
            .args(["-c", script])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let pid = Pid(child.id());
        while comm(pid).as_deref() != Some("other") {
            std::thread::yield_now();
        }
        let found = find(&name, false).unwrap();
        assert_eq!(found.map(|found| found.pid), Some(pid));
        let _ = child.kill();
        let _ = child.wait();
    }

    #[test]
    fn a_family_has_one_root() {
        let family = |cs: Vec<Candidate>| {
            Ambiguous {
                name: "x".into(),
                candidates: cs,
            }
            .family_root()
            .map(|c| c.pid.0)
        };
        assert_eq!(family(vec![c(10, 1), c(11, 10), c(12, 11)]), Some(10));
        assert_eq!(family(vec![c(10, 12), c(11, 10), c(12, 1)]), Some(12));
        assert_eq!(family(vec![c(10, 1), c(11, 1)]), None);
    }

    #[test]
    fn the_root_is_named_where_it_is_not_the_first() {
        let text = Ambiguous {
            name: "x".into(),
            candidates: vec![c(10, 12), c(12, 1)],
        }
        .to_string();
        assert!(text.contains("follow 12 and its children"), "{text}");
    }

    #[test]
    fn the_list_names_every_candidate() {
        let text = Ambiguous {
            name: "x".into(),
            candidates: vec![c(10, 1), c(11, 1)],
        }
        .to_string();
        assert!(text.contains("cmd 10") && text.contains("cmd 11") && text.contains("--pid"));
        assert!(!text.contains("--follow-forks"));
    }

    #[test]
    fn finds_a_process_by_comm() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .expect("sleep");
        let pid = Pid(child.id());
        // The child gets its name, and a little later its arguments, only after `execve`.
        while candidate(pid).is_none_or(|c| c.command != "sleep 60") {
            std::thread::yield_now();
        }
        assert!(is_named(pid, "sleep"));
        assert!(!is_named(pid, "slee"));
        let found = match find("sleep", false) {
            Ok(found) => found.into_iter().collect(),
            Err(several) => several.candidates,
        };
        assert!(
            found
                .iter()
                .any(|c| c.pid == pid && c.command == "sleep 60")
        );
        let _ = child.kill();
        let _ = child.wait();
    }
}
