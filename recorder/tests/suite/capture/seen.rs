//! What a capture has of connections, compared with what programs have exchanged.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use tezos_recorder::capture::{Capture, CaptureOptions, Source, Target};
use tezos_recorder::captured::{Captured, Socket, What};
use tezos_recorder::side::{Both, Side};

use super::common::{Exchanged, LIMIT, Place, Program, Sum};

/// What a capture has of a connection.
#[derive(Default)]
pub struct Seen {
    pub opened: Option<Option<Side>>,
    pub initiator: Option<Side>,
    pub closed: Option<Both<Option<u64>>>,
    pub addresses: Option<(SocketAddr, SocketAddr)>,
    pub records: Vec<(Side, u64, Vec<u8>)>,
    pub times: Vec<u64>,
}

impl Seen {
    /// The bytes of a direction from offset 0 on, and how many are missing before the last of them.
    pub fn direction(&self, side: Side) -> (Vec<u8>, usize) {
        let mut bytes = Vec::new();
        let mut seen = Vec::new();
        for (_, offset, data) in self.records.iter().filter(|record| record.0 == side) {
            let start = usize::try_from(*offset).unwrap();
            let end = start + data.len();
            bytes.resize(bytes.len().max(end), 0);
            seen.resize(seen.len().max(end), false);
            bytes[start..end].copy_from_slice(data);
            seen[start..end].fill(true);
        }
        let missing = seen.iter().filter(|seen| !**seen).count();
        (bytes, missing)
    }

    pub fn sum(&self, side: Side) -> Sum {
        let (bytes, missing) = self.direction(side);
        assert_eq!(missing, 0, "{side} bytes are missing");
        (bytes.len(), sha256(&bytes))
    }
}

pub fn sha256(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A capture, and what it has seen.
pub struct Recording {
    pub capture: Capture,
    pub seen: BTreeMap<Socket, Seen>,
}

impl Recording {
    pub fn start(target: Target) -> Self {
        Self::of(vec![target])
    }

    pub fn of(targets: Vec<Target>) -> Self {
        Self::with(&CaptureOptions {
            targets,
            source: Source::Sockets,
            ..CaptureOptions::default()
        })
    }

    pub fn with(options: &CaptureOptions) -> Self {
        Self {
            capture: Capture::open(options).unwrap(),
            seen: BTreeMap::new(),
        }
    }

    pub fn poll(&mut self) {
        let seen = &mut self.seen;
        let timeout = Duration::from_millis(20);
        let mut sink = |captured: Captured<'_>| note(seen, captured);
        self.capture.poll(timeout, &mut sink).unwrap();
    }

    pub fn until(&mut self, mut done: impl FnMut(&mut Self) -> bool) {
        let limit = Instant::now() + LIMIT;
        while !done(self) {
            assert!(Instant::now() < limit, "it does not happen");
            self.poll();
        }
    }

    /// Polls until programs have ended and all records were taken.
    pub fn until_ended(&mut self, programs: &mut [&mut Program]) {
        self.until(|_| programs.iter_mut().all(|program| program.has_ended()));
        self.poll();
        self.poll();
    }

    /// The directory of the only control group that is captured.
    pub fn group(&self) -> PathBuf {
        let groups = self.capture.facts().cgroups;
        let [group] = &groups[..] else {
            panic!("control groups: {groups:?}");
        };
        group.clone()
    }

    /// The only connection with that local port.
    pub fn at(&self, port: u16) -> &Seen {
        let is_at = |seen: &&Seen| {
            seen.addresses
                .is_some_and(|(local, _)| local.port() == port)
        };
        let seen: Vec<_> = self.seen.values().filter(is_at).collect();
        assert_eq!(seen.len(), 1, "connections at port {port}");
        seen[0]
    }

    /// The only connection.
    pub fn only(&self) -> &Seen {
        assert_eq!(self.seen.len(), 1, "connections");
        self.seen.values().next().unwrap()
    }
}

fn note(seen: &mut BTreeMap<Socket, Seen>, captured: Captured<'_>) {
    let seen = seen.entry(captured.socket).or_default();
    seen.times.push(captured.time.0);
    seen.addresses = Some((captured.local, captured.remote));
    match captured.what {
        What::Opened { initiator } => seen.opened = Some(initiator),
        What::Closed { sent } => seen.closed = Some(sent),
        What::Data {
            sender,
            offset,
            data,
            initiator,
            ..
        } => {
            seen.initiator = initiator;
            seen.records.push((sender, offset, data.to_vec()));
        }
    }
}

/// Exchanges a million bytes each way between a recorded node and a peer; the node listens or connects. Returns what the node says.
pub fn exchange(
    node: Place<'_>,
    peer: Place<'_>,
    role: &str,
    address: &str,
    method: &str,
    recording: &mut Recording,
) -> Exchanged {
    const SIZE: usize = 1_000_000;
    let (mut first, mut second, port);
    if role == "listen" {
        (first, port) = node.exchange("listen", address, 0, method, SIZE);
        (second, _) = peer.exchange("connect", address, port, "recv", SIZE);
    } else {
        (second, port) = peer.exchange("listen", address, 0, "recv", SIZE);
        (first, _) = node.exchange("connect", address, port, method, SIZE);
    }
    recording.until_ended(&mut [&mut first, &mut second]);
    let (node, peer) = (first.exchanged(), second.exchanged());
    let same = (&node.sent, &node.received) == (&peer.received, &peer.sent);
    assert!(same, "the programs disagree: {node:?}, {peer:?}");
    node
}

/// Asserts that all is there: bytes, beginning, end.
pub fn check(seen: &Seen, node: &Exchanged, initiator: Side) {
    assert_eq!(seen.sum(Side::Local), node.sent);
    assert_eq!(seen.sum(Side::Remote), node.received);
    assert_eq!(seen.opened, Some(Some(initiator)));
    assert_eq!(seen.initiator, Some(initiator));
    let closed = seen.closed.expect("the end was seen");
    assert_eq!(closed.local, Some(node.sent.0 as u64));
    assert_eq!(closed.remote, Some(node.received.0 as u64));
}
