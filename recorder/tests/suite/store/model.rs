//! Random entries and questions, compared with a list in memory.

use std::net::{IpAddr, SocketAddr};

use tezos_recorder::p2p::message::Kind;
use tezos_recorder::side::Side;
use tezos_recorder::store::{
    ConnectionId, Direction, Entry, Keep, MessageEntry, MessageQuery, MessageRow, Position,
    Settings, Store,
};
use tezos_recorder::time::Timestamp;

use super::entries::{Random, connection, dir, open, put_all};
use crate::effort;

const KINDS: [Kind; 5] = [
    Kind::Operation,
    Kind::Operation,
    Kind::CurrentHead,
    Kind::Advertise,
    Kind::DalGraft,
];
const SIDES: [Side; 2] = Side::BOTH;

/// Connections of a few peers: several of one host, one as IPv4 and as its mapped form.
fn address(connection: u64) -> SocketAddr {
    let addresses = [
        "1.2.3.4:9732",
        "[::ffff:1.2.3.4]:9733",
        "[2001:db8::1]:9732",
        "5.6.7.8:9732",
        "5.6.7.8:40000",
    ];
    addresses[connection as usize % 5].parse().unwrap()
}

fn peer(connection: u64) -> Option<String> {
    (!connection.is_multiple_of(7)).then(|| format!("id{}", connection % 4))
}

/// A hash as long as those of blocks and operations.
fn whole(start: &str) -> String {
    format!("{start:z<51}")
}

fn random_message(random: &mut Random, n: u64) -> MessageEntry {
    let connection = 1 + random.below(90) * random.below(2);
    MessageEntry {
        connection: ConnectionId(connection),
        address: address(connection),
        initiator: [Some(Side::Local), Some(Side::Remote), None][connection as usize % 3],
        sender: random.pick(&SIDES),
        kind: if random.percent(1) {
            Kind::Unknown
        } else {
            random.pick(&KINDS)
        },
        time: Timestamp(1000 + n * 10 + random.below(500)),
        chunks: (n, n),
        start: 0,
        size: random.below(1000),
        preview: random.percent(50).then(|| format!("preview {n}")),
        hash: random.percent(50).then(|| {
            let start = random.pick(&["oo", "op", "BLock", "BLocker"]);
            whole(&format!("{start}{}", random.below(50)))
        }),
        error: random.percent(5).then(|| "bad".into()),
    }
}

/// Any position among that many rows.
pub fn position(random: &mut Random, count: u64) -> Position {
    match random.below(4) {
        0 => Position::Id(random.below(count * 2)),
        1 => Position::Time(Timestamp(random.below(1000 + count * 12))),
        _ => Position::Start,
    }
}

/// Any times, often none.
pub fn times(random: &mut Random, count: u64) -> (Option<Timestamp>, Option<Timestamp>) {
    let mut time = |percent| {
        random
            .percent(percent)
            .then(|| Timestamp(random.below(1000 + count * 12)))
    };
    (time(20), time(20))
}

fn random_query(random: &mut Random, count: u64) -> MessageQuery {
    let (from, to) = times(random, count);
    let maybe = |random: &mut Random| random.percent(20);
    let number = random.below(4) * random.below(2);
    let kinds = (0..number).map(|_| match random.below(2) {
        0 => Kind::Operation,
        _ => random.pick(Kind::ALL),
    });
    let kinds = kinds.collect();
    let mapped: IpAddr = "::ffff:5.6.7.8".parse().unwrap();
    MessageQuery {
        limit: random.pick(&[0, 1, 10, 1000, 20_000]),
        direction: random.pick(&[Direction::Backward, Direction::Forward]),
        position: position(random, count),
        from,
        to,
        kinds,
        sender: maybe(random).then(|| random.pick(&SIDES)),
        initiator: maybe(random).then(|| random.pick(&SIDES)),
        address: maybe(random).then(|| address(random.below(5))),
        host: maybe(random).then(|| random.pick(&[address(0).ip(), address(2).ip(), mapped])),
        connection: maybe(random).then(|| ConnectionId(random.below(100))),
        peer_id: maybe(random).then(|| format!("id{}", random.below(5))),
        hash: maybe(random)
            .then(|| {
                random
                    .pick(&["", "o", "oo1", "BLock", "BLocker1", "BLock17", "x"].map(String::from))
            })
            .map(|start| match random.below(3) {
                0 if !start.is_empty() => whole(&start),
                _ => start,
            }),
        error: maybe(random).then(|| random.percent(50)),
    }
}

/// Ids of the rows that a question wants, by the definition of its fields.
pub fn expected(
    rows: &[(u64, Timestamp)],
    (direction, position, from, to): (Direction, Position, Option<Timestamp>, Option<Timestamp>),
    limit: u64,
    wanted: impl Fn(u64) -> bool,
) -> Vec<u64> {
    let last = rows.last().map_or(0, |row| row.0);
    let within = |id: u64, time: Timestamp| match (position, direction) {
        (Position::Start, _) => true,
        (Position::Id(cursor), Direction::Backward) => id <= cursor.min(last),
        (Position::Id(cursor), Direction::Forward) => id >= cursor.min(last),
        (Position::Time(at), Direction::Backward) => time <= at,
        (Position::Time(at), Direction::Forward) => time > at,
    };
    let within = |row: &&(u64, Timestamp)| {
        let (id, time) = **row;
        within(id, time)
            && from.is_none_or(|from| time >= from)
            && to.is_none_or(|to| time <= to)
            && wanted(id)
    };
    let ids = rows.iter().filter(within).map(|row| row.0);
    let limit = limit.min(10_000) as usize;
    match direction {
        Direction::Backward => ids.rev().take(limit).collect(),
        Direction::Forward => ids.take(limit).collect(),
    }
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn is_wanted(query: &MessageQuery, message: &MessageEntry) -> bool {
    let (address, error) = (canonical(message.address), message.error.is_some());
    let hash = message.hash.as_deref();
    (query.kinds.is_empty() || query.kinds.contains(&message.kind))
        && query.sender.is_none_or(|sender| sender == message.sender)
        && query
            .initiator
            .is_none_or(|initiator| Some(initiator) == message.initiator)
        && query
            .address
            .is_none_or(|wanted| canonical(wanted) == address)
        && query
            .host
            .is_none_or(|host| host.to_canonical() == address.ip())
        && query
            .connection
            .is_none_or(|connection| connection == message.connection)
        && query
            .peer_id
            .as_ref()
            .is_none_or(|id| peer(message.connection.0).as_ref() == Some(id))
        && query.hash.as_ref().is_none_or(|start| {
            start.is_empty() || hash.is_some_and(|hash| hash.starts_with(start))
        })
        && query.error.is_none_or(|wanted| wanted == error)
}

fn check_messages(store: &Store, random: &mut Random, messages: &[MessageEntry]) -> usize {
    let reader = store.reader().unwrap();
    let first = reader.counts().unwrap().messages.0;
    let count = messages.len() as u64;
    let rows: Vec<_> = (first..count)
        .map(|id| (id, messages[id as usize].time))
        .collect();
    let query = random_query(random, count);
    let order = (query.direction, query.position, query.from, query.to);
    let expected = expected(&rows, order, query.limit, |id| {
        is_wanted(&query, &messages[id as usize])
    });
    let found = reader.find_messages(&query).unwrap();
    assert_eq!(found.cut, None);
    let ids: Vec<u64> = found.rows.iter().map(|row| row.id).collect();
    assert_eq!(ids, expected, "{query:?}");
    for row in &found.rows {
        assert_eq!(*row, row_of(row.id, &messages[row.id as usize]));
    }
    ids.len()
}

fn row_of(id: u64, message: &MessageEntry) -> MessageRow {
    let message = message.clone();
    MessageRow {
        id,
        time: message.time,
        connection: message.connection,
        address: canonical(message.address),
        initiator: message.initiator,
        sender: message.sender,
        kind: message.kind,
        size: message.size,
        preview: message.preview,
        hash: message.hash,
        error: message.error,
    }
}

#[test]
fn questions_for_messages_are_answered_as_by_a_list() {
    let mut random = Random(effort::seed());
    let (_dir, path) = dir();
    // Segments of 128 rows: about 16 of them.
    let messages = Keep {
        rows: Some(2048),
        ..Keep::default()
    };
    let settings = Settings {
        messages,
        ..Settings::default()
    };
    let mut store = open(&path, settings.clone());
    let connections = (0..100).map(|id| {
        let (address, peer_id) = (address(id), peer(id));
        let entry = tezos_recorder::store::ConnectionEntry {
            address,
            peer_id,
            ..connection(id)
        };
        Entry::Connection(Box::new(entry))
    });
    put_all(&store, connections);
    let mut messages = Vec::new();
    for round in 0..effort::rounds(6) {
        let from = messages.len() as u64;
        messages.extend((from..from + 700).map(|n| random_message(&mut random, n)));
        put_all(
            &store,
            messages[from as usize..]
                .iter()
                .cloned()
                .map(|m| Entry::Message(Box::new(m))),
        );
        let found: usize = (0..300)
            .map(|_| check_messages(&store, &mut random, &messages))
            .sum();
        assert!(found > 1000, "questions find something");
        if round % 2 == 1 {
            store.close();
            store = open(&path, settings.clone());
        }
    }
    let (first, next) = store.reader().unwrap().counts().unwrap().messages;
    assert_eq!(next, messages.len() as u64);
    assert!((2048..2048 + 128 + 1).contains(&(next - first)));
}
