//! The pcapng export is read back: by a reader of its own, and by Wireshark's.

mod example;
pub mod reader;
mod wireshark;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use tezos_recorder::api::pcapng::Export;
use tezos_recorder::side::Side;

use self::reader::{Block, Segment};

use self::example::{OPENED, P2P_PORT, chunks, connection, export, recording, row};

fn segments(blocks: &[Block]) -> Vec<(&Block, Segment)> {
    let packets = blocks.iter().filter(|block| block.kind == reader::PACKET);
    packets
        .map(|block| (block, reader::segment(&block.data)))
        .collect()
}

/// The bytes that a direction has by offset, as its segments say: both ports, the address, and so on tell directions apart.
fn streams(blocks: &[Block]) -> BTreeMap<(SocketAddr, SocketAddr), BTreeMap<u64, u8>> {
    let mut streams: BTreeMap<_, BTreeMap<u64, u8>> = BTreeMap::new();
    for (_, segment) in segments(blocks) {
        let stream = streams.entry((segment.from, segment.to)).or_default();
        // Only the last connection has more than 4 GiB.
        let last = *stream.keys().next_back().unwrap_or(&0);
        for (n, byte) in (0..).zip(segment.payload) {
            let low = segment.sequence.wrapping_sub(1).wrapping_add(n);
            let mut at = (last >> 32 << 32) + u64::from(low);
            at += u64::from(at + (1 << 31) < last) << 32;
            assert_eq!(stream.insert(at, byte), None);
        }
    }
    streams
}

#[test]
fn reassembled_packets_are_the_captured_bytes() {
    let recording = recording();
    let blocks = reader::blocks(&export(&recording));
    let streams = streams(&blocks);
    let mut directions = 0;
    for (connection, chunks) in &recording {
        for sender in Side::BOTH {
            let mut expected = BTreeMap::new();
            for chunk in chunks.iter().filter(|chunk| chunk.sender == sender) {
                let low = if connection.initiator.is_none() {
                    2 << 32
                } else {
                    0
                };
                expected.extend((chunk.offset - low..).zip(chunk.raw.iter().copied()));
            }
            let found = streams
                .iter()
                .filter(|(_, bytes)| **bytes == expected)
                .map(|((from, to), _)| if sender == Side::Remote { from } else { to });
            let address = SocketAddr::new(
                connection.address.ip().to_canonical(),
                connection.address.port(),
            );
            assert!(expected.is_empty() || found.into_iter().any(|peer| *peer == address));
            directions += 1;
        }
    }
    assert_eq!((directions, streams.len()), (8, 7));
}

#[test]
fn headers_name_the_peer_and_stand_ins_for_the_node() {
    let blocks = reader::blocks(&export(&recording()));
    let first = |remote: &str| {
        let mut all = segments(&blocks).into_iter().map(|(_, segment)| segment);
        all.find(|s| {
            [s.from, s.to]
                .map(|a| a.to_string())
                .contains(&remote.to_owned())
        })
    };
    // Opened by the node, by the peer, and by an unknown side.
    let opened = first("203.0.113.7:9732").unwrap();
    assert_eq!(opened.from.to_string(), "192.0.2.1:49152");
    assert_eq!(
        (opened.sequence, opened.acknowledgement, opened.flags),
        (0, 0, reader::SYN)
    );
    let accepted = first("[2001:db8:7::7]:40000").unwrap();
    assert_eq!(accepted.to.to_string(), "[2001:db8::1]:9733");
    assert_eq!(accepted.flags, reader::SYN);
    let unknown = first("[2001:db8:7::7]:9732").unwrap();
    assert_eq!(unknown.to.to_string(), "[2001:db8::1]:49155");
    assert_eq!(unknown.flags, reader::ACK | reader::PSH);
    let section = &blocks[0];
    for part in ["node \"1\"", "192.0.2.1", "2001:db8::1", "not captured"] {
        assert!(section.comment.contains(part), "{}", section.comment);
    }
}

#[test]
fn packets_have_times_directions_and_comments() {
    let recording = recording();
    let blocks = reader::blocks(&export(&recording));
    let packets = segments(&blocks);
    let chunk = &recording[0].1[3];
    let (block, segment) = &packets[3 + 3];
    assert_eq!((block.interface, block.time), (0, chunk.time.0));
    assert_eq!(block.flags, if chunk.sender == Side::Local { 2 } else { 1 });
    assert_eq!(segment.payload, chunk.raw);
    let number = chunk.number.unwrap();
    let line = "operation oofLvGoQ9h73gR1SWf4SiScJrfJf6RDpXExPyhQErpdLBnR4Uam {";
    let direction = chunk.sender.direction();
    let expected = format!("{line}\"Operation\":…\n{line}\n{direction} chunk {number}");
    assert_eq!(block.comment, expected);
    assert_eq!(packets[0].0.time, OPENED);
    let last = packets.last().unwrap().0;
    assert!(
        last.comment
            .ends_with("incoming bytes outside of known chunks")
    );
}

#[test]
fn messages_are_packets_of_their_own() {
    let connection = connection(0, "[::ffff:203.0.113.7]:9732", None);
    let mut export = Export::new(Vec::new(), "", P2P_PORT).unwrap();
    let plain = vec![7; 300_000];
    let mut large = row(&connection, 1, &"é".repeat(4_000));
    large.size = 300_000;
    large.error = Some("offset 5: wrong".to_owned());
    export
        .message(&row(&connection, 0, "\u{202e}<script>\0"), &plain[..6])
        .unwrap();
    export.message(&large, &plain).unwrap();
    let blocks = reader::blocks(&export.finish().unwrap());
    let links: Vec<u16> = blocks.iter().filter_map(|block| block.link).collect();
    assert_eq!(links, [101, 147]);
    let [small, large] = &blocks[3..] else {
        panic!("{blocks:?}")
    };
    assert_eq!(
        (small.interface, small.size, &small.data[..]),
        (1, 6, &plain[..6])
    );
    assert!(small.comment.contains(
        "\u{202e}<script>\0\nmessage 0, incoming, peer 203.0.113.7:9732, connection 17673"
    ));
    // Cut, at a limit that Wireshark has; and the size is the original one.
    assert_eq!((large.data.len(), large.size), (256 << 10, 300_000));
    assert!((4_090..=4_096).contains(&large.comment.len()));
}

#[test]
fn a_handshake_is_written_only_before_the_first_chunk() {
    let connection = connection(0, "203.0.113.7:9732", Some(Side::Local));
    let mut export = Export::new(Vec::new(), "", P2P_PORT).unwrap();
    for chunk in chunks(&connection).iter().rev() {
        export.chunk(&connection, chunk, &[]).unwrap();
    }
    let blocks = reader::blocks(&export.finish().unwrap());
    let segments = segments(&blocks);
    assert!(!segments.is_empty());
    assert!(
        segments
            .iter()
            .all(|(_, segment)| segment.flags & reader::SYN == 0)
    );
}

#[test]
fn nothing_is_written_of_chunks_without_bytes() {
    let connection = connection(0, "203.0.113.7:9732", Some(Side::Local));
    let mut chunk = chunks(&connection).remove(0);
    chunk.raw.clear();
    let mut export = Export::new(Vec::new(), "", P2P_PORT).unwrap();
    export.chunk(&connection, &chunk, &[]).unwrap();
    let blocks = reader::blocks(&export.finish().unwrap());
    assert!(blocks.iter().all(|block| block.kind != reader::PACKET));
    let node = blocks[0]
        .comment
        .contains(&IpAddr::from([192, 0, 2, 1]).to_string());
    assert!(node);
}
