//! Every way to send and receive, all kinds and sizes of messages, every form of chunks.

use std::collections::{HashMap, HashSet};
use std::process::Command;

use tezos_recorder::p2p::message::Kind;

use super::process::{Stage, program};
use super::{HANDSHAKE, checked, converse, kinds, words};
use crate::skip::skip;

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

/// Runs a node that connects below strace; returns what that writes.
fn traced(strace: &str, options: &str) -> String {
    let stage = Stage::new();
    let listener = stage.start("listen", &words("--messages 3"));
    let output = stage.identity("traced");
    let mut command = Command::new("strace");
    command.args(words(strace)).arg("-o");
    command.arg(&output).arg(program());
    let options = format!("{} --messages 9 {options}", listener.address());
    stage.start_by(command, "connect", &words(&options)).end();
    listener.end();
    std::fs::read_to_string(output).unwrap()
}

/// Numbers of system calls that a node makes with these options.
fn system_calls(options: &str) -> HashMap<String, u64> {
    let text = traced("-f -c -U calls,name", options);
    let lines = text.lines().filter_map(|line| {
        let (count, name) = line.trim().split_once(' ')?;
        Some((name.trim().to_owned(), count.parse().ok()?))
    });
    lines.collect()
}

fn has_strace() -> bool {
    let found = Command::new("strace").arg("-V").output().is_ok();
    if !found {
        skip("there is no strace");
    }
    found
}

#[test]
fn threads_take_turns() {
    if !has_strace() {
        return;
    }
    let text = traced(
        "-f -e trace=sendto,recvfrom",
        "--send send --receive recv --threads 3 --read-size 10",
    );
    for call in ["sendto", "recvfrom"] {
        let threads = text.lines().filter(|line| line.contains(call));
        let threads = threads.map(|line| line.split(' ').next());
        let threads: HashSet<_> = threads.collect();
        // One shakes hands.
        assert_eq!(threads.len(), 4, "{call}: {text}");
    }
}

#[test]
fn system_calls_are_those_that_were_asked_for() {
    if !has_strace() {
        return;
    }
    for (option, call) in [
        ("--send write", "write"),
        ("--send send", "sendto"),
        ("--send writev", "writev"),
        ("--send sendmsg", "sendmsg"),
        ("--send sendfile", "sendfile"),
        ("--send splice", "splice"),
        ("--send uring", "io_uring_enter"),
    ] {
        if call == "io_uring_enter" && io_uring::IoUring::new(2).is_err() {
            continue;
        }
        let calls = system_calls(option);
        let made = calls.get(call).copied().unwrap_or(0);
        assert!(made >= 12, "{option}: {calls:?}");
        // Standard output and the identity's file take some.
        let other = calls.get("write").copied().unwrap_or(0);
        let by_write = ["write", "sendfile", "splice"].contains(&call);
        assert_eq!(other >= 12, by_write, "{option}: {calls:?}");
    }
    // Every sixteenth of 450 calls has a new descriptor.
    let calls = system_calls("--dup --chunks byte --size 50 --kinds operation");
    assert!(calls["write"] > 450 && calls["fcntl"] > 20, "{calls:?}");
    for (option, call) in [
        ("--receive recv", "recvfrom"),
        ("--receive readv", "readv"),
        ("--receive recvmsg", "recvmsg"),
        ("--receive peek", "recvfrom"),
        ("--receive splice", "splice"),
        ("--receive uring", "io_uring_enter"),
        ("--dup", "fcntl"),
    ] {
        if call == "io_uring_enter" && io_uring::IoUring::new(2).is_err() {
            continue;
        }
        let calls = system_calls(&format!("{option} --read-size 10"));
        let made = calls.get(call).copied().unwrap_or(0);
        assert!(made >= 12, "{option}: {calls:?}");
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
        &format!("--send any --receive any --messages 8 {nonblocking}"),
        8,
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
        let run = checked(&format!("{options} --messages 10"), 10);
        let (mut rest, mut sizes) = (run.taps[0].sent(true), Vec::new());
        while let Some(length) = rest.first_chunk() {
            let length = usize::from(u16::from_be_bytes(*length));
            sizes.push(length.wrapping_sub(16));
            rest.drain(..2 + length);
        }
        sizes.split_off(HANDSHAKE / 2)
    };
    let usual = "--kinds block_header --size 100000";
    let sizes = plain_sizes(&format!("{usual} --chunks message"));
    assert_eq!(sizes, [65_517, 100_000 - 65_517].repeat(10));
    let sizes = plain_sizes(&format!("{usual} --chunks max --batch 10"));
    assert_eq!(sizes.split_last().unwrap().1, [65_519].repeat(15));
    let sizes = plain_sizes("--chunks byte --size 0..20");
    assert!(sizes.iter().all(|size| *size == 1));
    let sizes = plain_sizes("--chunks empty --size 100");
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
        let run = converse(
            "--messages 0",
            &format!("--messages 1 --size 9000000 --kinds {kind}"),
        );
        assert_eq!(run.check(), HANDSHAKE + 1);
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
fn the_same_seed_sends_the_same() {
    let sent = |seed: u64| {
        let run = converse(&format!("--seed {seed}"), &format!("--seed {seed}"));
        let sent = run.connect.connections[0].sent.iter();
        sent.map(|m| m.sha256.clone()).collect::<Vec<_>>()
    };
    assert_eq!(sent(1), sent(1));
    assert_ne!(sent(1), sent(2));
}
