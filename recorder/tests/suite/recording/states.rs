//! States of connections, with their reasons.

use tezos_recorder::captured::What;
use tezos_recorder::connection::State;
use tezos_recorder::side::{Both, Side};

use super::played::Played;
use crate::check::Peers;

/// The state once the node has heard everything, and at the end.
#[track_caller]
fn check_states(peers: &Peers, open: (State, Option<&str>), ended: (State, Option<&str>)) {
    let mut played = Played::new();
    let initiator = Some(Side::Local);
    played.take(1, (50_000, 9732), What::Opened { initiator });
    for side in Side::BOTH {
        played.data(1, (50_000, 9732), side, 0, peers.sent.of(side));
    }
    played.tick();
    assert_eq!(played.stored.state(), open);
    played.close(1, Both::default());
    assert_eq!(played.stored.state(), ended);
}

#[test]
fn connections_have_states_with_reasons() {
    let new = || Peers::new(Side::Local, "TEZOS_MAINNET", 7);
    let check = |peers: &Peers, state| check_states(peers, state, state);
    let mut peers = new();
    check(&peers, (State::Handshake, None));
    peers.send(Side::Remote, &[0, 0]);
    check(&peers, (State::Handshake, None));
    peers.send(Side::Remote, &[0]);
    check(&peers, (State::Handshake, None));
    for (answer, reason) in [
        (&[0xff][..], "no_motive"),
        (&[1, 0, 1, 0, 0, 0, 0], "too_many_connections"),
        (&[1, 0, 9, 0, 0, 0, 0], "unknown_motive"),
    ] {
        let mut peers = new();
        peers.send(Side::Remote, &[0, 0]);
        peers.send(Side::Remote, answer);
        check(&peers, (State::Refused, Some(reason)));
    }
    let connected = || Peers::connected(Side::Local, "TEZOS_MAINNET", 7);
    check(&connected(), (State::Decrypted, None));
    // A chunk that was not encrypted for this connection.
    let wrong = [&[0, 40][..], &[9; 40]].concat();
    let mut peers = connected();
    peers.sent.remote.extend(&wrong);
    let broken = |reason| (State::PartlyDecrypted, Some(reason));
    check(&peers, broken("cannot_decrypt"));
    let mut peers = new();
    peers.sent.remote.extend(&wrong);
    check(&peers, (State::Undecryptable, Some("cannot_decrypt")));
    let mut peers = new();
    peers.sent.remote.clear();
    peers.sent.local.extend(&wrong);
    let missing = (State::Undecryptable, Some("connection_message_missing"));
    check_states(&peers, (State::Handshake, None), missing);
}
