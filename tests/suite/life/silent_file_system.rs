//! A program on a file system that does not answer: it costs the names of its functions until it answers, and nothing else.

use std::fs;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::common::memprof::{Memprof, run};
use crate::common::process::{state, wait_until};
use crate::common::workload::{Workload, program};
use crate::life::KIB;
use memprof_sys::ids::Pid;
use memprof_sys::process::descendants;

/// What takes for ever without a limit takes less with one, on a busy machine, too.
const MOMENT: Duration = Duration::from_secs(20);

/// The workload `mute`, and the process that runs its file.
struct Mute {
    workload: Workload,
    pid: Pid,
    _directory: TempDir,
}

impl Mute {
    fn start() -> Mute {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path().to_str().unwrap();
        let mut workload = Workload::start_with(&program("mute"), &[at, "8"]);
        let line = workload.lines.line();
        let pid = line.strip_prefix("ready ").expect(&line).parse().unwrap();
        Mute {
            workload,
            pid: Pid(pid),
            _directory: directory,
        }
    }

    fn tell(&mut self, what: &str) {
        self.workload.lines.tell(what);
    }
}

fn says_unanswered(m: &Memprof) -> bool {
    m.lost().iter().any(|row| row.contains("do not answer now"))
}

#[track_caller]
fn in_a_moment<T>(what: &str, done: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let outcome = done();
    let took = began.elapsed();
    assert!(took < MOMENT, "{what} took {took:?}");
    outcome
}

/// Processes below a memprof that wait for the file system.
fn waiting(m: &Memprof) -> Vec<Pid> {
    let mut all = descendants(m.pid());
    let at = |pid: &Pid| fs::read_to_string(format!("/proc/{pid}/wchan"));
    all.retain(|pid| at(pid).is_ok_and(|at| at.contains("request_wait_answer")));
    all
}

#[test]
fn a_file_system_that_stops_answering_delays_no_report_and_no_end() {
    let mut mute = Mute::start();
    let m = Memprof::attach(mute.pid, &[]);
    mute.tell("grow");
    assert!(m.tree().through("hold").value >= 8 * KIB);
    mute.tell("mute");
    mute.tell("grow");
    let grown = in_a_moment("a report", || m.tree());
    // What was known stays known.
    assert!(grown.through("hold").value >= 16 * KIB, "{}", grown.text());
    in_a_moment("a heap snapshot", || {
        m.send("POST", "/v2/heap", "{}");
    });
    in_a_moment("the end", || m.interrupt());
    mute.tell("speak");
    mute.workload.end();
}

#[test]
fn a_file_system_that_does_not_answer_costs_names_until_it_does() {
    let mut mute = Mute::start();
    mute.tell("mute");
    let m = in_a_moment("the start", || Memprof::attach(mute.pid, &[]));
    mute.tell("grow");
    let tree = in_a_moment("a report", || m.tree());
    assert!(tree.through("hold").value == 0, "{}", tree.text());
    assert!(tree.value >= 8 * KIB, "{}", tree.text());
    assert!(says_unanswered(&m), "{:?}", m.lost());
    let pid = mute.pid.to_string();
    for command in ["maps", "heap"] {
        let done = in_a_moment(command, || run(&[command, "--pid", &pid]));
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(0), "{command}: {said}");
    }
    mute.tell("speak");
    wait_until(|| !says_unanswered(&m));
    wait_until(|| {
        mute.tell("grow");
        m.tree().through("hold").value >= 8 * KIB
    });
    in_a_moment("the end", || m.interrupt());
    mute.workload.end();
}

/// The file system has taken the requests: even SIGKILL does not interrupt who waits for it.
#[test]
fn memprof_ends_though_its_readers_cannot() {
    let mut mute = Mute::start();
    mute.tell("mute");
    let m = Memprof::attach(mute.pid, &[]);
    m.tree();
    let waiting = waiting(&m);
    assert!(!waiting.is_empty(), "nobody has asked the file system");
    in_a_moment("the end", || m.interrupt());
    mute.tell("speak");
    wait_until(|| waiting.iter().all(|pid| "XZ".contains(state(*pid))));
    mute.workload.end();
}
