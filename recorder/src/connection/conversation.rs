//! Both directions of a connection: recognition, keys, and what is held until then.

use std::sync::Arc;

use super::direction::Direction;
use super::event::Event;
use super::held::HeldPieces;
use super::nodes::{Node, Nodes};
use super::recognition::{Recognition, Verdict};
use super::remark::{Ignored, Remark, Undecryptable};
use super::session::Session;
use super::{Opening, Sink};
use crate::budget::Budget;
use crate::p2p::message::Layer;
use crate::side::{Both, Side};
use crate::stream::Piece;
use crate::time::Timestamp;

/// How far a connection has come.
#[derive(Debug)]
enum Phase {
    Undecided,
    Recognised(Arc<Node>),
    Ignored,
}

/// Both directions of a connection, in order.
#[derive(Debug)]
pub(super) struct Conversation {
    nodes: Arc<Nodes>,
    opening: Opening,
    phase: Phase,
    session: Session,
    held: HeldPieces,
    directions: Both<Direction>,
    recognition: Recognition,
}

impl Conversation {
    pub(super) fn new(nodes: Arc<Nodes>, opening: Opening, budget: Budget) -> Self {
        Self {
            nodes,
            opening,
            phase: Phase::Undecided,
            session: Session::default(),
            held: HeldPieces::default(),
            directions: Both {
                local: Direction::new(Side::Local, budget.clone()),
                remote: Direction::new(Side::Remote, budget),
            },
            recognition: Recognition::new(opening.seen),
        }
    }

    pub(super) fn node(&self) -> Option<&Arc<Node>> {
        match &self.phase {
            Phase::Recognised(node) => Some(node),
            _ => None,
        }
    }

    pub(super) fn initiator(&self) -> Option<Side> {
        self.session.initiator().or(self.opening.initiator)
    }

    pub(super) fn is_ignored(&self) -> bool {
        matches!(self.phase, Phase::Ignored)
    }

    pub(super) fn is_searching(&self) -> bool {
        Side::BOTH
            .iter()
            .any(|side| self.directions.of(*side).is_searching())
    }

    /// Takes the next piece that `sender` sent.
    pub(super) fn piece(&mut self, sender: Side, piece: Piece<'_>, sink: &mut Sink<'_>) {
        match self.phase {
            Phase::Ignored => {}
            Phase::Undecided => {
                self.held.push(sender, piece);
                self.recognition.take(sender, piece);
                self.recognise(time_of(piece), sink);
            }
            Phase::Recognised(_) => {
                if self.held.has(sender) {
                    self.held.push(sender, piece);
                } else {
                    self.deliver(sender, piece, sink);
                }
                if self.establish(sink) || self.fail_if_late(time_of(piece), sink) {
                    self.drain(sink);
                }
            }
        }
    }

    fn recognise(&mut self, time: Timestamp, sink: &mut Sink<'_>) {
        match self.recognition.verdict(&self.nodes, self.held.is_full()) {
            Verdict::Node(node) => self.recognised(node, time, sink),
            Verdict::Ignored(reason) => self.ignore(reason, time, sink),
            Verdict::Undecided => {}
        }
    }

    fn ignore(&mut self, reason: Ignored, time: Timestamp, sink: &mut Sink<'_>) {
        self.phase = Phase::Ignored;
        self.held = HeldPieces::default();
        sink(Event::Ignored { reason, time });
    }

    fn recognised(&mut self, node: Arc<Node>, time: Timestamp, sink: &mut Sink<'_>) {
        sink(Event::Recognised { node: &node, time });
        for side in Side::BOTH {
            self.directions.of_mut(side).set_node(&node);
        }
        self.phase = Phase::Recognised(node);
        self.drain(sink);
    }

    /// Replaces the nodes.
    pub(super) fn set_nodes(&mut self, nodes: Arc<Nodes>, sink: &mut Sink<'_>) {
        self.nodes = nodes;
        if matches!(self.phase, Phase::Undecided) {
            self.recognise(self.held.last_time(), sink);
        }
    }

    /// Gives a piece to its direction, and holds what cannot be processed yet.
    fn deliver(&mut self, sender: Side, piece: Piece<'_>, sink: &mut Sink<'_>) {
        let direction = self.directions.of_mut(sender);
        let rest = match piece {
            Piece::Bytes { offset, time, data } => {
                let taken = direction.feed(data, time, &mut self.session, sink);
                let (offset, data) = (offset + taken as u64, &data[taken..]);
                (!data.is_empty()).then_some(Piece::Bytes { offset, time, data })
            }
            Piece::Gap { length, time, .. } => {
                let taken = direction.gap(length, time, &mut self.session, sink);
                (!taken).then_some(piece)
            }
        };
        if let Some(rest) = rest {
            self.held.push(sender, rest);
        }
    }

    /// Delivers what is held, in the order in which it came, as far as that is possible.
    fn drain(&mut self, sink: &mut Sink<'_>) {
        loop {
            for _ in 0..self.held.len() {
                let Some((sender, held)) = self.held.pop() else {
                    break;
                };
                self.deliver(sender, held.piece(), sink);
            }
            if !self.establish(sink) {
                break;
            }
        }
    }

    /// Derives the keys once both connection messages are there; returns true if the session is not pending any more.
    fn establish(&mut self, sink: &mut Sink<'_>) -> bool {
        let Phase::Recognised(node) = &self.phase else {
            return false;
        };
        if !self.session.is_pending() {
            return false;
        }
        let time = self.held.last_time();
        let lost = |side: &Side| self.directions.of(*side).has_lost_connection_message();
        if let Some(sender) = Side::BOTH.into_iter().find(lost) {
            self.fail(Undecryptable::ConnectionMessageLost { sender }, time, sink);
            return true;
        }
        let (local, remote) = (&self.directions.local, &self.directions.remote);
        let messages = local.connection_message().zip(remote.connection_message());
        let Some((local_message, remote_message)) = messages else {
            return false;
        };
        let messages = Both {
            local: local_message,
            remote: remote_message,
        };
        let dal = [local.layer(), remote.layer()].contains(&Layer::Dal);
        match Session::new(node, &messages, self.opening.initiator) {
            Some(session) => self.session = session,
            None => {
                let sender = Side::Remote;
                self.fail(Undecryptable::NoPublicKey { sender }, time, sink);
            }
        }
        for side in Side::BOTH.into_iter().filter(|_| dal) {
            self.directions.of_mut(side).set_layer(Layer::Dal);
        }
        true
    }

    /// Gives up decryption if too much is held because a connection message is missing.
    fn fail_if_late(&mut self, time: Timestamp, sink: &mut Sink<'_>) -> bool {
        let late = self.session.is_pending() && self.held.is_full();
        if late {
            self.fail_without_message(time, sink);
        }
        late
    }

    fn fail_without_message(&mut self, time: Timestamp, sink: &mut Sink<'_>) {
        let missing = |side: &Side| self.directions.of(*side).connection_message().is_none();
        let sender = Side::BOTH.into_iter().find(missing);
        let sender = sender.unwrap_or(Side::Remote);
        self.fail(Undecryptable::ConnectionMessageLate { sender }, time, sink);
    }

    fn fail(&mut self, reason: Undecryptable, time: Timestamp, sink: &mut Sink<'_>) {
        self.session = Session::hopeless();
        for sender in Side::BOTH {
            let since = self.directions.of(sender).number();
            let remark = Remark::Undecryptable {
                sender,
                since,
                reason,
            };
            sink(Event::Remark { time, remark });
        }
    }

    /// See [`super::Connection::search`].
    pub(super) fn search(&mut self, work: u64, sink: &mut Sink<'_>) -> bool {
        let mut more = false;
        for side in Side::BOTH {
            let direction = self.directions.of_mut(side);
            more |= direction.search(work, &mut self.session, sink);
        }
        more
    }

    /// Ends both directions.
    pub(super) fn end(&mut self, sink: &mut Sink<'_>) {
        let time = self.held.last_time();
        match self.phase {
            Phase::Ignored => return,
            Phase::Undecided if self.nodes.awaited && self.recognition.has_bytes() => {
                return self.ignore(Ignored::IdentityLate, time, sink);
            }
            Phase::Undecided => return self.ignore(Ignored::Ended, time, sink),
            Phase::Recognised(_) => {}
        }
        if self.session.is_pending() {
            self.fail_without_message(time, sink);
            self.drain(sink);
        }
        for side in Side::BOTH {
            self.directions.of_mut(side).end(&mut self.session, sink);
        }
        // Nothing follows the end.
        self.phase = Phase::Ignored;
    }
}

fn time_of(piece: Piece<'_>) -> Timestamp {
    match piece {
        Piece::Bytes { time, .. } | Piece::Gap { time, .. } => time,
    }
}
