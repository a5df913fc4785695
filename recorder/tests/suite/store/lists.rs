//! Lists of chunks and connections.

use tezos_recorder::connection::State;
use tezos_recorder::side::{Both, Side};
use tezos_recorder::store::{
    ChunkEntry, ChunkQuery, ConnectionEntry, ConnectionId, ConnectionQuery, ConnectionStatus,
    Counts, Direction, Entry, Keep, Settings, Totals,
};
use tezos_recorder::stream::Traffic;
use tezos_recorder::time::Timestamp;

use super::entries::{connection, dir, open, put_all};

fn chunk(n: u64, connection: u64, size: usize) -> ChunkEntry {
    ChunkEntry {
        connection: ConnectionId(connection),
        sender: if n.is_multiple_of(2) {
            Side::Local
        } else {
            Side::Remote
        },
        number: (!n.is_multiple_of(10)).then_some(n),
        offset: n * 100,
        time: Timestamp(1000 + n),
        raw: vec![n as u8; size],
        plain: (!n.is_multiple_of(3))
            .then(|| vec![n as u8; if n.is_multiple_of(4) { 0 } else { size }]),
    }
}

#[test]
fn chunks_are_listed_in_the_order_of_writing() {
    let (_dir, path) = dir();
    // Several segments.
    let messages = Keep {
        bytes: Some(4 << 20),
        ..Keep::default()
    };
    let store = open(
        &path,
        Settings {
            messages,
            ..Settings::default()
        },
    );
    let chunks: Vec<_> = (0..500).map(|n| chunk(n, 1 + n % 3, 2000)).collect();
    put_all(&store, chunks.iter().cloned().map(Entry::Chunk));
    assert!(store.health().segments > 2);
    let reader = store.reader().unwrap();
    let all = ChunkQuery {
        limit: 1000,
        ..ChunkQuery::default()
    };
    assert_eq!(reader.chunks(&all).unwrap(), chunks);
    let own = |chunk: &&ChunkEntry| {
        chunk.connection == ConnectionId(2) && (1100..=1300).contains(&chunk.time.0)
    };
    let query = ChunkQuery {
        connection: Some(ConnectionId(2)),
        from: Some(Timestamp(1100)),
        to: Some(Timestamp(1300)),
        ..all
    };
    let expected: Vec<_> = chunks.iter().filter(own).cloned().collect();
    assert_eq!(reader.chunks(&query).unwrap(), expected);
    assert_eq!(
        reader
            .chunks(&ChunkQuery {
                limit: 5,
                ..query.clone()
            })
            .unwrap(),
        expected[..5]
    );
    let mut seen = Vec::new();
    reader
        .each_chunk(&query, &mut |chunk| {
            seen.push(chunk);
            seen.len() < 7
        })
        .unwrap();
    assert_eq!(seen, expected[..7]);
    let cut = reader
        .chunks(&ChunkQuery {
            max_bytes: Some(3),
            ..all
        })
        .unwrap();
    assert!(cut.iter().all(|chunk| chunk.raw.len() == 3));
    for chunk in &chunks {
        let Some(number) = chunk.number else { continue };
        let found = reader
            .chunk(chunk.connection, chunk.sender, number)
            .unwrap();
        assert_eq!(found.as_ref(), Some(chunk));
    }
    assert_eq!(
        reader.chunk(ConnectionId(1), Side::Local, 10_000).unwrap(),
        None
    );
}

const STATES: [State; 7] = [
    State::Handshake,
    State::Decrypted,
    State::Refused,
    State::PartlyDecrypted,
    State::Undecryptable,
    State::Unrecorded,
    State::Ignored,
];

fn full_connection(id: u64) -> ConnectionEntry {
    let texts = |text: &str| Both {
        local: Some(format!("{{\"{text}\": {id}}}")),
        remote: None,
    };
    ConnectionEntry {
        address: format!("10.0.0.{}:9732", id % 5).parse().unwrap(),
        initiator: (!id.is_multiple_of(3)).then_some(Side::Remote),
        peer_id: (!id.is_multiple_of(2)).then(|| format!("id{}", id % 7)),
        connection_messages: texts("port"),
        metadata: texts("private_node"),
        acks: texts("Ack"),
        ended: id.is_multiple_of(4).then_some(Timestamp(id + 5)),
        status: ConnectionStatus {
            state: STATES[id as usize % 7],
            reason: (!id.is_multiple_of(3)).then(|| "some_reason".into()),
            gaps: id % 3,
            end_unseen: id % 4 == 1,
        },
        traffic: Both {
            local: Traffic {
                captured: id,
                repeated: 2,
                lost: 3,
                foreign: 4,
            },
            remote: Traffic::default(),
        },
        chunks: Both {
            local: 5,
            remote: id,
        },
        ignored: id
            .is_multiple_of(5)
            .then(|| "opened before the recorder".into()),
        remarks: vec![
            (Timestamp(id + 1), "incoming \"é\"".into()),
            (Timestamp(id + 2), "two".into()),
        ],
        ..connection(id)
    }
}

/// The end of an open connection was not seen.
fn after_a_restart(mut connection: ConnectionEntry) -> ConnectionEntry {
    if connection.ended.is_none() && !connection.status.end_unseen {
        let remark = "not recorded any further: the recorder ended before the connection, whose end was not seen";
        connection.remarks.push((connection.last, remark.into()));
        connection.status.end_unseen = true;
    }
    connection
}

#[test]
fn connections_are_replaced_and_listed() {
    let (_dir, path) = dir();
    let store = open(&path, Settings::default());
    put_all(
        &store,
        (1..50).map(|id| Entry::Connection(Box::new(connection(id)))),
    );
    put_all(
        &store,
        (1..50).map(|id| Entry::Connection(Box::new(full_connection(id)))),
    );
    let all: Vec<_> = (1..50).map(full_connection).collect();
    let (state, totals) = (
        |c: &&ConnectionEntry| c.status.state,
        store.reader().unwrap().totals(),
    );
    let number = |wanted| all.iter().filter(|c| state(c) == wanted).count() as u64;
    let shown = || all.iter().filter(|c| state(c) != State::Ignored);
    let peers: std::collections::BTreeSet<_> =
        all.iter().filter_map(|c| c.peer_id.clone()).collect();
    let expected = Totals {
        peers: peers.len() as u64,
        lost_bytes: shown().count() as u64 * 3,
        gaps: all.iter().map(|c| c.status.gaps).sum(),
        lossy: shown().count() as u64,
        unrecorded: number(State::Unrecorded),
        undecryptable: number(State::Undecryptable),
        partly_decrypted: number(State::PartlyDecrypted),
    };
    assert_eq!(totals.unwrap(), expected);
    store.close();
    let store = open(&path, Settings::default());
    let reader = store.reader().unwrap();
    assert_eq!(reader.totals().unwrap(), expected);
    let all: Vec<_> = all.into_iter().map(after_a_restart).collect();
    let forward = ConnectionQuery {
        limit: 100,
        direction: Direction::Forward,
        ..ConnectionQuery::default()
    };
    assert_eq!(reader.connections(&forward).unwrap(), all);
    assert_eq!(
        reader.connection(ConnectionId(7)).unwrap().as_ref(),
        Some(&all[6])
    );
    assert_eq!(reader.connection(ConnectionId(70)).unwrap(), None);
    let backward = ConnectionQuery {
        limit: 2,
        cursor: Some(ConnectionId(20)),
        ..ConnectionQuery::default()
    };
    assert_eq!(
        reader.connections(&backward).unwrap(),
        [all[19].clone(), all[18].clone()]
    );
    let peer = ConnectionQuery {
        peer_id: Some("id3".into()),
        host: "::ffff:10.0.0.2".parse().ok(),
        ..forward
    };
    let wanted = |c: &&ConnectionEntry| c.peer_id == peer.peer_id && c.id.0 % 5 == 2;
    let expected: Vec<_> = all.iter().filter(wanted).cloned().collect();
    assert!(!expected.is_empty());
    assert_eq!(reader.connections(&peer).unwrap(), expected);
    assert_eq!(
        reader.counts().unwrap(),
        Counts {
            connections: 49,
            ..Counts::default()
        }
    );
}
