//! One direction of a connection: chunks, decryption, messages; the search for the next chunk after lost bytes.

mod reader;

use self::reader::Reader;
use super::Sink;
use super::event::Event;
use super::nodes::Node;
use super::remark::{Remark, Undecryptable};
use super::session::Session;
use crate::budget::Budget;
use crate::p2p::chunk::{self, Chunker, MIN_ENCRYPTED};
use crate::p2p::message::Layer;
use crate::p2p::resync::{Before, Found, Outcome, Search};
use crate::side::Side;
use crate::time::Timestamp;

/// Work of a search that cannot go on later, in bytes to authenticate: about ten milliseconds.
const QUICK_WORK: u64 = 32 << 20;

/// How bytes are read.
#[derive(Debug)]
enum State {
    /// They continue chunks.
    Framed,
    /// They are the end of a chunk whose beginning was lost; that many are left. Then the search knows where to begin.
    Tail(u64, Box<Search>),
    /// The next chunk is searched among them.
    Searching(Box<Search>),
    /// No chunks are known among them any more.
    Unframed,
}

impl State {
    /// A search that begins after `left` bytes.
    fn tail(left: u64, search: Box<Search>) -> Self {
        match left {
            0 => Self::Searching(search),
            _ => Self::Tail(left, search),
        }
    }
}

/// One direction of a connection.
#[derive(Debug)]
pub(super) struct Direction {
    chunker: Chunker,
    state: State,
    reader: Reader,
    budget: Budget,
}

impl Direction {
    pub(super) fn new(sender: Side, budget: Budget) -> Self {
        Self {
            chunker: Chunker::default(),
            state: State::Framed,
            reader: Reader::new(sender, budget.clone()),
            budget,
        }
    }

    /// Says whose identity decrypts the connection, before the first bytes.
    pub(super) fn set_node(&mut self, node: &Node) {
        self.reader.target = node.target;
    }

    pub(super) fn set_layer(&mut self, layer: Layer) {
        self.reader.messages.set_layer(layer);
    }

    /// The layer that the side's connection message names.
    pub(super) fn layer(&self) -> Layer {
        self.reader.messages.layer()
    }

    /// The connection message with its length.
    pub(super) fn connection_message(&self) -> Option<&[u8]> {
        self.reader.head.as_deref()
    }

    /// True if bytes of the connection message were lost.
    pub(super) fn has_lost_connection_message(&self) -> bool {
        self.reader.head.is_none() && matches!(self.state, State::Unframed)
    }

    /// Number of the next chunk.
    pub(super) fn number(&self) -> u64 {
        self.reader.number
    }

    pub(super) fn is_searching(&self) -> bool {
        matches!(self.state, State::Tail(..) | State::Searching(_))
    }

    /// Takes bytes; returns how many. Fewer than all are taken as long as the session is pending.
    pub(super) fn feed(
        &mut self,
        bytes: &[u8],
        time: Timestamp,
        session: &mut Session,
        sink: &mut Sink<'_>,
    ) -> usize {
        self.read(bytes, time, session, sink, true)
    }

    /// See [`Self::feed`]. If there is no room for more bytes in a search, it is run once more with `last_chance`.
    fn read(
        &mut self,
        bytes: &[u8],
        time: Timestamp,
        session: &mut Session,
        sink: &mut Sink<'_>,
        last_chance: bool,
    ) -> usize {
        let mut rest = bytes;
        while !rest.is_empty() && !self.must_wait(session) {
            match &mut self.state {
                State::Framed => {
                    let Some(chunk) = self.chunker.next(&mut rest, time) else {
                        break;
                    };
                    let size = chunk.raw.len() as u64;
                    let good = self.reader.chunk(chunk, time, session, sink);
                    if !good && !session.is_hopeless() {
                        let number = self.reader.number;
                        let work = Search::MAX_WORK_WITHOUT_GAP;
                        let search = self.search_from(number - 1, size, Some(number), work);
                        self.state = State::Searching(search);
                    }
                }
                State::Tail(left, _) => {
                    let size = usize::try_from(*left).unwrap_or(usize::MAX).min(rest.len());
                    let (tail, after) = rest.split_at(size);
                    *left -= size as u64;
                    rest = after;
                    let done = *left == 0;
                    self.reader.unframed(tail, time, sink);
                    if done
                        && let State::Tail(_, search) =
                            std::mem::replace(&mut self.state, State::Unframed)
                    {
                        self.state = State::Searching(search);
                    }
                }
                State::Searching(search) => {
                    if search.push(rest, time) {
                        rest = &[];
                        continue;
                    }
                    let size = search.len();
                    if last_chance {
                        self.search(QUICK_WORK, session, sink);
                    }
                    // Without success there is no room for more.
                    if matches!(&self.state, State::Searching(search) if search.len() == size) {
                        self.give_up(time, sink);
                    }
                }
                State::Unframed => self.reader.unframed(std::mem::take(&mut rest), time, sink),
            }
        }
        bytes.len() - rest.len()
    }

    /// True if the next chunk is encrypted, and its key is not known yet.
    fn must_wait(&self, session: &Session) -> bool {
        session.is_pending() && self.reader.number > 0
    }

    fn search_from(&self, number: u64, lost: u64, next: Option<u64>, work: u64) -> Box<Search> {
        let before = Before {
            number,
            lost,
            next,
            mean: self.reader.mean(),
            largest: self.reader.largest,
        };
        Box::new(Search::new(before, work, self.budget.clone()))
    }

    /// Takes a gap; returns false if it must be given again when the session is not pending any more.
    pub(super) fn gap(
        &mut self,
        length: u64,
        time: Timestamp,
        session: &mut Session,
        sink: &mut Sink<'_>,
    ) -> bool {
        if self.must_wait(session) {
            return false;
        }
        // A gap ends the bytes in which a search may succeed.
        self.search(QUICK_WORK, session, sink);
        self.reader.interrupt(sink);
        let state = std::mem::replace(&mut self.state, State::Unframed);
        self.state = match state {
            State::Framed if self.reader.number > 0 && !session.is_hopeless() => {
                self.after_chunk(length)
            }
            State::Tail(left, search) if left >= length => State::tail(left - length, search),
            State::Tail(left, mut search) => {
                search.gap(length - left);
                State::Searching(search)
            }
            State::Searching(mut search) => {
                self.reader.give(&search, 0..search.len(), sink);
                search.gap(length);
                State::Searching(search)
            }
            State::Framed | State::Unframed => State::Unframed,
        };
        let (partial, began) = (self.chunker.partial(), self.chunker.began());
        self.reader.unframed(partial, began, sink);
        self.chunker.clear();
        self.reader.lost(length, time, sink);
        true
    }

    /// The state after a gap that begins in a chunk or before one.
    fn after_chunk(&self, length: u64) -> State {
        let partial = self.chunker.partial();
        let (number, work) = (self.reader.number, Search::MAX_WORK);
        let passed = (partial.len() as u64).saturating_add(length);
        let size = chunk::size(partial).filter(|size| *size >= MIN_ENCRYPTED);
        match size.map(|size| size as u64) {
            Some(size) if size >= passed => {
                let search = self.search_from(number, size, Some(number + 1), work);
                State::tail(size - passed, search)
            }
            Some(size) => State::Searching(self.search_from(number + 1, passed - size, None, work)),
            None => State::Searching(self.search_from(number, passed, None, work)),
        }
    }

    /// Searches for the next chunk; returns true if there is more to do now.
    pub(super) fn search(&mut self, work: u64, session: &mut Session, sink: &mut Sink<'_>) -> bool {
        let State::Searching(search) = &mut self.state else {
            return false;
        };
        match search.run(&mut session.openers(self.reader.sender), work) {
            Outcome::More => return true,
            Outcome::Waiting => return false,
            Outcome::Failed => {
                let time = search.last_time();
                self.give_up(time, sink);
            }
            Outcome::Found(found) => self.resume(found, session, sink),
        }
        self.is_searching()
    }

    fn give_up(&mut self, time: Timestamp, sink: &mut Sink<'_>) {
        if let State::Searching(search) = std::mem::replace(&mut self.state, State::Unframed) {
            let remark = Remark::Undecryptable {
                sender: self.reader.sender,
                since: search.number(),
                reason: Undecryptable::NotFound,
            };
            sink(Event::Remark { time, remark });
            self.reader.give(&search, 0..search.len(), sink);
        }
    }

    fn resume(&mut self, found: Found, session: &mut Session, sink: &mut Sink<'_>) {
        let State::Searching(search) = std::mem::replace(&mut self.state, State::Framed) else {
            return;
        };
        session.prove(found.opener);
        self.reader.give(&search, 0..found.position, sink);
        let mut pieces = search.pieces_of(found.position..search.len()).peekable();
        let time = pieces.peek().map(|piece| piece.0).unwrap_or_default();
        self.reader.resume(found.number, time, sink);
        for (time, bytes) in pieces {
            // Searches do not nest: the next one is run later.
            self.read(bytes, time, session, sink, false);
        }
    }

    /// Ends the direction: gives what is held or unfinished.
    pub(super) fn end(&mut self, session: &mut Session, sink: &mut Sink<'_>) {
        self.search(QUICK_WORK, session, sink);
        self.reader.interrupt(sink);
        let (partial, began) = (self.chunker.partial(), self.chunker.began());
        self.reader.unframed(partial, began, sink);
        self.chunker.clear();
        if let State::Searching(search) = std::mem::replace(&mut self.state, State::Unframed) {
            self.reader.give(&search, 0..search.len(), sink);
        }
    }
}
