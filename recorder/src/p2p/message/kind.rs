//! Kinds of messages: names, tags, limits.

use std::fmt;

/// The layer of a peer, which determines its peer messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layer {
    /// Nodes of the blockchain.
    #[default]
    Node,
    /// Nodes of the data-availability layer (DAL).
    Dal,
}

/// The category of a message, as the API names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Category {
    /// The connection message.
    Connection,
    /// Metadata.
    Meta,
    /// The answer to the handshake.
    Ack,
    /// A peer message.
    P2p,
}

impl Category {
    /// The name: `connection`, `meta`, `ack` or `p2p`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connection => "connection",
            Self::Meta => "meta",
            Self::Ack => "ack",
            Self::P2p => "p2p",
        }
    }
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident $name:literal $layer:ident $tag:literal $limit:expr;)*) => {
        /// The kind of a message.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Kind {
            /// Chunk 0 of the handshake.
            ConnectionMessage,
            /// Chunk 1 of the handshake.
            Metadata,
            /// Chunk 2 of the handshake.
            AckMessage,
            $($(#[$doc])* $kind,)*
            /// A peer message with an unknown tag, or without one.
            Unknown,
        }

        impl Kind {
            /// All kinds.
            pub const ALL: &'static [Self] = &[
                Self::ConnectionMessage,
                Self::Metadata,
                Self::AckMessage,
                $(Self::$kind,)*
                Self::Unknown,
            ];

            /// The name, in snake case.
            pub fn name(self) -> &'static str {
                match self {
                    Self::ConnectionMessage => "connection_message",
                    Self::Metadata => "metadata",
                    Self::AckMessage => "ack_message",
                    $(Self::$kind => $name,)*
                    Self::Unknown => "unknown",
                }
            }

            /// The kind of a peer message.
            pub fn of_tag(tag: u16, layer: Layer) -> Self {
                match (layer, tag) {
                    $((Layer::$layer, $tag) => Self::$kind,)*
                    _ => Self::Unknown,
                }
            }

            /// Maximum size of the body by protocol, in bytes, where it has one of its own.
            pub fn limit(self) -> Option<usize> {
                match self {
                    $(Self::$kind => $limit,)*
                    _ => None,
                }
            }
        }
    };
}

kinds! {
    /// The sender ends the connection.
    Disconnect "disconnect" Node 0x01 None;
    /// The sender asks for peers.
    Bootstrap "bootstrap" Node 0x02 None;
    /// Addresses of peers.
    Advertise "advertise" Node 0x03 None;
    /// The sender offers to exchange peers.
    SwapRequest "swap_request" Node 0x04 None;
    /// The sender accepts to exchange peers.
    SwapAck "swap_ack" Node 0x05 None;
    /// A request for the branch of a chain.
    GetCurrentBranch "get_current_branch" Node 0x10 None;
    /// The branch of a chain.
    CurrentBranch "current_branch" Node 0x11 None;
    /// The sender does not follow a chain any more.
    Deactivate "deactivate" Node 0x12 None;
    /// A request for the head of a chain.
    GetCurrentHead "get_current_head" Node 0x13 None;
    /// The head of a chain, and the operations that are not yet in blocks.
    CurrentHead "current_head" Node 0x14 None;
    /// A request for block headers.
    GetBlockHeaders "get_block_headers" Node 0x20 None;
    /// A block header.
    BlockHeader "block_header" Node 0x21 Some(8 << 20);
    /// A request for operations.
    GetOperations "get_operations" Node 0x30 None;
    /// An operation.
    Operation "operation" Node 0x31 Some(128 << 10);
    /// A request for protocols.
    GetProtocols "get_protocols" Node 0x40 None;
    /// The source code of a protocol.
    Protocol "protocol" Node 0x41 Some(2 << 20);
    /// Removed from Octez in 2020.
    GetOperationHashesForBlocks "get_operation_hashes_for_blocks" Node 0x50 None;
    /// Removed from Octez in 2020.
    OperationHashesForBlocks "operation_hashes_for_blocks" Node 0x51 None;
    /// A request for the operations of blocks.
    GetOperationsForBlocks "get_operations_for_blocks" Node 0x60 None;
    /// The operations of a block, of one validation pass.
    OperationsForBlocks "operations_for_blocks" Node 0x61 Some(1 << 20);
    /// A request for the checkpoint of a chain.
    GetCheckpoint "get_checkpoint" Node 0x70 None;
    /// The checkpoint of a chain.
    Checkpoint "checkpoint" Node 0x71 None;
    /// A request for the branch of a protocol.
    GetProtocolBranch "get_protocol_branch" Node 0x80 None;
    /// The branch of a protocol.
    ProtocolBranch "protocol_branch" Node 0x81 None;
    /// A request for the header of an ancestor.
    GetPredecessorHeader "get_predecessor_header" Node 0x90 None;
    /// The header of an ancestor.
    PredecessorHeader "predecessor_header" Node 0x91 None;
    /// DAL: a peer joins the mesh of a topic.
    DalGraft "dal_graft" Dal 0x10 None;
    /// DAL: a peer leaves the mesh of a topic.
    DalPrune "dal_prune" Dal 0x11 None;
    /// DAL: identifiers of messages that the sender has.
    DalIhave "dal_ihave" Dal 0x12 None;
    /// DAL: identifiers of messages that the sender wants.
    DalIwant "dal_iwant" Dal 0x13 None;
    /// DAL: the sender subscribes to a topic; also a ping.
    DalSubscribe "dal_subscribe" Dal 0x14 None;
    /// DAL: the sender unsubscribes from a topic.
    DalUnsubscribe "dal_unsubscribe" Dal 0x15 None;
    /// DAL: a message of a topic.
    DalMessageWithHeader "dal_message_with_header" Dal 0x16 None;
}

impl Kind {
    /// Maximum length of a message of kinds without a limit of their own, in bytes: a header has at most 8 MiB.
    const USUAL: usize = (8 << 20) + (256 << 10);

    /// Size of the largest message of the kind that is decoded, with length and tag, in bytes.
    pub fn max_size(self) -> usize {
        super::HEADER + self.limit().unwrap_or(Self::USUAL)
    }

    /// The category.
    pub fn category(self) -> Category {
        match self {
            Self::ConnectionMessage => Category::Connection,
            Self::Metadata => Category::Meta,
            Self::AckMessage => Category::Ack,
            _ => Category::P2p,
        }
    }

    /// The kind with that name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.name() == name)
    }
}

/// Writes the name.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
