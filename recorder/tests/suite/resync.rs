//! The search for the next chunk, without a connection around it.

use tezos_recorder::budget::Budget;
use tezos_recorder::p2p::resync::{Before, Found, Outcome, Search};
use tezos_recorder::side::Side;
use tezos_recorder::time::Timestamp;

use crate::check::Peers;

/// Chunks of these sizes; the first known start is that of chunk 3.
fn peers(sizes: &[usize]) -> Peers {
    let mut peers = Peers::connected(Side::Local, "TEZOS_MAINNET", 1);
    for (n, size) in sizes.iter().enumerate() {
        peers.send(Side::Remote, &vec![n as u8; *size]);
    }
    peers
}

fn before(lost: usize, mean: u64, largest: usize) -> Before {
    Before {
        number: 3,
        lost: lost as u64,
        next: None,
        mean,
        largest,
    }
}

/// Searches in the bytes from `from` to `to` after chunk 3 begins.
fn search(peers: Peers, before: Before, work: u64, from: usize, to: usize) -> Outcome {
    let start = peers.starts.remote[3];
    let mut search = Search::new(before, work, Budget::new(1 << 20));
    assert!(search.push(&peers.sent.remote[start + from..start + to], Timestamp(1)));
    search.run(&mut [&mut peers.opener(Side::Remote)], u64::MAX)
}

fn found(position: usize, number: u64) -> Outcome {
    let opener = 0;
    Outcome::Found(Found {
        position,
        number,
        opener,
    })
}

/// Sizes of chunks with 40 bytes of plain text.
const SMALL: usize = 58;

#[test]
fn numbers_far_from_the_mean_are_found_in_the_second_pass() {
    let peers = peers(&[40; 200]);
    // A mean of 10,000 bytes suggests one chunk instead of 150.
    let (lost, end) = (150 * SMALL - 5, 152 * SMALL);
    let outcome = search(
        peers,
        before(lost, 10_000, SMALL * 2),
        Search::MAX_WORK,
        lost,
        end,
    );
    assert_eq!(outcome, found(5, 153));
}

#[test]
fn a_short_chunk_leads_back_to_those_before_it() {
    let peers = peers(&[40, 40, 300, 200, 1]);
    let end = peers.sent.remote.len() - peers.starts.remote[3];
    let outcome = search(peers, before(50, 60, 400), Search::MAX_WORK, 50, end);
    assert_eq!(outcome, found(SMALL - 50, 4));
}

#[test]
fn chunks_of_the_largest_size_are_found_among_much_else() {
    let sizes = [65_517, 65_517, 30_000, 65_517, 65_517, 65_517];
    let peers = peers(&sizes);
    let (start, lost) = (peers.starts.remote[3], 40_000);
    let sent = peers.sent.remote[start + lost..].to_vec();
    // So little work that hardly any other candidate can be tried, and half of it is used before the chunk is complete.
    let mut search = Search::new(before(lost, 40_000, 65_535), 4 << 20, Budget::new(1 << 20));
    let mut opener = peers.opener(Side::Remote);
    for (part, expected) in [
        (0..60_000, Outcome::Waiting),
        (60_000..260_000, found(65_535 - lost, 4)),
    ] {
        assert!(search.push(&sent[part], Timestamp(1)));
        assert_eq!(search.run(&mut [&mut opener], u64::MAX), expected);
    }
}

#[test]
fn a_known_beginning_is_waited_for_if_its_size_is_usual() {
    for (largest, expected) in [(1018, found(0, 3)), (500, Outcome::Waiting)] {
        let peers = peers(&[1000, 40, 40, 40, 40]);
        let start = peers.starts.remote[3];
        let sent = peers.sent.remote.clone();
        let next = Before {
            next: Some(3),
            ..before(0, 300, largest)
        };
        // So little work that other candidates would use it up.
        let mut search = Search::new(next, 6 << 10, Budget::new(1 << 20));
        let mut opener = peers.opener(Side::Remote);
        assert!(search.push(&sent[start..start + 900], Timestamp(1)));
        assert_eq!(search.run(&mut [&mut opener], u64::MAX), Outcome::Waiting);
        assert!(search.push(&sent[start + 900..], Timestamp(1)));
        assert_eq!(search.run(&mut [&mut opener], u64::MAX), expected);
    }
}

#[test]
fn work_is_bounded_in_all_and_at_a_time() {
    let mut noise = 1u32;
    let mut next = || {
        noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (noise >> 24) as u8
    };
    let bytes: Vec<u8> = std::iter::repeat_with(&mut next).take(300_000).collect();
    let peers = peers(&[40]);
    let work = 256 << 20;
    let mut search = Search::new(before(5000, 300, 65_535), work, Budget::new(1 << 20));
    assert!(search.push(&bytes, Timestamp(1)));
    let mut opener = peers.opener(Side::Remote);
    let mut runs = 0;
    let last = loop {
        runs += 1;
        match search.run(&mut [&mut opener], 8 << 20) {
            Outcome::More => {}
            other => break other,
        }
    };
    assert_eq!(last, Outcome::Failed);
    // Each run may exceed its work by one candidate.
    assert!((2..=(work >> 23) as usize).contains(&runs), "{runs}");
}

#[test]
fn bytes_are_bounded() {
    let mut search = Search::new(before(0, 300, 400), Search::MAX_WORK, Budget::new(2 << 20));
    assert!(search.push(&vec![0; Search::MAX_BYTES], Timestamp(1)));
    assert!(!search.push(&[0], Timestamp(1)));
    assert_eq!(search.len(), Search::MAX_BYTES);
    let mut search = Search::new(before(0, 300, 400), Search::MAX_WORK, Budget::new(5000));
    assert!(!search.push(&[0; 10_000], Timestamp(1)));
}
