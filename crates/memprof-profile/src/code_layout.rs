//! What tools that read a profile need to know of a file with code: which build it is, and where its code lies.

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
    /// The address of a byte of code for its position in the file; `None` if no segment contains it.
    pub fn address_of(&self, offset: u64) -> Option<u64> {
        self.segments.iter().find_map(|s| {
            let inside = offset.checked_sub(s.offset).filter(|d| *d < s.size)?;
            s.address.checked_add(inside)
        })
    }
}
