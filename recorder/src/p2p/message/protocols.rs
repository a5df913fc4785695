//! Messages with the source code of economic protocols.

use super::blocks::MAX_REQUESTED;
use crate::p2p::base58::ProtocolHash;
use crate::p2p::json::Text;
use crate::p2p::read::{Dynamic, List, sequences};

sequences! {
    /// A request for protocols.
    pub struct GetProtocols<'a> {
        /// The protocols.
        pub get_protocols: Dynamic<List<'a, ProtocolHash, MAX_REQUESTED>>,
    }

    /// The source code of a protocol, as a message.
    pub struct ProtocolMessage<'a> {
        /// The protocol.
        pub protocol: Protocol<'a>,
    }

    /// The source code of a protocol.
    pub struct Protocol<'a> {
        /// The version of the environment that it is compiled with.
        pub expected_env_version: u16,
        /// Its modules.
        pub components: Dynamic<List<'a, Component<'a>>>,
    }

    /// A module of a protocol.
    pub struct Component<'a> {
        /// Its name.
        pub name: Text<'a>,
        /// Its interface, OCaml.
        pub interface: Option<Text<'a>>,
        /// Its implementation, OCaml.
        pub implementation: Text<'a>,
    }
}
