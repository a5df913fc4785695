//! How far the recording of a connection has come, for the list of connections.

use serde::{Deserialize, Serialize};

use super::event::Event;
use super::remark::{Ignored, Remark, Undecryptable};
use crate::p2p::handshake::{Ack, Motive};
use crate::p2p::message::Message;
use crate::side::Both;

/// The state of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Not both sides have accepted yet; of a connection that has ended, they never did.
    #[default]
    Handshake,
    /// Both sides have accepted, and all captured chunks are decrypted.
    Decrypted,
    /// A side has refused the connection.
    Refused,
    /// Chunks were decrypted, but those of a side are not any more.
    PartlyDecrypted,
    /// No encrypted chunk was decrypted.
    Undecryptable,
    /// It is a connection of the node that cannot be recorded.
    Unrecorded,
    /// It is none of the node with its peers.
    Ignored,
}

impl State {
    /// The name, in snake case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Handshake => "handshake",
            Self::Decrypted => "decrypted",
            Self::Refused => "refused",
            Self::PartlyDecrypted => "partly_decrypted",
            Self::Undecryptable => "undecryptable",
            Self::Unrecorded => "unrecorded",
            Self::Ignored => "ignored",
        }
    }
}

/// The facts in a connection's events from which its state follows.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    ignored: Option<Ignored>,
    accepted: Both<bool>,
    refused: Option<&'static str>,
    /// Whether an encrypted chunk was decrypted.
    decrypted: bool,
    /// Why chunks of a side are not decrypted at present.
    broken: Both<Option<&'static str>>,
}

impl Progress {
    /// Takes an event.
    pub(crate) fn take(&mut self, event: &Event<'_>) {
        match event {
            Event::Ignored { reason, .. } => self.ignored = Some(*reason),
            Event::Chunk(chunk) => self.decrypted |= chunk.number > 0 && chunk.plain.is_some(),
            Event::Message(message) => match &message.message {
                Some(Message::Ack(Ack::Ack)) => *self.accepted.of_mut(message.sender) = true,
                Some(Message::Ack(Ack::NackV0)) => self.refused = Some("no_motive"),
                Some(Message::Ack(Ack::Nack(nack))) => self.refused = Some(motive(nack.motive)),
                _ => {}
            },
            Event::Remark { remark, .. } => self.take_remark(remark),
            Event::Recognised { .. } | Event::Established { .. } | Event::Unframed { .. } => {}
        }
    }

    fn take_remark(&mut self, remark: &Remark) {
        match *remark {
            Remark::CannotDecrypt { sender, .. } => {
                *self.broken.of_mut(sender) = Some("cannot_decrypt");
            }
            Remark::Undecryptable { sender, reason, .. } => {
                *self.broken.of_mut(sender) = Some(reason.code());
            }
            Remark::Resumed { sender, .. } => *self.broken.of_mut(sender) = None,
            Remark::BadProofOfWork { .. }
            | Remark::TooShort { .. }
            | Remark::NotConnectionMessage { .. }
            | Remark::BytesLost { .. } => {}
        }
    }

    /// The state, and the reason for one that is not usual.
    pub(crate) fn state(&self) -> (State, Option<&'static str>) {
        if let Some(ignored) = &self.ignored {
            let state = if ignored.is_of_node() {
                State::Unrecorded
            } else {
                State::Ignored
            };
            return (state, Some(ignored.code()));
        }
        let broken = self.broken.local.or(self.broken.remote);
        match (broken, self.refused) {
            (Some(_), _) if self.decrypted => (State::PartlyDecrypted, broken),
            (Some(_), _) => (State::Undecryptable, broken),
            (None, Some(_)) => (State::Refused, self.refused),
            (None, None) if self.accepted.local && self.accepted.remote => (State::Decrypted, None),
            (None, None) => (State::Handshake, None),
        }
    }
}

impl Undecryptable {
    /// The name of the reason, in snake case.
    fn code(self) -> &'static str {
        match self {
            Self::ConnectionMessageLost { .. } => "connection_message_lost",
            Self::NoPublicKey { .. } => "no_public_key",
            Self::ConnectionMessageLate { .. } => "connection_message_missing",
            Self::NotFound => "next_chunk_not_found",
        }
    }
}

impl Ignored {
    /// The name of the reason, in snake case.
    fn code(&self) -> &'static str {
        match self {
            Self::NotP2p => "not_p2p",
            Self::OtherKey(_) => "other_key",
            Self::Silent => "silent_node",
            Self::OpenedBefore => "opened_before",
            Self::FirstBytesLost => "first_bytes_lost",
            Self::IdentityLate => "identity_late",
            Self::Ended => "ended_early",
        }
    }

    /// Whether it may be a connection of the node with a peer.
    fn is_of_node(&self) -> bool {
        match self {
            Self::OpenedBefore | Self::FirstBytesLost | Self::IdentityLate => true,
            Self::NotP2p | Self::OtherKey(_) | Self::Silent | Self::Ended => false,
        }
    }
}

/// The name of a motive, in snake case.
fn motive(Motive(motive): Motive) -> &'static str {
    match motive {
        0 => "no_motive",
        1 => "too_many_connections",
        2 => "unknown_chain_name",
        3 => "deprecated_p2p_version",
        4 => "deprecated_distributed_db_version",
        5 => "already_connected",
        _ => "unknown_motive",
    }
}
