//! The one door to a process's directory in `/proc`.
//!
//! `/proc/PID` shows the memory, the files and the namespaces of the process's first thread. A process outlives that thread if others
//! go on (`main` calls `pthread_exit`); all of this is then gone from `/proc/PID`, and in the directories of the other threads alone. So
//! what is read here is read from the directory of a thread that has memory: the first one, or else another.
//!
//! Only `comm`, `stat` and `task` of `/proc/PID` itself are about the whole process, whichever of its threads are left.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;

use crate::ids::Pid;

/// Maximum number of looks at the list of threads. Each further one means that all that were listed have ended meanwhile.
const LOOKS: usize = 16;

/// Gives `access` the directory of a thread that has memory, and does so again with another thread's if that one ended meanwhile.
/// If no thread has memory, the process has ended or is a kernel thread: then the result is that of `/proc/PID`.
pub fn with<T>(pid: Pid, mut access: impl FnMut(&str) -> T) -> T {
    let of_first = access(&format!("/proc/{pid}"));
    let first = pid.0.cast_signed();
    if has_memory(pid, first) {
        return of_first;
    }
    for _ in 0..LOOKS {
        let all = threads(pid);
        // A thread that executes a program takes the id of the first one.
        for tid in &all {
            let accessed = access(&format!("/proc/{tid}"));
            // (By this path, it is surely a thread of this process.)
            if has_memory(pid, *tid) {
                return accessed;
            }
        }
        if all.iter().all(|tid| *tid == first) {
            break;
        }
    }
    of_first
}

/// The path of a file.
pub fn path(pid: Pid, name: &str) -> String {
    with(pid, |dir| format!("{dir}/{name}"))
}

/// How messages name a file, whichever thread's it is.
pub fn shown(pid: Pid, name: &str) -> String {
    format!("/proc/{pid}/{name}")
}

/// Opens a file for reading.
///
/// # Errors
/// Those of [`File::open`].
pub fn open(pid: Pid, name: &str) -> io::Result<File> {
    with(pid, |dir| File::open(format!("{dir}/{name}")))
}

/// Reads a file.
///
/// # Errors
/// Those of [`fs::read`].
pub fn read(pid: Pid, name: &str) -> io::Result<Vec<u8>> {
    with(pid, |dir| fs::read(format!("{dir}/{name}")))
}

/// Reads a file, with U+FFFD for what is not UTF-8.
///
/// # Errors
/// Those of [`fs::read`].
pub fn text(pid: Pid, name: &str) -> io::Result<String> {
    read(pid, name).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// Where a link leads.
///
/// # Errors
/// Those of [`fs::read_link`].
pub fn link(pid: Pid, name: &str) -> io::Result<PathBuf> {
    with(pid, |dir| fs::read_link(format!("{dir}/{name}")))
}

/// Whether a thread of a process has memory. None has in a process that has ended, nor in a kernel thread.
pub fn lives(pid: Pid) -> bool {
    threads(pid).into_iter().any(|tid| has_memory(pid, tid))
}

/// The id of a thread that has memory: of the first one, or else of another. If none has, that of the first one.
pub fn thread(pid: Pid) -> i32 {
    let first = pid.0.cast_signed();
    let mut all = [first].into_iter().chain(threads(pid));
    all.find(|tid| has_memory(pid, *tid)).unwrap_or(first)
}

/// The thread ids of a process; empty if it is gone.
pub fn threads(pid: Pid) -> Vec<i32> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    entries
        .filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok())
        .collect()
}

/// Whether a thread of a process has memory. (Not by its state: it is a zombie only some time after it has left the memory.)
pub fn has_memory(pid: Pid, tid: i32) -> bool {
    let statm = fs::read(format!("/proc/{pid}/task/{tid}/statm"));
    statm.is_ok_and(|text| !text.starts_with(b"0 "))
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::{Command, Stdio};

    use super::*;

    /// What of `/proc/PID` is about the whole process; `tid` and the like name single threads.
    const OF_PROCESSES: [&str; 3] = ["/comm", "/stat\"", "/task"];
    const OF_THREADS: [&str; 5] = ["{tid}", "{tracer}", "{by}", "{child}", "{}"];

    /// The lines of memprof's own source that name a process's directory.
    fn others(dir: &Path, found: &mut Vec<String>) {
        for entry in fs::read_dir(dir).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                others(&path, found);
            } else if path.extension().is_some_and(|e| e == "rs") && !path.ends_with("proc_dir.rs")
            {
                let text = fs::read_to_string(&path).unwrap();
                let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
                let lines = code.lines().filter(|l| !l.trim_start().starts_with("//"));
                let named = lines.filter_map(|l| Some((l, l.split_once("/proc/{")?.1)));
                let wrong = named.filter(|(_, rest)| {
                    let (of, name) = rest.split_once('}').unwrap_or((rest, ""));
                    let of = format!("{{{of}}}");
                    !OF_THREADS.contains(&&*of) && !OF_PROCESSES.iter().any(|n| name.starts_with(n))
                });
                found.extend(wrong.map(|(line, _)| format!("{}: {line}", path.display())));
            }
        }
    }

    #[test]
    fn there_is_no_other_door() {
        let mut found = Vec::new();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        others(&root.join("src"), &mut found);
        others(&root.join("crates"), &mut found);
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn what_a_process_has_is_seen_until_its_end() {
        let own = Pid(std::process::id());
        assert!(lives(own) && link(own, "exe").is_ok());
        assert_eq!(path(own, "maps"), format!("/proc/{own}/maps"));
        assert!(threads(own).contains(&own.0.cast_signed()));
        let gone = Pid(i32::MAX as u32);
        assert!(!lives(gone) && open(gone, "maps").is_err() && threads(gone).is_empty());
        let mut child = Command::new("true").stdin(Stdio::null()).spawn().unwrap();
        let pid = Pid(child.id());
        while lives(pid) {
            std::thread::yield_now();
        }
        assert_eq!(path(pid, "maps"), format!("/proc/{pid}/maps"));
        child.wait().unwrap();
    }
}
