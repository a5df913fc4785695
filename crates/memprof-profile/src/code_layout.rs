//! Build id and code segments of a file, for tools that read a profile.

/// The build id and the code segments of a file. A saved profile contains them, because the file may no longer exist.
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
    /// Address in the file's own address space (before relocation).
    pub address: u64,
    /// Size in the file, in bytes.
    pub size: u64,
}

impl CodeLayout {
    /// Converts a file offset to an address; `None` if no segment contains it.
    pub fn address_of(&self, offset: u64) -> Option<u64> {
        self.segments.iter().find_map(|s| {
            let inside = offset.checked_sub(s.offset).filter(|d| *d < s.size)?;
            s.address.checked_add(inside)
        })
    }
}
