//! The pcapng export is read back: by a reader of its own, and by Wireshark's.

pub mod reader;
mod wireshark;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use tezos_recorder::api::pcapng::Export;
use tezos_recorder::p2p::message::Kind;
use tezos_recorder::side::{Both, Side};
use tezos_recorder::store::{
    ChunkEntry, ConnectionEntry, ConnectionId, ConnectionStatus, MessageRow,
};
use tezos_recorder::stream::Traffic;
use tezos_recorder::time::Timestamp;

use self::reader::{Block, Segment};
use super::common::{each, unhex, vectors};

/// Opened in 2026, at a time with nanoseconds.
const OPENED: u64 = 1_767_323_045_123_456_789;
const P2P_PORT: u16 = 9_733;

fn connection(number: u64, address: &str, initiator: Option<Side>) -> ConnectionEntry {
    ConnectionEntry {
        id: ConnectionId(OPENED + number),
        address: address.parse().unwrap(),
        initiator,
        peer_id: None,
        connection_messages: Both::default(),
        metadata: Both::default(),
        acks: Both::default(),
        last: Timestamp(OPENED),
        ended: None,
        status: ConnectionStatus::default(),
        traffic: Both {
            local: Traffic::default(),
            remote: Traffic::default(),
        },
        chunks: Both::default(),
        ignored: None,
        remarks: Vec::new(),
    }
}

fn made_up(length: u32) -> Vec<u8> {
    (0..length).map(|n| n.wrapping_mul(n >> 3) as u8).collect()
}

/// The chunks of the worked connection, alternating.
fn chunks(of: &ConnectionEntry) -> Vec<ChunkEntry> {
    let example = &vectors()["connection"];
    let mut chunks = Vec::new();
    for (sender, name) in [
        (Side::Local, "initiator_to_responder"),
        (Side::Remote, "responder_to_initiator"),
    ] {
        let mut offset = 0;
        for (number, chunk) in each(&example[name]).enumerate() {
            // The largest chunks are not written out there.
            let digits = chunk["raw"].as_str();
            let raw = digits.map_or_else(|| made_up(65_537), unhex);
            let length = raw.len() as u64;
            chunks.push(ChunkEntry {
                connection: of.id,
                sender,
                number: Some(number as u64),
                offset,
                time: Timestamp(OPENED + 1_000_000 * number as u64),
                plain: Some(Vec::new()),
                raw,
            });
            offset += length;
        }
    }
    chunks.sort_by_key(|chunk| chunk.time);
    chunks
}

fn row(of: &ConnectionEntry, id: u64, preview: &str) -> MessageRow {
    MessageRow {
        id,
        time: Timestamp(OPENED + id),
        connection: of.id,
        address: of.address,
        initiator: of.initiator,
        sender: Side::Remote,
        kind: Kind::Operation,
        size: 6,
        preview: Some(preview.to_owned()),
        hash: Some("oofLvGoQ9h73gR1SWf4SiScJrfJf6RDpXExPyhQErpdLBnR4Uam".to_owned()),
        error: None,
    }
}

/// What is exported: connections with their chunks.
fn recording() -> Vec<(ConnectionEntry, Vec<ChunkEntry>)> {
    let addresses = [
        ("203.0.113.7:9732", Some(Side::Local)),
        ("[2001:db8:7::7]:40000", Some(Side::Remote)),
        ("[::ffff:203.0.113.7]:9732", Some(Side::Local)),
        ("[2001:db8:7::7]:9732", None),
    ];
    let connections = addresses.into_iter().zip(0..);
    let mut all: Vec<_> = connections
        .map(|((address, initiator), number)| connection(number, address, initiator))
        .map(|connection| {
            let chunks = chunks(&connection);
            (connection, chunks)
        })
        .collect();
    // A gap: a chunk in the middle is missing.
    let gap = all[2].1.iter().position(|c| c.offset > 300).unwrap();
    assert!(gap + 2 < all[2].1.len());
    all[2].1.remove(gap);
    // Its beginning is not there, its sequence numbers wrap, and it has bytes outside of chunks: more than one packet can have.
    let (last, chunks) = &mut all[3];
    *chunks = vec![ChunkEntry {
        connection: last.id,
        sender: Side::Remote,
        number: None,
        offset: (3 << 32) - 70_000,
        time: Timestamp(OPENED),
        raw: made_up(200_001),
        plain: None,
    }];
    all
}

fn export(recording: &[(ConnectionEntry, Vec<ChunkEntry>)]) -> Vec<u8> {
    let mut export = Export::new(Vec::new(), "node \"1\"", P2P_PORT).unwrap();
    for (connection, chunks) in recording {
        for chunk in chunks {
            let rows = [
                row(connection, 5, "{\"Operation\":…"),
                row(connection, 6, "{"),
            ];
            export.chunk(connection, chunk, &rows).unwrap();
        }
    }
    export.finish().unwrap()
}

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
