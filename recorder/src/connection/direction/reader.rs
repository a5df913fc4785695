//! Chunks of one side to events.

use std::ops::Range;

use crate::budget::Budget;
use crate::connection::Sink;
use crate::connection::event::{ChunkEvent, Event, MessageEvent};
use crate::connection::remark::Remark;
use crate::connection::session::Session;
use crate::p2p::chunk::{Chunk, HEADER};
use crate::p2p::handshake::ConnectionMessage;
use crate::p2p::message::{Decoded, Layer, Message, decode_handshake};
use crate::p2p::messages::{Framed, Messages, PlainChunk};
use crate::p2p::pow::Target;
use crate::p2p::resync::Search;
use crate::side::Side;
use crate::time::Timestamp;

/// Mean size of chunks that is assumed before the first ones, in bytes.
const USUAL: u64 = 256;

/// Reads the chunks of one side.
#[derive(Debug)]
pub(super) struct Reader {
    pub(super) sender: Side,
    /// The proof of work that its connection message should have.
    pub(super) target: Target,
    /// Number of the next chunk.
    pub(super) number: u64,
    /// Offset of the next byte that is given to an event.
    offset: u64,
    /// The connection message with its length.
    pub(super) head: Option<Vec<u8>>,
    pub(super) messages: Messages,
    /// Size of the largest encrypted chunk with its length, in bytes.
    pub(super) largest: usize,
    /// Number and size of the encrypted chunks.
    encrypted: (u64, u64),
    /// The plain text of a chunk; its memory is used again.
    plain: Vec<u8>,
}

impl Reader {
    pub(super) fn new(sender: Side, budget: Budget) -> Self {
        Self {
            sender,
            target: Target::MAINNET,
            number: 0,
            offset: 0,
            head: None,
            messages: Messages::new(budget),
            largest: 0,
            encrypted: (0, 0),
            plain: Vec::new(),
        }
    }

    /// Mean size of encrypted chunks with their lengths, in bytes.
    pub(super) fn mean(&self) -> u64 {
        let (count, size) = self.encrypted;
        size.checked_div(count).unwrap_or(USUAL)
    }

    /// Takes the next chunk; returns false if it cannot be decrypted.
    pub(super) fn chunk(
        &mut self,
        chunk: Chunk<'_>,
        time: Timestamp,
        session: &mut Session,
        sink: &mut Sink<'_>,
    ) -> bool {
        let (number, offset, raw) = (self.number, self.offset, chunk.raw);
        self.number += 1;
        self.offset += raw.len() as u64;
        let body = raw.get(HEADER..).unwrap_or_default();
        let mut plain = std::mem::take(&mut self.plain);
        let good = number == 0 || session.open(self.sender, number, body, &mut plain);
        if let Some(initiator) = session.proof() {
            sink(Event::Established { initiator, time });
        }
        let text = if number == 0 { body } else { &plain };
        sink(Event::Chunk(ChunkEvent {
            sender: self.sender,
            number,
            offset,
            began: chunk.began,
            time,
            raw,
            plain: good.then_some(text),
        }));
        let chunk = PlainChunk {
            number,
            raw: offset..self.offset,
            began: chunk.began,
            time,
            text,
        };
        if good {
            self.plain_chunk(&chunk, sink);
        } else if !session.is_hopeless() {
            self.interrupt(sink);
            let (sender, chunk) = (self.sender, number);
            let remark = Remark::CannotDecrypt { sender, chunk };
            sink(Event::Remark { time, remark });
        }
        if number == 0 {
            self.head = Some(raw.to_vec());
        }
        self.plain = plain;
        good
    }

    fn plain_chunk(&mut self, chunk: &PlainChunk<'_>, sink: &mut Sink<'_>) {
        let size = chunk.raw.end - chunk.raw.start;
        if chunk.number > 0 {
            self.encrypted = (self.encrypted.0 + 1, self.encrypted.1 + size);
            self.largest = self.largest.max(size as usize);
        }
        if chunk.number > 2 {
            let (sender, layer) = (self.sender, self.messages.layer());
            self.messages.push(chunk, &mut |framed| {
                sink(Event::Message(&message(
                    sender,
                    &framed,
                    framed.decode(layer),
                )));
            });
            return;
        }
        let decoded = decode_handshake(chunk.number, chunk.text);
        if chunk.number == 0 {
            self.judge(chunk, &decoded, sink);
        }
        let framed = Framed {
            bytes: chunk.text,
            chunks: chunk.number..=chunk.number,
            start: 0,
            raw: chunk.raw.clone(),
            began: chunk.began,
            time: chunk.time,
            size: chunk.text.len() as u64,
            problem: None,
        };
        sink(Event::Message(&message(self.sender, &framed, decoded)));
    }

    /// Remarks on a connection message.
    fn judge(&mut self, chunk: &PlainChunk<'_>, decoded: &Decoded<'_>, sink: &mut Sink<'_>) {
        let (sender, bytes, target) = (self.sender, chunk.text.len(), self.target);
        let remark = match &decoded.message {
            Some(Message::Connection(message)) => {
                if message.is_dal() {
                    self.messages.set_layer(Layer::Dal);
                }
                let met = target.is_met(&message.public_key, &message.proof_of_work_stamp);
                (!met).then_some(Remark::BadProofOfWork { sender, target })
            }
            _ if ConnectionMessage::is_too_short(chunk.text) => {
                Some(Remark::TooShort { sender, bytes })
            }
            _ => Some(Remark::NotConnectionMessage { sender }),
        };
        if let Some(remark) = remark {
            let time = chunk.time;
            sink(Event::Remark { time, remark });
        }
    }

    /// Gives an unfinished message, because what follows is lost or the connection has ended.
    pub(super) fn interrupt(&mut self, sink: &mut Sink<'_>) {
        let (sender, layer) = (self.sender, self.messages.layer());
        self.messages.interrupt(&mut |framed| {
            sink(Event::Message(&message(
                sender,
                &framed,
                framed.decode(layer),
            )));
        });
    }

    /// Gives bytes that belong to no known chunk.
    pub(super) fn unframed(&mut self, bytes: &[u8], time: Timestamp, sink: &mut Sink<'_>) {
        if !bytes.is_empty() {
            let (sender, offset) = (self.sender, self.offset);
            self.offset += bytes.len() as u64;
            sink(Event::Unframed {
                sender,
                offset,
                time,
                bytes,
            });
        }
    }

    /// Gives bytes among which a chunk was searched.
    pub(super) fn give(&mut self, search: &Search, range: Range<usize>, sink: &mut Sink<'_>) {
        for (time, bytes) in search.pieces_of(range) {
            self.unframed(bytes, time, sink);
        }
    }

    /// Takes a gap.
    pub(super) fn lost(&mut self, length: u64, time: Timestamp, sink: &mut Sink<'_>) {
        let remark = Remark::BytesLost {
            sender: self.sender,
            chunk: self.number,
            offset: self.offset,
            length,
        };
        self.offset = self.offset.saturating_add(length);
        sink(Event::Remark { time, remark });
    }

    /// Goes on with chunk `number` after lost bytes.
    pub(super) fn resume(&mut self, number: u64, time: Timestamp, sink: &mut Sink<'_>) {
        let remark = Remark::Resumed {
            sender: self.sender,
            chunk: number,
            offset: self.offset,
            lost: number.saturating_sub(self.number),
        };
        self.number = number;
        if number <= 3 {
            self.messages.restart();
        }
        sink(Event::Remark { time, remark });
    }
}

fn message<'a>(sender: Side, framed: &Framed<'a>, decoded: Decoded<'a>) -> MessageEvent<'a> {
    MessageEvent {
        sender,
        kind: decoded.kind,
        began: framed.began,
        time: framed.time,
        chunks: framed.chunks.clone(),
        raw: framed.raw.clone(),
        start: framed.start,
        size: framed.size,
        plain: framed.bytes,
        message: decoded.message,
        error: decoded.error,
    }
}
