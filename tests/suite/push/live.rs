//! The real memprof: what arrives equals what it serves.

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use crate::common::document;
use crate::common::memprof::{Memprof, run};
use crate::common::process::{LIMIT, eventually, runs};
use crate::common::store::{Answer, Store};
use crate::common::workload::{Workload, program};
use crate::push::decode::decode;
use ::memprof::http::api::OPENAPI_V2;

/// The value of a metric.
#[track_caller]
fn metric(m: &Memprof, name: &str) -> u64 {
    let reply = m.get("/metrics");
    let line = reply.text().lines().find_map(|l| l.strip_prefix(name));
    let line = line.unwrap_or_else(|| panic!("no {name}: {}", reply.text()));
    line.trim().parse().unwrap()
}

#[test]
fn a_store_has_what_memprof_serves() {
    for protocol in ["otlp", "pyroscope", "parca"] {
        let store = Store::start();
        let mut workload = Workload::start(&program("scenarios"));
        let to = format!("{protocol}+{}", store.url);
        let m = Memprof::attach(
            workload.pid(),
            &[
                "--push",
                &to,
                "--push-interval",
                "1",
                "--push-label",
                "env=test",
            ],
        );
        m.said("pushing a profile every 1 s to ");
        workload.lines.tell("mmap 8388608");
        let asked = store.received().len();
        // One that was being made may be from before.
        let pushed = decode(protocol, &store.wait_for(asked + 2)[asked + 1]);
        let summary = m.get("/v2/summary").json();
        let total = &summary["total"];
        let of = |kind: &str| total[kind].as_u64().unwrap();
        let had = |name: &str| pushed.sums.get(name).copied().unwrap_or(0);
        assert_eq!(had("resident_space"), of("resident"), "{protocol}");
        assert_eq!(had("page_cache_space"), of("cache"), "{protocol}");
        assert_eq!(had("swapped_space"), of("swap"), "{protocol}");
        assert!(had("resident_space") > 8 << 20);
        let has = |f: &String| f.contains("cmd_mmap");
        assert!(pushed.functions.iter().any(has), "{pushed:?}");
        assert!(!pushed.build_ids.is_empty(), "{pushed:?}");
        let name = |name: &str| match protocol {
            "otlp" => name.to_owned(),
            _ => name.replace('.', "_"),
        };
        assert_eq!(pushed.about[&name("env")], "test");
        let pid = workload.pid().0.to_string();
        assert_eq!(pushed.about[&name("process.pid")], pid);
        let executable = &pushed.about[&name("process.executable.name")];
        assert!(executable.contains("scenarios"), "{executable}");

        let health = m.get("/v2/health").json();
        let described = serde_json::from_str(&OPENAPI_V2).unwrap();
        document::check(&described, "/v2/health", "get", 200, &health);
        let status = &health["push"];
        assert_eq!(status["protocol"], protocol);
        assert!(status["delivered"].as_u64() >= Some(1), "{status}");
        assert_eq!(status["interval_ms"], 1000);
        assert!(metric(&m, "memprof_push_profiles_total{outcome=\"delivered\"}") >= 1);
        assert_eq!(metric(&m, "memprof_push_failing"), 0);
        let said = m.interrupt();
        let line = said.lines().find(|l| l.contains("push: delivered "));
        let n = store.received().len();
        assert!(
            line.unwrap().contains(&format!("delivered {n} profile")),
            "{said}"
        );
    }
}

#[test]
fn allocations_are_pushed_as_differences_and_the_end_is_too() {
    let store = Store::start();
    let program = program("allocations");
    let to = format!("otlp+{}", store.url);
    let args = [
        "--heap",
        "--heap-interval",
        "4KiB",
        "--push",
        &to,
        "--push-interval",
        "3600",
    ];
    let (mut m, mut lines) = Memprof::start_command(&args, &[program.to_str().unwrap()]);
    // Allocations of this size are all sampled.
    lines.tell("hold 10 1000000");
    lines.tell("churn 20 1000000");
    assert!(store.received().is_empty());
    let total = m.get("/v2/summary").json()["total"].clone();
    m.signal(libc::SIGINT);
    // The command's own status.
    assert_eq!(m.wait().code(), Some(130));
    let said = m.all_said();
    assert!(said.contains("push: delivered 1 profile ("), "{said}");
    let [last] = &store.received()[..] else {
        panic!("one is expected");
    };
    let pushed = decode("otlp", last);
    for kind in [
        "inuse_space",
        "alloc_space",
        "alloc_objects",
        "inuse_objects",
    ] {
        let served = total[kind].as_u64().unwrap();
        assert!(
            pushed.sums[kind] >= served && served > 0,
            "{kind}: {pushed:?}"
        );
    }
    assert_eq!(pushed.about["process.executable.name"], "allocations");
    assert!(pushed.sums["alloc_space"] >= 30_000_000);
    assert!(pushed.durations["alloc_space"] > 0);
    assert_eq!(pushed.durations["inuse_space"], 0);
}

#[test]
fn a_target_that_has_ended_is_pushed_once() {
    let store = Store::start();
    let workload = Workload::start(&program("scenarios"));
    let to = format!("otlp+{}", store.url);
    let m = Memprof::attach(workload.pid(), &["--push", &to, "--push-interval", "1"]);
    store.wait_for(1);
    workload.end();
    m.said("its last profile stays");
    std::thread::sleep(Duration::from_millis(1200));
    let then = store.received().len();
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(store.received().len(), then);
    m.interrupt();
    assert_eq!(store.received().len(), then);
}

#[test]
fn failures_are_said_once_and_the_target_notices_nothing() {
    let store = Store::start();
    store.answers(vec![Answer::status(503); 1000]);
    let mut workload = Workload::start(&program("scenarios"));
    let to = format!("otlp+{}", store.url);
    let m = Memprof::attach(workload.pid(), &["--push", &to, "--push-interval", "1"]);
    let said = m.said("push: http");
    assert!(
        said.contains("status 503") && said.contains(&store.url),
        "{said}"
    );
    store.wait_for(3);
    assert_eq!(metric(&m, "memprof_push_failing"), 1);
    assert!(metric(&m, "memprof_push_retries_total") >= 2);
    workload.lines.tell("mmap 1048576");
    store.takes_everything();
    m.said("takes profiles again");
    eventually(LIMIT, "all are delivered", || {
        m.get("/v2/health").json()["push"]["queued"] == 0
    });
    let said = m.interrupt();
    assert_eq!(said.matches("status 503").count(), 1, "{said}");
    assert_eq!(said.matches("takes profiles again").count(), 1, "{said}");
    let end = said.lines().find(|l| l.contains("push: delivered"));
    assert!(!end.unwrap().contains("not delivered"), "{said}");
}

#[test]
fn a_memprof_that_is_killed_leaves_whole_profiles_and_no_harm() {
    let store = Store::start();
    let mut workload = Workload::start(&program("scenarios"));
    let to = format!("otlp+{}", store.url);
    let mut m = Memprof::attach(workload.pid(), &["--push", &to, "--push-interval", "1"]);
    store.wait_for(2);
    m.signal(libc::SIGKILL);
    m.wait();
    let received = store.received();
    received.iter().for_each(|r| drop(decode("otlp", r)));
    assert!(runs(workload.pid()));
    workload.lines.tell("mmap 1048576");
}

#[test]
fn credentials_are_never_arguments() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    fs::write(&file, "s3cret").unwrap();
    let file = file.to_str().unwrap();
    let store = Store::start();
    let workload = Workload::start(&program("scenarios"));
    let to = format!("otlp+{}", store.url);
    let pid = workload.pid().to_string();
    let args = [
        "--pid",
        &pid,
        "--no-server",
        "--push",
        &to,
        "--push-token-file",
        file,
        "--duration",
        "1",
    ];
    let mut m = Memprof::spawn(&args, Stdio::null(), Stdio::null());
    let last = store.wait_for(1).pop().unwrap();
    assert_eq!(last.header("authorization"), Some("Bearer s3cret"));
    m.wait();
    let said = m.all_said();
    assert!(!said.contains("s3cret"), "{said}");
    for (args, why) in [
        (vec!["--push", "otlp+http://u:p@h"], "--push-password-file"),
        (vec!["--push-token-file", file], "--push"),
        (
            vec!["--push", &to, "--push-user", "u"],
            "--push-password-file",
        ),
        (vec!["--push", &to, "--push-interval", "0.5"], "1 or more"),
        (
            vec!["--push", &to, "--push-label", "__name__=x"],
            "belong to the stores",
        ),
    ] {
        let all = [&["--pid", &pid], &args[..]].concat();
        let out = run(&all);
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{said}");
        assert!(said.contains(why), "{said}");
    }
    let missing = [
        "--pid",
        &pid,
        "--push",
        &to,
        "--push-token-file",
        "/nowhere/token",
    ];
    let out = run(&missing);
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(
        said.contains("cannot read /nowhere/token: No such file"),
        "{said}"
    );
}
