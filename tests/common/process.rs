//! Other processes: their state, signals, and waiting for them.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::path::PathBuf;
use std::time::{Duration, Instant};

use memprof_sys::ids::Pid;

/// Timeout of every operation; long enough for a busy machine.
pub const LIMIT: Duration = Duration::from_secs(60);

/// A figure of a file below `/proc`, such as `status` and `smaps_rollup`, in bytes. The name ends with a colon.
#[track_caller]
pub fn figure(path: &str, name: &str) -> u64 {
    let text = std::fs::read_to_string(path).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    kib.unwrap().trim().parse::<u64>().unwrap() * 1024
}

pub fn signal(pid: Pid, signal: i32) {
    // SAFETY: kill has no memory-safety preconditions; this test started the process.
    unsafe { libc::kill(pid.0 as i32, signal) };
}

/// Stops every thread of a process. If memprof traces it, a stopped thread is in state `t`. The first one may have ended.
pub fn stop(pid: Pid) {
    signal(pid, libc::SIGSTOP);
    wait_until(|| {
        threads(pid)
            .into_iter()
            .all(|t| matches!(state(t), 'T' | 't' | 'Z'))
    });
}

/// Whether no thread of a process is stopped.
pub fn runs(pid: Pid) -> bool {
    threads(pid)
        .into_iter()
        .all(|t| !matches!(state(t), 'T' | 't'))
}

/// Continues a stopped process.
pub fn cont(pid: Pid) {
    signal(pid, libc::SIGCONT);
}

/// The threads of a process.
pub fn threads(pid: Pid) -> Vec<Pid> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks
        .map(|t| t.unwrap().file_name().into_string().unwrap())
        .map(|t| Pid(t.parse().unwrap()))
        .collect()
}

/// The directory of a thread that lives: of the first one, or of another if that has ended.
pub fn living(pid: Pid) -> PathBuf {
    let first = [pid].into_iter().chain(threads(pid));
    let tid = first
        .into_iter()
        .find(|tid| !matches!(state(*tid), 'Z' | 'X'));
    PathBuf::from(format!("/proc/{}", tid.unwrap_or(pid)))
}

/// The letter of a thread's state: `T` stopped, `Z` zombie; `X` if there is no such thread.
pub fn state(pid: Pid) -> char {
    // The name may be any bytes. For `/proc/PID/stat`, the kernel sums up the CPU time of every thread.
    let Ok(stat) = std::fs::read(format!("/proc/{pid}/task/{pid}/stat")) else {
        return 'X';
    };
    let stat = String::from_utf8_lossy(&stat);
    let (_, rest) = stat.rsplit_once(") ").unwrap();
    rest.chars().next().unwrap()
}

pub fn comm(pid: Pid) -> String {
    let comm = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    String::from_utf8_lossy(&comm).trim_end().to_owned()
}

#[track_caller]
pub fn wait_until(done: impl FnMut() -> bool) {
    eventually(LIMIT, "waited too long", done);
}

/// Waits until something holds; fails the test with this message if it does not within the limit.
#[track_caller]
pub fn eventually(limit: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + limit;
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
