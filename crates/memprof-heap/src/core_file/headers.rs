//! The headers of a core: its processor, its segments of memory, and where its notes are.

use anyhow::{Result, bail, ensure};
use object::elf::{
    DataEncoding, ELFCLASS64, ELFDATA2LSB, ELFMAG, EM_AARCH64, EM_X86_64, ET_CORE, FileClass,
    FileType, Machine, PF_R, PF_W, PF_X, PN_XNUM, PT_LOAD, PT_NOTE, ProgramFlags, ProgramType,
};

use memprof_code::elf::{u16_at, u32_at, u64_at};
use memprof_sys::residency::{Perms, page_size};
use memprof_sys::target_file::ReadAt;

/// Size of the ELF header, of a program header and of a section header of a 64-bit file, in bytes.
pub(super) const EHDR: usize = 64;
pub(super) const PHDR: usize = 56;
const SHDR: usize = 64;
/// Maximum number of segments: 16 times as many as a process has mappings by default (`vm.max_map_count`).
const MAX_SEGMENTS: u64 = 1 << 20;
/// Maximum number of ranges of notes. Cores have one.
const MAX_NOTES: usize = 64;

/// The headers of a core.
#[derive(Debug)]
pub(super) struct Headers {
    /// The processor.
    pub machine: Machine,
    /// The segments of memory, by address; none overlaps another one, in memory or in the file.
    pub segments: Vec<Segment>,
    /// Offset and size of the notes, in bytes.
    pub notes: Vec<(u64, u64)>,
}

/// A range of the process's memory: at least one mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    /// First address.
    pub start: u64,
    /// End of the range.
    pub end: u64,
    /// Permissions. A core does not say which memory was shared.
    pub perms: Perms,
    /// Offset of the first byte in the file.
    pub offset: u64,
    /// Number of bytes in the file. The rest of the range is not in the core.
    pub size: u64,
}

impl Headers {
    /// Reads the headers.
    ///
    /// # Errors
    /// The file is no core of a 64-bit process of a processor that memprof knows, or its headers are damaged.
    pub(super) fn read(file: &dyn ReadAt) -> Result<Headers> {
        let mut head = [0; EHDR];
        let got = file.read_some(&mut head, 0)?;
        ensure!(
            got >= 4 && head[..4] == ELFMAG,
            "it is not an ELF file, and not compressed in a way that memprof knows"
        );
        ensure!(got == EHDR, "it ends within the ELF header");
        ensure!(
            FileClass(head[4]) == ELFCLASS64,
            "it is the core of a 32-bit process, which memprof does not read"
        );
        ensure!(
            DataEncoding(head[5]) == ELFDATA2LSB,
            "it is the core of a big-endian process, which memprof does not read"
        );
        let kind = FileType(u16_at(&head, 16));
        ensure!(
            kind == ET_CORE,
            "it is an ELF file, but not a core (e_type is {}, not {})",
            kind.0,
            ET_CORE.0
        );
        let machine = Machine(u16_at(&head, 18));
        ensure!(
            [EM_X86_64, EM_AARCH64].contains(&machine),
            "it is of a processor that memprof does not know (e_machine {}); x86-64 and 64-bit ARM are known",
            machine.0
        );
        let table = table(file, &head)?;
        let (mut segments, mut notes) = (Vec::new(), Vec::new());
        for header in table.chunks_exact(PHDR) {
            match ProgramType(u32_at(header, 0)) {
                PT_LOAD => segments.extend(Segment::parse(header)?),
                PT_NOTE if notes.len() < MAX_NOTES => {
                    notes.push((u64_at(header, 8), u64_at(header, 32)));
                }
                _ => {}
            }
        }
        check(&mut segments)?;
        Ok(Headers {
            machine,
            segments,
            notes,
        })
    }
}

/// Reads the program headers.
fn table(file: &dyn ReadAt, head: &[u8; EHDR]) -> Result<Vec<u8>> {
    let mut count = u64::from(u16_at(head, 56));
    if count == u64::from(PN_XNUM) {
        // The number is in the first section header.
        let mut section = [0; SHDR];
        let got = file.read_some(&mut section, offset(u64_at(head, 40))?)?;
        ensure!(
            got == SHDR,
            "it ends before the number of its segments, in the section header at {:#x}",
            u64_at(head, 40)
        );
        count = u64::from(u32_at(&section, 44));
    }
    ensure!(count > 0, "it has no segments");
    ensure!(
        usize::from(u16_at(head, 54)) == PHDR,
        "its program headers have an unknown size: {} bytes",
        u16_at(head, 54)
    );
    ensure!(
        count <= MAX_SEGMENTS,
        "it claims {count} segments, and memprof reads at most {MAX_SEGMENTS}"
    );
    let at = offset(u64_at(head, 32))?;
    let wanted = count * PHDR as u64;
    let size = file.size()?;
    ensure!(
        at.checked_add(wanted).is_some_and(|end| end <= size),
        "it ends within its program headers: {count} of them begin at byte {at}, and it has {size} bytes"
    );
    let mut table = vec![0; wanted as usize];
    file.fill(&mut table, at)?;
    Ok(table)
}

/// Checks an offset: the kernel rejects larger ones.
pub(super) fn offset(at: u64) -> Result<u64> {
    ensure!(
        i64::try_from(at).is_ok(),
        "a header points to byte {at}, outside of any file"
    );
    Ok(at)
}

impl Segment {
    /// Parses a program header. `None` for a segment without any address.
    fn parse(header: &[u8]) -> Result<Option<Segment>> {
        let flags = ProgramFlags(u32_at(header, 4));
        let (start, size) = (u64_at(header, 16), u64_at(header, 32));
        let in_memory = u64_at(header, 40);
        if in_memory == 0 && size == 0 {
            return Ok(None);
        }
        let Some(end) = start.checked_add(in_memory) else {
            bail!("its segment at {start:#x} of {in_memory} bytes goes beyond the last address");
        };
        ensure!(
            size <= in_memory,
            "its segment at {start:#x} has {size} bytes in the file and only {in_memory} in memory"
        );
        let page = page_size();
        ensure!(
            start.is_multiple_of(page) && end.is_multiple_of(page),
            "its segment at {start:#x} of {in_memory} bytes does not consist of pages of {page} bytes"
        );
        let offset = offset(u64_at(header, 8))?;
        ensure!(
            offset
                .checked_add(size)
                .is_some_and(|end| i64::try_from(end).is_ok()),
            "its segment at {start:#x} lies outside of any file"
        );
        Ok(Some(Segment {
            start,
            end,
            perms: Perms {
                read: flags.contains(PF_R),
                write: flags.contains(PF_W),
                exec: flags.contains(PF_X),
                shared: false,
            },
            offset,
            size,
        }))
    }
}

/// Sorts the segments by address. Segments that overlap would have the same bytes read again and again.
fn check(segments: &mut [Segment]) -> Result<()> {
    segments.sort_by_key(|segment| segment.offset);
    let mut end = 0;
    for segment in segments.iter().filter(|segment| segment.size > 0) {
        ensure!(
            segment.offset >= end,
            "its segment at {:#x} has bytes of the file that belong to another one",
            segment.start
        );
        end = segment.offset + segment.size;
    }
    segments.sort_by_key(|segment| segment.start);
    for two in segments.windows(2) {
        ensure!(
            two[0].end <= two[1].start,
            "its segments at {:#x} and {:#x} overlap",
            two[0].start,
            two[1].start
        );
    }
    Ok(())
}
