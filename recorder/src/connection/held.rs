//! Pieces that cannot be processed yet, in the order in which they came.

use std::collections::VecDeque;

use crate::side::{Both, Side};
use crate::stream::Piece;
use crate::time::Timestamp;

/// A piece that owns its bytes.
#[derive(Debug)]
pub(super) enum HeldPiece {
    /// See [`Piece::Bytes`].
    Bytes(u64, Timestamp, Vec<u8>),
    /// See [`Piece::Gap`].
    Gap(u64, u64, Timestamp),
}

impl HeldPiece {
    pub(super) fn piece(&self) -> Piece<'_> {
        match self {
            Self::Bytes(offset, time, data) => Piece::Bytes {
                offset: *offset,
                time: *time,
                data,
            },
            Self::Gap(offset, length, time) => Piece::Gap {
                offset: *offset,
                length: *length,
                time: *time,
            },
        }
    }
}

/// Pieces of both directions that are held.
#[derive(Debug, Default)]
pub(super) struct HeldPieces {
    pieces: VecDeque<(Side, HeldPiece)>,
    count: Both<usize>,
    size: usize,
    last: Timestamp,
}

impl HeldPieces {
    /// Memory that a connection may hold, in bytes. A peer's connection message can be late by as much as its stream waits.
    pub(super) const MAX: usize = 256 << 10;
    /// Memory of a piece beside its bytes, about.
    const OVERHEAD: usize = 64;

    pub(super) fn push(&mut self, sender: Side, piece: Piece<'_>) {
        let piece = match piece {
            Piece::Bytes { offset, time, data } => HeldPiece::Bytes(offset, time, data.to_vec()),
            Piece::Gap {
                offset,
                length,
                time,
            } => HeldPiece::Gap(offset, length, time),
        };
        self.size += size(&piece);
        self.last = match &piece {
            HeldPiece::Bytes(_, time, _) | HeldPiece::Gap(_, _, time) => *time,
        };
        *self.count.of_mut(sender) += 1;
        self.pieces.push_back((sender, piece));
    }

    pub(super) fn pop(&mut self) -> Option<(Side, HeldPiece)> {
        let (sender, piece) = self.pieces.pop_front()?;
        self.size -= size(&piece);
        *self.count.of_mut(sender) -= 1;
        Some((sender, piece))
    }

    /// True if pieces of that sender are held.
    pub(super) fn has(&self, sender: Side) -> bool {
        *self.count.of(sender) > 0
    }

    /// When the bytes were captured that were held last.
    pub(super) fn last_time(&self) -> Timestamp {
        self.last
    }

    pub(super) fn len(&self) -> usize {
        self.pieces.len()
    }

    /// True if more than the permitted memory is in use.
    pub(super) fn is_full(&self) -> bool {
        self.size > Self::MAX
    }
}

fn size(piece: &HeldPiece) -> usize {
    let bytes = match piece {
        HeldPiece::Bytes(_, _, data) => data.len(),
        HeldPiece::Gap(..) => 0,
    };
    bytes + HeldPieces::OVERHEAD
}
