//! The wire format, compared byte by byte with the worked examples of `data/vectors.json`.

use tezos_recorder::p2p::base58::PeerId;
use tezos_recorder::p2p::cipher::{Nonce, Opener, first_nonces};
use tezos_recorder::p2p::handshake::ConnectionMessage;
use tezos_recorder::p2p::json::{Hex, json};
use tezos_recorder::p2p::message::{Kind, Layer, Message, decode, decode_handshake};
use tezos_recorder::p2p::pow::Target;
use tezos_recorder::side::{Both, Side};

use crate::common::{array, bytes, each, identity, plain, text, vectors};

#[test]
fn every_kind_of_message_has_the_expected_json() {
    let mut kinds = Vec::new();
    for message in each(&vectors()["messages"]) {
        let plain = plain(message);
        let decoded = decode(&plain, Layer::Node);
        assert_eq!(decoded.kind.name(), text(&message["kind"]));
        assert_eq!(decoded.error, None, "{}", decoded.kind);
        let json = json(&decoded.message, usize::MAX);
        let mut found: serde_json::Value = serde_json::from_str(&json.text).unwrap();
        let component = "/Protocol/protocol/components/0/implementation";
        if let Some(source) = found.pointer_mut(component) {
            assert_eq!(text(source), "let x = 0\n".repeat(15_000));
            *source = "\"let x = 0\\n\" 15,000 times".into();
        }
        assert_eq!(found, message["json"]);
        let tag = message["tag"].as_u64().unwrap() as u16;
        assert_eq!(Kind::of_tag(tag, Layer::Node), decoded.kind);
        kinds.push(decoded.kind);
    }
    assert_eq!(kinds.len(), 24);
    let known = Kind::ALL.iter().filter(|kind| {
        let name = kind.name();
        !(name.starts_with("dal_") || name.contains("operation_hashes") || kinds.contains(kind))
    });
    let known: Vec<&str> = known.map(|kind| kind.name()).collect();
    assert_eq!(
        known,
        ["connection_message", "metadata", "ack_message", "unknown"]
    );
}

#[test]
fn blocks_and_operations_have_the_expected_hashes() {
    let hash = |kind: &str| {
        let mut messages = each(&vectors()["messages"]);
        let message = messages.find(|m| m["kind"] == kind).unwrap();
        let plain = plain(message);
        let message = decode(&plain, Layer::Node).message.unwrap();
        message.content_hash().map(|hash| hash.to_string())
    };
    let hashes = &vectors()["hashes"];
    let block = hashes["block_header_1234567"].as_str().map(String::from);
    let kinds = [
        "block_header",
        "current_branch",
        "checkpoint",
        "protocol_branch",
        "predecessor_header",
    ];
    assert!(kinds.iter().all(|kind| hash(kind) == block));
    assert_eq!(hash("operation").as_deref(), hashes["operation_1"].as_str());
    assert_eq!(hash("bootstrap"), None);
}

#[test]
fn identities_have_the_expected_identifier_and_proof_of_work() {
    for name in ["initiator", "responder"] {
        let fields = &vectors()["identities"][name];
        let identity = identity(name);
        assert_eq!(identity.public_key(), &array(&fields["public_key"]));
        assert_eq!(identity.peer_id().to_string(), text(&fields["peer_id"]));
        assert_eq!(
            PeerId::from_public_key(identity.public_key()),
            identity.peer_id()
        );
        assert!(identity.meets(Target::MAINNET));
    }
}

#[test]
fn proofs_of_work_are_judged_as_expected() {
    let work = &vectors()["proof_of_work"];
    let thresholds = work["thresholds"].as_object().unwrap();
    assert_eq!(thresholds.len(), 6);
    for (target, expected) in thresholds {
        let mut threshold = Target::new(target.parse().unwrap()).unwrap().threshold();
        threshold.reverse();
        assert_eq!(Hex(&threshold).to_string(), text(expected), "{target}");
    }
    for check in each(&work["checks"]) {
        let target = Target::new(check["target"].as_f64().unwrap()).unwrap();
        let met = target.is_met(&array(&check["public_key"]), &array(&check["stamp"]));
        assert_eq!(met, check["valid"].as_bool().unwrap(), "{check}");
    }
    for bits in [-1.0, 256.5, f64::NAN, f64::INFINITY] {
        assert_eq!(Target::new(bits), None);
    }
    assert_eq!(Target::new(256.0).unwrap().threshold(), [0; 32]);
}

#[test]
fn nonces_count_as_expected() {
    for step in each(&vectors()["nonce_increment"]) {
        let nonce = Nonce(array(&step["nonce"]));
        assert_eq!(nonce.plus(1), Nonce(array(&step["next"])));
        assert_eq!(nonce.plus(0), nonce);
    }
}

/// The side of the recorded node's identity: it is the initiator here.
fn nonces(connection: &serde_json::Value) -> Both<Nonce> {
    let (local, remote) = (
        bytes(&connection["initiator_chunk"]),
        bytes(&connection["responder_chunk"]),
    );
    let messages = Both {
        local: &local[..],
        remote: &remote[..],
    };
    first_nonces(&messages, Side::Local)
}

/// The connection, those that were refused, and the one with lost bytes.
fn connections() -> impl Iterator<Item = &'static serde_json::Value> {
    let vectors = vectors();
    let one = [&vectors["connection"], &vectors["lost_bytes"]];
    one.into_iter().chain(each(&vectors["refused"]))
}

#[test]
fn both_sides_derive_the_expected_nonces_and_key() {
    for connection in connections() {
        let nonces = nonces(connection);
        let expected = |who: &str| {
            Nonce(array(
                &connection[format!("{who}_encrypts_with_first_nonce")],
            ))
        };
        assert_eq!(nonces.local, expected("initiator"));
        assert_eq!(nonces.remote, expected("responder"));
    }
}

#[test]
fn every_chunk_is_decrypted_and_encrypted_as_expected() {
    let key = identity("initiator").channel_key(identity("responder").public_key());
    let same = identity("responder").channel_key(identity("initiator").public_key());
    let mut chunks = 0;
    for connection in connections() {
        let nonces = nonces(connection);
        for (direction, nonce) in [
            ("initiator_to_responder", nonces.local),
            ("responder_to_initiator", nonces.remote),
        ] {
            let Some(records) = connection[direction].as_array() else {
                continue;
            };
            let mut one = Opener::new(key.clone(), nonce);
            let mut other = Opener::new(same.clone(), nonce);
            for record in records.iter().skip(1).filter(|r| r["raw"].is_string()) {
                let number = record["index"].as_u64().unwrap();
                let (raw, mut plain) = (bytes(&record["raw"]), Vec::new());
                assert_eq!(nonce.plus(number - 1), Nonce(array(&record["nonce"])));
                assert!(one.open(number, &raw[2..], &mut plain), "{record}");
                assert_eq!(plain, bytes(&record["plain"]));
                assert_eq!(other.seal(number, &plain), Some(raw));
                chunks += 1;
            }
        }
    }
    assert!(chunks > 40, "{chunks}");
}

#[test]
fn handshakes_have_the_expected_fields() {
    for connection in connections() {
        for (who, port) in [("initiator", 9732), ("responder", 9733)] {
            let raw = bytes(&connection[format!("{who}_chunk")]);
            let decoded = decode_handshake(0, &raw[2..]);
            assert_eq!(
                (decoded.kind, decoded.error),
                (Kind::ConnectionMessage, None)
            );
            let Some(Message::Connection(message)) = decoded.message else {
                panic!("{decoded:?}");
            };
            let fields = &vectors()["identities"][who];
            assert_eq!(message.port, port);
            assert_eq!(message.public_key, array(&fields["public_key"]));
            assert_eq!(
                message.proof_of_work_stamp,
                array(&fields["proof_of_work_stamp"])
            );
            assert_eq!(
                ConnectionMessage::public_key(&raw[2..]),
                Some(&message.public_key)
            );
            let version = message.versions.iter().next().unwrap();
            assert_eq!(version.chain_name.0, b"TEZOS_MAINNET");
            assert_eq!(version.distributed_db_version, 2);
        }
    }
    let meta = decode_handshake(1, &[0, 0xff]);
    let text = json(&meta.message, 100).text;
    assert_eq!(text, r#"{"disable_mempool":false,"private_node":true}"#);
}

#[test]
fn refusals_have_the_expected_json() {
    for refused in each(&vectors()["refused"]) {
        let plain = bytes(&refused["responder_to_initiator"][2]["plain"]);
        let decoded = decode_handshake(2, &plain);
        assert_eq!((decoded.kind, decoded.error), (Kind::AckMessage, None));
        let found: serde_json::Value =
            serde_json::from_str(&json(&decoded.message, usize::MAX).text).unwrap();
        assert_eq!(found, refused["json"]);
    }
    assert_eq!(json(&decode_handshake(2, &[0]).message, 9).text, "\"Ack\"");
}
