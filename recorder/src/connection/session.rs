//! The keys of a connection: nonces for both directions, under each assumption of who opened it.

use super::nodes::Node;
use crate::p2p::chunk::HEADER;
use crate::p2p::cipher::{Opener, first_nonces};
use crate::p2p::handshake::ConnectionMessage;
use crate::side::{Both, Side};

/// Openers for both directions, if `initiator` opened the connection.
#[derive(Debug)]
struct Assumption {
    initiator: Side,
    openers: Both<Opener>,
}

/// The keys of a connection.
#[derive(Debug, Default)]
pub(super) struct Session {
    /// Two until one is proven; none before both connection messages are there, and if nothing can be decrypted.
    assumptions: Vec<Assumption>,
    /// True once a chunk was decrypted.
    proven: bool,
    /// True if [`Self::proof`] has said so.
    announced: bool,
    /// True if nothing can be decrypted.
    hopeless: bool,
}

impl Session {
    /// Derives the keys from both connection messages with their lengths. Both assumptions are tried, `hint` first. Nothing if the
    /// peer's message has no public key.
    pub(super) fn new(node: &Node, messages: &Both<&[u8]>, hint: Option<Side>) -> Option<Self> {
        let peer = ConnectionMessage::public_key(messages.remote.get(HEADER..)?)?;
        let key = node.identity.channel_key(peer);
        let first = hint.unwrap_or(Side::Local);
        let assumptions = [first, first.other()].map(|initiator| {
            let nonces = first_nonces(messages, initiator);
            let openers = Both {
                local: Opener::new(key.clone(), nonces.local),
                remote: Opener::new(key.clone(), nonces.remote),
            };
            Assumption { initiator, openers }
        });
        Some(Self {
            assumptions: assumptions.into(),
            ..Self::default()
        })
    }

    /// A session of which nothing can be decrypted.
    pub(super) fn hopeless() -> Self {
        Self {
            hopeless: true,
            ..Self::default()
        }
    }

    /// True as long as a connection message is missing.
    pub(super) fn is_pending(&self) -> bool {
        self.assumptions.is_empty() && !self.hopeless
    }

    /// True if nothing can be decrypted.
    pub(super) fn is_hopeless(&self) -> bool {
        self.hopeless
    }

    /// Decrypts a chunk that `sender` sent.
    pub(super) fn open(
        &mut self,
        sender: Side,
        number: u64,
        sealed: &[u8],
        plain: &mut Vec<u8>,
    ) -> bool {
        let mut assumptions = self.assumptions.iter_mut();
        let opened = assumptions.position(|assumption| {
            let opener = assumption.openers.of_mut(sender);
            opener.open(number, sealed, plain)
        });
        opened.inspect(|index| self.prove(*index)).is_some()
    }

    /// The openers for what `sender` sent, one for each assumption.
    pub(super) fn openers(&mut self, sender: Side) -> Vec<&mut Opener> {
        let assumptions = self.assumptions.iter_mut();
        assumptions.map(|a| a.openers.of_mut(sender)).collect()
    }

    /// Keeps only the assumption whose opener decrypted a chunk.
    pub(super) fn prove(&mut self, index: usize) {
        if !self.proven {
            self.assumptions.swap(0, index);
            self.assumptions.truncate(1);
            self.proven = true;
        }
    }

    /// Who opened the connection, once after it is proven.
    pub(super) fn proof(&mut self) -> Option<Side> {
        let first = self.proven && !std::mem::replace(&mut self.announced, self.proven);
        self.initiator().filter(|_| first)
    }

    /// Who opened the connection, once it is proven.
    pub(super) fn initiator(&self) -> Option<Side> {
        let first = self.assumptions.first();
        first.filter(|_| self.proven).map(|a| a.initiator)
    }
}
