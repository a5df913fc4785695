//! Page faults seen by the software events of the target's threads, as on 64-bit ARM.

use std::process::{Command, Stdio};

use nix::sys::signal::Signal;

use crate::common::memprof::{BINARY, Memprof};
use crate::common::process::wait_until;
use crate::common::workload::{Workload, program};
use memprof_sys::ids::Pid;

/// Page faults of a process, as the kernel counts them.
fn minor_faults(pid: Pid) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let after_name = stat.rsplit_once(')').unwrap().1;
    after_name
        .split_whitespace()
        .nth(7)
        .unwrap()
        .parse()
        .unwrap()
}

fn signal(pid: Pid, signal: Signal) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid.0.cast_signed()), signal).unwrap();
}

/// The faults that memprof has seen, and those that the kernel has counted, while the process is stopped.
fn counted(m: &Memprof, pid: Pid) -> (u64, u64) {
    signal(pid, Signal::SIGSTOP);
    let (mut seen, mut kernel) = (0, minor_faults(pid));
    // Until all threads have stopped.
    wait_until(|| {
        let before = (seen, kernel);
        seen = m.get("/v2/summary").json()["report"]["faults"]["all"]
            .as_u64()
            .unwrap();
        kernel = minor_faults(pid);
        (seen, kernel) == before
    });
    (seen, kernel)
}

fn by_events(pid: Pid) -> Memprof {
    let pid = pid.to_string();
    Memprof::spawn_as(
        Command::new(BINARY)
            .args(["--pid", &pid, "--listen", "127.0.0.1:0", "--stacks", "all"])
            .env("MEMPROF_FAULT_HOOKS", "events")
            .stdout(Stdio::piped()),
    )
}

#[test]
fn threads_that_start_while_memprof_attaches_lose_no_fault() {
    for _ in 0..3 {
        let workload = Workload::start(&program("starter"));
        let pid = workload.pid();
        wait_until(|| minor_faults(pid) > 1_000);
        let m = by_events(pid);
        let hooks = m.get("/v2/health").json()["fault_hooks"].clone();
        assert_eq!(hooks["at"], "thread_events", "{hooks}");
        let first = counted(&m, pid);
        signal(pid, Signal::SIGCONT);
        wait_until(|| minor_faults(pid) > first.1 + 5_000);
        let last = counted(&m, pid);
        assert!(m.tree().through("touch_next").value > 0);
        let (seen, kernel) = (last.0 - first.0, last.1 - first.1);
        assert!(
            seen >= kernel * 9 / 10 && seen <= kernel * 11 / 10,
            "memprof has seen {seen} faults, the kernel {kernel}"
        );
        assert_eq!(m.lost(), Vec::<String>::new());
        // A lost fault's page has no stack: the range was mapped before.
        let summary = m.interrupt();
        assert!(!summary.contains("not observed: [anon]"), "{summary}");
    }
}

#[test]
fn a_process_of_very_many_threads_has_its_faults_seen_at_all_processors() {
    let workload = Workload::start_with(&program("starter"), &["300"]);
    let pid = workload.pid();
    let threads = || {
        std::fs::read_dir(format!("/proc/{pid}/task"))
            .unwrap()
            .count()
    };
    wait_until(|| threads() > 300);
    let m = by_events(pid);
    let hooks = m.get("/v2/health").json()["fault_hooks"].clone();
    assert_eq!(hooks["at"], "processor_events", "{hooks}");
    let why = hooks["why"].as_str().unwrap();
    assert!(why.contains("more than 256 threads"), "{why}");
    let before = minor_faults(pid);
    wait_until(|| minor_faults(pid) > before + 5_000);
    assert!(m.tree().through("touch_next").value > 0);
    let summary = m.interrupt();
    assert!(!summary.contains("not observed: [anon]"), "{summary}");
}
