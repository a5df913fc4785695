//! Connections of which bytes are lost, come in disorder, or are damaged.

mod damage;

use proptest::prelude::*;
use tezos_recorder::connection::{Remark, Undecryptable};
use tezos_recorder::p2p::message::Kind;
use tezos_recorder::side::{Both, Side};
use tezos_recorder::time::Timestamp;

use crate::check::{self, Log, Peers, connection};
use crate::effort;
use crate::play::{end, give, heard, kinds, operation, recorded};

proptest! {
    #![proptest_config(ProptestConfig { cases: effort::rounds(60), failure_persistence: None, ..ProptestConfig::default() })]

    /// Records in disorder, some twice or overlapping: the messages are the same.
    #[test]
    fn disorder_within_the_limits_changes_nothing(
        sizes in proptest::collection::vec(0usize..900, 1..60),
        cuts in proptest::collection::vec((1usize..700, 0usize..40, any::<u32>()), 100),
    ) {
        let mut peers = Peers::connected(Side::Remote, "TEZOS_MAINNET", 1);
        for (n, size) in sizes.iter().enumerate() {
            peers.send(Side::Remote, &operation(n, *size));
        }
        let sent = &peers.sent.remote;
        let (mut parts, mut at) = (Vec::new(), 0);
        for (size, overlap, order) in cuts.iter().cycle() {
            parts.push((order % 8 + parts.len() as u32, at, at + size + overlap));
            at += size;
            if at >= sent.len() {
                break;
            }
        }
        // Each part moves by at most eight places.
        parts.sort();
        let parts: Vec<_> = parts.into_iter().map(|(_, from, to)| (from, to)).collect();
        let (mut connection, mut log) = (connection(), Log::default());
        give(&mut connection, &mut log, Side::Local, &peers.sent.local, &[(0, 1000)]);
        give(&mut connection, &mut log, Side::Remote, sent, &parts);
        end(&mut connection, &mut log);
        log.check_bytes(Side::Remote, sent);
        prop_assert_eq!(log.lost(Side::Remote), 0);
        let expected = recorded(&peers);
        prop_assert_eq!(log.messages, expected.messages);
        prop_assert_eq!(log.remarks, []);
    }

    /// Lost bytes cost no more than the chunks that they are in; each byte is accounted for.
    #[test]
    fn lost_bytes_cost_only_their_chunks(
        sizes in proptest::collection::vec(0usize..1200, 10..60),
        gaps in proptest::collection::vec((0usize..100, 1usize..4000), 1..4),
    ) {
        let mut peers = Peers::connected(Side::Local, "TEZOS_MAINNET", 2);
        let mut messages = Vec::new();
        for (n, size) in sizes.iter().enumerate() {
            messages.push(operation(n, *size));
            peers.send(Side::Remote, &messages[n]);
        }
        let sent = &peers.sent.remote;
        let handshake = peers.starts.remote[1];
        let mut lost = vec![false; sent.len()];
        for (at, size) in gaps {
            let from = handshake + at * (sent.len() - handshake) / 100;
            lost[from..(from + size).min(sent.len())].fill(true);
        }
        let mut parts = Vec::new();
        for (at, lost) in lost.iter().enumerate() {
            match parts.last_mut() {
                Some((_, end)) if !lost && *end == at => *end = at + 1,
                _ if !lost => parts.push((at, at + 1)),
                _ => {}
            }
        }
        let (mut connection, mut log) = (connection(), Log::default());
        give(&mut connection, &mut log, Side::Local, &peers.sent.local, &[(0, 1000)]);
        give(&mut connection, &mut log, Side::Remote, sent, &parts);
        connection.end(Both { local: None, remote: Some(sent.len() as u64) }, &mut |event| log.take(event));
        log.check_bytes(Side::Remote, sent);
        prop_assert_eq!(log.lost(Side::Remote), lost.iter().filter(|l| **l).count());
        let ends = peers.starts.remote.iter().skip(1).copied().chain([sent.len()]);
        let whole: Vec<bool> = peers.starts.remote.iter().zip(ends).map(|(from, to)| !lost[*from..to].contains(&true)).collect();
        let chunks: Vec<u64> = log.chunks.iter().filter(|c| c.0 == Side::Remote && c.2.is_some()).map(|c| c.1).collect();
        let expected: Vec<u64> = (0..whole.len() as u64).filter(|n| whole[*n as usize]).collect();
        prop_assert_eq!(&chunks, &expected);
        let seen = log.messages.iter().filter(|m| m.kind == Kind::Operation && m.error.is_none());
        let seen: Vec<&Vec<u8>> = seen.map(|m| &m.plain).collect();
        let expected: Vec<&Vec<u8>> = messages.iter().enumerate().filter(|(n, _)| whole[n + 3]).map(|(_, m)| m).collect();
        prop_assert_eq!(seen, expected);
    }

    /// Whatever the bytes say, nothing panics and each byte is accounted for.
    #[test]
    fn arbitrary_scripts_keep_the_books(script in proptest::collection::vec(any::<u8>(), 0..400)) {
        check::recorder(&script);
    }
}

#[test]
fn long_messages_lose_only_themselves() {
    let mut peers = Peers::connected(Side::Local, "TEZOS_MAINNET", 3);
    let long = operation(1, 200_000);
    // Operations are at most 128 KiB long, so that it is a block header in all but name.
    let long = [&long[..4], &[0, 0x21], &long[6..]].concat();
    let mut parts = Vec::new();
    for part in long.chunks(65_517) {
        parts.push(peers.send(Side::Remote, part));
    }
    for n in 0..5 {
        peers.send(Side::Remote, &operation(n, 100));
    }
    let sent = &peers.sent.remote;
    let middle = peers.starts.remote[parts[1] as usize];
    let (mut connection, mut log) = heard(&peers);
    give(
        &mut connection,
        &mut log,
        Side::Remote,
        sent,
        &[(0, middle + 10), (middle + 5000, sent.len())],
    );
    end(&mut connection, &mut log);
    log.check_bytes(Side::Remote, sent);
    let seen: Vec<_> = log.messages[5..]
        .iter()
        .map(|m| (m.kind, m.error.as_deref(), m.chunks.0))
        .collect();
    let error = Some("at byte 0: 65517 bytes of the message were captured of 200038");
    assert_eq!(seen[1], (Kind::BlockHeader, error, 3));
    let numbers: Vec<_> = seen[2..].iter().map(|m| (m.0, m.1, m.2)).collect();
    let expected: Vec<_> = (7..12).map(|n| (Kind::Operation, None, n)).collect();
    assert_eq!(numbers, expected);
}

#[test]
fn lost_bytes_of_the_handshake_are_survived_unless_they_belong_to_a_connection_message() {
    for (from, to, expected) in [
        (0, 3, None),
        (1, 5, Some(2)),
        (2, 8, Some(3)),
        (1, 30, Some(3)),
    ] {
        let mut peers = Peers::connected(Side::Local, "TEZOS_MAINNET", 4);
        for n in 0..5 {
            peers.send(Side::Remote, &operation(n, 60));
        }
        let sent = &peers.sent.remote;
        let starts = &peers.starts.remote;
        let (start, next) = (starts[from] + 3, starts[from] + 3 + to);
        let (mut connection, mut log) = (connection(), Log::default());
        give(
            &mut connection,
            &mut log,
            Side::Remote,
            sent,
            &[(0, start), (next, sent.len())],
        );
        give(
            &mut connection,
            &mut log,
            Side::Local,
            &peers.sent.local,
            &[(0, 1000)],
        );
        end(&mut connection, &mut log);
        log.check_bytes(Side::Remote, sent);
        let resumed = log.remarks.iter().find_map(|remark| match remark {
            Remark::Resumed { chunk, .. } => Some(*chunk),
            _ => None,
        });
        assert_eq!(resumed, expected, "{:?}", log.remarks);
        let operations = log.messages.iter().filter(|m| m.kind == Kind::Operation);
        assert_eq!(operations.count(), if expected.is_some() { 5 } else { 0 });
        let hopeless = log.remarks.iter().filter(|remark| {
            let lost = Undecryptable::ConnectionMessageLost {
                sender: Side::Remote,
            };
            matches!(remark, Remark::Undecryptable { reason, .. } if *reason == lost)
        });
        assert_eq!(hopeless.count(), if expected.is_some() { 0 } else { 2 });
    }
}

#[test]
fn the_length_of_a_chunk_whose_end_is_lost_counts() {
    let mut peers = Peers::connected(Side::Local, "TEZOS_MAINNET", 16);
    peers.send(Side::Remote, &operation(1, 65_517 - 38));
    for n in 0..20 {
        peers.send(Side::Remote, &operation(n, 40));
    }
    // Lost: the end of chunk 3, which is as long as a chunk can be, and the beginning of chunk 4.
    let (sent, starts) = (&peers.sent.remote, &peers.starts.remote);
    let (from, to) = (starts[3] + 9, starts[4] + 9);
    let (mut connection, mut log) = heard(&peers);
    give(
        &mut connection,
        &mut log,
        Side::Remote,
        sent,
        &[(0, from), (to, sent.len())],
    );
    end(&mut connection, &mut log);
    let resumed = Remark::Resumed {
        sender: Side::Remote,
        chunk: 5,
        offset: starts[5] as u64,
        lost: 2,
    };
    assert_eq!(log.remarks[1..], [resumed]);
}

#[test]
fn the_first_message_is_known_by_the_number_of_its_chunk() {
    let mut peers = Peers::connected(Side::Local, "TEZOS_MAINNET", 14);
    // Nothing in it looks like a message.
    peers.send(Side::Remote, &[0, 0, 0, 3, 0x77, 0x77, 1]);
    let (sent, lost) = (&peers.sent.remote, peers.starts.remote[2]);
    let (mut connection, mut log) = heard(&peers);
    give(
        &mut connection,
        &mut log,
        Side::Remote,
        sent,
        &[(0, lost), (lost + 1, sent.len())],
    );
    end(&mut connection, &mut log);
    assert_eq!(kinds(&log, Side::Remote).last(), Some(&Kind::Unknown));
}

#[test]
fn the_end_of_a_connection_ends_a_search() {
    let mut peers = Peers::connected(Side::Local, "TEZOS_MAINNET", 15);
    for n in 0..6 {
        peers.send(Side::Remote, &operation(n, 90));
    }
    let (sent, lost) = (&peers.sent.remote, peers.starts.remote[4]);
    let mut log = Log::default();
    let mut connection = connection();
    for (side, from, to) in [
        (Side::Local, 0, peers.sent.local.len()),
        (Side::Remote, 0, lost),
        (Side::Remote, lost + 50, sent.len()),
    ] {
        let record = check::record(peers.sent.of(side), from, to, 1);
        connection.record(side, &record, Timestamp(1), &mut |event| log.take(event));
    }
    end(&mut connection, &mut log);
    log.check_bytes(Side::Remote, sent);
    let operations = kinds(&log, Side::Remote)
        .into_iter()
        .filter(|k| *k == Kind::Operation);
    assert_eq!(operations.count(), 5);
}

#[test]
fn a_search_that_nobody_runs_is_run_when_there_is_no_room_for_more() {
    let mut peers = Peers::connected(Side::Local, "TEZOS_MAINNET", 17);
    for n in 0..1500 {
        peers.send(Side::Remote, &operation(n, 1000));
    }
    let (sent, lost) = (&peers.sent.remote, peers.starts.remote[4]);
    let (mut connection, mut log) = heard(&peers);
    let mut parts = vec![(0, lost)];
    let starts = (lost + 50..sent.len()).step_by(60_000);
    parts.extend(starts.map(|from| (from, (from + 60_000).min(sent.len()))));
    for (from, to) in parts {
        let record = check::record(sent, from, to, 1);
        connection.record(Side::Remote, &record, Timestamp(1), &mut |event| {
            log.take(event)
        });
        connection.expire(Timestamp(3_000_000_000), &mut |event| log.take(event));
    }
    assert!(!connection.is_searching());
    end(&mut connection, &mut log);
    log.check_bytes(Side::Remote, sent);
    let operations = kinds(&log, Side::Remote)
        .into_iter()
        .filter(|k| *k == Kind::Operation);
    assert_eq!(operations.count(), 1499);
}
