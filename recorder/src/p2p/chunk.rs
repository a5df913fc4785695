//! Chunks: a length of two bytes, big-endian, then that many bytes. Cuts one direction into them.

use crate::time::Timestamp;

/// Bytes of a chunk's length.
pub const HEADER: usize = 2;
/// Maximum size of a chunk with its length, in bytes.
pub const MAX_CHUNK: usize = HEADER + u16::MAX as usize;
/// Minimum size of an encrypted chunk with its length, in bytes: the tag alone.
pub const MIN_ENCRYPTED: usize = HEADER + super::cipher::TAG;

/// The size of the chunk that begins at the first byte, with its length, if both bytes of the length are there.
pub fn size(bytes: &[u8]) -> Option<usize> {
    let length: &[u8; HEADER] = bytes.first_chunk()?;
    Some(HEADER + usize::from(u16::from_be_bytes(*length)))
}

/// A whole chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk<'a> {
    /// The bytes, with the length.
    pub raw: &'a [u8],
    /// When the first byte was captured.
    pub began: Timestamp,
}

/// Cuts a direction's bytes, which arrive in pieces of any size, into chunks.
#[derive(Debug, Default)]
pub struct Chunker {
    /// The beginning of a chunk; or a whole one, which was returned.
    partial: Vec<u8>,
    began: Timestamp,
    returned: bool,
}

impl Chunker {
    /// Returns the next whole chunk and removes its bytes from `piece`. Without one, takes all of `piece` and returns nothing.
    /// A chunk that lies in the piece is not copied.
    pub fn next<'a, 'b: 'a>(
        &'a mut self,
        piece: &mut &'b [u8],
        time: Timestamp,
    ) -> Option<Chunk<'a>> {
        if std::mem::take(&mut self.returned) {
            self.partial.clear();
        }
        if self.partial.is_empty() {
            self.began = time;
            let whole = size(piece).and_then(|size| piece.split_at_checked(size));
            if let Some((raw, rest)) = whole {
                *piece = rest;
                let began = time;
                return Some(Chunk { raw, began });
            }
        }
        self.fill(HEADER, piece);
        let size = size(&self.partial)?;
        self.fill(size, piece);
        if self.partial.len() < size {
            return None;
        }
        self.returned = true;
        Some(Chunk {
            raw: &self.partial,
            began: self.began,
        })
    }

    /// Moves bytes from the piece, until `size` are there.
    fn fill(&mut self, size: usize, piece: &mut &[u8]) {
        let missing = size.saturating_sub(self.partial.len());
        let (taken, rest) = piece.split_at(missing.min(piece.len()));
        self.partial.extend_from_slice(taken);
        *piece = rest;
    }

    /// The beginning of a chunk whose end is missing.
    pub fn partial(&self) -> &[u8] {
        if self.returned { &[] } else { &self.partial }
    }

    /// When the first byte of [`Self::partial`] was captured.
    pub fn began(&self) -> Timestamp {
        self.began
    }

    /// Forgets the beginning of a chunk.
    pub fn clear(&mut self) {
        self.partial.clear();
        self.returned = false;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn chunks(pieces: &[&[u8]]) -> (Vec<Vec<u8>>, Vec<u8>) {
        let (mut chunker, mut found) = (Chunker::default(), Vec::new());
        for mut piece in pieces.iter().copied() {
            while let Some(chunk) = chunker.next(&mut piece, Timestamp(7)) {
                assert_eq!(chunk.began, Timestamp(7));
                found.push(chunk.raw.to_vec());
            }
            assert!(piece.is_empty());
        }
        (found, chunker.partial().to_vec())
    }

    proptest! {
        #[test]
        fn pieces_of_any_size_give_the_same_chunks(
            bodies in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 0..20),
            cuts in proptest::collection::vec(1usize..200, 1..40),
            tail in 0usize..3,
        ) {
            let raws: Vec<Vec<u8>> = bodies
                .iter()
                .map(|body| [&(body.len() as u16).to_be_bytes()[..], body].concat())
                .collect();
            let mut stream = raws.concat();
            stream.extend(&[0, 9][..tail.min(2)]);
            let (mut pieces, mut rest) = (Vec::new(), &stream[..]);
            for cut in cuts.iter().cycle() {
                let (piece, after) = rest.split_at((*cut).min(rest.len()));
                pieces.push(piece);
                rest = after;
                if rest.is_empty() {
                    break;
                }
            }
            let (found, partial) = chunks(&pieces);
            prop_assert_eq!(&found, &raws);
            prop_assert_eq!(partial.len(), tail.min(2));
        }
    }

    #[test]
    fn a_chunk_has_the_time_of_its_first_byte() {
        let mut chunker = Chunker::default();
        assert_eq!(chunker.next(&mut &[0][..], Timestamp(1)), None);
        assert_eq!(chunker.next(&mut &[1][..], Timestamp(2)), None);
        let mut piece = &[5, 0, 0][..];
        let raw = &[0, 1, 5][..];
        let began = Timestamp(1);
        assert_eq!(
            chunker.next(&mut piece, Timestamp(3)),
            Some(Chunk { raw, began })
        );
        let (raw, began) = (&[0, 0][..], Timestamp(3));
        assert_eq!(chunker.next(&mut piece, began), Some(Chunk { raw, began }));
    }
}
