//! The sections of debug information of a file, decompressed where they are compressed.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use gimli::{EndianSlice, LittleEndian};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

use super::packed::unpack;
use super::shrunk;
use crate::elf::{Elf, Section};
use memprof_sys::target_file::TargetFile;

/// Maximum size of a file that is copied for its debug information, in bytes.
const MAX_COPIED: u64 = 256 << 20;

/// Those that are read even if they are compressed.
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

/// A part of a section. It is valid as long as the [`Kept`] that it was loaded into.
pub(super) type Slice = EndianSlice<'static, LittleEndian>;

/// Memory of sections. What refers to it must be dropped first.
#[derive(Debug)]
pub(super) struct Kept {
    mapped: Vec<Mapped>,
    unpacked: Vec<Vec<u8>>,
    /// Bytes that may still be decompressed or read into memory.
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

impl Kept {
    /// Room for `room` bytes.
    pub fn new(room: u64) -> Kept {
        Kept {
            mapped: Vec::new(),
            unpacked: Vec::new(),
            room,
        }
    }

    /// Whether all files still have all mapped bytes: what lies behind the end of one is read as zeros (`shrunk.rs`).
    pub fn is_whole(&self) -> bool {
        let whole = |m: &Mapped| m.file.metadata().is_ok_and(|a| a.len() >= m.size as u64);
        self.mapped.iter().all(whole)
    }

    /// The sections of a file of debug information, which is mapped. Compressed ones that nobody reads are left out, except of a
    /// `package` of split debug information: its index refers to all of them.
    pub fn load(&mut self, file: &TargetFile, elf: &Elf, package: bool) -> Option<Sections> {
        let mapped = Mapped::of(file)?;
        let whole = mapped.bytes();
        self.mapped.push(mapped);
        let needed = |name: &str| package || NEEDED.contains(&name);
        self.sections(elf, |_, section| part(whole, section), needed)
    }

    /// The sections of one unit's split debug information: a small file, of which there may be many, so it is read.
    pub fn load_unit(&mut self, elf: &Elf) -> Option<Sections> {
        let read = |kept: &mut Kept, section: &Section| {
            kept.room = kept.room.checked_sub(section.size)?;
            let contents = elf.contents(section).ok()?;
            Some(kept.keep(contents))
        };
        self.sections(elf, read, |_| true)
    }

    fn sections(
        &mut self,
        elf: &Elf,
        plain: impl Fn(&mut Kept, &Section) -> Option<&'static [u8]>,
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
        // SAFETY: the bytes stay where they are until `self` is dropped, and nobody changes them. What refers to them is
        // dropped before (see `Kept`).
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
    fn of(file: &TargetFile) -> Option<Mapped> {
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
        // SAFETY: the mapping is there until `self` is dropped, and what refers to it is dropped before (see `Kept`). A file that is
        // cut meanwhile is read as zeros; one that is written to gives other bytes, of which nothing is believed.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr().cast(), self.size) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: `of` made this mapping, and nothing refers to it any more.
        let _ = unsafe { munmap(self.at, self.size) };
    }
}

/// The file, or a copy, to be mapped.
pub(super) fn readable(file: &TargetFile) -> Option<File> {
    match file.opened() {
        Some(file) => file.try_clone().ok(),
        None => copy(file),
    }
}

/// A copy in memory: reading a mapping of the file would wait for its file system without a limit.
fn copy(file: &TargetFile) -> Option<File> {
    if file.about().size() > MAX_COPIED {
        return None;
    }
    let mut copy = File::from(memfd_create(c"debug-info", MFdFlags::MFD_CLOEXEC).ok()?);
    let copied = io::copy(&mut file.contents().take(MAX_COPIED + 1), &mut copy).ok()?;
    (copied <= MAX_COPIED).then_some(copy)
}
