//! Pseudo nodes over loopback: every way to send and receive, every form of chunks and of handshakes. What the recorder's library
//! makes of the bytes that passed must be what both nodes have written down.

use std::sync::Arc;

use sha2::{Digest, Sha256};
use tezos_recorder::budget::Budget;
use tezos_recorder::connection::{self, Event, Node, Nodes, Opening, Sink};
use tezos_recorder::p2p::identity::Identity;
use tezos_recorder::p2p::json::Hex;
use tezos_recorder::p2p::message::Kind;
use tezos_recorder::p2p::pow::Target;
use tezos_recorder::side::{Both, Side};
use tezos_recorder::stream::Record;

use crate::pseudo_compare::{
    Connection, Item, NodeLog, Recorded, agree, compare_connection, compare_times,
};
use crate::pseudo_process::Stage;
use crate::pseudo_proxy::{Proxy, Tapped};
use crate::skip::skip;

/// Two nodes that have ended, and what passed between them.
struct Conversation {
    stage: Stage,
    listen: NodeLog,
    connect: NodeLog,
    taps: Vec<Tapped>,
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// Runs two nodes with a proxy between.
fn converse(listen: &str, connect: &str) -> Conversation {
    let stage = Stage::new();
    let listener = stage.start("listen", &words(listen));
    let proxy = Proxy::to(listener.address());
    let connect = format!("{} {connect}", proxy.address());
    let connector = stage.start("connect", &words(&connect));
    let (connect, listen) = (connector.end(), listener.end());
    Conversation {
        stage,
        listen,
        connect,
        taps: proxy.taps(),
    }
}

/// What a recorder of one node makes of a connection.
#[derive(Default)]
struct Heard {
    sent: Vec<Item>,
    received: Vec<Item>,
    remarks: Vec<String>,
    ignored: Option<String>,
    initiator: Option<Side>,
}

impl Heard {
    fn take(&mut self, event: Event<'_>) {
        match event {
            Event::Message(message) => {
                let item = Item {
                    kind: message.kind.name().into(),
                    size: message.size,
                    time_ns: message.time.0,
                    error: message.error.map(|e| e.to_string()),
                    sha256: Some(Hex(&Sha256::digest(message.plain)).to_string()),
                    chunks: Some((*message.chunks.start(), *message.chunks.end())),
                };
                match message.sender {
                    Side::Local => self.sent.push(item),
                    Side::Remote => self.received.push(item),
                }
            }
            Event::Remark { remark, .. } => self.remarks.push(remark.to_string()),
            Event::Ignored { reason, .. } => self.ignored = Some(reason.to_string()),
            Event::Established { initiator, .. } => self.initiator = Some(initiator),
            Event::Recognised { .. } | Event::Chunk(_) | Event::Unframed { .. } => {}
        }
    }
}

/// Records a connection for the node that connected, or for the one that listens.
fn record(stage: &Stage, tapped: &Tapped, connector: bool, sink: &mut Sink<'_>) {
    let role = if connector { "connect" } else { "listen" };
    let text = std::fs::read_to_string(stage.identity(role)).unwrap();
    let node = Node {
        name: role.into(),
        identity: Identity::parse(&text).unwrap(),
        target: Target::new(8.0).unwrap(),
    };
    let nodes = Arc::new(Nodes {
        known: vec![Arc::new(node)],
        awaited: false,
    });
    let opening = Opening {
        initiator: None,
        seen: true,
    };
    let mut connection = connection::Connection::new(nodes, opening, Budget::new(64 << 20));
    let mut offsets = Both::<u64>::default();
    for piece in &tapped.pieces {
        let side = if piece.by_connector == connector {
            Side::Local
        } else {
            Side::Remote
        };
        let offset = *offsets.of(side);
        let record = Record {
            offset,
            in_order: offset,
            time: piece.time,
            data: &piece.bytes,
        };
        connection.record(side, &record, piece.time, sink);
        *offsets.of_mut(side) += piece.bytes.len() as u64;
    }
    connection.end(Both::default(), sink);
}

/// The same, collected.
fn hear(stage: &Stage, tapped: &Tapped, connector: bool) -> Heard {
    let mut heard = Heard::default();
    record(stage, tapped, connector, &mut |event| heard.take(event));
    heard
}

impl Conversation {
    /// The connections of a log, in the order of the taps.
    fn of<'a>(&self, log: &'a NodeLog, connector: bool) -> Vec<&'a Connection> {
        let mut left: Vec<&Connection> = log.connections.iter().collect();
        let order = self.taps.iter().map(|tap| {
            let same = |c: &&Connection| match connector {
                true => Some(c.local) == tap.connector,
                false => Some(c.remote) == tap.towards_listener,
            };
            left.remove(left.iter().position(same).expect("a connection in the log"))
        });
        let order = order.collect();
        assert!(left.is_empty(), "{left:?}");
        order
    }

    /// Both logs and both recordings agree about everything; returns the number of messages.
    fn check(&self) -> usize {
        let (listen, connect) = (&self.listen, &self.connect);
        let pairs = self
            .of(connect, true)
            .into_iter()
            .zip(self.of(listen, false));
        for ((connect, listen), tapped) in pairs.zip(&self.taps) {
            agree(connect, listen).unwrap();
            for (log, connector) in [(connect, true), (listen, false)] {
                let heard = hear(&self.stage, tapped, connector);
                assert_eq!((&heard.remarks[..], &heard.ignored), (&[][..], &None));
                let initiator = if connector { Side::Local } else { Side::Remote };
                assert_eq!(heard.initiator, Some(initiator));
                let recorded = Recorded {
                    remote: log.remote,
                    initiator: heard.initiator,
                    sent: heard.sent,
                    received: heard.received,
                };
                compare_connection(log, &recorded).unwrap();
                let other = if connector { listen } else { connect };
                compare_times(&log.sent, &other.received, &recorded.sent, 0).unwrap();
                compare_times(&other.sent, &log.received, &recorded.received, 0).unwrap();
                let closed = log.closed.as_ref().expect("the connection has ended");
                assert_eq!(closed.error, None);
                assert_eq!(closed.sent_bytes, tapped.sent(connector).len() as u64);
                assert_eq!(closed.received_bytes, tapped.sent(!connector).len() as u64);
            }
        }
        connect.messages()
    }
}

/// Messages of a normal handshake.
const HANDSHAKE: usize = 6;

/// Runs two nodes with the same options, checks everything, and returns what they were.
fn checked(options: &str, messages: usize) -> Conversation {
    let conversation = converse(options, options);
    assert_eq!(conversation.check(), HANDSHAKE + 2 * messages, "{options}");
    conversation
}

fn kinds(connection: &Connection) -> Vec<&str> {
    connection.sent.iter().map(|m| m.kind.as_str()).collect()
}

#[test]
fn every_way_to_send() {
    for form in ["write", "send", "writev", "sendmsg", "sendfile", "splice"] {
        for writes in ["chunk", "batch", "pieces"] {
            let size = "--size 0..100000 --messages 12 --batch 3";
            checked(&format!("--send {form} --writes {writes} {size}"), 12);
        }
    }
}

#[test]
fn every_way_to_receive() {
    for form in ["read", "recv", "readv", "recvmsg", "peek", "splice"] {
        for size in ["16384", "100", "200000"] {
            let messages = "--size 0..100000 --messages 12";
            checked(
                &format!("--receive {form} --read-size {size} {messages}"),
                12,
            );
        }
    }
}

#[test]
fn io_uring() {
    if let Err(e) = io_uring::IoUring::new(2) {
        return skip(format!("no io_uring: {e}"));
    }
    checked(
        "--send uring --receive uring --size 0..100000 --messages 30",
        30,
    );
    let nonblocking = "--nonblocking --size 100000..300000";
    checked(
        &format!("--send any --receive any --messages 30 {nonblocking}"),
        30,
    );
}

#[test]
fn every_form_of_chunks() {
    let forms = ["message", "max", "empty", "packed", "straddle", "any"];
    for (seed, form) in forms.iter().enumerate() {
        let size = "--size 0..150000 --messages 60";
        let run = checked(&format!("--chunks {form} --seed {seed} {size}"), 60);
        let sent = &run.connect.connections[0].sent[HANDSHAKE / 2..];
        let shares = |at: usize| sent[at].chunks.1 == sent[at + 1].chunks.0;
        let shared = (0..sent.len() - 1).filter(|at| shares(*at)).count();
        match *form {
            "message" | "empty" => assert_eq!(shared, 0),
            _ => assert!(shared > 5, "{form}: {shared}"),
        }
    }
    checked("--chunks byte --size 0..1000 --messages 10", 10);
}

#[test]
fn chunks_have_the_sizes_that_were_asked_for() {
    let plain_sizes = |options: &str| {
        let run = checked(&format!("{options} --send send"), 30);
        let (mut rest, mut sizes) = (run.taps[0].sent(true), Vec::new());
        while let Some(length) = rest.first_chunk() {
            let length = usize::from(u16::from_be_bytes(*length));
            sizes.push(length.wrapping_sub(16));
            rest.drain(..2 + length);
        }
        sizes.split_off(HANDSHAKE / 2)
    };
    let usual = "--messages 30 --kinds block_header --size 100000";
    let sizes = plain_sizes(&format!("{usual} --chunks message"));
    assert_eq!(sizes, [65_517, 100_000 - 65_517].repeat(30));
    let sizes = plain_sizes(&format!("{usual} --chunks max --batch 30"));
    assert_eq!(sizes.split_last().unwrap().1, [65_519].repeat(45));
    let sizes = plain_sizes("--messages 30 --chunks byte --size 0..20");
    assert!(sizes.iter().all(|size| *size == 1));
    let sizes = plain_sizes("--messages 30 --chunks empty --size 100");
    assert!(sizes.contains(&0));
}

#[test]
fn all_kinds_of_messages_are_sent() {
    for chain in ["TEZOS_MAINNET", "DAL_TEZOS_MAINNET"] {
        let run = checked(&format!("--messages 600 --batch 50 --chain {chain}"), 600);
        let (mut sent, mut all) = (kinds(&run.connect.connections[0]), Kind::ALL.to_vec());
        all.retain(|kind| kind.name().starts_with("dal_") == chain.starts_with("DAL_"));
        let mut expected: Vec<&str> = all.iter().map(|kind| kind.name()).collect();
        expected.extend(["connection_message", "metadata", "ack_message"]);
        expected.retain(|name| *name != "unknown");
        for names in [&mut sent, &mut expected] {
            names.sort_unstable();
            names.dedup();
        }
        assert_eq!(sent, expected);
    }
}

#[test]
fn chosen_kinds_and_sizes_up_to_the_limits() {
    let run = checked("--messages 60 --kinds operation=9,unknown --size 250", 60);
    let sent = &run.listen.connections[0].sent[HANDSHAKE / 2..];
    let operations = sent
        .iter()
        .filter(|m| m.kind == "operation" && m.size == 250);
    assert!((40..60).contains(&operations.count()));
    let large = [
        ("block_header", 8 << 20),
        ("operation", (128 << 10) + 6),
        ("protocol", (2 << 20) + 6),
        ("operations_for_blocks", (1 << 20) + 6),
    ];
    for (kind, size) in large {
        let run = checked(&format!("--messages 1 --size 9000000 --kinds {kind}"), 1);
        let sent = &run.connect.connections[0].sent[HANDSHAKE / 2];
        // Operations begin with lengths and hashes, so that a few bytes may be left.
        assert!(
            (size - 36..=size).contains(&sent.size),
            "{kind}: {}",
            sent.size
        );
    }
}

#[test]
fn messages_that_break_the_grammar_are_said_to_do_so() {
    let run = checked("--messages 200 --invalid 30 --batch 20", 200);
    let sent = &run.connect.connections[0].sent;
    assert!((30..90).contains(&sent.iter().filter(|m| !m.valid).count()));
}

#[test]
fn nodes_that_answer_late() {
    let run = converse("--late", "");
    assert_eq!(run.check(), HANDSHAKE + 20);
    // The node that listens has sent each part of the handshake after the other node's.
    let order: Vec<bool> = run.taps[0]
        .pieces
        .iter()
        .map(|piece| piece.by_connector)
        .take(4)
        .collect();
    assert_eq!(order, [true, false, true, false]);
    assert_eq!(converse("", "--late").check(), HANDSHAKE + 20);
}

#[test]
fn refused_connections() {
    for (options, answer) in [
        ("--handshake nack --motive 0", "NoMotive"),
        ("--handshake nack --motive 1", "TooManyConnections"),
        ("--handshake nack --motive 2", "UnknownChainName"),
        ("--handshake nack --motive 3", "DeprecatedP2pVersion"),
        (
            "--handshake nack --motive 4",
            "DeprecatedDistributedDbVersion",
        ),
        ("--handshake nack --motive 5", "AlreadyConnected"),
        ("--handshake nack --motive -7", "Unknown(-7)"),
        ("--handshake nack-v0 --p2p-version 0", "NackV0"),
    ] {
        let run = converse(options, "");
        assert_eq!(run.check(), HANDSHAKE);
        let run = converse("", options);
        assert_eq!(run.check(), HANDSHAKE);
        let json = answer_of(&run);
        assert!(json.contains(answer), "{json}");
    }
}

/// JSON of the answer that the node that connected has sent.
fn answer_of(run: &Conversation) -> String {
    let mut json = String::new();
    record(&run.stage, &run.taps[0], true, &mut |event| {
        if let Event::Message(message) = event
            && (message.sender, message.kind) == (Side::Local, Kind::AckMessage)
        {
            json = message.json(1000).unwrap().text;
        }
    });
    json
}

#[test]
fn other_keys_and_stamps() {
    let run = converse("", "--handshake wrong-key");
    let heard = hear(&run.stage, &run.taps[0], true);
    assert!(
        heard.ignored.unwrap().contains("key"),
        "the key is another's"
    );
    let heard = hear(&run.stage, &run.taps[0], false);
    assert_eq!((heard.sent.len(), heard.received.len()), (13, 13));

    // A random stamp is a proof of work of 8 bits once in 256 times; the seed is one for which it is not.
    let run = converse("", "--handshake wrong-stamp --seed 5");
    let heard = hear(&run.stage, &run.taps[0], false);
    let remark = "incoming connection message bad proof-of-work, target: 8";
    assert_eq!(heard.remarks, [remark]);
    assert_eq!((heard.sent.len(), heard.received.len()), (13, 13));
}

#[test]
fn connections_that_are_cut() {
    // In the length, in the connection message, after it, in the metadata, in the answer, and in a message.
    for cut in [1, 60, 105, 110, 126, 400] {
        let run = converse("--size 100..200", &format!("--size 100..200 --cut {cut}"));
        assert_eq!(run.taps[0].sent(true).len(), cut);
        let closed = |log: &NodeLog| log.connections[0].closed.clone().unwrap();
        assert_eq!(closed(&run.connect).sent_bytes, cut as u64);
        assert_eq!(closed(&run.listen).received_bytes, cut as u64);
        let error = closed(&run.connect).error;
        assert_eq!(error.as_deref(), Some("cut as asked"));
        let heard = hear(&run.stage, &run.taps[0], false);
        let received = &run.listen.connections[0].received;
        assert!(heard.received.len() >= received.len());
        for (heard, received) in heard.received.iter().zip(received) {
            assert_eq!(heard.sha256.as_ref(), Some(&received.sha256));
        }
    }
}

#[test]
fn descriptors_processes_and_threads() {
    checked("--dup --messages 100 --writes pieces --read-size 200", 100);
    checked("--fork --messages 20", 20);
    checked("--threads 4 --messages 200 --chunks any", 200);
    checked("--nonblocking --size 100000..2000000 --messages 5", 5);
}

#[test]
fn connecting() {
    let run = converse("", "--nonblocking-connect --refused-first");
    assert_eq!(run.check(), HANDSHAKE + 20);
    let run = converse("--connections 12", "--connections 4 --rounds 3");
    assert_eq!(run.taps.len(), 12);
    assert_eq!(run.check(), 12 * (HANDSHAKE + 20));
    let run = converse(
        "--connections 6 --fork",
        "--connections 3 --rounds 2 --fork",
    );
    assert_eq!(run.check(), 6 * (HANDSHAKE + 20));
}

#[test]
fn a_port_is_used_again() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    for close in ["last", "reset"] {
        let options = format!("--local-port {port} --rounds 3 --close {close}");
        let run = converse("--connections 3", &options);
        assert_eq!(run.check(), 3 * (HANDSHAKE + 20));
        for connection in &run.connect.connections {
            assert_eq!(connection.local.port(), port);
        }
    }
}

#[test]
fn ipv6() {
    let run = converse("--address ::1", "");
    assert!(run.taps[0].connector.unwrap().is_ipv6());
    assert_eq!(run.check(), HANDSHAKE + 20);
}

#[test]
fn the_same_seed_sends_the_same() {
    let sent = |seed: u64| {
        let run = converse(&format!("--seed {seed}"), &format!("--seed {seed}"));
        let sent = run.connect.connections[0].sent.iter();
        sent.map(|m| m.sha256.clone()).collect::<Vec<_>>()
    };
    assert_eq!(sent(1), sent(1));
    assert_ne!(sent(1), sent(2));
}

#[test]
fn rates_and_durations() {
    let run = converse("--messages 0", "--rate 200 --duration 0.5 --size 100");
    run.check();
    let sent = run.connect.connections[0].sent.len();
    // A busy machine sends less, but never more.
    assert!((4..=104).contains(&sent), "{sent}");
}

#[test]
fn commands_and_http() {
    let stage = Stage::new();
    let mut listener = stage.start("listen", &words("--control --http 0"));
    let (address, http) = (listener.address(), listener.line("http"));
    let arguments = format!("{address} --control --pause");
    let mut connector = stage.start("connect", &words(&arguments));
    assert!(listener.log().connections.is_empty());
    connector.command("go");
    assert!(connector.line("sent").starts_with("0 "));
    connector.command("send 10");
    assert!(connector.line("sent").starts_with("10 "));
    connector.command("send 3");
    assert!(connector.line("sent").starts_with("13 "));
    connector.command("connect");
    assert!(connector.line("sent").starts_with("0 "));
    connector.command(&format!("http {http}"));
    assert!(connector.line("http").parse::<usize>().unwrap() > 100);
    assert_eq!(connector.log().connections[0].sent.len(), 16);
    listener.command("send 2");
    let first = listener.line("sent 2");
    assert_ne!(first, listener.line("sent 2"));
    connector.command("close");
    let connect = connector.end();
    listener.command("close");
    let listen = listener.end();
    assert_eq!(
        (connect.connections.len(), listen.connections.len()),
        (2, 2)
    );
    let received = |log: &NodeLog| {
        log.connections
            .iter()
            .map(|c| c.received.len())
            .sum::<usize>()
    };
    assert_eq!((received(&connect), received(&listen)), (6 + 4, 6 + 13));
}

#[test]
fn the_conversation_of_the_original() {
    let run = converse("--preset handshake --port 0", "--preset handshake --port 0");
    assert_eq!(run.check(), HANDSHAKE + 1);
    let order: Vec<bool> = run.taps[0]
        .pieces
        .iter()
        .map(|piece| piece.by_connector)
        .collect();
    assert_eq!(order, [true, false, true, false, true, false, true]);
    let expected = ["connection_message", "metadata", "ack_message", "operation"];
    assert_eq!(kinds(&run.connect.connections[0]), expected);
}
