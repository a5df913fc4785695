//! Links from a file to others with its debug information.

use super::{Elf, MAX_NOTES};

impl Elf<'_> {
    /// The `.gnu_debuglink`: base name and CRC-32 of the debug file.
    pub(crate) fn debug_link(&self) -> Option<(Vec<u8>, u32)> {
        let s = self
            .section_named(".gnu_debuglink")
            .filter(|s| s.size <= MAX_NOTES)?;
        let data = self.contents(s).ok()?;
        let len = data.iter().position(|b| *b == 0)?;
        let crc = data
            .get((len + 1).next_multiple_of(4)..)?
            .first_chunk::<4>()?;
        Some((data[..len].to_vec(), u32::from_le_bytes(*crc)))
    }

    /// The file with the parts of debug information that several files share (dwz), and its id.
    pub(crate) fn shared_link(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        let (shared, name, id) = match self.gnu_shared_link() {
            Some((name, id)) => (false, name, id),
            None => self.supplementary()?,
        };
        (!shared).then_some((name, id))
    }

    /// Whether it is the file that other files name as the one with this id.
    pub(crate) fn is_shared(&self, id: &[u8]) -> bool {
        let sum = |(shared, _, sum): (bool, _, Vec<u8>)| shared && sum == id;
        self.build_id().as_deref() == Some(id) || self.supplementary().is_some_and(sum)
    }

    /// The section `.debug_sup` of DWARF 5: whether the file is the shared one, the name of that, and its checksum.
    fn supplementary(&self) -> Option<(bool, Vec<u8>, Vec<u8>)> {
        let s = self
            .section_named(".debug_sup")
            .filter(|s| s.size <= MAX_NOTES)?;
        let data = self.contents(s).ok()?;
        let (shared, rest) = (*data.get(2)?, data.get(3..)?);
        let len = rest.iter().position(|b| *b == 0)?;
        // (The checksum's length takes one byte up to 127.)
        let (sum_len, sum) = rest[len + 1..].split_first()?;
        let sum = sum.get(..usize::from(*sum_len))?;
        Some((shared != 0, rest[..len].to_vec(), sum.to_vec()))
    }

    fn gnu_shared_link(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        let s = self
            .section_named(".gnu_debugaltlink")
            .filter(|s| s.size <= MAX_NOTES)?;
        let data = self.contents(s).ok()?;
        let len = data.iter().position(|b| *b == 0)?;
        Some((data[..len].to_vec(), data[len + 1..].to_vec()))
    }
}
