//! Messages about chains, their heads and their branches.

use serde::Serialize;

use super::blocks::BlockHeader;
use crate::p2p::base58::{BlockHash, ChainId, OperationHash};
use crate::p2p::read::{Cursor, Decode, DecodeError, Dynamic, List, Reason, sequences};

/// Maximum number of blocks in a locator.
const MAX_HISTORY: usize = 1000;
/// Maximum number of operations in a mempool.
const MAX_MEMPOOL: usize = 4000;

sequences! {
    /// A message that names a chain.
    pub struct Chain {
        /// The chain.
        pub chain_id: ChainId,
    }

    /// The sender does not follow a chain any more.
    pub struct Deactivate {
        /// The chain.
        pub deactivate: ChainId,
    }

    /// A branch: its head, and blocks before it at growing distances.
    pub struct Locator<'a> {
        /// The header of the head.
        pub current_head: Dynamic<BlockHeader<'a>>,
        /// Blocks, from the head to the origin.
        pub history: List<'a, BlockHash, MAX_HISTORY>,
    }

    /// The branch of a chain.
    pub struct CurrentBranch<'a> {
        /// The chain.
        pub chain_id: ChainId,
        /// The branch.
        pub current_branch: Locator<'a>,
    }

    /// The head of a chain.
    pub struct CurrentHead<'a> {
        /// The chain.
        pub chain_id: ChainId,
        /// The header of the head.
        pub current_block_header: Dynamic<BlockHeader<'a>>,
        /// Operations that are not yet in blocks.
        pub current_mempool: Mempool<'a>,
    }
}

/// Operations that are not yet in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Mempool<'a> {
    /// Valid operations.
    pub known_valid: Dynamic<List<'a, OperationHash>>,
    /// Operations whose validity is not known.
    pub pending: Dynamic<Dynamic<List<'a, OperationHash>>>,
}

impl<'a> Decode<'a> for Mempool<'a> {
    fn decode(cursor: &mut Cursor<'a>) -> Result<Self, DecodeError> {
        let start = cursor.offset();
        let mempool = Self {
            known_valid: Dynamic::decode(cursor)?,
            pending: Dynamic::decode(cursor)?,
        };
        if mempool.known_valid.len() + mempool.pending.len() > MAX_MEMPOOL {
            cursor.note(start, Reason::TooMany(MAX_MEMPOOL));
        }
        Ok(mempool)
    }
}

sequences! {
    /// The checkpoint of a chain.
    pub struct Checkpoint<'a> {
        /// The chain.
        pub chain_id: ChainId,
        /// The header of the checkpoint.
        pub header: BlockHeader<'a>,
    }

    /// A request for the branch of a protocol.
    pub struct GetProtocolBranch {
        /// The chain.
        pub chain: ChainId,
        /// The number of the protocol.
        pub proto_level: u8,
    }

    /// The branch of a protocol.
    pub struct ProtocolBranch<'a> {
        /// The chain.
        pub chain: ChainId,
        /// The number of the protocol.
        pub proto_level: u8,
        /// The branch.
        pub locator: Locator<'a>,
    }
}
