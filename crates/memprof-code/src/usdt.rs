//! USDT probes, which a program's author has placed in its code and which notes in its file describe (`.note.stapsdt`).
//!
//! A probe is a `nop`, which the kernel replaces with a breakpoint while a listener is attached. The kernel counts
//! listeners in the probe's semaphore, if it has one. A note contains the addresses of both, and the locations of the
//! arguments at that instruction.
//!
//! The notes come from an untrusted file: unexpected ones are skipped.

mod argument;

pub use argument::{Argument, ArgumentLocation};

use std::ops::Range;

use object::elf::EM_AARCH64;

use crate::elf::{Elf, ElfError};
use crate::unwind::FunctionRanges;

/// Maximum size of the note section, in bytes: libc's is 4 KiB, the largest known 100 KiB.
const MAX_BYTES: u64 = 1 << 20;
/// Type and owner name of a probe note.
const NOTE_TYPE: u32 = 3;
const OWNER: &[u8] = b"stapsdt\0";

/// A probe in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usdt {
    /// Provider: the library or the contract that the probe belongs to.
    pub provider: String,
    /// Name of the probe.
    pub name: String,
    /// File offset of its instruction, in bytes.
    pub offset: u64,
    /// File offset of its semaphore, in bytes; 0 if it has none. `None` if the semaphore is in memory that the file does not
    /// contain (`.bss`).
    pub semaphore: Option<u64>,
    /// Arguments, or their text if it cannot be parsed.
    pub arguments: Result<Vec<Argument>, String>,
}

/// The functions that contain these probes, as ranges of offsets in the file: those that its unwind information names.
pub fn functions(elf: &Elf<'_>, probes: &[Usdt]) -> Vec<Range<u64>> {
    let Ok(known) = FunctionRanges::read(elf) else {
        return Vec::new();
    };
    let function = |probe: &Usdt| {
        let address = elf.address_of(probe.offset)?;
        let function = known.at(address)?;
        let start = probe.offset.checked_sub(address - function.start)?;
        Some(start..start + (function.end - function.start))
    };
    probes.iter().filter_map(function).collect()
}

/// The probes of a file whose provider and name `wanted` accepts.
///
/// # Errors
/// The notes cannot be read.
pub fn probes(elf: &Elf<'_>, wanted: impl Fn(&str, &str) -> bool) -> Result<Vec<Usdt>, ElfError> {
    let section = elf.section_named(".note.stapsdt");
    let Some(section) = section.filter(|section| section.size <= MAX_BYTES) else {
        return Ok(Vec::new());
    };
    let base = elf.section_named(".stapsdt.base").map(|base| base.addr);
    let contents = elf.contents(section)?;
    let mut probes = Vec::new();
    let mut rest = contents.as_slice();
    while let Some(note) = Note::take(&mut rest) {
        let Some(at) = note.probe() else { continue };
        if !wanted(at.provider, at.name) {
            continue;
        }
        // If the file was prelinked after the notes were written, its addresses have moved by as much as this section. Notes
        // that do not say where it was may be in a file that has it for the notes of others.
        let moved = base.filter(|_| at.base != 0);
        let moved = moved.map_or(0, |base| base.wrapping_sub(at.base));
        let in_file = |address: u64| {
            let (segment, inside) = elf.loaded_at(address.wrapping_add(moved))?;
            segment.offset.checked_add(inside)
        };
        let semaphore = match at.semaphore {
            0 => Some(0),
            address => in_file(address),
        };
        let arm = elf.machine() == EM_AARCH64;
        let arguments = split(at.arguments).into_iter();
        let arguments: Option<_> = arguments.map(|text| Argument::parse(&text, arm)).collect();
        if let Some(offset) = in_file(at.address) {
            probes.push(Usdt {
                provider: at.provider.to_owned(),
                name: at.name.to_owned(),
                offset,
                semaphore,
                arguments: arguments.ok_or_else(|| at.arguments.to_owned()),
            });
        }
    }
    Ok(probes)
}

/// Splits the arguments' text into one text per argument. arm64 operands contain a blank within brackets: `8@[sp, 16]`.
fn split(arguments: &str) -> Vec<String> {
    let joined = arguments.replace(", ", ",");
    joined.split_ascii_whitespace().map(str::to_owned).collect()
}

/// A note of any owner.
struct Note<'a> {
    kind: u32,
    owner: &'a [u8],
    description: &'a [u8],
}

/// The description of a probe in a note.
struct Described<'a> {
    address: u64,
    base: u64,
    semaphore: u64,
    provider: &'a str,
    name: &'a str,
    arguments: &'a str,
}

impl<'a> Note<'a> {
    /// Takes the next note; `None` at the end, or if the rest is not a valid note.
    fn take(rest: &mut &'a [u8]) -> Option<Note<'a>> {
        let word = |bytes: &[u8], at: usize| {
            let word = bytes.get(at..at + 4)?.first_chunk()?;
            Some(u32::from_le_bytes(*word))
        };
        let owner = word(rest, 0)? as usize;
        let description = word(rest, 4)? as usize;
        let kind = word(rest, 8)?;
        let begin = 12usize.checked_add(owner.checked_next_multiple_of(4)?)?;
        let end = begin.checked_add(description)?;
        let note = Note {
            kind,
            owner: rest.get(12..12 + owner)?,
            description: rest.get(begin..end)?,
        };
        let next = end.checked_next_multiple_of(4)?.min(rest.len());
        *rest = &rest[next..];
        Some(note)
    }

    fn probe(&self) -> Option<Described<'a>> {
        if self.kind != NOTE_TYPE || self.owner != OWNER {
            return None;
        }
        let number = |at: usize| {
            let number = self.description.get(at..at + 8)?.first_chunk()?;
            Some(u64::from_le_bytes(*number))
        };
        let mut texts = self.description.get(24..)?.split(|byte| *byte == 0);
        let mut text = || std::str::from_utf8(texts.next()?).ok();
        Some(Described {
            address: number(0)?,
            base: number(8)?,
            semaphore: number(16)?,
            provider: text()?,
            name: text()?,
            arguments: text()?,
        })
    }
}

#[cfg(test)]
mod tests;
