//! What is exported: made-up connections with their chunks.

use tezos_recorder::api::pcapng::Export;
use tezos_recorder::p2p::message::Kind;
use tezos_recorder::side::{Both, Side};
use tezos_recorder::store::{
    ChunkEntry, ConnectionEntry, ConnectionId, ConnectionStatus, MessageRow,
};
use tezos_recorder::stream::Traffic;
use tezos_recorder::time::Timestamp;

use crate::common::{each, unhex, vectors};

/// Opened in 2026, at a time with nanoseconds.
pub const OPENED: u64 = 1_767_323_045_123_456_789;

pub const P2P_PORT: u16 = 9_733;

pub fn connection(number: u64, address: &str, initiator: Option<Side>) -> ConnectionEntry {
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

pub fn made_up(length: u32) -> Vec<u8> {
    (0..length).map(|n| n.wrapping_mul(n >> 3) as u8).collect()
}

/// The chunks of the worked connection, alternating.
pub fn chunks(of: &ConnectionEntry) -> Vec<ChunkEntry> {
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

pub fn row(of: &ConnectionEntry, id: u64, preview: &str) -> MessageRow {
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
pub fn recording() -> Vec<(ConnectionEntry, Vec<ChunkEntry>)> {
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

pub fn export(recording: &[(ConnectionEntry, Vec<ChunkEntry>)]) -> Vec<u8> {
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
