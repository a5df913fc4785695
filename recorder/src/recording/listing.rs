//! A connection as the store lists it, and the entries of its events.

use std::net::SocketAddr;
use std::sync::Arc;

use super::Entries;
use crate::connection::{ChunkEvent, Event, Ignored, MessageEvent, Progress, Remark};
use crate::p2p::base58::PeerId;
use crate::p2p::message::{Kind, Message};
use crate::reconnect::Note;
use crate::side::{Both, Side};
use crate::store::{
    ChunkEntry, ConnectionEntry, ConnectionId, ConnectionStatus, Entry, MessageEntry,
};
use crate::stream::Traffic;
use crate::time::Timestamp;

/// Maximum number of remarks of a connection. Later ones are counted in the last.
const MAX_REMARKS: usize = 200;
/// Maximum size of the JSON of a message of the handshake, in bytes: that of the longest chunk.
const MAX_JSON: usize = 256 << 10;

/// A connection as the store lists it.
#[derive(Debug)]
pub(super) struct Listing {
    local: SocketAddr,
    /// Name of the node, once it is known.
    node: Option<Arc<str>>,
    entry: ConnectionEntry,
    progress: Progress,
    /// Remarks beyond [`MAX_REMARKS`].
    more: u64,
    changed: bool,
    /// Whether it was opened before the recorder.
    is_older: bool,
}

impl Listing {
    pub(super) fn new(
        id: ConnectionId,
        (local, remote): (SocketAddr, SocketAddr),
        initiator: Option<Side>,
    ) -> Self {
        Self {
            local,
            node: None,
            entry: ConnectionEntry {
                id,
                address: remote,
                initiator,
                peer_id: None,
                connection_messages: Both::default(),
                metadata: Both::default(),
                acks: Both::default(),
                last: Timestamp(id.0),
                ended: None,
                status: ConnectionStatus::default(),
                traffic: Both::default(),
                chunks: Both::default(),
                ignored: None,
                remarks: Vec::new(),
            },
            progress: Progress::default(),
            more: 0,
            changed: false,
            is_older: false,
        }
    }

    pub(super) fn addresses(&self) -> (SocketAddr, SocketAddr) {
        (self.local, self.entry.address)
    }

    /// Whether an event said that the connection is not recorded.
    pub(super) fn is_ignored(&self) -> bool {
        self.entry.ignored.is_some()
    }

    /// Whether it is not recorded because it was opened before the recorder.
    pub(super) fn is_older(&self) -> bool {
        self.is_older
    }

    pub(super) fn node(&self) -> Option<&str> {
        self.node.as_deref()
    }

    /// Takes a note, which says whose connection it is.
    pub(super) fn note(&mut self, note: Note, time: Timestamp) {
        self.node = Some(note.node);
        self.entry.peer_id = Some(note.peer_id);
        self.remark(time, note.text);
    }

    /// Assigns the connection to a node.
    pub(super) fn assign(&mut self, node: &str) {
        self.node = Some(node.into());
        self.changed = true;
    }

    /// Takes an event; its bytes go to the store at once.
    pub(super) fn take(&mut self, event: Event<'_>, entries: &mut Entries<'_>) {
        self.progress.take(&event);
        match event {
            Event::Recognised { node, .. } => {
                self.assign(&node.name);
                self.flush(entries);
            }
            Event::Ignored { reason, time } => {
                self.entry.ignored = Some(reason.to_string());
                self.is_older = reason == Ignored::OpenedBefore;
                self.entry.last = time;
                self.changed = true;
            }
            Event::Established { initiator, .. } => {
                self.entry.initiator = Some(initiator);
                self.changed = true;
            }
            Event::Chunk(chunk) => {
                *self.entry.chunks.of_mut(chunk.sender) += 1;
                self.put(Entry::Chunk(self.chunk(&chunk)), entries);
            }
            Event::Message(message) => {
                self.note_handshake(message);
                self.put(Entry::Message(Box::new(self.message(message))), entries);
            }
            Event::Unframed {
                sender,
                offset,
                time,
                bytes,
            } => {
                let unframed = ChunkEntry {
                    connection: self.entry.id,
                    sender,
                    number: None,
                    offset,
                    time,
                    raw: bytes.to_vec(),
                    plain: None,
                };
                self.put(Entry::Chunk(unframed), entries);
            }
            Event::Remark { time, remark } => {
                self.entry.status.gaps += u64::from(matches!(remark, Remark::BytesLost { .. }));
                self.remark(time, remark.to_string());
            }
        }
    }

    fn chunk(&self, chunk: &ChunkEvent<'_>) -> ChunkEntry {
        ChunkEntry {
            connection: self.entry.id,
            sender: chunk.sender,
            number: Some(chunk.number),
            offset: chunk.offset,
            time: chunk.time,
            raw: chunk.raw.to_vec(),
            plain: chunk.plain.map(<[u8]>::to_vec),
        }
    }

    fn message(&self, message: &MessageEvent<'_>) -> MessageEntry {
        MessageEntry {
            connection: self.entry.id,
            address: self.entry.address,
            initiator: self.entry.initiator,
            sender: message.sender,
            kind: message.kind,
            time: message.time,
            chunks: (*message.chunks.start(), *message.chunks.end()),
            start: message.start as u64,
            size: message.size,
            preview: message.preview(),
            hash: message.content_hash(),
            error: message.error.as_ref().map(ToString::to_string),
        }
    }

    /// Notes what a message of the handshake says of the connection.
    fn note_handshake(&mut self, message: &MessageEvent<'_>) {
        let handshake = match message.kind {
            Kind::ConnectionMessage => &mut self.entry.connection_messages,
            Kind::Metadata => &mut self.entry.metadata,
            Kind::AckMessage => &mut self.entry.acks,
            _ => return,
        };
        *handshake.of_mut(message.sender) = message.json(MAX_JSON).map(|json| json.text);
        if let (Side::Remote, Some(Message::Connection(connection))) =
            (message.sender, &message.message)
        {
            let peer = PeerId::from_public_key(&connection.public_key);
            self.entry.peer_id = Some(peer.to_string());
        }
        self.changed = true;
    }

    /// Adds a remark.
    pub(super) fn remark(&mut self, time: Timestamp, text: String) {
        let remarks = &mut self.entry.remarks;
        if remarks.len() < MAX_REMARKS {
            remarks.push((time, text));
        } else {
            self.more += 1;
            let last = &mut remarks[MAX_REMARKS - 1];
            *last = (
                time,
                format!("{} more remarks, the last one: {text}", self.more),
            );
        }
        self.changed = true;
    }

    /// Notes the sums of the connection.
    pub(super) fn update(
        &mut self,
        traffic: Both<Traffic>,
        initiator: Option<Side>,
        last: Timestamp,
    ) {
        self.changed |= self.entry.traffic != traffic;
        self.entry.traffic = traffic;
        self.entry.initiator = initiator.or(self.entry.initiator);
        self.entry.last = last;
    }

    /// Notes the end, or that it was not seen.
    pub(super) fn end(&mut self, time: Option<Timestamp>) {
        self.entry.ended = time;
        self.entry.status.end_unseen = time.is_none();
        self.changed = true;
    }

    /// Notes the end of a connection of which nothing was recorded.
    pub(super) fn end_unrecorded(&mut self, time: Option<Timestamp>, sent: Both<Option<u64>>) {
        for side in Side::BOTH {
            let traffic = self.entry.traffic.of_mut(side);
            if let Some(sent) = sent.of(side) {
                traffic.lost = sent.saturating_sub(traffic.captured);
            }
        }
        self.entry.last = time.unwrap_or(self.entry.last);
        self.end(time);
    }

    /// Gives the connection to the store, if it has changed and the node is known.
    pub(super) fn flush(&mut self, entries: &mut Entries<'_>) {
        if self.node.is_some() && std::mem::take(&mut self.changed) {
            let (state, reason) = self.progress.state();
            self.entry.status.state = state;
            self.entry.status.reason = reason.map(str::to_owned);
            self.put(Entry::Connection(Box::new(self.entry.clone())), entries);
        }
    }

    fn put(&self, entry: Entry, entries: &mut Entries<'_>) {
        if let Some(node) = &self.node {
            entries(node, entry);
        }
    }
}
