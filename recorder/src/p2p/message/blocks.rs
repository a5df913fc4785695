//! Messages with block headers.

use serde::Serialize;

use crate::p2p::base58::{BlockHash, ContextHash, OperationListListHash};
use crate::p2p::json::{Hex, Seconds};
use crate::p2p::read::{Cursor, Decode, DecodeError, Dynamic, List, sequences};

/// Maximum number of hashes in a request.
pub(super) const MAX_REQUESTED: usize = 10;

/// A block header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct BlockHeader<'a> {
    #[serde(skip)]
    encoded: &'a [u8],
    /// The height.
    pub level: i32,
    /// The number of the economic protocol.
    pub proto: u8,
    /// The block before it.
    pub predecessor: BlockHash,
    /// When it was made.
    pub timestamp: Seconds,
    /// The number of its lists of operations.
    pub validation_pass: u8,
    /// The hash of its operations.
    pub operations_hash: OperationListListHash,
    /// Its fitness, which decides between branches.
    pub fitness: Dynamic<List<'a, Dynamic<Hex<'a>>>>,
    /// The state of the ledger after it.
    pub context: ContextHash,
    /// The part that the economic protocol defines.
    pub protocol_data: Hex<'a>,
}

impl BlockHeader<'_> {
    /// The block's hash.
    pub fn hash(&self) -> BlockHash {
        BlockHash::from_header(self.encoded)
    }
}

impl<'a> Decode<'a> for BlockHeader<'a> {
    fn decode(cursor: &mut Cursor<'a>) -> Result<Self, DecodeError> {
        let start = cursor.offset();
        let header = Self {
            encoded: &[],
            level: i32::decode(cursor)?,
            proto: u8::decode(cursor)?,
            predecessor: BlockHash::decode(cursor)?,
            timestamp: Seconds::decode(cursor)?,
            validation_pass: u8::decode(cursor)?,
            operations_hash: OperationListListHash::decode(cursor)?,
            fitness: Dynamic::decode(cursor)?,
            context: ContextHash::decode(cursor)?,
            protocol_data: Hex::decode(cursor)?,
        };
        let encoded = cursor.since(start);
        Ok(Self { encoded, ..header })
    }
}

sequences! {
    /// A request for block headers.
    pub struct GetBlockHeaders<'a> {
        /// The blocks.
        pub get_block_headers: Dynamic<List<'a, BlockHash, MAX_REQUESTED>>,
    }

    /// A block header, as a message.
    pub struct BlockHeaderMessage<'a> {
        /// The header.
        pub block_header: BlockHeader<'a>,
    }

    /// A request for the header of an ancestor.
    pub struct GetPredecessorHeader {
        /// The descendant.
        pub block: BlockHash,
        /// The number of blocks before it.
        pub offset: i32,
    }

    /// The header of an ancestor.
    pub struct PredecessorHeader<'a> {
        /// The descendant.
        pub block: BlockHash,
        /// The number of blocks before it.
        pub offset: i32,
        /// The ancestor's header.
        pub header: BlockHeader<'a>,
    }
}
