//! Cuts the plain text of chunks into messages: they may share a chunk, and end anywhere in a later one.

use std::ops::{Range, RangeInclusive};

use super::message::{self, Decoded, HEADER, Kind, LENGTH, Layer, MAX_LENGTH};
use super::read::Reason;
use crate::budget::{Budget, Buffer};
use crate::time::Timestamp;

/// The plain text of a chunk, and its place.
#[derive(Clone, Debug)]
pub struct PlainChunk<'a> {
    /// Number of the chunk.
    pub number: u64,
    /// Offsets of the encrypted chunk in its direction.
    pub raw: Range<u64>,
    /// When its first byte was captured.
    pub began: Timestamp,
    /// When its last byte was captured.
    pub time: Timestamp,
    /// The plain text.
    pub text: &'a [u8],
}

/// A message in the plain text, and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Framed<'a> {
    /// The bytes, from the length on; only the first ones if there is a problem.
    pub bytes: &'a [u8],
    /// The chunks that contain the message.
    pub chunks: RangeInclusive<u64>,
    /// Where it begins in the plain text of its first chunk.
    pub start: usize,
    /// Offsets of its encrypted chunks in their direction.
    pub raw: Range<u64>,
    /// When the first byte of its first chunk was captured.
    pub began: Timestamp,
    /// When the last byte of its last chunk was captured.
    pub time: Timestamp,
    /// Size of the message with its length field, in bytes; of an unfinished message, of what was captured.
    pub size: u64,
    /// Why it is not decoded.
    pub problem: Option<Reason>,
}

impl<'a> Framed<'a> {
    /// Decodes the message.
    pub fn decode(&self, layer: Layer) -> Decoded<'a> {
        let Some(problem) = self.problem else {
            return message::decode(self.bytes, layer);
        };
        let kind = known_tag(self.bytes, layer).unwrap_or(Kind::Unknown);
        Decoded::failed(kind, 0, problem)
    }
}

/// How certain the beginnings of messages are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Messages follow each other.
    Reading,
    /// Bytes were lost; a message begins at the start of some chunk.
    Seeking,
    /// The message that is read seems to be one, which its end at the end of a chunk proves.
    Tentative,
}

/// Where the message that is read begins.
#[derive(Clone, Copy, Debug, Default)]
struct MessageStart {
    chunk: u64,
    start: usize,
    raw: u64,
    began: Timestamp,
    /// The last chunk so far, its end and its time.
    last: u64,
    end: u64,
    time: Timestamp,
}

/// Cuts the chunks of one direction into messages.
#[derive(Debug)]
pub struct Messages {
    mode: Mode,
    layer: Layer,
    /// The beginning of the message that is read.
    buffer: Buffer,
    /// Bytes of the message that have passed. The buffer may have fewer.
    seen: u64,
    place: MessageStart,
}

impl Messages {
    /// Begins with the first message of a connection. Long unfinished messages count against the budget.
    pub fn new(budget: Budget) -> Self {
        Self {
            mode: Mode::Reading,
            layer: Layer::Node,
            buffer: Buffer::new(budget),
            seen: 0,
            place: MessageStart::default(),
        }
    }

    /// Sets the layer of the connection.
    pub fn set_layer(&mut self, layer: Layer) {
        self.layer = layer;
    }

    /// The layer of the connection.
    pub fn layer(&self) -> Layer {
        self.layer
    }

    /// Takes the next chunk, and gives the messages that end in it.
    pub fn push(&mut self, chunk: &PlainChunk<'_>, sink: &mut dyn FnMut(Framed<'_>)) {
        if self.mode == Mode::Seeking && !self.begins(chunk.text) {
            return;
        }
        let mut at = 0;
        while at < chunk.text.len() && self.mode != Mode::Seeking {
            if self.seen == 0 {
                self.begin(chunk, at);
            }
            (self.place.last, self.place.end) = (chunk.number, chunk.raw.end);
            self.place.time = chunk.time;
            let rest = &chunk.text[at..];
            at += match whole(rest).filter(|_| self.seen == 0) {
                Some(message) => {
                    sink(self.framed(message, None));
                    message.len()
                }
                None => self.collect(rest, sink),
            };
        }
    }

    fn begin(&mut self, chunk: &PlainChunk<'_>, start: usize) {
        self.place.chunk = chunk.number;
        self.place.start = start;
        self.place.raw = chunk.raw.start;
        self.place.began = chunk.began;
    }

    /// Takes bytes of a message that does not lie in one chunk; returns their number.
    fn collect(&mut self, rest: &[u8], sink: &mut dyn FnMut(Framed<'_>)) -> usize {
        let goal = match self.size() {
            None => LENGTH as u64,
            Some(size) if size > LENGTH as u64 + MAX_LENGTH => {
                sink(self.framed(self.buffer.bytes(), Some(Reason::TooLongMessage(size))));
                self.seek();
                return 0;
            }
            // The tag first: it determines how much is kept.
            Some(size) if self.seen < HEADER as u64 => size.min(HEADER as u64),
            Some(size) => size,
        };
        let missing = usize::try_from(goal - self.seen).unwrap_or(usize::MAX);
        let taken = self.keep(&rest[..missing.min(rest.len())]);
        if let Some(size) = self.size().filter(|size| *size == self.seen) {
            self.end(size, taken == rest.len(), sink);
        }
        taken
    }

    /// The message's size with its length, in bytes, if its length is there.
    fn size(&self) -> Option<u64> {
        let length: &[u8; LENGTH] = self.buffer.bytes().first_chunk()?;
        Some(LENGTH as u64 + u64::from(u32::from_be_bytes(*length)))
    }

    /// Appends bytes to the buffer, as far as the message is to be kept; returns their number.
    fn keep(&mut self, bytes: &[u8]) -> usize {
        let kept = self.buffer.bytes().len();
        let max = known_tag(self.buffer.bytes(), self.layer).map_or(Buffer::FREE, Kind::max_size);
        let whole = self.size().is_none_or(|size| size <= max as u64);
        let limit = if whole { max } else { Buffer::FREE };
        if kept as u64 == self.seen {
            let room = limit.saturating_sub(kept).min(bytes.len());
            if !self.buffer.extend(&bytes[..room]) {
                self.buffer.shrink();
            }
        }
        self.seen += bytes.len() as u64;
        bytes.len()
    }

    /// Ends a message that was collected.
    fn end(&mut self, size: u64, ends_chunk: bool, sink: &mut dyn FnMut(Framed<'_>)) {
        if self.mode == Mode::Tentative && !ends_chunk {
            return self.seek();
        }
        self.mode = Mode::Reading;
        let kept = self.buffer.bytes();
        let problem = (kept.len() as u64 != size).then_some(Reason::NotKept(size));
        sink(self.framed(kept, problem));
        self.reset();
    }

    fn framed<'a>(&self, bytes: &'a [u8], problem: Option<Reason>) -> Framed<'a> {
        let place = &self.place;
        Framed {
            bytes,
            chunks: place.chunk..=place.last,
            start: place.start,
            raw: place.raw..place.end,
            began: place.began,
            time: place.time,
            size: self.seen.max(bytes.len() as u64),
            problem,
        }
    }

    fn reset(&mut self) {
        self.buffer.clear();
        self.seen = 0;
    }

    fn seek(&mut self) {
        self.reset();
        self.mode = Mode::Seeking;
    }

    /// Ends the message that is read, because what follows is lost or the connection has ended.
    pub fn interrupt(&mut self, sink: &mut dyn FnMut(Framed<'_>)) {
        if self.seen > 0 && self.mode == Mode::Reading {
            let (seen, size) = (self.seen, self.size());
            let problem = Some(Reason::Unfinished { seen, size });
            sink(self.framed(self.buffer.bytes(), problem));
        }
        self.seek();
    }

    /// Goes on after an interruption, with a chunk that begins with a message.
    pub fn restart(&mut self) {
        self.reset();
        self.mode = Mode::Reading;
    }

    /// True if a chunk seems to begin with a message: all that lie in it are of known kinds and follow their grammar, and they end
    /// with the chunk, or the last one goes on in the next.
    fn begins(&mut self, text: &[u8]) -> bool {
        let mut rest = text;
        while let Some(message) = whole(rest) {
            let decoded = message::decode(message, self.layer);
            if decoded.kind == Kind::Unknown || decoded.error.is_some() {
                return false;
            }
            rest = &rest[message.len()..];
        }
        if rest.is_empty() {
            // An empty chunk shows nothing.
            let shown = !text.is_empty();
            self.mode = if shown { Mode::Reading } else { self.mode };
            return shown;
        }
        let size = rest.first_chunk().map(|n| u32::from_be_bytes(*n) as usize);
        let kind = known_tag(rest, self.layer);
        let plausible = size
            .zip(kind)
            .is_some_and(|(size, kind)| size + LENGTH <= kind.max_size());
        if plausible {
            self.mode = Mode::Tentative;
        }
        plausible
    }
}

/// The kind of a message of which the tag is there, unless the tag is unknown.
fn known_tag(bytes: &[u8], layer: Layer) -> Option<Kind> {
    let tag = bytes.get(LENGTH..)?.first_chunk()?;
    let kind = Kind::of_tag(u16::from_be_bytes(*tag), layer);
    (kind != Kind::Unknown).then_some(kind)
}

/// The message at the beginning, if all of it is there.
fn whole(bytes: &[u8]) -> Option<&[u8]> {
    let length = u32::from_be_bytes(*bytes.first_chunk()?);
    bytes.get(..LENGTH.checked_add(length as usize)?)
}
