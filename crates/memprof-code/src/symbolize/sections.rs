//! Provides a file's debug sections, decompressed where necessary.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use gimli::{EndianSlice, LittleEndian};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

use super::decompress::unpack;
use super::shrunk;
use crate::elf::{Elf, Section};
use memprof_sys::target_file::TargetFile;

/// Maximum size of a file that is copied because of its debug information, in bytes.
const MAX_COPIED: u64 = 256 << 20;

/// Sections that are read even if they are compressed.
const NEEDED: [&str; 10] = [
    ".debug_abbrev",
    ".debug_addr",
    ".debug_aranges",
    ".debug_info",
    ".debug_line",
    ".debug_line_str",
    ".debug_ranges",
    ".debug_rnglists",
    ".debug_str",
    ".debug_str_offsets",
];

/// Part of a section. It is valid as long as the [`SectionMemory`] that it was loaded into.
pub(super) type Slice = EndianSlice<'static, LittleEndian>;

/// Owns the memory of sections. Everything that refers to it must be dropped first.
#[derive(Debug)]
pub(super) struct SectionMemory {
    mapped: Vec<Mapped>,
    unpacked: Vec<Vec<u8>>,
    /// Number of bytes that may still be decompressed or read into memory.
    room: u64,
}

/// A mapped file.
#[derive(Debug)]
struct Mapped {
    at: NonNull<libc::c_void>,
    size: usize,
    file: File,
}

/// The sections of a file, by name.
pub(super) struct Sections(HashMap<String, &'static [u8]>);

impl SectionMemory {
    /// Creates an empty store, whose memory budget is `room` bytes.
    pub fn new(room: u64) -> SectionMemory {
        SectionMemory {
            mapped: Vec::new(),
            unpacked: Vec::new(),
            room,
        }
    }

    /// Number of bytes that may still be decompressed or read into memory.
    pub fn room(&self) -> u64 {
        self.room
    }

    /// Whether no file was truncated after it was mapped. Reads beyond its end return zeros (`shrunk.rs`).
    pub fn is_whole(&self) -> bool {
        let whole = |m: &Mapped| m.file.metadata().is_ok_and(|a| a.len() >= m.size as u64);
        self.mapped.iter().all(whole)
    }

    /// Maps a file and returns its debug sections. Compressed sections that are not needed are omitted, except in a
    /// `package` of split debug information, whose index refers to all of them.
    pub fn load(&mut self, file: &TargetFile, elf: &Elf, package: bool) -> Option<Sections> {
        let mapped = Mapped::map(file)?;
        let whole = mapped.bytes();
        self.mapped.push(mapped);
        let needed = |name: &str| package || NEEDED.contains(&name);
        self.sections(elf, |_, section| part(whole, section), needed)
    }

    /// Returns the sections of one unit's split debug information. The file is small and there may be many of them, so
    /// it is read instead of mapped.
    pub fn load_unit(&mut self, elf: &Elf) -> Option<Sections> {
        let read = |kept: &mut SectionMemory, section: &Section| {
            kept.room = kept.room.checked_sub(section.size)?;
            let contents = elf.contents(section).ok()?;
            Some(kept.keep(contents))
        };
        self.sections(elf, read, |_| true)
    }

    fn sections(
        &mut self,
        elf: &Elf,
        plain: impl Fn(&mut SectionMemory, &Section) -> Option<&'static [u8]>,
        needed: impl Fn(&str) -> bool,
    ) -> Option<Sections> {
        let mut found = HashMap::new();
        for (name, section) in elf.debug_sections() {
            let old = name.strip_prefix(".zdebug_");
            let name = old.map_or(name.clone(), |rest| format!(".debug_{rest}"));
            if found.contains_key(&name) {
                continue;
            }
            let contents = if old.is_none() && !section.compressed() {
                plain(self, section)?
            } else if needed(&name) {
                let contents = unpack(elf, section, old.is_some(), self.room)?;
                self.room -= contents.len() as u64;
                self.keep(contents)
            } else {
                continue;
            };
            found.insert(name, contents);
        }
        Some(Sections(found))
    }

    fn keep(&mut self, contents: Vec<u8>) -> &'static [u8] {
        self.unpacked.push(contents);
        let kept = self.unpacked.last().map_or(&[][..], Vec::as_slice);
        // SAFETY: the bytes stay in place until `self` is dropped, and nothing changes them. References to them are
        // dropped before (see `SectionMemory`).
        unsafe { std::slice::from_raw_parts(kept.as_ptr(), kept.len()) }
    }
}

impl Sections {
    /// The section with this name; empty if there is none.
    pub fn get(&self, name: Option<&str>) -> Slice {
        let found = name.and_then(|name| self.0.get(name));
        EndianSlice::new(found.copied().unwrap_or_default(), LittleEndian)
    }
}

fn part(whole: &'static [u8], section: &Section) -> Option<&'static [u8]> {
    let begin = usize::try_from(section.offset).ok()?;
    let size = usize::try_from(section.size).ok()?;
    whole.get(begin..begin.checked_add(size)?)
}

impl Mapped {
    fn map(file: &TargetFile) -> Option<Mapped> {
        let file = readable(file)?;
        let size = usize::try_from(file.metadata().ok()?.len()).ok()?;
        shrunk::survive();
        let (read, private) = (ProtFlags::PROT_READ, MapFlags::MAP_PRIVATE);
        // SAFETY: a new mapping at an address that the kernel chooses replaces nothing.
        let at = unsafe {
            mmap(
                None,
                NonZeroUsize::new(size)?,
                read,
                private,
                file.as_fd(),
                0,
            )
        };
        Some(Mapped {
            at: at.ok()?,
            size,
            file,
        })
    }

    fn bytes(&self) -> &'static [u8] {
        // SAFETY: the mapping exists until `self` is dropped, and references to it are dropped before (see `SectionMemory`). If
        // the file is truncated meanwhile, reads return zeros. If it is written to, reads return other bytes, which are
        // not trusted either.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr().cast(), self.size) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: `of` created this mapping, and nothing refers to it any more.
        let _ = unsafe { munmap(self.at, self.size) };
    }
}

/// The file to map: the file itself, or a copy.
pub(super) fn readable(file: &TargetFile) -> Option<File> {
    match file.opened() {
        Some(file) => file.try_clone().ok(),
        None => copy(file),
    }
}

/// Copies the file to memory, because reading a mapping of the file itself could wait for its file system without
/// limit.
fn copy(file: &TargetFile) -> Option<File> {
    if file.about().size() > MAX_COPIED {
        return None;
    }
    let mut copy = File::from(memfd_create(c"debug-info", MFdFlags::MFD_CLOEXEC).ok()?);
    let copied = io::copy(&mut file.contents().take(MAX_COPIED + 1), &mut copy).ok()?;
    (copied <= MAX_COPIED).then_some(copy)
}
