//! The receiving side of a connection: chunks, and the messages in their plain text.

use std::collections::VecDeque;

use tezos_recorder::p2p::chunk::HEADER;
use tezos_recorder::p2p::cipher::Opener;
use tezos_recorder::p2p::message::{Kind, LENGTH, Layer};

use crate::Result;
use crate::log::{ConnectionLog, Counts, Entry, now};
use crate::receive::Reader;

/// Cuts what is received into chunks.
pub struct Chunks {
    reader: Reader,
    raw: Vec<u8>,
    /// Where the next chunk begins.
    at: usize,
    count: u64,
}

impl Chunks {
    pub fn new(reader: Reader) -> Self {
        Self {
            reader,
            raw: Vec::new(),
            at: 0,
            count: 0,
        }
    }

    /// The size of the next chunk with its length, if all of it is there.
    fn whole(&self) -> Option<usize> {
        let rest = &self.raw[self.at..];
        let length: [u8; HEADER] = *rest.first_chunk()?;
        let size = HEADER + usize::from(u16::from_be_bytes(length));
        (size <= rest.len()).then_some(size)
    }

    /// Waits for the next chunk and returns it with its length; nothing at the end of the connection.
    pub fn next(&mut self) -> Result<Option<&[u8]>> {
        let size = loop {
            if let Some(size) = self.whole() {
                break size;
            }
            self.raw.drain(..self.at);
            self.at = 0;
            let bytes = self.reader.read()?;
            if bytes.is_empty() {
                if self.raw.is_empty() {
                    return Ok(None);
                }
                return Err("the other node ended the connection inside of a chunk".into());
            }
            self.raw.extend_from_slice(bytes);
        };
        let from = self.at;
        self.at += size;
        self.count += 1;
        Ok(Some(&self.raw[from..self.at]))
    }

    /// Reads up to the end of the connection, whatever comes.
    pub fn drain(&mut self) {
        while self.reader.read().is_ok_and(|bytes| !bytes.is_empty()) {}
    }

    pub fn counts(&self, messages: u64) -> Counts {
        Counts {
            bytes: self.reader.bytes(),
            chunks: self.count,
            messages,
        }
    }
}

/// Decrypts chunks and writes the messages in them to the log.
pub struct Receiver<'a> {
    chunks: Chunks,
    opener: Opener,
    layer: Layer,
    log: ConnectionLog<'a>,
    plain: Vec<u8>,
    /// Plain text of which the last message is not whole.
    text: Vec<u8>,
    /// Where it begins in the plain text of all chunks.
    start: u64,
    /// Ends of chunks in the plain text of all, with their numbers.
    ends: VecDeque<(u64, u64)>,
}

impl<'a> Receiver<'a> {
    pub fn new(chunks: Chunks, opener: Opener, layer: Layer, log: ConnectionLog<'a>) -> Self {
        Self {
            chunks,
            opener,
            layer,
            log,
            plain: Vec::new(),
            text: Vec::new(),
            start: 0,
            ends: VecDeque::new(),
        }
    }

    /// Takes the next chunk; returns false at the end of the connection.
    pub fn step(&mut self) -> Result<bool> {
        let number = self.chunks.count;
        let Some(raw) = self.chunks.next()? else {
            if !self.text.is_empty() {
                return Err("the other node ended the connection inside of a message".into());
            }
            return Ok(false);
        };
        if !self.opener.open(number, &raw[HEADER..], &mut self.plain) {
            return Err(format!("chunk {number} cannot be decrypted").into());
        }
        self.text.extend_from_slice(&self.plain);
        let end = self.start + self.text.len() as u64;
        self.ends.push_back((end, number));
        self.messages();
        // All that was there is done: the next call waits.
        if self.chunks.whole().is_none() {
            self.log.flush();
        }
        Ok(true)
    }

    /// Takes whole messages from the text.
    fn messages(&mut self) {
        let (time, mut at) = (now(), 0);
        while let Some(size) = whole_message(&self.text[at..]) {
            let from = self.start + at as u64;
            let to = from + size as u64;
            let of_byte = |byte| self.ends.iter().find(|(end, _)| *end > byte);
            let number = |byte| of_byte(byte).map_or(0, |(_, number)| *number);
            let bytes = &self.text[at..at + size];
            self.log.message(&Entry {
                time,
                sent: false,
                kind: kind(bytes, self.layer),
                bytes,
                chunks: (number(from), number(to - 1)),
                valid: true,
            });
            at += size;
            while self.ends.front().is_some_and(|(end, _)| *end <= to) {
                self.ends.pop_front();
            }
        }
        self.text.drain(..at);
        self.start += at as u64;
    }

    /// Writes what is left of the log, and returns the sums.
    pub fn finish(mut self) -> Counts {
        self.log.flush();
        self.chunks.counts(self.log.received)
    }
}

fn whole_message(text: &[u8]) -> Option<usize> {
    let length: [u8; LENGTH] = *text.first_chunk()?;
    let size = LENGTH + u32::from_be_bytes(length) as usize;
    (size <= text.len()).then_some(size)
}

fn kind(bytes: &[u8], layer: Layer) -> Kind {
    let tag = bytes.get(LENGTH..).and_then(|rest| rest.first_chunk());
    tag.map_or(Kind::Unknown, |tag| {
        Kind::of_tag(u16::from_be_bytes(*tag), layer)
    })
}
