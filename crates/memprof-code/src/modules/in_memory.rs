//! Copies a file from the memory of a process that maps it, if the file cannot be opened. Such files are on another
//! user's FUSE mount, such as an AppImage's; on a network file system where root may not read; or on a mount that is
//! gone.
//!
//! The loader maps the parts of a file that it needs, which are nearly all that memprof needs: program headers, unwind
//! information, dynamic symbols, the build id. They are copied to a memfd, each byte at its position in the file; the
//! rest is a hole. Writable segments are not copied, except for the dynamic section. The process may end afterwards,
//! and ELF readers read the copy like any file.

use std::fs::File;
use std::io::{self, BufReader};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};

use object::elf::{DT_GNU_HASH, DT_HASH, DT_STRTAB, DT_SYMTAB, DynamicTag, PT_DYNAMIC, SHT_DYNSYM};

use super::code_mappings::{Mapping, for_each_mapping};
use super::open;
use crate::elf::{Elf, Segment, u64_at};
use memprof_sys::ids::Pid;
use memprof_sys::residency::ThrottledFile;
use memprof_sys::target_file::{MappedMemory, ReadAt};

/// Maximum number of bytes copied per file, and in total.
const MAX_FILE: u64 = 64 << 20;
const MAX_ALL: u64 = 256 << 20;
/// Maximum size of the program headers and of the dynamic section, in bytes.
const MAX_HEADERS: usize = 64 << 10;
const MAX_DYNAMIC: usize = 4096;
/// Size of an ELF header, and the positions of its section fields.
const EHDR: usize = 64;
const SECTIONS: [Range<usize>; 2] = [40..48, 58..64];

/// Total size of all copies, in bytes.
static COPIED: AtomicU64 = AtomicU64::new(0);

/// Copies the parts that a process has mapped of the file behind a mapping.
///
/// # Errors
/// The file is not an ELF file, the process has not mapped its first page, the process has ended, or its memory cannot
/// be read.
pub(super) fn copy(pid: Pid, m: &Mapping) -> io::Result<File> {
    let mappings = mappings_of(pid, m)?;
    let image = Image::begin(pid, &mappings)?;
    let elf = Elf::read(&image).map_err(invalid)?;
    let _ = elf.build_id();
    let _ = crate::unwind::eh_frame(&elf);
    let symbols = elf.section_of_kind(SHT_DYNSYM);
    let names = symbols.and_then(|symbols| elf.section(symbols.link as usize));
    for section in symbols.into_iter().chain(names) {
        if section.size <= MAX_FILE {
            let _ = elf.contents(section);
        }
    }
    // The process may have mapped another file there in the meantime.
    if mappings_of(pid, m)? != mappings {
        return Err(io::ErrorKind::NotFound.into());
    }
    // Readers of the copy must find all code within its size.
    image.copy.set_len(image.size)?;
    COPIED.fetch_add(image.copied.into_inner(), Ordering::Relaxed);
    Ok(image.copy)
}

fn invalid(why: impl ToString) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_string())
}

/// All mappings of the file behind a mapping.
fn mappings_of(pid: Pid, m: &Mapping) -> io::Result<Vec<Mapping>> {
    let maps = ThrottledFile::open(pid, "maps")?;
    let mut found = Vec::new();
    for_each_mapping(BufReader::new(maps), |other| {
        if (other.dev, other.inode, &other.path) == (m.dev, m.inode, &m.path) {
            found.push(other);
        }
    })?;
    Ok(found)
}

/// A file that is read from a process's memory. Every byte that is read is also copied.
#[derive(Debug)]
struct Image {
    memory: MappedMemory,
    /// Ranges of the file, and the address in memory of each.
    parts: Vec<(Range<u64>, u64)>,
    /// Ranges that are read from the copy instead of memory, where the loader has changed them.
    ready: Vec<Range<u64>>,
    size: u64,
    copied: AtomicU64,
    copy: File,
}

impl Image {
    fn begin(pid: Pid, mappings: &[Mapping]) -> io::Result<Image> {
        let first = mappings.iter().find(|m| m.offset == 0);
        let start = first.ok_or(io::ErrorKind::NotFound)?.start;
        let memory = MappedMemory::for_process(pid);
        let mut header = vec![0; EHDR];
        memory.fill(&mut header, start)?;
        for fields in SECTIONS {
            header[fields].fill(0);
        }
        let mut image = Image {
            memory,
            parts: Vec::new(),
            ready: Vec::new(),
            size: 0,
            copied: AtomicU64::new(0),
            copy: open::in_memory("file", &[])?,
        };
        image.put(0, &header)?;
        // The program headers are in the same page, usually directly after the ELF header.
        image.parts.push((EHDR as u64..MAX_HEADERS as u64, start));
        image.parts[0].1 += EHDR as u64;
        let segments: Vec<Segment> = {
            let elf = Elf::read(&image).map_err(invalid)?;
            elf.segments().copied().collect()
        };
        image.place(&segments, mappings, start)?;
        Ok(image)
    }

    /// Determines the ranges of the file and their addresses, and copies the dynamic section.
    fn place(&mut self, segments: &[Segment], mappings: &[Mapping], start: u64) -> io::Result<()> {
        let loaded = || segments.iter().filter(|s| s.is_loaded());
        let holds_header = loaded().find(|s| s.offset == 0);
        let bias = start.wrapping_sub(holds_header.ok_or(io::ErrorKind::InvalidData)?.addr);
        let end = loaded().map(|s| s.offset.saturating_add(s.size)).max();
        self.size = end.unwrap_or(0);
        self.parts.clear();
        for s in loaded().filter(|s| !s.writable()) {
            for m in mappings
                .iter()
                .filter(|m| s.bias_in(m.start, m.offset) == Some(bias))
            {
                let from = m.offset.max(s.offset);
                let to = (m.offset + (m.end - m.start)).min(s.offset.saturating_add(s.size));
                self.parts.push((from..to, m.start + (from - m.offset)));
            }
        }
        match segments.iter().find(|s| s.kind() == PT_DYNAMIC) {
            Some(dynamic) => self.put_dynamic(dynamic, bias),
            None => Ok(()),
        }
    }

    /// Copies the dynamic section, and undoes the loader's addition of the load bias to addresses.
    fn put_dynamic(&mut self, dynamic: &Segment, bias: u64) -> io::Result<()> {
        let mut table = vec![0; dynamic.size.min(MAX_DYNAMIC as u64) as usize];
        self.memory
            .fill(&mut table, dynamic.addr.wrapping_add(bias))?;
        for entry in table.chunks_exact_mut(16) {
            let (tag, value) = (DynamicTag(u64_at(entry, 0).cast_signed()), u64_at(entry, 8));
            if [DT_HASH, DT_GNU_HASH, DT_STRTAB, DT_SYMTAB].contains(&tag) && value >= bias {
                entry[8..].copy_from_slice(&(value - bias).to_le_bytes());
            }
        }
        self.put(dynamic.offset, &table)
    }

    fn put(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.keep(offset, bytes)?;
        let end = offset.saturating_add(bytes.len() as u64);
        self.ready.push(offset..end);
        Ok(())
    }

    fn keep(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let size = bytes.len() as u64;
        let of_file = self.copied.fetch_add(size, Ordering::Relaxed) + size;
        if of_file > MAX_FILE || COPIED.load(Ordering::Relaxed) + of_file > MAX_ALL {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        self.copy.write_all_at(bytes, offset)
    }
}

impl ReadAt for Image {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let within = |range: &Range<u64>| {
            let left = range.contains(&offset).then(|| range.end - offset)?;
            Some(buf.len().min(usize::try_from(left).unwrap_or(usize::MAX)))
        };
        if let Some(size) = self.ready.iter().find_map(within) {
            return FileExt::read_at(&self.copy, &mut buf[..size], offset);
        }
        let part =
            |(range, at): &(Range<u64>, u64)| Some((within(range)?, at + (offset - range.start)));
        let Some((size, address)) = self.parts.iter().find_map(part) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let got = self.memory.read_at(&mut buf[..size], address)?;
        self.keep(offset, &buf[..got])?;
        Ok(got)
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.size)
    }
}

#[cfg(test)]
mod tests;
