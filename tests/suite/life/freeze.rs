//! Reports of a frozen target (`--freeze`).

use std::time::Duration;

use crate::common::memprof::Memprof;
use crate::common::process::{cont, runs, signal, state, stop, wait_until};
use crate::common::workload::{Workload, program};

/// The kernel's figure after the scan and memprof's figure, in KiB.
fn anon(m: &Memprof) -> (u64, u64) {
    let short = m.get("/v1/tree?short=true").json();
    let kib = |key: &str| short[key].as_u64().unwrap();
    (kib("systemReportAnon"), kib("anon"))
}

/// The figures of a frozen target agree, although it changes its memory at full rate.
#[test]
fn a_busy_target_has_one_figure() {
    let mut workload = Workload::start_with(&program("churn"), &["3"]);
    assert_eq!(workload.lines.line(), "ready");
    let pid = workload.pid();
    let m = Memprof::attach(pid, &["--freeze", "--max-freeze", "60000"]);
    for _ in 0..20 {
        let (kernel, ours) = anon(&m);
        assert_eq!(ours, kernel);
    }
    let said = m.interrupt();
    assert!(!said.contains("panicked"), "{said}");
    wait_until(|| runs(pid));
    workload.end();
}

#[test]
fn a_stopped_target_stays_stopped() {
    let workload = Workload::start(&program("scenarios"));
    let pid = workload.pid();
    let m = Memprof::attach(pid, &["--freeze", "--max-freeze", "60000"]);
    stop(pid);
    for _ in 0..3 {
        let (kernel, ours) = anon(&m);
        assert_eq!(ours, kernel);
        // It returns to its stop by itself, without having run.
        wait_until(|| state(pid) == 'T');
    }
    cont(pid);
    m.interrupt();
    workload.end();
}

/// Reading smaps_rollup makes a process with a large mapping wait, so memprof reads it only while the process is
/// stopped.
#[test]
fn a_large_target_that_runs_is_not_summed_up_by_the_kernel() {
    const LEN: u64 = 320 << 20;
    let mut workload = Workload::start(&program("moves"));
    assert_eq!(workload.lines.line(), "ok");
    let pid = workload.pid();
    let m = Memprof::attach(pid, &[]);
    let kernel = || m.get("/v2/summary").json()["kernel"].clone();
    assert!(kernel()["after"]["anonymous"].is_u64());
    workload.lines.tell(&format!("anon 0 {LEN}"));
    workload.lines.tell(&format!("advise 0 0 {LEN} 14"));
    workload.lines.tell(&format!("touch 0 0 {LEN}"));
    // memprof may return a recent report again.
    wait_until(|| kernel()["after"]["rss_anon"].as_u64() > Some(LEN));
    let running = kernel();
    stop(pid);
    wait_until(|| kernel() != running);
    let stopped = kernel();
    cont(pid);
    for side in ["before", "after"] {
        assert!(running[side].get("anonymous").is_none(), "{running}");
        assert!(stopped[side]["anonymous"].as_u64() > Some(LEN), "{stopped}");
    }
    m.interrupt();
    workload.end();
}

/// memprof leaves no process stopped, whenever it is killed.
#[test]
fn the_target_goes_on_when_memprof_is_killed() {
    for round in 0..6 {
        let mut workload = Workload::start_with(&program("churn"), &["2"]);
        assert_eq!(workload.lines.line(), "ready");
        let pid = workload.pid();
        let m = Memprof::attach(pid, &["--freeze", "--max-freeze", "60000"]);
        kill_while_asked(&m, round);
        wait_until(|| runs(pid));
        workload.end();
    }
}

/// The same for a command, whose main thread memprof traces already.
#[test]
fn the_command_goes_on_when_memprof_is_killed() {
    for round in 0..4 {
        let (m, mut lines) = Memprof::start_command(
            &["--freeze", "--max-freeze", "60000"],
            &[program("scenarios").to_str().unwrap()],
        );
        lines.tell("mmap 1048576");
        let pid = m.followed();
        let (kernel, ours) = anon(&m);
        assert_eq!(ours, kernel);
        kill_while_asked(&m, round);
        lines.tell("munmap");
        wait_until(|| runs(pid));
    }
}

/// Requests reports in a loop, and kills memprof meanwhile.
fn kill_while_asked(m: &Memprof, round: u64) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(30 + 7 * round));
            signal(m.pid(), libc::SIGKILL);
        });
        let address = m.address();
        let request = format!("GET /v1/tree?short=true HTTP/1.1\r\nHost: {address}\r\n\r\n");
        while let Ok(mut stream) = std::net::TcpStream::connect(address) {
            use std::io::{Read, Write};
            let _ = stream.write_all(request.as_bytes());
            let _ = stream.set_read_timeout(Some(Duration::from_millis(5)));
            let _ = stream.read(&mut [0; 512]);
        }
    });
}
