//! Handshakes: late, refused, with other keys, cut.

use tezos_recorder::connection::Event;
use tezos_recorder::p2p::message::Kind;
use tezos_recorder::side::Side;

use super::log::NodeLog;
use super::{Conversation, HANDSHAKE, converse, hear, kinds, record};

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
