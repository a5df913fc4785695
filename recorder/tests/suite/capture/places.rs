//! Network namespaces, control groups and ports.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use super::common::{Group, Namespaces, Place};
use super::seen::{Recording, check, exchange};
use tezos_recorder::capture::{Capture, CaptureError, CaptureOptions, Source, Target};
use tezos_recorder::cgroups;
use tezos_recorder::side::Side;

fn over_veth(address: &str) {
    let (group, namespaces) = (Group::new("veth"), Namespaces::new());
    namespaces.drop_packets();
    let node = Place {
        group: Some(&group.0),
        namespace: Some(&namespaces.node),
    };
    let peer = Place {
        group: None,
        namespace: Some(&namespaces.peer),
    };
    let mut recording = Recording::start(group.target());
    let node = exchange(node, peer, "listen", address, "read", &mut recording);
    check(recording.only(), &node, Side::Remote);
    let dropped = namespaces.dropped();
    assert!(dropped.iter().all(|packets| *packets > 0), "{dropped:?}");
    let losses = recording.capture.losses().unwrap();
    assert_eq!((losses.bytes, losses.unreadable_bytes), (0, 0));
    assert!(losses.repeated_bytes > 0, "{losses:?}");
    // What the node sent again was not copied again.
    let records = recording.only().records.iter();
    let sent = records.filter(|record| record.0 == Side::Local);
    assert_eq!(
        sent.map(|record| record.2.len()).sum::<usize>(),
        node.sent.0
    );
}

#[test]
fn a_queue_that_drops_ipv4() {
    over_veth("10.77.0.1");
}

#[test]
fn a_queue_that_drops_ipv6() {
    over_veth("fd77::1");
}

#[test]
fn other_groups_give_no_records() {
    let (group, other) = (Group::new("node"), Group::new("other"));
    let mut recording = Recording::start(group.target());
    for node in [Place::group(&other.0), Place::default()] {
        exchange(
            node,
            Place::default(),
            "listen",
            "127.0.0.1",
            "recv",
            &mut recording,
        );
    }
    assert!(recording.seen.is_empty());
    // The same is seen in the group.
    exchange(
        Place::group(&group.0),
        Place::default(),
        "listen",
        "127.0.0.1",
        "recv",
        &mut recording,
    );
    assert_eq!(recording.seen.len(), 1);
}

#[test]
fn two_nodes_in_a_shared_group() {
    let group = Group::new("shared");
    let mut recording = Recording::start(group.target());
    let start = || Place::group(&group.0).exchange("listen", "127.0.0.1", 0, "recv", 1_000_000);
    let nodes = [start(), start()];
    let connect = |port| Place::default().exchange("connect", "127.0.0.1", port, "recv", 500_000);
    let mut peers = nodes.each_ref().map(|(_, port)| connect(*port).0);
    for (mut node, port) in nodes {
        let peer = &mut peers.iter_mut().collect::<Vec<_>>()[..];
        recording.until_ended(peer);
        recording.until_ended(&mut [&mut node]);
        check(recording.at(port), &node.exchanged(), Side::Remote);
    }
    assert_eq!(recording.seen.len(), 2);
}

#[test]
fn the_root_sees_the_groups_below() {
    let group = Group::new("below");
    let mut recording = Recording::start(Target::Cgroup(cgroups::mount().unwrap()));
    let (mut node, port) =
        Place::group(&group.0).exchange("listen", "127.0.0.1", 0, "recv", 100_000);
    let (mut peer, _) = Place::default().exchange("connect", "127.0.0.1", port, "recv", 200_000);
    recording.until_ended(&mut [&mut node, &mut peer]);
    check(recording.at(port), &node.exchanged(), Side::Remote);
}

#[test]
fn both_ends_in_the_group_give_two_connections() {
    let group = Group::new("both");
    let place = Place::group(&group.0);
    let mut recording = Recording::start(group.target());
    let node = exchange(place, place, "listen", "127.0.0.1", "recv", &mut recording);
    let mut seen: Vec<_> = recording.seen.values().collect();
    seen.sort_by_key(|seen| seen.initiator == Some(Side::Local));
    let [listener, connector] = seen[..] else {
        panic!("{} connections", seen.len());
    };
    check(listener, &node, Side::Remote);
    assert_eq!(connector.sum(Side::Remote), node.sent);
    assert_eq!(connector.sum(Side::Local), node.received);
}

#[test]
fn groups_below_are_seen_once() {
    let group = Group::new("outer");
    let inner = Group(group.0.join("inner"));
    inner.make();
    let targets = vec![group.target(), inner.target()];
    let mut recording = Recording::of(targets);
    assert_eq!(recording.group(), group.0);
    let node = exchange(
        Place::group(&inner.0),
        Place::default(),
        "listen",
        "127.0.0.1",
        "recv",
        &mut recording,
    );
    check(recording.only(), &node, Side::Remote);
}

/// The group of a process that listens is found, in another network namespace, whether it listens before the recorder starts or
/// after that.
fn finds_a_port(first: bool) {
    let (group, namespaces) = (Group::new("port"), Namespaces::new());
    let place = Place {
        group: Some(&group.0),
        namespace: Some(&namespaces.node),
    };
    let port = if first { 20_001 } else { 20_002 };
    let before = first.then(|| place.exchange("listen", "10.77.0.1", port, "recv", 1000));
    let mut recording = Recording::start(Target::Port(port));
    let found: Vec<PathBuf> = if first { vec![group.0.clone()] } else { vec![] };
    assert_eq!(recording.capture.facts().cgroups, found);
    let (mut node, _) = before.unwrap_or_else(|| {
        assert_eq!(recording.capture.facts().missing.len(), 1);
        let started = place.exchange("listen", "10.77.0.1", port, "recv", 1000);
        recording.poll();
        assert_eq!(recording.group(), group.0, "at once");
        started
    });
    let peer = Place {
        group: None,
        namespace: Some(&namespaces.peer),
    };
    let (mut peer, _) = peer.exchange("connect", "10.77.0.1", port, "recv", 2000);
    recording.until_ended(&mut [&mut node, &mut peer]);
    check(recording.only(), &node.exchanged(), Side::Remote);
}

#[test]
fn a_port_that_is_listened_at() {
    finds_a_port(true);
}

#[test]
fn a_port_that_will_be_listened_at() {
    finds_a_port(false);
}

/// Another process listens at the same port in a network namespace of its own, as in another container: the node's group stays.
#[test]
fn a_port_that_others_listen_at_too() {
    const PORT: u16 = 20_003;
    let (group, other, namespaces) = (Group::new("first"), Group::new("second"), Namespaces::new());
    let node = Place {
        group: Some(&group.0),
        namespace: Some(&namespaces.node),
    };
    let stranger = Place {
        group: Some(&other.0),
        namespace: Some(&namespaces.peer),
    };
    let mut recording = Recording::start(Target::Port(PORT));
    let (mut node, _) = node.exchange("listen", "10.77.0.1", PORT, "recv", 1000);
    recording.until(|recording| recording.capture.facts().cgroups == [group.0.clone()]);
    let (mut stranger, _) = stranger.exchange("listen", "10.77.0.2", PORT, "recv", 1000);
    let mut both = [group.0.clone(), other.0.clone()];
    both.sort();
    recording.until(|recording| recording.capture.facts().cgroups == both);
    let peer = Place {
        group: None,
        namespace: Some(&namespaces.peer),
    };
    let (mut peer, _) = peer.exchange("connect", "10.77.0.1", PORT, "recv", 2000);
    recording.until_ended(&mut [&mut node, &mut peer]);
    check(recording.only(), &node.exchanged(), Side::Remote);
    stranger.kill();
    other.remove();
    recording.until(|recording| recording.capture.facts().cgroups == [group.0.clone()]);
    assert!(recording.capture.facts().missing.is_empty());
}

/// There the programs number processes otherwise than the recorder.
#[test]
fn a_port_in_a_pid_namespace_of_the_recorder() {
    let test = std::env::current_exe().unwrap();
    let status = std::process::Command::new("unshare")
        .args(["--pid", "--fork", "--mount-proc"])
        .arg(test)
        .args(["--exact", "--ignored", "--nocapture"])
        .arg("capture::places::nodes_that_listen_one_after_the_other")
        .status();
    assert!(status.unwrap().success());
}

#[test]
#[ignore = "is started by another test, in a pid namespace"]
fn nodes_that_listen_one_after_the_other() {
    const PORT: u16 = 20_004;
    let groups = [Group::new("one"), Group::new("other")];
    let mut recording = Recording::start(Target::Port(PORT));
    for group in &groups {
        recording.seen.clear();
        let place = Place::group(&group.0);
        let (mut node, _) = place.exchange("listen", "127.0.0.1", PORT, "recv", 1000);
        recording.until(|recording| recording.capture.facts().cgroups == [group.0.clone()]);
        let (mut peer, _) = Place::default().exchange("connect", "127.0.0.1", PORT, "recv", 2000);
        recording.until_ended(&mut [&mut node, &mut peer]);
        check(recording.only(), &node.exchanged(), Side::Remote);
    }
    assert!(matches!(
        Capture::open(&CaptureOptions {
            source: Source::Calls,
            ..CaptureOptions::default()
        }),
        Err(CaptureError::Refused(_))
    ));
}

#[test]
fn a_process_in_its_group() {
    let group = Group::new("process");
    let (node, port) = Place::group(&group.0).exchange("listen", "127.0.0.1", 0, "recv", 1000);
    let mut node = node;
    let mut recording = Recording::start(Target::Process(node.pid()));
    assert_eq!(recording.group(), group.0);
    let (mut peer, _) = Place::default().exchange("connect", "127.0.0.1", port, "recv", 1000);
    recording.until_ended(&mut [&mut node, &mut peer]);
    check(recording.only(), &node.exchanged(), Side::Remote);
}

#[test]
fn a_process_without_a_group_is_in_the_root() {
    let recording = Recording::start(Target::Process(std::process::id()));
    assert_eq!(recording.group(), cgroups::mount().unwrap());
}

#[test]
fn a_unit_by_its_name() {
    let slice = Group::new("slice");
    let unit = Group(slice.0.join(super::common::unique("unit.service")));
    unit.make();
    let name = unit.0.file_name().unwrap().to_str().unwrap().to_string();
    let recording = Recording::start(Target::Unit(name));
    assert_eq!(recording.group(), unit.0);
}

#[test]
fn addresses_and_times() {
    let group = Group::new("addresses");
    let mut recording = Recording::start(group.target());
    let now = || {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_nanos() as u64
    };
    let began = now();
    let (mut node, port) =
        Place::group(&group.0).exchange("listen", "::ffff:127.0.0.1", 0, "recv", 10);
    let (mut peer, from) = Place::default().exchange("connect", "127.0.0.1", port, "recv", 10);
    recording.until_ended(&mut [&mut node, &mut peer]);
    let ended = now();
    let seen = recording.only();
    let (local, remote) = (format!("127.0.0.1:{port}"), format!("127.0.0.1:{from}"));
    assert_eq!(
        seen.addresses,
        Some((local.parse().unwrap(), remote.parse().unwrap()))
    );
    assert!(!seen.times.is_empty());
    let within = |time: &u64| (began..=ended).contains(time);
    assert!(
        seen.times.iter().all(within),
        "{began} {:?} {ended}",
        seen.times
    );
}
