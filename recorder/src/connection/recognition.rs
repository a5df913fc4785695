//! Recognition: the node's public key in its first bytes says whose connection it is.

use std::sync::Arc;

use super::nodes::{Node, Nodes};
use super::remark::Ignored;
use crate::p2p::base58::PeerId;
use crate::p2p::chunk::{self, HEADER};
use crate::p2p::handshake::ConnectionMessage;
use crate::side::Side;
use crate::stream::Piece;

/// Bytes of the first chunk up to the end of the public key.
const RECOGNISABLE: usize = HEADER + 2 + 32;
/// Bytes that a peer may send before the node sends any.
const MAX_SILENCE: u64 = 4 << 10;

/// The beginning of a connection, as far as it is needed to recognise it.
#[derive(Debug)]
pub(super) struct Recognition {
    /// True if the connection was opened after the recorder started.
    opening_seen: bool,
    /// The node's first bytes.
    first: Vec<u8>,
    /// Bytes that the peer sent.
    from_peer: u64,
    /// Bytes are missing without which it cannot be recognised.
    missing: Option<Ignored>,
}

/// Whose connection it is.
pub(super) enum Verdict {
    Node(Arc<Node>),
    Ignored(Ignored),
    Undecided,
}

impl Recognition {
    pub(super) fn new(opening_seen: bool) -> Self {
        Self {
            opening_seen,
            first: Vec::new(),
            from_peer: 0,
            missing: None,
        }
    }

    /// Whether the node has sent anything.
    pub(super) fn has_bytes(&self) -> bool {
        !self.first.is_empty()
    }

    /// Takes the next piece that `sender` sent.
    pub(super) fn take(&mut self, sender: Side, piece: Piece<'_>) {
        match (sender, piece) {
            (Side::Remote, Piece::Bytes { data, .. }) => self.from_peer += data.len() as u64,
            // The node may never send again.
            (Side::Remote, Piece::Gap { offset: 0, .. }) if !self.opening_seen => {
                self.missing = Some(Ignored::OpenedBefore);
            }
            (Side::Remote, Piece::Gap { length, .. }) => {
                self.from_peer = self.from_peer.saturating_add(length)
            }
            (Side::Local, Piece::Bytes { data, .. }) => {
                let missing = RECOGNISABLE.saturating_sub(self.first.len());
                self.first.extend(&data[..missing.min(data.len())]);
            }
            (Side::Local, Piece::Gap { offset, .. }) if self.first.len() < RECOGNISABLE => {
                let before = offset == 0 && !self.opening_seen;
                self.missing = Some(if before {
                    Ignored::OpenedBefore
                } else {
                    Ignored::FirstBytesLost
                });
            }
            (Side::Local, Piece::Gap { .. }) => {}
        }
    }

    /// Decides, as far as that is possible. `is_full` tells that no more bytes are held until then.
    pub(super) fn verdict(&self, nodes: &Nodes, is_full: bool) -> Verdict {
        if let Some(reason) = self.missing {
            return Verdict::Ignored(reason);
        }
        let length = chunk::size(&self.first).map(|size| size - HEADER);
        let key: Option<&[u8; 32]> = self.first.get(HEADER + 2..).and_then(<[u8]>::first_chunk);
        if let Some(node) = key.and_then(|key| nodes.find(key)) {
            return Verdict::Node(node.clone());
        }
        Verdict::Ignored(match key {
            _ if length.is_some_and(|n| !ConnectionMessage::is_plausible(n)) => Ignored::NotP2p,
            Some(key) if !nodes.awaited => Ignored::OtherKey(PeerId::from_public_key(key)),
            _ if self.first.is_empty() && self.from_peer > MAX_SILENCE => Ignored::Silent,
            _ if is_full && nodes.awaited => Ignored::IdentityLate,
            _ if is_full => Ignored::NotP2p,
            _ => return Verdict::Undecided,
        })
    }
}
