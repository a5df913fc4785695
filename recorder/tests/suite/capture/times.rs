//! Recorders and nodes that start and end at any time, and rings that are too small.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use libbpf_rs::query::{LinkInfoIter, LinkTypeInfo};

use crate::skip::skip;

use super::common::{Group, Place};
use super::seen::{Recording, check, exchange};
use tezos_recorder::capture::{Capture, CaptureOptions, Source, Target};
use tezos_recorder::side::Side;

/// Environment variable with the group of [`a_recorder`].
const GROUP: &str = "CAPTURE_TEST_GROUP";

#[test]
fn a_connection_opened_before() {
    let group = Group::new("before");
    let (mut node, port) =
        Place::group(&group.0).exchange("listen", "127.0.0.1", 0, "hold", 10_000);
    let (mut peer, _) = Place::default().exchange("connect", "127.0.0.1", port, "hold", 20_000);
    assert_eq!((node.line(), peer.line()), ("held".into(), "held".into()));
    let mut recording = Recording::start(group.target());
    node.say("go on");
    peer.say("go on");
    recording.until_ended(&mut [&mut node, &mut peer]);
    let seen = recording.only();
    assert_eq!((seen.opened, seen.initiator), (None, None));
    for (side, size) in [(Side::Local, 10_000), (Side::Remote, 20_000)] {
        let first = seen.records.iter().filter(|record| record.0 == side);
        assert_eq!(first.map(|record| record.1).min(), Some(5), "{side}");
        let (bytes, missing) = seen.direction(side);
        assert_eq!((bytes.len(), missing), (size + 5, 5), "{side}");
    }
}

#[test]
fn a_tiny_ring_gives_gaps_of_the_size_that_is_counted() {
    let group = Group::new("tiny");
    let mut recording = Recording::with(&CaptureOptions {
        targets: vec![group.target()],
        source: Source::Sockets,
        ring: 128 << 10,
    });
    let (mut node, port) =
        Place::group(&group.0).exchange("listen", "127.0.0.1", 0, "recv", 3_000_000);
    let (mut peer, _) = Place::default().exchange("connect", "127.0.0.1", port, "recv", 2_000_000);
    // The ring is not read meanwhile.
    let (first, second) = (node.exchanged(), peer.exchanged());
    recording.until_ended(&mut [&mut node, &mut peer]);
    assert_eq!(
        (&first.sent, &first.received),
        (&second.received, &second.sent)
    );
    let seen = recording.only();
    let sent = seen.closed.expect("there is always room for the end");
    assert_eq!(
        (sent.local, sent.remote),
        (Some(3_000_000), Some(2_000_000))
    );
    let captured = |side| {
        let (bytes, missing) = seen.direction(side);
        bytes.len() - missing
    };
    let gaps = 5_000_000 - captured(Side::Local) - captured(Side::Remote);
    assert!(gaps > 4_000_000);
    assert_eq!(recording.capture.losses().unwrap().bytes, gaps as u64);
}

#[test]
fn an_ignored_socket_costs_no_copies() {
    let group = Group::new("ignored");
    let mut recording = Recording::start(group.target());
    let (mut node, port) =
        Place::group(&group.0).exchange("listen", "127.0.0.1", 0, "hold", 10_000);
    let (mut peer, _) = Place::default().exchange("connect", "127.0.0.1", port, "hold", 20_000);
    assert_eq!((node.line(), peer.line()), ("held".into(), "held".into()));
    recording.until(|recording| recording.seen.values().any(|seen| seen.records.len() == 2));
    let socket = *recording.seen.first_key_value().unwrap().0;
    recording.capture.ignore(socket).unwrap();
    node.say("go on");
    peer.say("go on");
    recording.until_ended(&mut [&mut node, &mut peer]);
    let seen = recording.only();
    assert_eq!(seen.records.len(), 2);
    assert_eq!(recording.capture.losses().unwrap().ignored_bytes, 30_000);
    let closed = seen.closed.unwrap();
    assert_eq!((closed.local, closed.remote), (Some(10_005), Some(20_005)));
}

#[test]
fn the_kernel_lists_the_open_sockets() {
    let group = Group::new("open");
    let mut recording = Recording::start(group.target());
    if let Err(why) = recording.capture.open_sockets() {
        return skip(why);
    }
    let (mut node, port) =
        Place::group(&group.0).exchange("listen", "127.0.0.1", 0, "hold", 10_000);
    let (mut peer, _) = Place::default().exchange("connect", "127.0.0.1", port, "hold", 20_000);
    assert_eq!((node.line(), peer.line()), ("held".into(), "held".into()));
    recording.until(|recording| recording.seen.values().any(|seen| seen.records.len() == 2));
    let socket = *recording.seen.first_key_value().unwrap().0;
    let open = recording.capture.open_sockets().unwrap();
    // The listener is another.
    assert!(open.contains(&socket), "{open:?}");
    assert!(open.len() <= 2, "sockets of other groups: {open:?}");
    node.say("go on");
    peer.say("go on");
    recording.until_ended(&mut [&mut node, &mut peer]);
    assert!(recording.only().closed.is_some());
    assert!(!recording.capture.open_sockets().unwrap().contains(&socket));
}

#[test]
fn a_service_that_restarts_gets_a_new_group() {
    let group = Group::new("service");
    let mut recording = Recording::start(group.target());
    for _ in 0..3 {
        recording.seen.clear();
        let node = exchange(
            Place::group(&group.0),
            Place::default(),
            "connect",
            "127.0.0.1",
            "recv",
            &mut recording,
        );
        check(recording.only(), &node, Side::Local);
        group.remove();
        recording.until(|recording| recording.capture.facts().cgroups.is_empty());
        group.make();
        recording.poll();
        assert_eq!(recording.group(), group.0, "at once");
    }
}

#[test]
fn a_group_that_comes_later() {
    let group = Group::new("later");
    group.remove();
    let mut recording = Recording::start(group.target());
    assert_eq!(recording.capture.facts().missing.len(), 1);
    group.make();
    recording.poll();
    assert!(recording.capture.facts().missing.is_empty());
    let node = exchange(
        Place::group(&group.0),
        Place::default(),
        "listen",
        "127.0.0.1",
        "recv",
        &mut recording,
    );
    check(recording.only(), &node, Side::Remote);
}

#[test]
fn a_killed_node_and_a_refused_connection() {
    let group = Group::new("killed");
    let mut recording = Recording::start(group.target());
    let (mut node, port) = Place::group(&group.0).exchange("listen", "127.0.0.1", 0, "hold", 1000);
    let (mut peer, _) = Place::default().exchange("connect", "127.0.0.1", port, "hold", 1000);
    assert_eq!((node.line(), peer.line()), ("held".into(), "held".into()));
    node.kill();
    peer.kill();
    let (mut refused, error) =
        Place::group(&group.0).exchange("connect", "127.0.0.1", port, "refused", 0);
    assert_eq!(i32::from(error), libc::ECONNREFUSED);
    recording.until(|recording| recording.seen.values().any(|seen| seen.closed.is_some()));
    recording.until_ended(&mut [&mut refused]);
    let closed = recording.only().closed.unwrap();
    assert_eq!((closed.local, closed.remote), (Some(5), Some(5)));
}

/// Number of links to a control group.
fn links(group: &Path) -> usize {
    let id = std::fs::metadata(group).unwrap().ino();
    let is_at = |info: &LinkTypeInfo| matches!(info, LinkTypeInfo::Cgroup(cgroup) if cgroup.cgroup_id == id);
    LinkInfoIter::default()
        .filter(|link| is_at(&link.info))
        .count()
}

#[test]
fn a_killed_recorder_leaves_no_program() {
    let group = Group::new("left");
    let mut recorder = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "--ignored",
            "--nocapture",
            "capture::times::a_recorder",
        ])
        .env(GROUP, &group.0)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(recorder.stdout.take().unwrap());
    assert!(
        output
            .lines()
            .any(|line| line.unwrap().contains("attached"))
    );
    assert_eq!(links(&group.0), 2);
    recorder.kill().unwrap();
    recorder.wait().unwrap();
    assert_eq!(links(&group.0), 0);
}

#[test]
#[ignore = "is started by another test, which kills it"]
fn a_recorder() {
    let options = CaptureOptions {
        targets: vec![Target::Cgroup(std::env::var_os(GROUP).unwrap().into())],
        ..CaptureOptions::default()
    };
    let _capture = Capture::open(&options).unwrap();
    println!("attached");
    std::thread::sleep(Duration::from_secs(60));
}
