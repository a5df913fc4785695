//! Bytes that came with the end of the handshake, before the node's socket existed. They wait until it is opened.

use std::collections::VecDeque;
use std::net::SocketAddr;

use crate::captured::{Captured, Socket, What};
use crate::side::Side;
use crate::time::Timestamp;
use crate::wire::Record;

/// Bytes that wait.
#[derive(Debug)]
struct Waiting {
    time: Timestamp,
    local: SocketAddr,
    remote: SocketAddr,
    sequence: u32,
    data: Vec<u8>,
}

/// Bytes of sockets that do not exist yet. Anybody can send such bytes, so they are bounded.
#[derive(Debug, Default)]
pub(super) struct Early {
    waiting: VecDeque<Waiting>,
    size: usize,
    unclaimed: u64,
}

impl Early {
    /// Maximum number of records that wait.
    const MAX_RECORDS: usize = 256;
    /// Maximum memory of their bytes.
    const MAX_SIZE: usize = 1 << 20;

    pub fn wait(&mut self, time: Timestamp, record: &Record<'_>) {
        self.size += record.data.len();
        self.waiting.push_back(Waiting {
            time,
            local: record.local,
            remote: record.remote,
            sequence: record.offset as u32,
            data: record.data.to_vec(),
        });
        while self.waiting.len() > Self::MAX_RECORDS || self.size > Self::MAX_SIZE {
            if let Some(dropped) = self.waiting.pop_front() {
                self.size -= dropped.data.len();
                self.unclaimed += dropped.data.len() as u64;
            }
        }
    }

    /// Gives the bytes of a connection that is now open.
    pub fn claim(&mut self, opened: &Record<'_>, sink: &mut dyn FnMut(Captured<'_>)) {
        let base = opened.offset as u32;
        let is_of =
            |waiting: &Waiting| (waiting.local, waiting.remote) == (opened.local, opened.remote);
        for waiting in self.waiting.iter().filter(|waiting| is_of(waiting)) {
            self.size -= waiting.data.len();
            sink(Captured {
                socket: Socket(opened.socket),
                time: waiting.time,
                local: waiting.local,
                remote: waiting.remote,
                what: What::Data {
                    sender: Side::Remote,
                    offset: waiting.sequence.wrapping_sub(base).into(),
                    in_order: 0,
                    data: &waiting.data,
                    initiator: opened.initiator,
                },
            });
        }
        self.waiting.retain(|waiting| !is_of(waiting));
    }

    /// Bytes for which no connection was opened.
    pub fn unclaimed(&self) -> u64 {
        self.unclaimed
    }
}
