//! The nodes that are recorded.

use std::sync::Arc;

use crate::p2p::identity::Identity;
use crate::p2p::pow::Target;

/// A node that is recorded.
#[derive(Debug)]
pub struct Node {
    /// Name of the node in the configuration.
    pub name: String,
    /// Keys of the node.
    pub identity: Identity,
    /// The proof of work that connection messages should have.
    pub target: Target,
}

/// The nodes that are recorded.
#[derive(Clone, Debug, Default)]
pub struct Nodes {
    /// Those whose identity is known.
    pub known: Vec<Arc<Node>>,
    /// True if the identity of another node is still to come: connections with unknown keys are held then.
    pub awaited: bool,
}

impl Nodes {
    /// The node that has a public key.
    pub fn find(&self, public_key: &[u8; 32]) -> Option<&Arc<Node>> {
        let mut known = self.known.iter();
        known.find(|node| node.identity.public_key() == public_key)
    }
}
