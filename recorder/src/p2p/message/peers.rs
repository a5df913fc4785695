//! Messages about peers.

use serde::Serialize;

use crate::p2p::base58::PeerId;
use crate::p2p::json::Text;
use crate::p2p::read::{Cursor, Decode, DecodeError, List, Reason, sequences};

/// Maximum size of a point with its length, in bytes.
const MAX_POINT: usize = 51;
/// Maximum number of points in one message.
const MAX_POINTS: usize = 100;

/// The address and port of a node: `1.2.3.4:9732` or `[2001:db8::1]:9732`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Point<'a>(pub Text<'a>);

impl<'a> Decode<'a> for Point<'a> {
    fn decode(cursor: &mut Cursor<'a>) -> Result<Self, DecodeError> {
        let start = cursor.offset();
        let text = Text::decode(cursor)?;
        let (bytes, limit) = (cursor.offset() - start, MAX_POINT);
        if bytes > limit {
            cursor.note(start, Reason::TooLong { bytes, limit });
        }
        Ok(Self(text))
    }
}

sequences! {
    /// Addresses of peers.
    pub struct Advertise<'a> {
        /// The addresses.
        pub id: List<'a, Point<'a>, MAX_POINTS>,
    }

    /// An offer to exchange peers, and its answer.
    pub struct Swap<'a> {
        /// The address of the peer that is offered.
        pub point: Point<'a>,
        /// The peer that is offered.
        pub peer_id: PeerId,
    }
}
