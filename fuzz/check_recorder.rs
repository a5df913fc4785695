//! Properties of the network recorder that must hold for arbitrary bytes, and two peers to try them with. Shared by the fuzz
//! target and by the recorder's tests.

use std::sync::{Arc, OnceLock};

use tezos_recorder::budget::Budget;
use tezos_recorder::connection::{Connection, Event, Ignored, Node, Nodes, Opening, Remark};
use tezos_recorder::p2p::cipher::{Opener, first_nonces};
use tezos_recorder::p2p::identity::Identity;
use tezos_recorder::p2p::json::json;
use tezos_recorder::p2p::message::{Kind, Layer, decode, decode_handshake};
use tezos_recorder::p2p::pow::Target;
use tezos_recorder::side::{Both, Side};
use tezos_recorder::stream::Record;
use tezos_recorder::time::Timestamp;

/// Two identities of nobody, with proofs of work of target 26.
const IDENTITIES: [&str; 2] = [
    r#"{"public_key": "460f70ae1b9592ec87f81c5458de861d4c49f78fc9fc16c522125c6016d7f103",
        "secret_key": "47e02fe3a5bd24944edcd4d96366c3ac21b526b5d47b702a5efe4fb73445e03b",
        "proof_of_work_stamp": "cbb34114b6fbbbaffec454a423c3d4bfa3d7cf6739175e4b"}"#,
    r#"{"public_key": "b5a927b8d30031d05f86b4bc050a5b36e924d8135313fae58dc3dad38cc0dd37",
        "secret_key": "164794978bf3292705e16a449ef49607d42755ae73a97318c2efbace8e34c3e2",
        "proof_of_work_stamp": "c51958ec8a334e032b79d33b0b861136a24857ecd9583962"}"#,
];

/// The stamps of [`IDENTITIES`].
const STAMPS: [[u8; 24]; 2] = [
    *b"\xcb\xb3\x41\x14\xb6\xfb\xbb\xaf\xfe\xc4\x54\xa4\x23\xc3\xd4\xbf\xa3\xd7\xcf\x67\x39\x17\x5e\x4b",
    *b"\xc5\x19\x58\xec\x8a\x33\x4e\x03\x2b\x79\xd3\x3b\x0b\x86\x11\x36\xa2\x48\x57\xec\xd9\x58\x39\x62",
];

/// The identity of a side: the local node has the first one.
fn identity(side: Side) -> Identity {
    Identity::parse(IDENTITIES[usize::from(side == Side::Remote)]).expect("an identity")
}

/// The recorded node, the same for all connections.
pub fn nodes() -> Arc<Nodes> {
    static NODES: OnceLock<Arc<Nodes>> = OnceLock::new();
    let make = || {
        let node = Node {
            name: "local".into(),
            identity: identity(Side::Local),
            target: Target::MAINNET,
        };
        Arc::new(Nodes {
            known: vec![Arc::new(node)],
            awaited: false,
        })
    };
    NODES.get_or_init(make).clone()
}

/// Two peers that talk to each other, and the bytes that they have sent.
pub struct Peers {
    /// The bytes of each side.
    pub sent: Both<Vec<u8>>,
    /// Offsets in them where chunks begin.
    pub starts: Both<Vec<usize>>,
    openers: Both<Opener>,
}

impl Peers {
    /// Peers that have exchanged connection messages of a chain. `salt` makes their nonces differ.
    pub fn new(initiator: Side, chain: &str, salt: u8) -> Self {
        let message = |side: Side| {
            let identity = identity(side);
            let mut body = vec![0x26, 0x04];
            body.extend(identity.public_key());
            body.extend(STAMPS[usize::from(side == Side::Remote)]);
            body.extend([salt ^ u8::from(side == Side::Remote); 24]);
            body.extend((chain.len() as u32).to_be_bytes());
            body.extend(chain.as_bytes());
            body.extend([0, 2, 0, 1]);
            [&(body.len() as u16).to_be_bytes()[..], &body].concat()
        };
        let sent = Both {
            local: message(Side::Local),
            remote: message(Side::Remote),
        };
        let messages = Both {
            local: &sent.local[..],
            remote: &sent.remote[..],
        };
        let nonces = first_nonces(&messages, initiator);
        let key = identity(Side::Remote).channel_key(identity(Side::Local).public_key());
        let openers = Both {
            local: Opener::new(key.clone(), nonces.local),
            remote: Opener::new(key, nonces.remote),
        };
        let starts = Both {
            local: vec![0],
            remote: vec![0],
        };
        Self {
            sent,
            starts,
            openers,
        }
    }

    /// Peers that have accepted each other.
    pub fn connected(initiator: Side, chain: &str, salt: u8) -> Self {
        let mut peers = Self::new(initiator, chain, salt);
        for side in Side::BOTH {
            peers.send(side, &[0, 0]);
            peers.send(side, &[0]);
        }
        peers
    }

    /// The keys of a side's chunks.
    pub fn opener(self, side: Side) -> Opener {
        match side {
            Side::Local => self.openers.local,
            Side::Remote => self.openers.remote,
        }
    }

    /// Sends one chunk; returns its number.
    pub fn send(&mut self, side: Side, plain: &[u8]) -> u64 {
        let starts = self.starts.of_mut(side);
        let number = starts.len() as u64;
        let sent = self.sent.of_mut(side);
        starts.push(sent.len());
        let sealed = self.openers.of_mut(side).seal(number, plain);
        sent.extend(sealed.expect("a chunk is not too long"));
        number
    }
}

/// A message, as an event had it.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// The sender.
    pub sender: Side,
    /// The kind.
    pub kind: Kind,
    /// Its bytes.
    pub plain: Vec<u8>,
    /// Its JSON.
    pub json: Option<String>,
    /// Its error.
    pub error: Option<String>,
    /// Its first and its last chunk.
    pub chunks: (u64, u64),
}

/// Takes events and checks what a store relies on.
#[derive(Default)]
pub struct Log {
    /// The messages.
    pub messages: Vec<Seen>,
    /// The chunks: sender, number, plain text.
    pub chunks: Vec<(Side, u64, Option<Vec<u8>>)>,
    /// The remarks.
    pub remarks: Vec<Remark>,
    /// Why the connection is not recorded.
    pub ignored: Option<Ignored>,
    /// Who opened the connection, according to decryption.
    pub initiator: Option<Side>,
    /// True if the connection is a node's.
    pub recognised: bool,
    /// The bytes in events, and where none were captured.
    bytes: Both<Vec<Option<u8>>>,
    /// Bytes in gaps that are too long to be listed.
    beyond: Both<u64>,
}

/// Gaps beyond this are only counted, in bytes.
const LISTED: u64 = 1 << 22;

impl Log {
    /// Takes an event.
    pub fn take(&mut self, event: Event<'_>) {
        assert!(self.ignored.is_none(), "{event:?} after the end");
        if !matches!(event, Event::Recognised { .. } | Event::Ignored { .. }) {
            assert!(self.recognised, "{event:?} before recognition");
        }
        match event {
            Event::Recognised { node, .. } => {
                assert_eq!(node.name, "local");
                assert!(!std::mem::replace(&mut self.recognised, true));
            }
            Event::Ignored { reason, .. } => {
                assert!(!self.recognised);
                self.ignored = Some(reason);
            }
            Event::Established { initiator, .. } => {
                assert_eq!(self.initiator.replace(initiator), None);
            }
            Event::Chunk(chunk) => {
                assert!(chunk.began <= chunk.time);
                self.bytes(chunk.sender, chunk.offset, chunk.raw);
                let plain = chunk.plain.map(<[u8]>::to_vec);
                let mut before = self.chunks.iter().rev().filter(|c| c.0 == chunk.sender);
                assert!(before.next().is_none_or(|c| c.1 < chunk.number));
                self.chunks.push((chunk.sender, chunk.number, plain));
            }
            Event::Unframed {
                sender,
                offset,
                bytes,
                ..
            } => self.bytes(sender, offset, bytes),
            Event::Remark { remark, .. } => {
                if let Remark::BytesLost {
                    sender,
                    offset,
                    length,
                    ..
                } = remark
                {
                    assert_eq!(offset, self.end(sender));
                    let listed = length.min(LISTED);
                    let bytes = self.bytes.of_mut(sender);
                    bytes.resize(bytes.len() + listed as usize, None);
                    *self.beyond.of_mut(sender) += length - listed;
                }
                assert!(!remark.to_string().is_empty());
                self.remarks.push(remark);
            }
            Event::Message(message) => {
                assert!(message.began <= message.time);
                assert!(message.raw.end <= self.end(message.sender));
                assert!(message.chunks.start() <= message.chunks.end());
                assert!(message.preview().is_none_or(|text| text.len() <= 100));
                assert!(message.message.is_some() || message.error.is_some());
                assert!(message.plain.len() as u64 <= message.size);
                let _ = message.content_hash();
                self.check_place(
                    &message.chunks,
                    message.start,
                    message.plain,
                    message.sender,
                );
                self.messages.push(Seen {
                    sender: message.sender,
                    kind: message.kind,
                    plain: message.plain.to_vec(),
                    json: message.json(1 << 22).map(|json| json.text),
                    error: message.error.map(|error| error.to_string()),
                    chunks: (*message.chunks.start(), *message.chunks.end()),
                });
            }
        }
    }

    /// The message lies where its event says: a store reads it from there again.
    fn check_place(
        &self,
        chunks: &std::ops::RangeInclusive<u64>,
        start: usize,
        plain: &[u8],
        sender: Side,
    ) {
        let chunks = self
            .chunks
            .iter()
            .filter(|(by, number, _)| *by == sender && chunks.contains(number));
        let text: Vec<u8> = chunks.flat_map(|c| c.2.iter().flatten().copied()).collect();
        assert!(text[start..].starts_with(plain));
    }

    fn end(&self, sender: Side) -> u64 {
        self.bytes.of(sender).len() as u64 + self.beyond.of(sender)
    }

    fn bytes(&mut self, sender: Side, offset: u64, bytes: &[u8]) {
        assert!(!bytes.is_empty());
        assert_eq!(offset, self.end(sender), "{sender}");
        self.bytes
            .of_mut(sender)
            .extend(bytes.iter().copied().map(Some));
    }

    /// Checks that each byte is in an event, or in a gap.
    pub fn check_bytes(&self, sender: Side, sent: &[u8]) {
        let seen = self.bytes.of(sender);
        assert_eq!(*self.beyond.of(sender), 0);
        assert_eq!(seen.len(), sent.len(), "{sender}");
        let same = |(seen, sent): (&Option<u8>, &u8)| seen.is_none_or(|seen| seen == *sent);
        assert!(seen.iter().zip(sent).all(same), "{sender}");
    }

    /// Number of bytes that no event has.
    pub fn lost(&self, sender: Side) -> usize {
        self.bytes.of(sender).iter().filter(|b| b.is_none()).count()
    }
}

/// A connection whose initiator is not known, and which was seen from its beginning.
pub fn connection() -> Connection {
    let opening = Opening {
        initiator: None,
        seen: true,
    };
    Connection::new(nodes(), opening, Budget::new(64 << 20))
}

/// A record of a part of what a side sent.
pub fn record(sent: &[u8], from: usize, to: usize, time: u64) -> Record<'_> {
    Record {
        offset: from as u64,
        in_order: from as u64,
        time: Timestamp(time),
        data: &sent[from.min(sent.len())..to.min(sent.len())],
    }
}

/// Decodes the bytes as a message, and as a chunk of the handshake.
pub fn message(bytes: &[u8]) {
    let number = bytes.len() as u64 % 3;
    for decoded in [
        decode(bytes, Layer::Node),
        decode(bytes, Layer::Dal),
        decode_handshake(number, bytes),
    ] {
        assert!(decoded.message.is_some() || decoded.error.is_some());
        let Some(message) = decoded.message else {
            continue;
        };
        // Names, hexadecimal digits and escapes are a limited multiple of the bytes.
        let whole = json(&message, usize::MAX);
        assert!(!whole.cut && whole.text.len() <= 1000 + 40 * bytes.len());
        assert!(serde_json::from_str::<serde::de::IgnoredAny>(&whole.text).is_ok());
        let cut = json(&message, 100);
        assert!(whole.text.starts_with(&cut.text) && cut.text.len() <= 100);
        let _ = message.content_hash();
    }
}

/// Plays a connection that the bytes describe: what is sent, what is captured of it and in which order, and what is damaged.
pub fn conversation(bytes: &[u8]) {
    let (&[flags, salt], mut script) = bytes.split_first_chunk().unwrap_or((&[0, 0], &[]));
    let side = |bit: u8| {
        if flags >> bit & 1 == 0 {
            Side::Local
        } else {
            Side::Remote
        }
    };
    let chain = if flags & 4 == 0 {
        "TEZOS_MAINNET"
    } else {
        "DAL_X"
    };
    let mut peers = Peers::new(side(0), chain, salt);
    let hint = (flags & 8 != 0).then(|| side(1));
    let opening = Opening {
        initiator: hint,
        seen: flags & 16 != 0,
    };
    let mut connection = Connection::new(nodes(), opening, Budget::new(1 << 20));
    let (mut log, mut captured) = (
        Log::default(),
        Both {
            local: 0,
            remote: 0,
        },
    );
    let mut now = 0;
    while let Some((&[operation, size], rest)) = script.split_first_chunk() {
        script = rest;
        now += 1 + u64::from(operation >> 5) * 300_000_000;
        let sender = side(operation & 1);
        let size = usize::from(size);
        let mut sink = |event: Event<'_>| log.take(event);
        let (sent, at) = (peers.sent.of_mut(sender), captured.of_mut(sender));
        let to = (*at + size * size).min(sent.len());
        match operation >> 1 & 15 {
            0..=3 => {
                let (plain, rest) = script.split_at(size.min(script.len()));
                script = rest;
                peers.send(sender, plain);
            }
            4 => {
                let body = vec![operation; size * 300];
                let header = [&(body.len() as u32 + 2).to_be_bytes()[..], &[0, 0x31]].concat();
                let whole = [header, body].concat();
                for part in whole.chunks(60_000) {
                    peers.send(sender, part);
                }
            }
            5 => sent.extend(&script[..size.min(script.len())]),
            6..=9 => {
                let record = record(sent, *at, to, now);
                *at = to;
                connection.record(sender, &record, Timestamp(now), &mut sink);
            }
            10 => *at = to,
            11 => {
                let from = at.saturating_sub(size);
                let record = record(sent, from, to, now);
                connection.record(sender, &record, Timestamp(now), &mut sink);
            }
            12 => {
                // From here on nobody knows what should be seen.
                if let Some(byte) = sent.get_mut(*at) {
                    *byte ^= 1 << (size & 7);
                }
            }
            13 => connection.expire(Timestamp(now), &mut sink),
            14 => drop(connection.search(1 << size.min(22), &mut sink)),
            _ => {
                let far = Record {
                    offset: (size as u64) << (operation >> 5 << 3),
                    in_order: *at as u64,
                    time: Timestamp(now),
                    data: &sent[..size.min(sent.len())],
                };
                connection.record(sender, &far, Timestamp(now), &mut sink);
            }
        }
    }
    let mut sink = |event: Event<'_>| log.take(event);
    let _ = connection.search(1 << 22, &mut sink);
    connection.end(Both::default(), &mut sink);
    for side in Side::BOTH {
        let traffic = connection.traffic(side);
        if log.recognised {
            assert_eq!(traffic.captured + traffic.lost, log.end(side));
        }
    }
}

/// Tries all readers.
pub fn recorder(bytes: &[u8]) {
    message(bytes);
    conversation(bytes);
}
