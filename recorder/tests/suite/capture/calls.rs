//! The second source: system calls.

use std::process::Command;

use crate::skip::skip;

use super::common::{Exchanged, Place, Program};
use super::seen::{Recording, Seen, check};
use tezos_recorder::capture::{Capture, CaptureOptions, Source, Target};
use tezos_recorder::side::Side;

const SENT: usize = 1_000_000;
const RECEIVED: usize = 2_000_000;

/// Exchanges bytes between a process whose calls are captured and a peer.
fn run(method: &str, role: &str, address: &str) -> (Recording, Exchanged) {
    let mut peer = Place::default();
    let mut started: Option<Program> = None;
    let mut port = 0;
    if role == "connect" {
        let (program, at) = peer.exchange("listen", address, 0, "recv", RECEIVED);
        (started, port) = (Some(program), at);
    }
    let mut node = Place::default().prepare(role, address, port, method, SENT);
    let mut recording = Recording::with(&CaptureOptions {
        targets: vec![Target::Process(node.pid())],
        source: Source::Calls,
        ..CaptureOptions::default()
    });
    let port = node.begin();
    peer = Place::default();
    let mut peer =
        started.unwrap_or_else(|| peer.exchange("connect", address, port, "recv", RECEIVED).0);
    recording.until_ended(&mut [&mut node, &mut peer]);
    assert_eq!(recording.capture.facts().source, Source::Calls);
    // One that ended when it was looked for is found to have ended the next time.
    recording.until(|recording| recording.capture.facts().processes.is_empty());
    let exchanged = node.exchanged();
    (recording, exchanged)
}

fn captures(method: &str) {
    for (address, role, initiator) in [
        ("127.0.0.1", "listen", Side::Remote),
        ("::1", "connect", Side::Local),
    ] {
        let (recording, node) = run(method, role, address);
        check(recording.only(), &node, initiator);
        let losses = recording.capture.losses().unwrap();
        assert_eq!((losses.bytes, losses.missed_calls), (0, 0));
    }
}

/// Bytes of a direction that were not captured, and whether those that were are at the right place cannot be told.
fn missing(seen: &Seen, side: Side, size: usize) -> usize {
    let (bytes, missing) = seen.direction(side);
    size - (bytes.len() - missing)
}

#[test]
fn read_and_write() {
    captures("read");
}

#[test]
fn recv_and_send() {
    captures("recv");
}

#[test]
fn readv_and_writev() {
    captures("vectors");
}

#[test]
fn recvmsg_and_sendmsg() {
    captures("messages");
}

#[test]
fn recvmmsg_and_sendmmsg() {
    captures("many");
}

#[test]
fn peeked_bytes_count_once() {
    captures("peek");
}

#[test]
fn duplicated_descriptors() {
    captures("dup");
}

#[test]
fn forked_children() {
    captures("fork");
}

#[test]
fn data_at_the_end_of_the_handshake() {
    captures("early");
}

/// Bytes that moved in another way are a gap of exact size, and the end says how many there were.
#[test]
fn sendfile_gives_a_gap() {
    let (recording, node) = run("sendfile", "listen", "127.0.0.1");
    let seen = recording.only();
    assert_eq!(seen.sum(Side::Remote), node.received);
    assert_eq!(missing(seen, Side::Local, SENT), SENT);
    let closed = seen.closed.unwrap();
    assert_eq!(
        (closed.local, closed.remote),
        (Some(SENT as u64), Some(RECEIVED as u64))
    );
}

#[test]
fn the_kernel_lists_the_open_sockets() {
    let mut node = Place::default().prepare("listen", "127.0.0.1", 0, "hold", SENT);
    let mut recording = Recording::with(&CaptureOptions {
        targets: vec![Target::Process(node.pid())],
        source: Source::Calls,
        ..CaptureOptions::default()
    });
    if let Err(why) = recording.capture.open_sockets() {
        return skip(why);
    }
    let port = node.begin();
    let (mut peer, _) = Place::default().exchange("connect", "127.0.0.1", port, "hold", RECEIVED);
    assert_eq!((node.line(), peer.line()), ("held".into(), "held".into()));
    recording.until(|recording| recording.seen.values().any(|seen| seen.records.len() == 2));
    let socket = *recording.seen.first_key_value().unwrap().0;
    let open = recording.capture.open_sockets().unwrap();
    assert!(open.contains(&socket), "{open:?}");
    node.say("go on");
    peer.say("go on");
    recording.until_ended(&mut [&mut node, &mut peer]);
    assert!(recording.only().closed.is_some());
    assert!(!recording.capture.open_sockets().unwrap().contains(&socket));
}

#[test]
fn a_process_that_has_ended_is_not_captured() {
    // Its parent has not waited for it.
    let mut ended = Command::new("true").spawn().unwrap();
    let stat = format!("/proc/{}/stat", ended.id());
    while !std::fs::read_to_string(&stat).unwrap().contains(") Z") {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let recording = Recording::with(&CaptureOptions {
        targets: vec![Target::Process(ended.id())],
        source: Source::Calls,
        ..CaptureOptions::default()
    });
    let facts = recording.capture.facts();
    assert!(facts.processes.is_empty(), "{:?}", facts.processes);
    let missing = format!("process {}: not found", ended.id());
    assert_eq!(facts.missing, [missing]);
    ended.wait().unwrap();
}

#[test]
fn a_listener_is_found_by_its_port() {
    let port = 20_003;
    let options = CaptureOptions {
        targets: vec![Target::Port(port)],
        source: Source::Calls,
        ..CaptureOptions::default()
    };
    let mut recording = Recording::with(&options);
    let (mut node, _) = Place::default().exchange("listen", "127.0.0.1", port, "recv", SENT);
    recording.poll();
    assert_eq!(recording.capture.facts().processes, [node.pid()]);
    let (mut peer, _) = Place::default().exchange("connect", "127.0.0.1", port, "recv", RECEIVED);
    recording.until_ended(&mut [&mut node, &mut peer]);
    check(recording.only(), &node.exchanged(), Side::Remote);
}

#[test]
fn system_calls_are_captured_without_control_groups() {
    let test = std::env::current_exe().unwrap();
    let output = Command::new("unshare")
        .args([
            "-m",
            "sh",
            "-c",
            "umount -R /sys/fs/cgroup && exec \"$@\"",
            "sh",
        ])
        .arg(test)
        .args([
            "--exact",
            "--ignored",
            "--nocapture",
            "capture::calls::an_automatic_source",
        ])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("Calls"), "{text}");
    assert!(text.contains("no cgroup2 is mounted"), "{text}");
}

#[test]
#[ignore = "is started by another test, without control groups"]
fn an_automatic_source() {
    let options = CaptureOptions {
        targets: vec![Target::Process(std::process::id())],
        ..CaptureOptions::default()
    };
    let facts = Capture::open(&options).unwrap().facts();
    println!("{:?} {:?}", facts.source, facts.reason);
}
