//! What tools that read a profile need to know of a file with code: which build it is, and where its code lies.

use std::borrow::Cow;

use super::Module;
use crate::elf::Elf;
use crate::target_file::ReadAt;

/// The build id and the code segments of a file. A saved profile keeps them, because the file may be gone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CodeLayout {
    /// The build id; empty if the file has none.
    pub build_id: Vec<u8>,
    /// The loaded, executable segments, in the file's order.
    pub segments: Vec<CodeSegment>,
}

/// An executable segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeSegment {
    /// Position in the file, in bytes.
    pub offset: u64,
    /// Address in the file's own addresses (before relocation).
    pub address: u64,
    /// Size in the file, in bytes.
    pub size: u64,
}

impl CodeLayout {
    /// Reads a file; `None` if it is no readable ELF file.
    fn read(file: &dyn ReadAt) -> Option<CodeLayout> {
        let elf = Elf::read(file).ok()?;
        let segments = elf.code_segments().map(|s| CodeSegment {
            offset: s.offset,
            address: s.addr,
            size: s.size,
        });
        Some(CodeLayout {
            build_id: elf.build_id().unwrap_or_default(),
            segments: segments.collect(),
        })
    }

    /// The address of a byte of code for its position in the file; `None` if no segment contains it.
    pub fn address_of(&self, offset: u64) -> Option<u64> {
        self.segments.iter().find_map(|s| {
            let inside = offset.checked_sub(s.offset).filter(|d| *d < s.size)?;
            s.address.checked_add(inside)
        })
    }
}

impl Module {
    /// The layout of its code: read from the open file, or as a saved profile has it. `None` if neither is there.
    pub(crate) fn code_layout(&self) -> Option<Cow<'_, CodeLayout>> {
        match &self.file {
            Some(file) => CodeLayout::read(file).map(Cow::Owned),
            None => self.layout.as_ref().map(Cow::Borrowed),
        }
    }
}
