//! Ports, durations, files.

use std::net::TcpListener;
use std::path::Path;

use crate::common::memprof::{Memprof, run, run_to_error};
use crate::common::tree::Node;
use crate::common::workload::{Workload, program};
use crate::life::MIB;

#[test]
fn a_port_that_is_taken() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let pid = std::process::id().to_string();
    let said = run_to_error(&["--pid", &pid, "--listen", &address]);
    assert!(
        said.contains(&format!("cannot listen on {address}")),
        "{said}"
    );
    assert!(said.contains("another program"), "{said}");
    // The port is used by another memprof.
    let workload = Workload::start(&program("scenarios"));
    let pid = workload.pid().to_string();
    let first = Memprof::start(&["--pid", &pid]);
    let address = first.address().to_string();
    let said = run_to_error(&["--pid", &pid, "--listen", &address]);
    assert!(said.contains("another memprof"), "{said}");
    assert!(first.tree().value > 0);
}

/// Two memprofs on one target.
#[test]
fn two_memprofs() {
    let mut workload = Workload::start(&program("scenarios"));
    let pid = workload.pid().to_string();
    let both = [(); 2].map(|()| Memprof::start(&["--pid", &pid]));
    workload.lines.tell("mmap 8388608");
    for m in &both {
        m.tree().must_hold(&["cmd_mmap"], 8 * MIB);
    }
}

fn profile_to(file: &Path, more: &[&str]) -> (Vec<u8>, String, String) {
    let mut workload = Workload::start(&program("scenarios"));
    workload.lines.tell("mmap 1048576");
    let pid = workload.pid().to_string();
    let mut args = vec!["--pid", &pid, "--no-server", "--duration", "0.3"];
    args.extend(["--output", file.to_str().unwrap()]);
    args.extend(more);
    let out = run(&args);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(0), "{said}");
    let bytes = std::fs::read(file).unwrap_or_else(|_| out.stdout.clone());
    (
        bytes,
        String::from_utf8_lossy(&out.stdout).into_owned(),
        said,
    )
}

#[test]
fn a_duration_and_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("x.json");
    let (bytes, out, said) = profile_to(&json, &[]);
    let tree = Node::parse(&bytes);
    assert!(tree.unknown() >= 1024, "{}", tree.text());
    assert!(said.contains("wrote ") && said.contains("(json)"), "{said}");
    assert!(
        out.contains("; equal") && out.contains("[before attach: "),
        "{out}"
    );

    let (bytes, ..) = profile_to(&dir.path().join("x.txt"), &[]);
    let text = String::from_utf8(bytes).unwrap();
    assert!(
        text.contains("Call tree") && text.contains("[before attach: "),
        "{text}"
    );

    for (name, more) in [("x.folded", &[][..]), ("y", &["--format", "folded"])] {
        let (bytes, ..) = profile_to(&dir.path().join(name), more);
        let text = String::from_utf8(bytes).unwrap();
        let sum: u64 = text
            .lines()
            .map(|l| l.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap())
            .sum();
        assert!(sum >= MIB && text.contains("[before attach: "), "{text}");
    }

    // The profile goes to stdout, and the summary to stderr.
    let (bytes, _, said) = profile_to(Path::new("-"), &["--format", "json"]);
    Node::parse(&bytes);
    assert!(said.contains("; equal"), "{said}");
}

#[test]
fn a_file_that_cannot_be_written() {
    let workload = Workload::start(&program("scenarios"));
    let pid = workload.pid().to_string();
    let said = run_to_error(&[
        "--pid",
        &pid,
        "--no-server",
        "--duration",
        "0.1",
        "-o",
        "/nonexistent/x.json",
    ]);
    assert!(
        said.contains("cannot write a profile to /nonexistent/x.json"),
        "{said}"
    );
}
