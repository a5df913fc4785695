//! Wireshark reads the export.

use std::process::Command;

use tezos_recorder::side::{Both, Side};

use super::example::{export, recording};
use crate::common::unhex;
use crate::skip::skip;

/// Runs tshark on an export; `None` if it is not installed.
fn tshark(file: &[u8], arguments: &[&str]) -> Option<String> {
    let path = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(path.path(), file).unwrap();
    let mut command = Command::new("tshark");
    command.args([
        "-o",
        "ip.check_checksum:TRUE",
        "-o",
        "tcp.check_checksum:TRUE",
        "-r",
    ]);
    let Ok(output) = command.arg(path.path()).args(arguments).output() else {
        skip("tshark is not installed");
        return None;
    };
    assert!(output.status.success(), "{output:?}");
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
fn wireshark_finds_checksums_right_and_nothing_to_reassemble_wrongly() {
    let recording = recording();
    let fields = [
        "-T",
        "fields",
        "-e",
        "ip.checksum.status",
        "-e",
        "tcp.checksum.status",
        "-e",
        "frame.time_epoch",
        "-e",
        "tcp.analysis.flags",
        "-e",
        "tcp.analysis.lost_segment",
        "-e",
        "tcp.analysis.ack_lost_segment",
    ];
    let Some(text) = tshark(&export(&recording), &fields) else {
        return;
    };
    let rows: Vec<Vec<&str>> = text
        .lines()
        .map(|line| line.split('\t').collect())
        .collect();
    assert!(rows.len() > 60, "{text}");
    for row in &rows {
        assert!(["1", ""].contains(&row[0]) && row[1] == "1", "{row:?}");
    }
    assert_eq!(rows[0][2], "1767323045.123456789");
    // The gap, and the other side's acknowledgement of it; nothing else is unusual.
    let unusual = rows.iter().filter(|row| !row[3].is_empty());
    let unusual: Vec<_> = unusual.map(|row| (row[4], row[5])).collect();
    assert_eq!(unusual, [("1", ""), ("", "1")]);
}

#[test]
fn wireshark_follows_the_streams() {
    let recording = recording();
    let file = export(&recording);
    for (number, (_, chunks)) in recording.iter().enumerate().take(2) {
        let follow = format!("follow,tcp,raw,{number}");
        let Some(text) = tshark(&file, &["-q", "-z", &follow]) else {
            return;
        };
        let mut both = Both::<String>::default();
        let mut lines = text.lines().skip_while(|line| !line.starts_with("Node 1"));
        for line in lines
            .by_ref()
            .skip(1)
            .take_while(|line| !line.starts_with('='))
        {
            // The first node is the one that opened the connection.
            let second = line.starts_with('\t');
            let sender = if second == (number == 0) {
                Side::Remote
            } else {
                Side::Local
            };
            both.of_mut(sender).push_str(line.trim());
        }
        for sender in Side::BOTH {
            let raw = chunks.iter().filter(|chunk| chunk.sender == sender);
            let raw: Vec<u8> = raw.flat_map(|chunk| chunk.raw.clone()).collect();
            assert_eq!(unhex(both.of(sender)), raw);
        }
    }
}
