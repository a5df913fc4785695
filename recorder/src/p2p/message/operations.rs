//! Messages with operations. Their data is defined by the economic protocol, and is kept as bytes.

use serde::{Serialize, Serializer};

use super::blocks::MAX_REQUESTED;
use crate::p2p::base58::{BlockHash, OperationHash, OperationListListHash};
use crate::p2p::json::Hex;
use crate::p2p::read::{Cursor, Decode, DecodeError, Dynamic, List, Reason, sequences};

/// Maximum depth of a path: blocks have four lists of operations, of which two levels of hashes remain.
const MAX_DEPTH: usize = 3;

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Operation<'a> {
    #[serde(skip)]
    encoded: &'a [u8],
    /// A block of the branch in which the operation is valid.
    pub branch: BlockHash,
    /// The part that the economic protocol defines.
    pub data: Hex<'a>,
}

impl Operation<'_> {
    /// The operation's hash.
    pub fn hash(&self) -> OperationHash {
        OperationHash::from_operation(self.encoded)
    }
}

impl<'a> Decode<'a> for Operation<'a> {
    fn decode(cursor: &mut Cursor<'a>) -> Result<Self, DecodeError> {
        let start = cursor.offset();
        let (branch, data) = (BlockHash::decode(cursor)?, Hex::decode(cursor)?);
        Ok(Self {
            encoded: cursor.since(start),
            branch,
            data,
        })
    }
}

sequences! {
    /// An operation as a message.
    pub struct OperationMessage<'a> {
        /// The operation.
        pub operation: Operation<'a>,
    }

    /// A request for operations.
    pub struct GetOperations<'a> {
        /// The operations.
        pub get_operations: Dynamic<List<'a, OperationHash, MAX_REQUESTED>>,
    }

    /// A list of a block's operations.
    pub struct OperationsOfBlock {
        /// The block.
        pub hash: BlockHash,
        /// The number of the list.
        pub validation_pass: i8,
    }

    /// A request for the operations of blocks.
    pub struct GetOperationsForBlocks<'a> {
        /// The lists.
        pub get_operations_for_blocks: Dynamic<List<'a, OperationsOfBlock, MAX_REQUESTED>>,
    }

    /// The operations of a block, of one list.
    pub struct OperationsForBlocks<'a> {
        /// The list.
        pub operations_for_block: OperationsOfBlock,
        /// The proof that the list belongs to the block.
        pub operation_hashes_path: Path,
        /// The operations.
        pub operations: List<'a, Dynamic<Operation<'a>>>,
    }
}

/// One step of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Step {
    /// The list lies on the left.
    Left {
        /// The hash of what lies on the right.
        right: OperationListListHash,
    },
    /// The list lies on the right.
    Right {
        /// The hash of what lies on the left.
        left: OperationListListHash,
    },
}

/// A path in a tree of hashes, from the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    steps: [Option<Step>; MAX_DEPTH],
}

impl Path {
    /// The steps, from the root.
    pub fn steps(&self) -> impl Iterator<Item = Step> {
        self.steps.into_iter().flatten()
    }
}

impl Serialize for Path {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.steps())
    }
}

/// A step to the left is the rest of the path, then the hash on the right; one to the right the hash on the left, then the rest.
impl<'a> Decode<'a> for Path {
    fn decode(cursor: &mut Cursor<'a>) -> Result<Self, DecodeError> {
        let mut steps = [None; MAX_DEPTH];
        let mut depth = 0;
        let mut to_left = [false; MAX_DEPTH];
        loop {
            let end = cursor.error(Reason::TooMany(MAX_DEPTH));
            let offset = cursor.offset();
            match u8::decode(cursor)? {
                0 => break,
                _ if depth == MAX_DEPTH => return Err(end),
                0xf0 => to_left[depth] = true,
                0x0f => {
                    let left = OperationListListHash::decode(cursor)?;
                    steps[depth] = Some(Step::Right { left });
                }
                value => {
                    let reason = Reason::Tag { of: "path", value };
                    return Err(DecodeError { offset, reason });
                }
            }
            depth += 1;
        }
        for depth in (0..depth).rev().filter(|depth| to_left[*depth]) {
            let right = OperationListListHash::decode(cursor)?;
            steps[depth] = Some(Step::Left { right });
        }
        Ok(Self { steps })
    }
}
