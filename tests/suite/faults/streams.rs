//! Streams that are closed, full, or whose reader goes away.

use std::process::{Command, Output, Stdio};

use crate::common::memprof::{BINARY, Memprof, run};
use crate::common::workload::{Workload, program};
use crate::faults::equals_the_kernel;

/// Runs `$MEMPROF` in a shell.
fn shell(script: &str) -> Output {
    let mut command = Command::new("sh");
    command.args(["-c", script]).env("MEMPROF", BINARY);
    command.stdin(Stdio::null()).output().unwrap()
}

fn text(out: &[u8]) -> String {
    String::from_utf8_lossy(out).into_owned()
}

/// Everything that writes to stdout: where that is full, it is an error that says so.
#[test]
fn a_full_stdout_is_an_error() {
    let workload = Workload::start(&program("scenarios"));
    let pid = workload.pid().to_string();
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let saved = dir.path().join("p.memprof.json");
    let saved = saved.to_str().unwrap();
    let profile = format!("--pid {pid} --no-server --duration 0.1");
    let out = run(&[&profile.split(' ').collect::<Vec<_>>()[..], &["-o", saved]].concat());
    assert!(out.status.success(), "{out:?}");
    for args in [
        profile.clone(),
        format!("{profile} -o -"),
        format!("open {saved} -o -"),
        format!("diff {saved} {saved}"),
        "doctor".to_owned(),
        format!("maps --pid {pid}"),
        format!("heap --pid {pid}"),
        "man".to_owned(),
        "completions bash".to_owned(),
    ] {
        let out = shell(&format!("exec \"$MEMPROF\" {args} >/dev/full"));
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{args}: {said}");
        assert!(
            said.contains("memprof: error: cannot write "),
            "{args}: {said}"
        );
        assert!(said.contains("No space left on device"), "{args}: {said}");
        assert!(!said.contains("panicked"), "{args}: {said}");
    }
    workload.end();
}

/// No stream at all: a file that is opened then must not become one of them.
#[test]
fn without_streams_the_profile_is_written() {
    let workload = Workload::start(&program("scenarios"));
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for closed in ["<&-", ">&-", "2>&-", "<&- >&- 2>&-", "<&- >&- 2>/dev/full"] {
        let file = dir.path().join("p.json");
        let out = shell(&format!(
            "exec \"$MEMPROF\" --pid {} --no-server --duration 0.1 -vv -o {} {closed}",
            workload.pid(),
            file.display()
        ));
        assert_eq!(out.status.code(), Some(0), "{closed}: {out:?}");
        let profile: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        assert!(
            profile["value"].as_u64().unwrap() > 0,
            "{closed}: {profile}"
        );
        std::fs::remove_file(&file).unwrap();
    }
    workload.end();
}

/// Passes lines on until memprof serves and follows, and ends.
const QUITS: &str = r"sed -u '/^memprof: \(serving\|following\)/{x;s/^/x/;/^xx/{x;q};x}'";

/// Nobody reads its messages any more: it goes on, and ends well.
#[test]
fn a_reader_that_goes_away_ends_nothing() {
    let mut workload = Workload::start(&program("scenarios"));
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = dir.path().join("p.json");
    let script = format!(
        "exec \"$0\" -vv --stacks all --pid {} --listen 127.0.0.1:0 -o {} 2> >({QUITS} >&2) > >(true)",
        workload.pid(),
        file.display()
    );
    let mut command = Command::new("bash");
    let mut m = Memprof::spawn_as(command.args(["-c", &script, BINARY]).stdin(Stdio::null()));
    m.said("following ");
    // Each of these would print lines.
    workload.lines.tell("mmap 4194304");
    for _ in 0..5 {
        assert!(m.tree().through("cmd_mmap").value >= 4096);
    }
    equals_the_kernel(&m, workload.pid());
    m.signal(libc::SIGINT);
    assert_eq!(m.wait().code(), Some(0));
    assert!(file.exists());
    workload.end();
}
