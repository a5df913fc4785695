//! One direction in order.

use tezos_recorder::stream::{Piece, Record, Stream};
use tezos_recorder::time::Timestamp;

const SECOND: u64 = 1_000_000_000;

/// Pieces as text: `0:ab` bytes, `2-5` a gap.
#[derive(Default)]
struct Tried {
    stream: Stream,
    pieces: Vec<String>,
}

impl Tried {
    fn push(&mut self, offset: u64, data: &str, now: u64) {
        let record = Record {
            offset,
            in_order: offset,
            time: Timestamp(now),
            data: data.as_bytes(),
        };
        let pieces = &mut self.pieces;
        self.stream.push(&record, Timestamp(now), &mut |piece| {
            pieces.push(text(piece))
        });
    }

    fn expire(&mut self, now: u64) {
        let pieces = &mut self.pieces;
        self.stream
            .expire(Timestamp(now), &mut |piece| pieces.push(text(piece)));
    }

    fn finish(&mut self, end: Option<u64>) {
        let pieces = &mut self.pieces;
        self.stream
            .finish(end, &mut |piece| pieces.push(text(piece)));
    }
}

fn text(piece: Piece<'_>) -> String {
    match piece {
        Piece::Bytes { offset, data, .. } if data.len() < 10 => {
            format!("{offset}:{}", str::from_utf8(data).unwrap())
        }
        Piece::Bytes { offset, data, .. } => format!("{offset}:{}", data.len()),
        Piece::Gap { offset, length, .. } => format!("{offset}-{}", offset + length),
    }
}

#[test]
fn overlaps_and_repetitions_are_cut() {
    let mut tried = Tried::default();
    tried.push(0, "abc", 1);
    tried.push(0, "abc", 1);
    tried.push(1, "bcd", 1);
    tried.push(6, "gh", 1);
    tried.push(6, "ghi", 1);
    tried.push(6, "g", 1);
    tried.push(5, "fgh", 1);
    tried.push(4, "e", 1);
    assert_eq!(tried.pieces, ["0:abc", "3:d", "4:e", "5:fgh", "8:i"]);
    let traffic = tried.stream.traffic();
    assert_eq!(
        (traffic.captured, traffic.repeated, traffic.lost),
        (9, 3 + 2 + 2 + 1 + 2, 0)
    );
    assert_eq!(tried.stream.deadline(), None);
}

#[test]
fn a_hole_becomes_a_gap_after_two_seconds() {
    let mut tried = Tried::default();
    tried.push(0, "ab", 1);
    tried.push(5, "f", SECOND);
    tried.push(9, "j", 2 * SECOND);
    assert_eq!(tried.stream.deadline(), Some(Timestamp(3 * SECOND)));
    tried.expire(3 * SECOND - 1);
    assert_eq!(tried.pieces, ["0:ab"]);
    tried.expire(3 * SECOND);
    assert_eq!(tried.pieces, ["0:ab", "2-5", "5:f"]);
    assert_eq!(tried.stream.deadline(), Some(Timestamp(4 * SECOND)));
    tried.push(4, "ef", 3 * SECOND);
    tried.push(6, "ghi", 3 * SECOND);
    assert_eq!(tried.pieces[3..], ["6:ghi", "9:j"]);
    assert_eq!(tried.stream.deadline(), None);
    assert_eq!(tried.stream.traffic().lost, 3);
}

#[test]
fn a_hole_becomes_a_gap_when_256_kib_wait() {
    let mut tried = Tried::default();
    let piece = "x".repeat(1000);
    let mut offset = 10;
    while tried.pieces.is_empty() {
        tried.push(offset, &piece, 1);
        offset += 1000;
        assert!(offset < 300_000);
    }
    assert!(offset > 220_000, "{offset}");
    assert_eq!(tried.pieces[..2], ["0-10", "10:1000"]);
    assert_eq!(tried.pieces.len() as u64, 1 + offset / 1000);

    // Small records take more memory than their bytes.
    let mut tried = Tried::default();
    let mut count = 0;
    while tried.pieces.is_empty() {
        tried.push(10 + 2 * count, "x", 1);
        count += 1;
        assert!(count < 10_000);
    }
    // Each hole is given up only as far as memory requires.
    assert_eq!(tried.pieces, ["0-10", "10:x"]);
}

#[test]
fn the_end_is_a_gap_if_bytes_are_missing() {
    let mut tried = Tried::default();
    tried.push(0, "ab", 1);
    tried.push(4, "e", 1);
    tried.finish(Some(9));
    assert_eq!(tried.pieces, ["0:ab", "2-4", "4:e", "5-9"]);
    tried.finish(Some(3));
    tried.finish(None);
    assert_eq!(tried.pieces.len(), 4);
}

#[test]
fn what_is_far_from_the_kernels_bytes_is_dropped() {
    let mut tried = Tried::default();
    tried.push(0, "ab", 1);
    for (offset, in_order, data) in [
        (Stream::WINDOW + 3, 2, "zzzz"),
        (2, Stream::WINDOW + 3, "cd"),
        (u64::MAX - 1, u64::MAX, "xyz"),
    ] {
        let time = Timestamp(1);
        let data = data.as_bytes();
        let record = Record {
            offset,
            in_order,
            time,
            data,
        };
        let mut given = false;
        tried.stream.push(&record, time, &mut |_| given = true);
        assert!(!given);
    }
    assert_eq!(tried.stream.traffic().foreign, 4 + 2 + 3);
    assert_eq!(tried.stream.deadline(), None);
    // After a long loss the kernel's own count shows that the offset is right.
    tried.push(1 << 40, "q", 2);
    tried.finish(None);
    assert_eq!(tried.pieces, ["0:ab", "2-1099511627776", "1099511627776:q"]);
}
