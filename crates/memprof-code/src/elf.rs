//! Reads the parts of an ELF file that symbol names and unwind tables need, with `pread`.
//!
//! The file is not memory-mapped: if it were truncated during use (by a rebuild of a library that is still open here),
//! SIGBUS would kill memprof. A failed read only returns an error.

mod dynamic_symbols;
mod gopclntab;
mod headers;
mod links;
mod mapping;
mod symbols;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use object::LittleEndian;
use object::elf::{
    DF_1_PIE, DT_FLAGS_1, DT_NULL, DT_RELA, DT_RELASZ, DataEncoding, DynamicFlags1, DynamicTag,
    ELFCLASS64, ELFDATA2LSB, ELFMAG, EM_X86_64, ET_DYN, ET_EXEC, FileClass, FileHeader64, FileType,
    Machine, NT_GNU_BUILD_ID, NoteType, PT_DYNAMIC, PT_GNU_EH_FRAME, PT_INTERP, PT_LOAD, PT_NOTE,
    ProgramHeader64, ProgramType, R_X86_64_RELATIVE, SHN_LORESERVE, SHT_NOBITS, SHT_NOTE,
    SectionHeader64, SectionType,
};

pub(crate) use self::gopclntab::{GoFunction, GoFunctions};
pub use self::headers::{Section, Segment};
pub use self::headers::{u16_at, u32_at, u64_at};
pub(crate) use self::mapping::address_of_mapping;
pub(crate) use self::symbols::Extent;
use memprof_sys::target_file::ReadAt;

const EHDR_SIZE: usize = size_of::<FileHeader64<LittleEndian>>();
const PHDR_SIZE: usize = size_of::<ProgramHeader64<LittleEndian>>();
const SHDR_SIZE: usize = size_of::<SectionHeader64<LittleEndian>>();
/// Maximum number of sections; a header with more is considered damaged.
const MAX_SECTIONS: u64 = 65_535;
/// Maximum size of a note or debug link section, in bytes; real ones have tens of bytes.
const MAX_NOTES: u64 = 64 << 10;
/// Maximum length of the name of a debug section, in bytes; sections with longer names are ignored.
const LONGEST_DEBUG_NAME: usize = 32;
/// Bytes read of a dynamic section, which has about 30 entries of 16 bytes.
const MAX_DYNAMIC: usize = 4096;
/// Size of a relocation, and the maximum size of the part of the relocation table that is read, in bytes.
const RELA_SIZE: usize = 24;
const MAX_RELA_BYTES: u64 = (RELA_SIZE as u64) << 15;
/// Maximum length of a path, in bytes: the kernel's `PATH_MAX`.
const MAX_PATH: usize = 4096;

/// Why a file cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ElfError {
    /// The file does not start with the ELF magic number.
    #[error("not an ELF file")]
    NotElf,
    /// An ELF file that is damaged, of an unsupported kind, or unreadable.
    #[error("{0}")]
    Bad(String),
}

fn bad(what: impl Into<String>) -> ElfError {
    ElfError::Bad(what.into())
}

/// An open ELF file whose headers have been read.
#[derive(Debug)]
pub struct Elf<'f> {
    file: &'f dyn ReadAt,
    kind: FileType,
    machine: Machine,
    entry: u64,
    sections: Vec<Section>,
    names: Option<Section>,
    segments: Vec<Segment>,
    /// Whether the file has no section headers; `sections` then comes from the dynamic section.
    without_sections: bool,
}

impl<'f> Elf<'f> {
    /// Reads the headers of a little-endian 64-bit program or shared library.
    ///
    /// # Errors
    /// The file is not such a file, or its headers point outside it.
    pub fn read(file: &'f dyn ReadAt) -> Result<Elf<'f>, ElfError> {
        let elf = Elf::read_debug_file(file)?;
        match elf.kind {
            ET_EXEC | ET_DYN => Ok(elf),
            _ => Err(bad("neither an executable nor a shared library")),
        }
    }

    /// Reads the headers of a little-endian 64-bit ELF file of any type, including files that only have debug
    /// information (`.dwo`, `.dwp`).
    ///
    /// # Errors
    /// The file is not such a file, or its headers point outside it.
    pub(crate) fn read_debug_file(file: &'f dyn ReadAt) -> Result<Elf<'f>, ElfError> {
        let mut h = [0; EHDR_SIZE];
        let got = read_some(file, &mut h, 0)?;
        if got < 4 || h[..4] != ELFMAG {
            return Err(ElfError::NotElf);
        }
        if got < EHDR_SIZE {
            return Err(bad("the ELF header is truncated"));
        }
        if FileClass(h[4]) != ELFCLASS64 || DataEncoding(h[5]) != ELFDATA2LSB {
            return Err(bad("not a little-endian 64-bit ELF file"));
        }
        let kind = FileType(u16_at(&h, 16));
        let sections = read_sections(file, &h)?;
        let names = sections.get(usize::from(u16_at(&h, 62))).copied();
        let mut elf = Elf {
            file,
            kind,
            machine: Machine(u16_at(&h, 18)),
            entry: u64_at(&h, 24),
            segments: read_segments(file, &h)?,
            without_sections: false,
            sections,
            names,
        };
        if elf.sections.is_empty() {
            elf.sections = elf.dynamic_symbols().unwrap_or_default();
            elf.without_sections = true;
        }
        Ok(elf)
    }

    /// Converts the file offset of a byte of code to its address, in the file's own addresses (before relocation);
    /// `None` if no executable segment contains it.
    pub(crate) fn address_of(&self, offset: u64) -> Option<u64> {
        self.code_segments().find_map(|s| {
            let inside = offset.checked_sub(s.offset).filter(|d| *d < s.size)?;
            s.addr.checked_add(inside)
        })
    }

    /// The address of the first byte of a mapping, in the file's own addresses; `None` if the mapping contains no code.
    /// `offset` and `size` are the mapping's, in bytes. The load bias in a process is the mapping's start minus this
    /// address.
    ///
    /// See `mapping::address_of_mapping`.
    pub fn address_of_mapping(&self, offset: u64, size: u64) -> Option<u64> {
        address_of_mapping(self.code_segments(), offset, size)
    }

    /// The loaded, executable segments, in the file's order.
    pub fn code_segments(&self) -> impl Iterator<Item = &Segment> {
        self.segments.iter().filter(|s| s.code())
    }

    /// All program headers.
    pub(crate) fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.segments.iter()
    }

    /// The loaded segments, in the file's order.
    pub fn loaded_segments(&self) -> impl Iterator<Item = &Segment> {
        self.segments.iter().filter(|s| s.kind == PT_LOAD)
    }

    /// The first address after all loaded segments, in the file's own addresses.
    pub fn end(&self) -> Option<u64> {
        self.loaded_segments()
            .map(|s| s.addr.saturating_add(s.size_in_memory))
            .max()
    }

    /// The loaded segment that contains an address, and the address's offset in it, in bytes.
    pub fn loaded_at(&self, addr: u64) -> Option<(&Segment, u64)> {
        self.segments.iter().find_map(|s| {
            let inside = addr.checked_sub(s.addr).filter(|d| *d < s.size)?;
            (s.kind == PT_LOAD).then_some((s, inside))
        })
    }

    /// The program header of `.eh_frame_hdr`, the index of the unwind information.
    pub fn eh_frame_hdr(&self) -> Option<&Segment> {
        self.segments.iter().find(|s| s.kind == PT_GNU_EH_FRAME)
    }

    /// The first segment of this kind.
    pub(crate) fn segment_of_kind(&self, kind: ProgramType) -> Option<&Segment> {
        self.segments.iter().find(|s| s.kind == kind)
    }

    /// The processor: an `EM_*` constant.
    pub fn machine(&self) -> Machine {
        self.machine
    }

    /// The address of a program's first instruction; `None` for a library, whose header may contain any address in this
    /// field.
    pub fn entry(&self) -> Option<u64> {
        let has = |kind| self.segments.iter().find(move |s| s.kind == kind);
        let program =
            self.kind == ET_EXEC || has(PT_INTERP).is_some() || self.says_it_is_a_program();
        (program && self.entry != 0).then_some(self.entry)
    }

    /// The dynamic loader that the program requests; `None` for a static program or a library.
    pub fn interpreter(&self) -> Option<PathBuf> {
        let named = self.segments.iter().find(|s| s.kind == PT_INTERP)?;
        let mut path = [0; MAX_PATH];
        let got = self.read_some(&mut path, named.offset).ok()?;
        let size = usize::try_from(named.size).ok()?.min(got);
        let path = path[..size].split(|b| *b == 0).next()?;
        Some(PathBuf::from(OsStr::from_bytes(path)))
    }

    /// The entries of the dynamic section, as (`DT_*`, value); empty for a static program.
    pub fn dynamic(&self) -> Vec<(DynamicTag, u64)> {
        let mut table = [0; MAX_DYNAMIC];
        let Some(section) = self.segments.iter().find(|s| s.kind == PT_DYNAMIC) else {
            return Vec::new();
        };
        let size = usize::try_from(section.size).unwrap_or(usize::MAX);
        let table = &mut table[..size.min(MAX_DYNAMIC)];
        let got = self.read_some(table, section.offset).unwrap_or(0);
        let entries = table[..got].chunks_exact(16);
        let entries = entries.map(|e| (DynamicTag(u64_at(e, 0).cast_signed()), u64_at(e, 8)));
        entries.take_while(|(tag, _)| *tag != DT_NULL).collect()
    }

    /// The words that the loader of x86-64 fills in with addresses of the file itself: the address of each, and what it points to.
    /// Empty if they cannot be read.
    pub fn relative_words(&self) -> Vec<(u64, u64)> {
        let dynamic = self.dynamic();
        let value = |wanted| {
            let found = dynamic.iter().find(|(tag, _)| *tag == wanted);
            found.map(|(_, value)| *value)
        };
        let table = value(DT_RELA).and_then(|at| self.loaded_at(at));
        let size = value(DT_RELASZ).map_or(0, |size| size.min(MAX_RELA_BYTES));
        let mut bytes = vec![0; size as usize];
        let got = table.and_then(|(segment, inside)| {
            let offset = segment.offset.checked_add(inside)?;
            self.read_some(&mut bytes, offset).ok()
        });
        bytes.truncate(got.unwrap_or(0));
        let entries = bytes.chunks_exact(RELA_SIZE);
        let relative = entries.filter(|entry| u32_at(entry, 8) == R_X86_64_RELATIVE.0);
        let words = relative.map(|entry| (u64_at(entry, 0), u64_at(entry, 16)));
        words.collect()
    }

    /// The NUL-terminated text at an address; `None` if no loaded segment contains it.
    pub fn text_at(&self, addr: u64) -> Option<OsString> {
        let (segment, inside) = self.loaded_at(addr)?;
        let mut text = [0; MAX_PATH];
        let got = self
            .read_some(&mut text, segment.offset.checked_add(inside)?)
            .ok()?;
        let end = text[..got].iter().position(|b| *b == 0)?;
        Some(OsString::from_vec(text[..end].to_vec()))
    }

    /// The entry address in the header, for any kind of file.
    pub(crate) fn header_entry(&self) -> u64 {
        self.entry
    }

    fn says_it_is_a_program(&self) -> bool {
        let dynamic = self.dynamic();
        let flags = dynamic.iter().find(|(tag, _)| *tag == DT_FLAGS_1);
        flags.is_some_and(|(_, flags)| DynamicFlags1(*flags).contains(DF_1_PIE))
    }

    /// Size of the file, in bytes.
    ///
    /// # Errors
    /// The file's metadata cannot be read.
    pub(crate) fn file_size(&self) -> Result<u64, ElfError> {
        let size = self.file.size();
        size.map_err(|e| bad(format!("cannot read its size: {e}")))
    }

    /// The section with this index.
    pub fn section(&self, index: usize) -> Option<&Section> {
        self.sections.get(index)
    }

    /// The end of the section (or segment, without section headers) whose code a symbol at this address belongs to;
    /// `index` is the symbol's section index. `None` if the symbol is not code of this file.
    pub(crate) fn end_of_code(&self, index: usize, address: u64) -> Option<u64> {
        // Undefined and absolute symbols have no section.
        if index == 0 || index >= usize::from(SHN_LORESERVE) {
            return None;
        }
        if self.without_sections {
            let (segment, _) = self.loaded_at(address).filter(|(s, _)| s.code())?;
            return segment.addr.checked_add(segment.size);
        }
        let section = self.section(index).filter(|s| s.executable())?;
        Some(section.end())
    }

    /// The first section of this kind that has bytes in the file.
    pub fn section_of_kind(&self, kind: SectionType) -> Option<&Section> {
        self.sections.iter().find(|s| s.kind == kind && s.size > 0)
    }

    /// Whether the symbols may include assembler mapping symbols (`$x`, `$d`), as on ARM and RISC-V.
    pub(crate) fn has_mapping_symbols(&self) -> bool {
        self.machine != EM_X86_64
    }

    /// Whether the file itself contains debug information.
    pub fn has_debug_info(&self) -> bool {
        let names = [".debug_info", ".zdebug_info"];
        names.iter().any(|name| self.section_named(name).is_some())
    }

    /// The sections with debug information, and their names.
    pub(crate) fn debug_sections(&self) -> Vec<(String, &Section)> {
        let Some(table) = self.names else {
            return Vec::new();
        };
        let name_of = |s: &Section| {
            let mut name = [0; LONGEST_DEBUG_NAME];
            let at = table.offset.saturating_add(u64::from(s.name));
            let got = self.read_some(&mut name, at).ok()?;
            let name = name[..got].split(|b| *b == 0).next()?;
            let name = std::str::from_utf8(name).ok()?;
            let debug = name.starts_with(".debug_") || name.starts_with(".zdebug_");
            debug.then(|| name.to_owned())
        };
        let contained = self
            .sections
            .iter()
            .filter(|s| s.kind != SHT_NOBITS && s.size > 0);
        contained.filter_map(|s| Some((name_of(s)?, s))).collect()
    }

    /// The build id, which the linker writes and `strip` keeps.
    pub fn build_id(&self) -> Option<Vec<u8>> {
        let sections = self.sections.iter().filter(|s| s.kind == SHT_NOTE);
        let sections = sections.map(|s| (s.offset, s.size, s.align));
        let segments = self.segments.iter().filter(|s| s.kind == PT_NOTE);
        let segments = segments.map(|s| (s.offset, s.size, s.align));
        let mut notes = sections.chain(segments.filter(|_| self.without_sections));
        notes.find_map(|(offset, size, align)| {
            if size > MAX_NOTES {
                return None;
            }
            let mut notes = vec![0; size as usize];
            self.read_at(&mut notes, offset).ok()?;
            find_build_id(&notes, if align == 8 { 8 } else { 4 })
        })
    }

    /// Fills `buf` from a position in the file.
    ///
    /// # Errors
    /// The file ends too early or cannot be read.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<(), ElfError> {
        read_all(self.file, buf, offset)
    }

    /// Reads at most `buf.len()` bytes; returns the number of bytes read.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn read_some(&self, buf: &mut [u8], offset: u64) -> Result<usize, ElfError> {
        read_some(self.file, buf, offset)
    }

    /// The first section of this name that has bytes in the file.
    pub fn section_named(&self, name: &str) -> Option<&Section> {
        let table = self.names?;
        let mut want = name.as_bytes().to_vec();
        want.push(0);
        let mut got = vec![0; want.len()];
        self.sections
            .iter()
            .filter(|s| s.kind != SHT_NOBITS && s.size > 0)
            .find(|s| {
                let at = table.offset.saturating_add(u64::from(s.name));
                self.read_at(&mut got, at).is_ok() && got == want
            })
    }

    /// Reads a section's contents.
    ///
    /// # Errors
    /// The section is too large or cannot be read.
    pub fn contents(&self, s: &Section) -> Result<Vec<u8>, ElfError> {
        self.must_contain(s)?;
        let mut data = vec![0; usize::try_from(s.size).map_err(|_| bad("a section is too large"))?];
        self.read_at(&mut data, s.offset)?;
        Ok(data)
    }

    /// Rejects a section that claims more bytes than the file has, before memory for it is allocated.
    fn must_contain(&self, s: &Section) -> Result<(), ElfError> {
        let size = self.file_size()?;
        match s.offset.checked_add(s.size) {
            Some(end) if end <= size => Ok(()),
            _ => Err(bad("a header points outside the file")),
        }
    }
}

fn read_sections(file: &dyn ReadAt, h: &[u8]) -> Result<Vec<Section>, ElfError> {
    let (at, entry) = (u64_at(h, 40), usize::from(u16_at(h, 58)));
    if at == 0 {
        return Ok(Vec::new());
    }
    if entry != SHDR_SIZE {
        return Err(bad("the section headers have an unknown size"));
    }
    let mut count = u64::from(u16_at(h, 60));
    if count == 0 {
        // The count does not fit in 16 bits, and is in the first section header instead.
        let mut first = [0; SHDR_SIZE];
        read_all(file, &mut first, at)?;
        count = Section::parse(&first).size;
    }
    if count > MAX_SECTIONS {
        return Err(bad("more sections than an ELF file can have"));
    }
    let table = read_table(file, at, count as usize * SHDR_SIZE)?;
    Ok(table.chunks_exact(SHDR_SIZE).map(Section::parse).collect())
}

fn read_segments(file: &dyn ReadAt, h: &[u8]) -> Result<Vec<Segment>, ElfError> {
    let count = usize::from(u16_at(h, 56));
    if count > 0 && usize::from(u16_at(h, 54)) != PHDR_SIZE {
        return Err(bad("the program headers have an unknown size"));
    }
    let table = read_table(file, u64_at(h, 32), count * PHDR_SIZE)?;
    Ok(table.chunks_exact(PHDR_SIZE).map(Segment::parse).collect())
}

fn read_table(file: &dyn ReadAt, at: u64, size: usize) -> Result<Vec<u8>, ElfError> {
    let mut table = vec![0; size];
    read_all(file, &mut table, at)?;
    Ok(table)
}

/// The build id in the notes of a file, each of which begins at a multiple of `align` bytes.
pub fn find_build_id(mut notes: &[u8], align: usize) -> Option<Vec<u8>> {
    while notes.len() >= 12 {
        let (name_size, size) = (u32_at(notes, 0) as usize, u32_at(notes, 4) as usize);
        let at = 12usize
            .checked_add(name_size)?
            .checked_next_multiple_of(align)?;
        let end = at.checked_add(size)?;
        let id = notes.get(at..end)?;
        if NoteType(u32_at(notes, 8)) == NT_GNU_BUILD_ID && notes.get(12..16) == Some(b"GNU\0") {
            return (!id.is_empty()).then(|| id.to_vec());
        }
        notes = notes.get(end.checked_next_multiple_of(align)?..)?;
    }
    None
}

fn read_all(file: &dyn ReadAt, buf: &mut [u8], offset: u64) -> Result<(), ElfError> {
    // The kernel rejects larger offsets with a less specific error.
    if offset > i64::MAX as u64 {
        return Err(bad("a header points outside the file"));
    }
    match read_some(file, buf, offset)? {
        got if got < buf.len() => Err(bad("a header points outside the file")),
        _ => Ok(()),
    }
}

fn read_some(file: &dyn ReadAt, buf: &mut [u8], offset: u64) -> Result<usize, ElfError> {
    let got = file.read_some(buf, offset);
    got.map_err(|e| bad(format!("reading failed: {e}")))
}
