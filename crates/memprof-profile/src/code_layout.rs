//! Build id and code segments of a file, for tools that read a profile.

use serde::{Deserialize, Serialize};

use super::saved::hex_digits;

/// The build id and the code segments of a file. A saved profile contains them, because the file may no longer exist.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CodeLayout {
    /// The build id; empty if the file has none.
    #[serde(rename = "buildId", with = "hex_digits")]
    pub build_id: Vec<u8>,
    /// The loaded, executable segments, in the file's order.
    #[serde(rename = "codeSegments")]
    pub segments: Vec<CodeSegment>,
}

/// An executable segment. Saved profiles have it as `[offset, address, size]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u64, u64, u64)", into = "(u64, u64, u64)")]
pub struct CodeSegment {
    /// Position in the file, in bytes.
    pub offset: u64,
    /// Address in the file's own address space (before relocation).
    pub address: u64,
    /// Size in the file, in bytes.
    pub size: u64,
}

impl From<(u64, u64, u64)> for CodeSegment {
    fn from((offset, address, size): (u64, u64, u64)) -> CodeSegment {
        CodeSegment {
            offset,
            address,
            size,
        }
    }
}

impl From<CodeSegment> for (u64, u64, u64) {
    fn from(segment: CodeSegment) -> (u64, u64, u64) {
        (segment.offset, segment.address, segment.size)
    }
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
