//! Decompresses sections: zlib and zstd with a header (`SHF_COMPRESSED`), and the older `.zdebug_*`, which use zlib.

use std::io::{BufReader, Read};

use flate2::read::ZlibDecoder;
use object::LittleEndian;
use object::elf::{CompressionHeader64, CompressionType, ELFCOMPRESS_ZLIB, ELFCOMPRESS_ZSTD};
use ruzstd::decoding::StreamingDecoder;

use crate::elf::{Elf, Section, u32_at, u64_at};

/// Size of the header before the compressed bytes, and the decompressed size's position in it.
const HEADER: usize = size_of::<CompressionHeader64<LittleEndian>>();
const CLAIM: usize = 8;
/// Magic number of a `.zdebug_*` section, which precedes its decompressed size.
const OLD_MAGIC: &[u8] = b"ZLIB";
const OLD_HEADER: usize = OLD_MAGIC.len() + size_of::<u64>();

/// A section's compression type, header size, and declared decompressed size.
struct Claim {
    kind: CompressionType,
    header: usize,
    size: u64,
}

/// The decompressed contents of a section; `old` for a `.zdebug_*` section. `None` if the section is damaged, does not
/// decompress to exactly its declared size, or declares more than `limit` bytes.
///
/// Memory is allocated only as bytes arrive, because the declared size may be false.
pub fn unpack(elf: &Elf, section: &Section, old: bool, limit: u64) -> Option<Vec<u8>> {
    let claim = claim(elf, section, old)?;
    if claim.size > limit {
        return None;
    }
    let header = claim.header as u64;
    let begin = section.offset.saturating_add(header);
    let packed = BufReader::new(PartReader::new(
        elf,
        begin,
        section.size.saturating_sub(header),
    ));
    let mut unpacked = Vec::new();
    let most = claim.size.saturating_add(1);
    match claim.kind {
        ELFCOMPRESS_ZLIB => ZlibDecoder::new(packed)
            .take(most)
            .read_to_end(&mut unpacked),
        ELFCOMPRESS_ZSTD => {
            let decoder = StreamingDecoder::new(packed).ok()?;
            decoder.take(most).read_to_end(&mut unpacked)
        }
        _ => return None,
    }
    .ok()?;
    (unpacked.len() as u64 == claim.size).then_some(unpacked)
}

fn claim(elf: &Elf, section: &Section, old: bool) -> Option<Claim> {
    let mut header = [0; HEADER];
    let length = if old { OLD_HEADER } else { HEADER };
    elf.read_at(&mut header[..length], section.offset).ok()?;
    if !old {
        return Some(Claim {
            kind: CompressionType(u32_at(&header, 0)),
            header: HEADER,
            size: u64_at(&header, CLAIM),
        });
    }
    let size = header.strip_prefix(OLD_MAGIC)?.first_chunk()?;
    Some(Claim {
        kind: ELFCOMPRESS_ZLIB,
        header: OLD_HEADER,
        size: u64::from_be_bytes(*size),
    })
}

/// A sequential reader of a part of a file.
pub(super) struct PartReader<'e> {
    elf: &'e Elf<'e>,
    at: u64,
    left: u64,
}

impl<'e> PartReader<'e> {
    /// Reads `size` bytes from a file offset on.
    pub fn new(elf: &'e Elf<'e>, at: u64, size: u64) -> PartReader<'e> {
        let left = size;
        PartReader { elf, at, left }
    }
}

impl Read for PartReader<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let most = usize::try_from(self.left).map_or(buf.len(), |left| left.min(buf.len()));
        let got = self.elf.read_some(&mut buf[..most], self.at);
        let got = got.map_err(|e| std::io::Error::other(e.to_string()))?;
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
    use object::elf::{FileHeader64, SHF_COMPRESSED, SHT_PROGBITS, SectionHeader64};

    use super::*;

    const EHDR: usize = size_of::<FileHeader64<LittleEndian>>();
    const SHDR: usize = size_of::<SectionHeader64<LittleEndian>>();

    fn zlib(size: usize) -> Vec<u8> {
        let mut packer = ZlibEncoder::new(Vec::new(), Compression::best());
        packer.write_all(&vec![0; size]).unwrap();
        packer.finish().unwrap()
    }

    fn zstd(size: usize) -> Vec<u8> {
        let level = ruzstd::encoding::CompressionLevel::Fastest;
        ruzstd::encoding::compress_to_vec(&vec![0; size][..], level)
    }

    fn header(kind: CompressionType, claim: u64) -> Vec<u8> {
        [u64::from(kind.0), claim, 1]
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect()
    }

    /// A file with one section.
    fn file(contents: &[u8]) -> File {
        let mut bytes = vec![0; EHDR + SHDR];
        bytes[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1]);
        bytes[16] = 3;
        bytes[40..48].copy_from_slice(&(EHDR as u64).to_le_bytes());
        bytes[58..60].copy_from_slice(&(SHDR as u16).to_le_bytes());
        bytes[60] = 1;
        let section = &mut bytes[EHDR..];
        section[4..8].copy_from_slice(&SHT_PROGBITS.0.to_le_bytes());
        section[8..16].copy_from_slice(&SHF_COMPRESSED.0.to_le_bytes());
        section[24..32].copy_from_slice(&((EHDR + SHDR) as u64).to_le_bytes());
        section[32..40].copy_from_slice(&(contents.len() as u64).to_le_bytes());
        bytes.extend(contents);
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        file
    }

    fn unpacked(contents: &[u8], old: bool, limit: u64) -> Option<usize> {
        let file = file(contents);
        let elf = Elf::read(&file).unwrap();
        let found = unpack(&elf, elf.section(0).unwrap(), old, limit)?;
        assert!(found.iter().all(|byte| *byte == 0));
        Some(found.len())
    }

    /// A form of compression: the header for a declared size, the compressed bytes, and whether it is the old form.
    type Form<'a> = (&'a dyn Fn(u64) -> Vec<u8>, Vec<u8>, bool);

    #[test]
    fn each_form_unpacks_up_to_the_limit_to_what_it_says() {
        const SIZE: u64 = 100_000;
        let old = |claim: u64| [OLD_MAGIC, &claim.to_be_bytes()].concat();
        let forms: [Form<'_>; 3] = [
            (
                &|claim| header(ELFCOMPRESS_ZLIB, claim),
                zlib(SIZE as usize),
                false,
            ),
            (
                &|claim| header(ELFCOMPRESS_ZSTD, claim),
                zstd(SIZE as usize),
                false,
            ),
            (&old, zlib(SIZE as usize), true),
        ];
        for (header, packed, old) in forms {
            let of = |claim, packed: &[u8]| [&header(claim), packed].concat();
            let good = of(SIZE, &packed);
            assert_eq!(unpacked(&good, old, SIZE), Some(SIZE as usize));
            assert_eq!(unpacked(&good, old, SIZE - 1), None);
            for claim in [0, 16, SIZE - 1, SIZE + 1, u64::MAX] {
                assert_eq!(
                    unpacked(&of(claim, &packed), old, u64::MAX),
                    None,
                    "{claim}"
                );
            }
            let cut = of(SIZE, &packed[..packed.len() / 2]);
            assert_eq!(unpacked(&cut, old, u64::MAX), None);
        }
        assert_eq!(
            unpacked(&header(CompressionType(77), 0), false, u64::MAX),
            None
        );
    }
}
