//! The headers of a core that is written.

use anyhow::{Context, Result};
use object::elf::{EM_AARCH64, EM_X86_64, ET_CORE, PF_R, PF_W, PF_X, PN_XNUM, PT_LOAD, PT_NOTE};

use super::headers::{EHDR, PHDR};
use memprof_sys::residency::{Vma, page_size};

/// Size of a section header, in bytes.
const SHDR: usize = 64;

/// A mapping, and its place in the core.
#[derive(Debug)]
pub(super) struct Load<'a> {
    pub vma: &'a Vma,
    /// Number of bytes in the core.
    pub size: u64,
    /// Offset of the first one.
    pub offset: u64,
}

impl Load<'_> {
    /// The offset behind the last byte.
    pub(super) fn end(&self) -> u64 {
        self.offset + self.size
    }
}

/// Makes the headers and the notes, and determines the offsets of the mappings.
///
/// # Errors
/// There are more mappings than a core can have.
pub(super) fn headers(loads: &mut [Load<'_>], notes: &[u8]) -> Result<Vec<u8>> {
    let count = loads.len() + 1;
    let many = count >= usize::from(PN_XNUM);
    let table = EHDR + if many { SHDR } else { 0 };
    let notes_at = table + count * PHDR;
    let page = page_size();
    let mut at = ((notes_at + notes.len()) as u64).next_multiple_of(page);
    for load in loads.iter_mut() {
        load.offset = at;
        at = at.checked_add(load.size).context("it would be too large")?;
    }
    let mut head = Vec::with_capacity(notes_at + notes.len());
    head.extend(b"\x7fELF\x02\x01\x01");
    head.resize(16, 0);
    let half = |head: &mut Vec<u8>, value: u16| head.extend(value.to_le_bytes());
    half(&mut head, ET_CORE.0);
    half(
        &mut head,
        match cfg!(target_arch = "aarch64") {
            true => EM_AARCH64.0,
            false => EM_X86_64.0,
        },
    );
    head.extend(1_u32.to_le_bytes());
    let sections = if many { EHDR as u64 } else { 0 };
    for word in [0, table as u64, sections] {
        head.extend(u64::to_le_bytes(word));
    }
    head.extend(0_u32.to_le_bytes());
    let shown = if many { PN_XNUM } else { count as u16 };
    half(&mut head, EHDR as u16);
    half(&mut head, PHDR as u16);
    half(&mut head, shown);
    half(&mut head, if many { SHDR as u16 } else { 0 });
    half(&mut head, u16::from(many));
    half(&mut head, 0);
    if many {
        let count = u32::try_from(count).context("it would have too many segments")?;
        let mut section = [0; SHDR];
        section[32..40].copy_from_slice(&1_u64.to_le_bytes());
        section[44..48].copy_from_slice(&count.to_le_bytes());
        head.extend(section);
    }
    let mut segment = |kind: u32, flags: u32, words: [u64; 6]| {
        head.extend(kind.to_le_bytes());
        head.extend(flags.to_le_bytes());
        head.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    };
    segment(
        PT_NOTE.0,
        0,
        [notes_at as u64, 0, 0, notes.len() as u64, 0, 4],
    );
    for Load { vma, size, offset } in loads.iter() {
        let perms = vma.perms;
        let flags = [(perms.read, PF_R), (perms.write, PF_W), (perms.exec, PF_X)];
        let flags = flags.iter().filter(|(set, _)| *set);
        let flags = flags.fold(0, |all, (_, flag)| all | flag.0);
        let words = [*offset, vma.start.0, 0, *size, vma.len(), page];
        segment(PT_LOAD.0, flags, words);
    }
    head.extend(notes);
    Ok(head)
}
