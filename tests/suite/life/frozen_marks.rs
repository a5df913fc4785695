//! Marks for which the target is frozen: `POST /v2/marks` with `freeze`.

use std::time::{Duration, Instant};

use nix::sys::ptrace;
use nix::unistd::Pid as NixPid;
use serde_json::Value;

use crate::common::memprof::Memprof;
use crate::common::process::{cont, runs, state, stop, wait_until};
use crate::common::workload::{Workload, program};
use memprof_sys::residency::figures;

/// The target runs at least this long between two freezes.
const RUN: Duration = Duration::from_millis(100);

/// Creates a mark; returns the reply.
#[track_caller]
fn frozen(m: &Memprof) -> Value {
    let reply = m.send("POST", "/v2/marks", r#"{"freeze": true}"#);
    assert_eq!(reply.status, 201, "{}", reply.text());
    let mark = reply.json();
    assert!(mark["stopped_us"].as_u64().unwrap() > 0, "{mark}");
    assert_eq!(mark["exact"], true, "{mark}");
    mark
}

/// The summary of a mark. It must be a snapshot.
#[track_caller]
fn summary(m: &Memprof, mark: &Value) -> Value {
    let id = mark["id"].as_str().unwrap();
    let summary = m.get(&format!("/v2/summary?mark={id}")).json();
    assert_eq!(summary["report"]["number"], mark["report"]);
    assert_eq!(summary["report"]["stopped_us"], mark["stopped_us"]);
    assert_eq!(summary["report"]["exact"], true);
    let kernel = &summary["kernel"];
    assert_eq!(kernel["before"], kernel["after"]);
    // The kernel's walk is read only if its counter is not what the scan found.
    let walked = kernel["before"].get("anonymous");
    let kernel = walked.unwrap_or(&kernel["before"]["rss_anon"]);
    assert_eq!(*kernel, summary["total"]["anon"]);
    summary
}

#[test]
fn a_busy_target_has_one_figure() {
    let mut workload = Workload::start_with(&program("churn"), &["3"]);
    assert_eq!(workload.lines.line(), "ready");
    let pid = workload.pid();
    let m = Memprof::attach(pid, &["--max-freeze", "60000"]);
    let mut numbers = Vec::new();
    for _ in 0..8 {
        let mark = frozen(&m);
        summary(&m, &mark);
        numbers.push(mark["report"].as_u64().unwrap());
        // The other threads run.
        let running = m.get("/v2/summary").json();
        assert_eq!(running["report"]["stopped_us"], Value::Null);
        assert_eq!(running["report"]["exact"], false);
        let id = mark["id"].as_str().unwrap();
        assert_eq!(m.send("DELETE", &format!("/v2/marks/{id}"), "").status, 204);
    }
    numbers.dedup();
    assert_eq!(numbers.len(), 8);
    wait_until(|| runs(pid));
    m.interrupt();
    workload.end();
}

/// The mark's figures equal those that another reader sees during the same stop.
#[test]
fn the_kernel_says_the_same_in_the_same_stop() {
    let mut workload = Workload::start(&program("scenarios"));
    let pid = workload.pid();
    let m = Memprof::attach(pid, &["--max-freeze", "60000"]);
    for command in ["mmap 3145728", "malloc_small 2000", "shared_anon 1048576"] {
        workload.lines.tell(command);
        stop(pid);
        let mark = frozen(&m);
        let rollup = figures::rollup(pid).unwrap();
        let total = &summary(&m, &mark)["total"];
        assert_eq!(total["anon"], rollup.anonymous);
        wait_until(|| state(pid) == 'T');
        cont(pid);
    }
    m.interrupt();
    workload.end();
}

/// A thread of memprof is already the tracer of its command.
#[test]
fn a_command_is_held_still_as_well() {
    let churn = program("churn");
    let (mut m, mut lines) =
        Memprof::start_command(&["--max-freeze", "60000"], &[churn.to_str().unwrap(), "3"]);
    assert_eq!(lines.line(), "ready");
    let pid = m.followed();
    for _ in 0..8 {
        let mark = frozen(&m);
        summary(&m, &mark);
        wait_until(|| runs(pid));
    }
    lines.close();
    assert!(m.wait().success());
}

/// The target runs between two stops, however many clients ask at once.
#[test]
fn many_who_ask_stop_it_now_and_then() {
    const ASK: usize = 12;
    let mut workload = Workload::start_with(&program("churn"), &["2"]);
    assert_eq!(workload.lines.line(), "ready");
    let m = Memprof::attach(workload.pid(), &["--max-freeze", "60000"]);
    let begun = Instant::now();
    let mut numbers: Vec<u64> = std::thread::scope(|scope| {
        let asking: Vec<_> = (0..ASK).map(|_| scope.spawn(|| frozen(&m))).collect();
        let report = |mark: Value| mark["report"].as_u64().unwrap();
        let marks = asking.into_iter().map(|a| a.join().unwrap());
        marks.map(report).collect()
    });
    let took = begun.elapsed();
    numbers.sort_unstable();
    numbers.dedup();
    assert!(took >= RUN * (numbers.len() as u32 - 1), "{took:?}");
    m.interrupt();
    workload.end();
}

/// With another tracer, freezing fails: the reply says so, and so does each report with `--freeze`.
#[test]
fn what_cannot_be_held_still_is_said() {
    let workload = Workload::start(&program("scenarios"));
    let pid = workload.pid();
    ptrace::seize(
        NixPid::from_raw(pid.0.cast_signed()),
        ptrace::Options::empty(),
    )
    .unwrap();
    let m = Memprof::attach(pid, &["--max-freeze", "60000"]);
    let refused = m.send("POST", "/v2/marks", r#"{"freeze": true}"#);
    assert_eq!(refused.status, 503, "{}", refused.text());
    let why = refused.text().to_owned();
    assert!(why.contains("could not be frozen"), "{why}");
    let tracer = "a debugger or another memprof, traces thread";
    assert!(
        why.contains("cannot be traced") && why.contains(tracer),
        "{why}"
    );
    assert!(!why.contains("as root"), "{why}");
    let marks = m.get("/v2/marks").json();
    assert_eq!(marks["marks"].as_array().unwrap().len(), 0);
    m.interrupt();
    let m = Memprof::attach(pid, &["--freeze", "--max-freeze", "60000"]);
    let report = m.get("/v2/summary").json()["report"].clone();
    let error = report["freeze_error"].as_str().unwrap();
    assert!(error.contains("cannot be traced"), "{report}");
    assert_eq!(report["stopped_us"], Value::Null);
    assert_eq!(report["exact"], false);
    m.interrupt();
    ptrace::detach(NixPid::from_raw(pid.0.cast_signed()), None).unwrap_or(());
    drop(workload);
}

#[test]
fn one_that_has_ended_is_not_held_still() {
    let mut workload = Workload::start(&program("scenarios"));
    let m = Memprof::attach(workload.pid(), &["--max-freeze", "60000"]);
    assert_eq!(m.get("/v2/summary").status, 200);
    workload.lines.close();
    wait_until(|| m.get("/v2/summary").json()["report"]["alive"] == false);
    let refused = m.send("POST", "/v2/marks", r#"{"freeze": true}"#);
    assert_eq!(refused.status, 503);
    assert!(refused.text().contains("has ended"), "{}", refused.text());
    m.interrupt();
}
