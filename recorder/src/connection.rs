//! A connection between the recorded node and a peer: records of captured bytes in, events out.
//!
//! A connection is recognised by its content: the first bytes that the node sends contain its public key. Until then bytes are held;
//! those of other traffic are dropped, and [`Ignored`] says why. Decryption begins when both connection messages are there. Lost
//! bytes interrupt it until the next chunk is found, see [`p2p::resync`](crate::p2p::resync).
//!
//! # Examples
//!
//! ```
//! use std::sync::Arc;
//! use tezos_recorder::budget::Budget;
//! use tezos_recorder::connection::{Connection, Event, Nodes, Opening};
//! use tezos_recorder::side::Side;
//! use tezos_recorder::stream::Record;
//! use tezos_recorder::time::Timestamp;
//!
//! let nodes = Arc::new(Nodes::default());
//! let mut connection = Connection::new(nodes, Opening::default(), Budget::new(64 << 20));
//! let request = Record { offset: 0, in_order: 0, time: Timestamp(1), data: b"GET / HTTP/1.1\r\n" };
//! let mut ignored = false;
//! connection.record(Side::Local, &request, Timestamp(2), &mut |event| {
//!     ignored |= matches!(event, Event::Ignored { .. });
//! });
//! assert!(ignored && connection.is_ignored());
//! ```

mod conversation;
mod direction;
mod event;
mod held;
mod nodes;
mod recognition;
mod remark;
mod session;
mod state;

use std::sync::Arc;

pub use event::{ChunkEvent, Event, MessageEvent};
pub use nodes::{Node, Nodes};
pub use remark::{Ignored, Remark, Undecryptable};
pub(crate) use state::Progress;
pub use state::State;

use self::conversation::Conversation;
use crate::budget::Budget;
use crate::side::{Both, Side};
use crate::stream::{Record, Stream, Traffic};
use crate::time::Timestamp;

/// The beginning of a connection, as far as the source of captured bytes has seen it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opening {
    /// The side that opened the connection. Decryption verifies it, and finds it if it is `None`.
    pub initiator: Option<Side>,
    /// True if a SYN was seen: the connection was opened after the recorder started.
    pub seen: bool,
}

/// A receiver of events.
pub type Sink<'a> = dyn FnMut(Event<'_>) + 'a;

/// A connection between the recorded node and a peer.
#[derive(Debug)]
pub struct Connection {
    streams: Both<Stream>,
    conversation: Conversation,
}

impl Connection {
    /// A connection of one of the nodes. Bytes that it holds beyond some KiB count against the budget.
    pub fn new(nodes: Arc<Nodes>, opening: Opening, budget: Budget) -> Self {
        Self {
            streams: Both::default(),
            conversation: Conversation::new(nodes, opening, budget),
        }
    }

    /// Takes captured bytes that `sender` sent. `now` is the present time, by which late records are judged.
    pub fn record(
        &mut self,
        sender: Side,
        record: &Record<'_>,
        now: Timestamp,
        sink: &mut Sink<'_>,
    ) {
        let conversation = &mut self.conversation;
        let stream = self.streams.of_mut(sender);
        stream.push(record, now, &mut |piece| {
            conversation.piece(sender, piece, sink)
        });
    }

    /// Gives up waiting for records that are late at time `now`; to be called at [`Self::deadline`].
    pub fn expire(&mut self, now: Timestamp, sink: &mut Sink<'_>) {
        let conversation = &mut self.conversation;
        for side in Side::BOTH {
            let stream = self.streams.of_mut(side);
            stream.expire(now, &mut |piece| conversation.piece(side, piece, sink));
        }
    }

    /// When [`Self::expire`] has something to do.
    pub fn deadline(&self) -> Option<Timestamp> {
        let deadlines = Side::BOTH.map(|side| self.streams.of(side).deadline());
        deadlines.into_iter().flatten().min()
    }

    /// Searches for the next chunk after lost bytes, until `work` bytes are authenticated (1 MiB takes about a third of a millisecond).
    /// Returns true if there is more to do now. To be called after records, as long as [`Self::is_searching`]; on a thread that may
    /// be late.
    pub fn search(&mut self, work: u64, sink: &mut Sink<'_>) -> bool {
        self.conversation.search(work, sink)
    }

    /// True if a direction cannot be decrypted until the next chunk is found.
    pub fn is_searching(&self) -> bool {
        self.conversation.is_searching()
    }

    /// Replaces the nodes, because an identity was found: bytes that are held may now be recognised.
    pub fn set_nodes(&mut self, nodes: Arc<Nodes>, sink: &mut Sink<'_>) {
        self.conversation.set_nodes(nodes, sink);
    }

    /// Ends the connection: gives what is held or waited for. `sent` is the number of bytes that each side sent, if it is known;
    /// bytes that are missing at the end are then a gap, too.
    pub fn end(&mut self, sent: Both<Option<u64>>, sink: &mut Sink<'_>) {
        let conversation = &mut self.conversation;
        for side in Side::BOTH {
            let stream = self.streams.of_mut(side);
            let end = *sent.of(side);
            stream.finish(end, &mut |piece| conversation.piece(side, piece, sink));
        }
        conversation.end(sink);
    }

    /// The node, once the connection is recognised.
    pub fn node(&self) -> Option<&Arc<Node>> {
        self.conversation.node()
    }

    /// Who opened the connection: the source's hint, until decryption proves it.
    pub fn initiator(&self) -> Option<Side> {
        self.conversation.initiator()
    }

    /// True if the connection is none of the nodes', or cannot be recorded: further records only count.
    pub fn is_ignored(&self) -> bool {
        self.conversation.is_ignored()
    }

    /// The bytes that `sender` sent.
    pub fn traffic(&self, sender: Side) -> Traffic {
        self.streams.of(sender).traffic()
    }
}
