//! Which processes to follow: selectors, and finding processes by name and by cgroup.

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
use crate::{mmap_lock, proc_dir, proc_text, target_file};

pub use cgroup::Cgroup;
pub use container::Container;
pub use presence::Presence;
pub use target::ProcessTarget;

/// How the user names the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    /// The running process with this name, or the next one to start.
    Comm(String),
    /// A running process.
    Pid(Pid),
    /// A command to start.
    Command(Vec<OsString>),
    /// Every process in this control group and in those below it, now and later.
    Cgroup(Cgroup),
    /// Every process of this machine (of memprof's pid namespace), now and later.
    All,
}

/// Maximum length of a process's name in the kernel, in bytes.
const COMM_MAX: usize = 15;

impl Selector {
    /// The process that memprof waits for, if it does not exist yet; `None` if memprof does not wait.
    pub fn awaited(&self) -> Option<String> {
        match self {
            Selector::Comm(name) => Some(format!("a process named {name}")),
            Selector::Cgroup(group) => Some(format!("a process in {group}")),
            Selector::Pid(_) | Selector::Command(_) | Selector::All => None,
        }
    }

    /// The processes that are wanted now, if these are a group that processes enter and leave; `None` for one process.
    pub fn members(&self) -> Option<Vec<Pid>> {
        match self {
            // A removed group has no processes.
            Selector::Cgroup(group) => Some(group.processes().unwrap_or_default()),
            Selector::All => Some(processes()),
            Selector::Comm(_) | Selector::Pid(_) | Selector::Command(_) => None,
        }
    }

    /// Whether children of followed processes are wanted in any case.
    pub fn wants_children(&self) -> bool {
        matches!(self, Selector::Cgroup(_) | Selector::All)
    }

    /// The wanted process's name as the kernel's `comm` shows it: truncated to 15 bytes.
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
    /// Its command line, arguments separated by spaces; its name if it has no command line.
    pub command: String,
}

/// Several processes have the wanted name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Ambiguous {
    /// The name.
    pub name: String,
    /// The processes, by id.
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
            // Not always the lowest pid: pids wrap around.
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
    /// The one process that all others descend from, if any.
    fn family_root(&self) -> Option<&Candidate> {
        let known = |pid| self.candidates.iter().any(|c| c.pid == pid);
        let mut roots = self.candidates.iter().filter(|c| !known(c.parent));
        roots.next().filter(|_| roots.next().is_none())
    }
}

/// The running process with that name.
///
/// With `family`, if several processes match and all descend from one of them, that one is returned.
///
/// # Errors
/// [`Ambiguous`] if several match.
pub fn find(name: &str, family: bool) -> Result<Option<Candidate>, Ambiguous> {
    let all = processes();
    let those = |is: &dyn Fn(Pid) -> bool| -> Vec<Candidate> {
        let pids = all.iter().copied().filter(|pid| is(*pid));
        pids.filter_map(candidate).collect()
    };
    let mut candidates = those(&|pid| is_named(pid, name));
    if candidates.is_empty() {
        // It may have given itself another name since it executed its program.
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

/// Every process that descends from `pid`, parents before their children.
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

/// Whether a process is memprof, or one of those that read files for it.
fn is_own(pid: Pid) -> bool {
    pid.0 == std::process::id() || target_file::is_reader(pid)
}

/// Whether a process has the name: in its `comm` or, for names of more than 15 bytes, as the base name of its
/// executable or its script.
pub fn is_named(pid: Pid, name: &str) -> bool {
    let comm = comm(pid).unwrap_or_default();
    if name.len() <= COMM_MAX {
        return comm == name;
    }
    comm == cut(name) && (exe_name(pid).as_deref() == Some(name) || script_name(pid, name))
}

/// Whether a process has executed a program that gains privileges (`AT_SECURE`).
pub fn is_secure(pid: Pid) -> bool {
    let vector = proc_dir::read(pid, "auxv").unwrap_or_default();
    let words: Vec<u64> = vector
        .as_chunks::<8>()
        .0
        .iter()
        .map(|word| u64::from_ne_bytes(*word))
        .collect();
    let mut entries = words.chunks(2);
    entries.any(|entry| matches!(entry, [libc::AT_SECURE, value] if *value != 0))
}

/// A process's name in the kernel.
pub fn comm(pid: Pid) -> Option<String> {
    let bytes = fs::read(format!("/proc/{pid}/comm")).ok()?;
    Some(
        String::from_utf8_lossy(&bytes)
            .trim_end_matches('\n')
            .to_owned(),
    )
}

/// A process's arguments, each with a NUL after it; `None` if it has ended or would have to be waited for.
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

/// The executable of a script's process is the interpreter; the script's name is among the arguments.
fn script_name(pid: Pid, name: &str) -> bool {
    let Some(cmdline) = command_line(pid) else {
        return false;
    };
    cmdline.split(|&b| b == 0).take(3).any(|arg| {
        let arg = String::from_utf8_lossy(arg);
        Path::new(&*arg).file_name().is_some_and(|f| f == name)
    })
}

/// A process's parent; `None` if the process has ended.
pub fn parent(pid: Pid) -> Option<Pid> {
    let stat = proc_text::read(&format!("/proc/{pid}/stat")).ok()?;
    // "pid (comm) state ppid …", where comm may hold anything, parentheses included.
    let mut after = stat.get(stat.rfind(')')? + 1..)?.split_whitespace();
    // (A process goes on without its first thread if it has others.)
    if after.next()? == "Z" && !proc_dir::lives(pid) {
        return None;
    }
    Some(Pid(after.next()?.parse().ok()?))
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
        fs::copy("/bin/sh", &shell).unwrap();
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
        // The child gets its name, and a little later its arguments, only after `exec`.
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
