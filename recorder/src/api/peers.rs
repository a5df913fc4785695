//! The initiator and the peer of a message's connection, read once for each connection of a list.

use std::collections::HashMap;

use crate::side::Side;
use crate::store::{ConnectionId, Reader};

/// The peer of a connection.
#[derive(Clone, Debug, Default)]
pub(super) struct Peer {
    pub(super) initiator: Option<Side>,
    pub(super) peer_id: Option<String>,
}

/// The peers of the connections of a list.
pub(super) struct Peers<'a> {
    reader: &'a Reader,
    known: HashMap<ConnectionId, Peer>,
}

impl<'a> Peers<'a> {
    pub(super) fn new(reader: &'a Reader) -> Self {
        Self {
            reader,
            known: HashMap::new(),
        }
    }

    /// The peer; without anything if the connection is not stored any more.
    pub(super) fn of(&mut self, id: ConnectionId) -> &Peer {
        let reader = self.reader;
        self.known.entry(id).or_insert_with(|| {
            let connection = reader.connection(id).ok().flatten();
            let peer = |c: crate::store::ConnectionEntry| Peer {
                initiator: c.initiator,
                peer_id: c.peer_id,
            };
            connection.map(peer).unwrap_or_default()
        })
    }
}
