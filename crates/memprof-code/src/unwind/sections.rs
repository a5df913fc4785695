//! Locates a file's code and its unwind information.

use gimli::{BaseAddresses, LittleEndian};

use super::TableError;
use super::table::MAX_ADDRESS;
use crate::elf::{Elf, Section, u32_at};

/// Maximum size of a section of unwind information, in bytes.
const MAX_SECTION: u64 = 256 << 20;
/// Maximum size of a file's code, in bytes: 65,536 pages of 64 KiB.
const MAX_CODE: u64 = 4 << 30;

/// The address ranges of the file's code, sorted, disjoint and limited to the file's contents.
pub fn code_ranges(elf: &Elf) -> Result<Vec<(u64, u64)>, TableError> {
    let file_size = elf.file_size()?;
    let mut ranges = Vec::new();
    for s in elf.code_segments() {
        let size = s.size.min(file_size.saturating_sub(s.offset));
        match s.addr.checked_add(size) {
            Some(end) if end <= MAX_ADDRESS => ranges.push((s.addr, end)),
            _ => return Err(TableError::Address(s.addr)),
        }
    }
    ranges.sort_unstable();
    let mut merged: Vec<(u64, u64)> = Vec::with_capacity(ranges.len());
    for (start, end) in ranges.into_iter().filter(|(s, e)| s < e) {
        match merged.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => merged.push((start, end)),
        }
    }
    if merged.iter().map(|(s, e)| e - s).sum::<u64>() > MAX_CODE {
        return Err(TableError::TooLarge("the code"));
    }
    Ok(merged)
}

/// `.eh_frame` and the base addresses for its pointers.
pub fn eh_frame(elf: &Elf) -> Result<Option<(Vec<u8>, BaseAddresses)>, TableError> {
    let (addr, mut data) = if let Some(s) = elf.section_named(".eh_frame") {
        (s.addr, contents(elf, s.offset, s.size)?)
    } else if let Some((addr, offset, size)) = eh_frame_by_index(elf) {
        (addr, contents(elf, offset, size)?)
    } else {
        return Ok(None);
    };
    if elf.section_named(".eh_frame").is_none() {
        data.truncate(end_marker(&data));
    }
    let mut bases = BaseAddresses::default().set_eh_frame(addr);
    if let Some(s) = elf.section_named(".text") {
        bases = bases.set_text(s.addr);
    }
    if let Some(s) = elf.section_named(".got") {
        bases = bases.set_got(s.addr);
    }
    Ok(Some((data, bases)))
}

/// Locates `.eh_frame` through `.eh_frame_hdr`, for files without section headers. Returns the address,
/// the position in the file and the maximum size in bytes.
fn eh_frame_by_index(elf: &Elf) -> Option<(u64, u64, u64)> {
    let index = elf.eh_frame_hdr()?;
    let mut head = [0; 32];
    let got = elf.read_some(&mut head, index.offset).ok()?;
    let bases = BaseAddresses::default().set_eh_frame_hdr(index.addr);
    let head = gimli::EhFrameHdr::new(head.get(..got)?, LittleEndian);
    let head = head.parse(&bases, 8).ok()?;
    let addr = head.eh_frame_ptr().direct().ok()?;
    let (segment, inside) = elf.loaded_at(addr)?;
    let offset = segment.offset.checked_add(inside)?;
    Some((addr, offset, segment.size - inside))
}

/// `.debug_frame`, unless it is compressed.
pub fn debug_frame(elf: &Elf) -> Result<Option<Vec<u8>>, TableError> {
    let section = elf.section_named(".debug_frame");
    let plain = section.filter(|s: &&Section| !s.compressed());
    plain.map(|s| contents(elf, s.offset, s.size)).transpose()
}

fn contents(elf: &Elf, offset: u64, size: u64) -> Result<Vec<u8>, TableError> {
    let size = size.min(elf.file_size()?.saturating_sub(offset));
    if size > MAX_SECTION {
        return Err(TableError::TooLarge("the unwind information"));
    }
    let mut data = vec![0; size as usize];
    elf.read_at(&mut data, offset)?;
    Ok(data)
}

/// The position of the end marker in data that continues after the entries.
fn end_marker(data: &[u8]) -> usize {
    let mut at = 0usize;
    while let Some(head) = data.get(at..).filter(|d| d.len() >= 4) {
        match u32_at(head, 0) {
            0 => return at,
            u32::MAX => return data.len(),
            length => at = at.saturating_add(4).saturating_add(length as usize),
        }
    }
    data.len()
}
