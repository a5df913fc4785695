//! Checks the size of compressed sections before they are decompressed into memory.

use std::io::{self, Read};

use flate2::read::ZlibDecoder;
use object::LittleEndian;
use object::elf::{CompressionHeader64, CompressionType, ELFCOMPRESS_ZLIB};

use crate::elf::{Elf, Section, u32_at, u64_at};

/// Size of the header before the compressed bytes, and position of the decompressed size in it.
const HEADER: u64 = size_of::<CompressionHeader64<LittleEndian>>() as u64;
const CLAIM: usize = 8;

/// Whether the compressed sections of a file decompress to their declared sizes, and to at most `limit` bytes.
///
/// The declared size alone is not enough: blazesym takes all decompressed bytes, which may be a thousand times
/// the file's size. So zlib sections are decompressed here first and discarded, a few KiB at a time.
pub fn unpacks_within(elf: &Elf, limit: u64) -> bool {
    let Ok(mut file) = elf.file_size() else {
        return false;
    };
    let mut left = limit;
    elf.compressed_sections().all(|section| {
        // Real sections do not overlap, so their total size is at most the file's.
        let rest = file.checked_sub(section.size);
        let claim = claim(elf, section);
        let (Some(rest), Some((kind, size))) = (rest, claim) else {
            return false;
        };
        let Some(after) = left.checked_sub(size) else {
            return false;
        };
        (file, left) = (rest, after);
        kind != ELFCOMPRESS_ZLIB || unpacks_to(elf, section, size)
    })
}

/// The compression type of a section and its declared decompressed size, in bytes.
fn claim(elf: &Elf, section: &Section) -> Option<(CompressionType, u64)> {
    let mut header = [0; HEADER as usize];
    elf.read_at(&mut header, section.offset).ok()?;
    Some((CompressionType(u32_at(&header, 0)), u64_at(&header, CLAIM)))
}

fn unpacks_to(elf: &Elf, section: &Section, size: u64) -> bool {
    let begin = section.offset.saturating_add(HEADER);
    let packed = Part::new(elf, begin, section.size.saturating_sub(HEADER));
    let mut unpacked = ZlibDecoder::new(packed).take(size.saturating_add(1));
    io::copy(&mut unpacked, &mut io::sink()).is_ok_and(|n| n == size)
}

/// A sequential reader of a part of a file.
pub(super) struct Part<'e> {
    elf: &'e Elf<'e>,
    at: u64,
    left: u64,
}

impl<'e> Part<'e> {
    /// `size` bytes from a position in the file.
    pub fn new(elf: &'e Elf<'e>, at: u64, size: u64) -> Part<'e> {
        let left = size;
        Part { elf, at, left }
    }
}

impl Read for Part<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).map_or(buf.len(), |left| left.min(buf.len()));
        let got = self.elf.read_some(&mut buf[..most], self.at);
        let got = got.map_err(|e| io::Error::other(e.to_string()))?;
        self.at = self.at.saturating_add(got as u64);
        self.left -= got as u64;
        Ok(got)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::ZlibEncoder;

    use object::elf::{FileHeader64, SHF_COMPRESSED, SectionHeader64};

    use super::*;

    const EHDR: usize = size_of::<FileHeader64<LittleEndian>>();
    const SHDR: usize = size_of::<SectionHeader64<LittleEndian>>();

    fn zlib(size: usize) -> Vec<u8> {
        let mut packer = ZlibEncoder::new(Vec::new(), Compression::best());
        packer.write_all(&vec![0; size]).unwrap();
        packer.finish().unwrap()
    }

    /// A file with compressed sections, given as (declared size, compressed bytes).
    fn file(sections: &[(u64, &[u8])], overlap: bool) -> File {
        let mut bytes = vec![0; EHDR + SHDR * sections.len()];
        bytes[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1]);
        bytes[16] = 3;
        bytes[40..48].copy_from_slice(&(EHDR as u64).to_le_bytes());
        bytes[58..60].copy_from_slice(&(SHDR as u16).to_le_bytes());
        bytes[60..62].copy_from_slice(&(sections.len() as u16).to_le_bytes());
        let begin = bytes.len();
        for (i, (claim, packed)) in sections.iter().enumerate() {
            let at = if overlap { begin } else { bytes.len() };
            let header = &mut bytes[EHDR + i * SHDR..][..SHDR];
            header[8..16].copy_from_slice(&SHF_COMPRESSED.0.to_le_bytes());
            header[24..32].copy_from_slice(&(at as u64).to_le_bytes());
            let size = HEADER + packed.len() as u64;
            header[32..40].copy_from_slice(&size.to_le_bytes());
            if !overlap || i == 0 {
                bytes.extend(u64::from(ELFCOMPRESS_ZLIB.0).to_le_bytes());
                bytes.extend(claim.to_le_bytes());
                bytes.extend(1u64.to_le_bytes());
                bytes.extend(*packed);
            }
        }
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        file
    }

    fn within(file: &File, limit: u64) -> bool {
        unpacks_within(&Elf::read(file).unwrap(), limit)
    }

    #[test]
    fn honest_sections_pass_up_to_the_limit() {
        let packed = zlib(100_000);
        let two = file(&[(100_000, &packed), (100_000, &packed)], false);
        assert!(within(&two, 200_000));
        assert!(!within(&two, 199_999));
    }

    #[test]
    fn what_unpacks_to_more_or_less_than_it_says_does_not_pass() {
        let packed = zlib(100_000);
        for claim in [0, 16, 99_999, 100_001, u64::MAX] {
            assert!(!within(&file(&[(claim, &packed)], false), u64::MAX));
        }
        let cut = &packed[..packed.len() / 2];
        assert!(!within(&file(&[(100_000, cut)], false), u64::MAX));
    }

    #[test]
    fn sections_that_share_their_bytes_do_not_pass() {
        let packed = zlib(1_000_000);
        let same = [(1_000_000, &packed[..]); 8];
        assert!(within(&file(&same[..1], true), u64::MAX));
        assert!(!within(&file(&same, true), u64::MAX));
    }
}
