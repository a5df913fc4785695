//! Which address of a file a mapping of it begins with.

use super::Segment;
use memprof_sys::residency::page_size;

/// [`Elf::address_of_mapping`](super::Elf::address_of_mapping) for the executable segments of a file that is no longer open.
///
/// A mapping is page-aligned, a segment need not be, so a mapping may also contain the end of the previous
/// segment and the beginning of the next one. It belongs to the segment that has the same first and last
/// page; if there is none (the mapping was split later), to the segment with the most bytes in it.
pub fn address_of_mapping<'s>(
    segments: impl Iterator<Item = &'s Segment>,
    offset: u64,
    size: u64,
) -> Option<u64> {
    let page = page_size();
    let end = offset.saturating_add(size);
    let shared = |s: &Segment| {
        let first = s.offset.max(offset);
        let last = s.offset.saturating_add(s.size).min(end);
        last.saturating_sub(first)
    };
    let whole = |s: &Segment| {
        let last = s.offset.saturating_add(s.size);
        s.offset / page * page == offset && last.checked_next_multiple_of(page) == Some(end)
    };
    let segment = segments.max_by_key(|s| (shared(s) > 0, whole(s), shared(s)))?;
    let address = segment.addr.wrapping_add(offset);
    (shared(segment) > 0).then_some(address.wrapping_sub(segment.offset))
}

#[cfg(test)]
mod tests {
    use super::super::PHDR_SIZE;
    use super::*;

    fn code(offset: u64, addr: u64, size: u64) -> Segment {
        let mut header = [0; PHDR_SIZE];
        for (at, value) in [(0, 1 | 5 << 32), (8, offset), (16, addr), (32, size)] {
            header[at..at + 8].copy_from_slice(&u64::to_le_bytes(value));
        }
        Segment::parse(&header)
    }

    #[test]
    fn a_mapping_is_that_of_the_segment_that_it_was_made_for() {
        let page = page_size();
        // Some linkers write this: adjacent segments share a page of the file, and both mappings include it.
        let segments = [
            code(0, 0, page + 0x500),
            code(page + 0x540, 5 * page + 0x540, 2 * page),
            code(3 * page + 0x540, 9 * page + 0x540, 0x80),
        ];
        let address = |offset, size| address_of_mapping(segments.iter(), offset, size);
        assert_eq!(address(0, 2 * page), Some(0));
        assert_eq!(address(page, 3 * page), Some(5 * page));
        assert_eq!(address(3 * page, page), Some(9 * page));
        // A part of the second segment, as left by mprotect.
        assert_eq!(address(2 * page, page), Some(6 * page));
        assert_eq!(address(9 * page, page), None);
    }
}
