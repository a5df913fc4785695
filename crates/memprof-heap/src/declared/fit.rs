//! Whether a type fits a chunk.

use super::super::all_heaps::{AllHeaps, ChunkRef};
use memprof_code::symbolize::types::{DebugTypes, Layout, Type};

/// A chunk in use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunk {
    /// First address of its contents.
    pub start: u64,
    /// Size of its contents, in bytes.
    pub len: u64,
    /// Whether it is glibc's, which rounds sizes up by less than other allocators do.
    is_glibc: bool,
}

impl Chunk {
    /// The chunk in use whose contents include an address.
    pub(super) fn containing(heaps: &AllHeaps, address: u64) -> Option<Chunk> {
        let (place, kind) = heaps.place(address)?;
        let (start, end) = heaps.contents(place);
        kind.is_live().then_some(Chunk {
            start,
            len: end.saturating_sub(start),
            is_glibc: matches!(place, ChunkRef::Part(..) | ChunkRef::Mapped(_)),
        })
    }

    /// Whether an allocation of `size` bytes may have got this chunk. Size classes are at most a quarter apart; glibc rounds up to
    /// 16 bytes, and leaves a remainder that is too small in the chunk.
    pub(super) fn may_be_for(self, size: u64) -> bool {
        let rounding = match (self.is_glibc, size) {
            (_, 0x10000..) => (size / 4).max(0x2000),
            (true, _) => 31,
            (false, _) => 31.max(size / 4),
        };
        size > 0 && size <= self.len && self.len - size <= rounding
    }
}

/// Whether objects of this type may be followed by further bytes: the last member is an array of no known length.
pub(super) fn is_open_ended(types: &mut DebugTypes, of: &Type) -> bool {
    let Layout::Record(record) = &of.layout else {
        return false;
    };
    let last = record.members.iter().max_by_key(|member| member.offset);
    last.is_some_and(|last| {
        matches!(
            types.get(last.of).layout,
            Layout::Array(_, None | Some(0 | 1))
        )
    })
}
