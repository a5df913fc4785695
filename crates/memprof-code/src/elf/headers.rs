//! Section headers, program headers, and the integers in them.

use object::elf::{
    PF_W, PF_X, PT_LOAD, ProgramFlags, ProgramType, SHF_COMPRESSED, SHF_EXECINSTR, SectionFlags,
    SectionType,
};

use memprof_sys::residency::page_size;

/// A section header.
#[derive(Debug, Clone, Copy)]
pub struct Section {
    pub(super) name: u32,
    /// Section type (`SHT_*`).
    pub kind: SectionType,
    pub(super) flags: SectionFlags,
    /// First address, in the file's own addresses.
    pub addr: u64,
    /// Position in the file, in bytes.
    pub offset: u64,
    /// Size, in bytes.
    pub size: u64,
    /// Index of the associated section; for a symbol table, its string table.
    pub link: u32,
    pub(super) align: u64,
}

impl Section {
    pub(super) fn parse(b: &[u8]) -> Section {
        Section {
            name: u32_at(b, 0),
            kind: SectionType(u32_at(b, 4)),
            flags: SectionFlags(u64_at(b, 8)),
            addr: u64_at(b, 16),
            offset: u64_at(b, 24),
            size: u64_at(b, 32),
            link: u32_at(b, 40),
            align: u64_at(b, 48),
        }
    }

    /// Whether the section's contents are compressed.
    pub fn compressed(&self) -> bool {
        self.flags.contains(SHF_COMPRESSED)
    }

    /// Whether the section contains code.
    pub fn executable(&self) -> bool {
        self.flags.contains(SHF_EXECINSTR)
    }

    /// The first address after the section.
    pub fn end(&self) -> u64 {
        self.addr.saturating_add(self.size)
    }
}

/// A program header: a segment to load, or the location of data inside one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    pub(super) kind: ProgramType,
    flags: ProgramFlags,
    /// Position in the file, in bytes.
    pub offset: u64,
    /// First address, in the file's own addresses.
    pub addr: u64,
    /// Size in the file, in bytes.
    pub size: u64,
    /// Size in memory, in bytes.
    pub size_in_memory: u64,
    pub(super) align: u64,
}

impl Segment {
    pub(super) fn parse(b: &[u8]) -> Segment {
        Segment {
            kind: ProgramType(u32_at(b, 0)),
            flags: ProgramFlags(u32_at(b, 4)),
            offset: u64_at(b, 8),
            addr: u64_at(b, 16),
            size: u64_at(b, 32),
            size_in_memory: u64_at(b, 40),
            align: u64_at(b, 48),
        }
    }

    /// The segment type (`p_type`).
    pub(crate) fn kind(&self) -> ProgramType {
        self.kind
    }

    /// Whether the segment is loaded.
    pub(crate) fn is_loaded(&self) -> bool {
        self.kind == PT_LOAD
    }

    /// Whether the segment is writable in a process.
    pub fn writable(&self) -> bool {
        self.flags.contains(PF_W)
    }

    /// The load bias of a mapping of this segment, or of part of it, given the mapping's start and file offset. `None`
    /// if the mapping contains no page of the segment.
    pub(crate) fn bias_in(&self, start: u64, offset: u64) -> Option<u64> {
        let page = page_size();
        let last = self.offset.saturating_add(self.size);
        let is_part = self.offset / page * page <= offset && offset < last;
        let first = start.wrapping_sub(offset).wrapping_add(self.offset);
        is_part.then_some(first.wrapping_sub(self.addr))
    }

    /// Whether the segment is loaded as code.
    pub fn code(&self) -> bool {
        self.kind == PT_LOAD && self.flags.contains(PF_X)
    }
}

/// The two bytes at `at`, little-endian; 0 if the slice is too short.
pub fn u16_at(b: &[u8], at: usize) -> u16 {
    b.get(at..)
        .and_then(|b| b.first_chunk())
        .map_or(0, |c| u16::from_le_bytes(*c))
}

/// The four bytes at `at`, little-endian; 0 if the slice is too short.
pub fn u32_at(b: &[u8], at: usize) -> u32 {
    b.get(at..)
        .and_then(|b| b.first_chunk())
        .map_or(0, |c| u32::from_le_bytes(*c))
}

/// The eight bytes at `at`, little-endian; 0 if the slice is too short.
pub fn u64_at(b: &[u8], at: usize) -> u64 {
    b.get(at..)
        .and_then(|b| b.first_chunk())
        .map_or(0, |c| u64::from_le_bytes(*c))
}
