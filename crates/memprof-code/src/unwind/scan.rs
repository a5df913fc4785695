//! Recognises code without unwind information by its bytes or location: signal trampolines (musl and
//! 64-bit ARM kernels provide no unwind information for theirs) and a program's first instructions.

use object::elf::SHT_DYNSYM;

use super::rule::Arch;
use super::spans::{Source, Span};
use crate::elf::Elf;

/// Maximum number of bytes of uncovered code that are scanned.
pub(super) const MAX_SCANNED: u64 = 16 << 20;
const BLOCK: u64 = 64 << 10;
/// Maximum size of a program's entry code, in bytes. The function that this assembler code calls follows
/// it.
const ENTRY_SIZE: u64 = 32;
/// The same for a dynamic loader, whose entry code also runs the libraries' initialisers.
const LOADER_ENTRY_SIZE: u64 = 96;
/// A function that every loader exports for debuggers.
const LOADER_FUNCTION: &str = "_dl_debug_state";

/// The signal trampolines in uncovered code. Each span begins one byte early, so that it contains the
/// signal handler's return address minus one.
pub fn trampolines(elf: &Elf, arch: Arch, gaps: &[(u64, u64)]) -> Vec<Span> {
    let wanted = arch.signal_trampoline();
    let mut reader = Blocks::default();
    let mut found = Vec::new();
    let gaps = gaps.iter().filter(|(s, e)| e - s >= wanted.len() as u64);
    for &(start, end) in gaps {
        let mut at = start;
        while at < end {
            let Some(code) = reader.at(elf, at, end, wanted.len()) else {
                break;
            };
            for i in positions(code, wanted) {
                let from = at + i as u64;
                found.push(Span {
                    start: from.saturating_sub(1).max(start),
                    end: from + wanted.len() as u64,
                    source: Source::Trampoline,
                    entry: 0,
                });
            }
            // The next block overlaps this one, so that no trampoline is split.
            let read = code.len() as u64;
            if at + read >= end {
                break;
            }
            at += read - (wanted.len() as u64 - 1);
        }
        if reader.scanned > MAX_SCANNED {
            break;
        }
    }
    found.dedup_by_key(|s| s.start);
    found
}

/// The file's code, read a block at a time.
#[derive(Default)]
pub(super) struct Blocks {
    start: u64,
    data: Vec<u8>,
    /// Bytes read so far.
    pub scanned: u64,
}

impl Blocks {
    /// The code from an address up to `end` or the end of the buffer; `None` if it is shorter than `least` bytes.
    pub fn at(&mut self, elf: &Elf, at: u64, end: u64, least: usize) -> Option<&[u8]> {
        let wanted = (end - at).min(least as u64);
        let held = self.start + self.data.len() as u64;
        if at < self.start || at + wanted > held {
            let (segment, inside) = elf.loaded_at(at)?;
            let size = (segment.size - inside).min(BLOCK);
            self.data.resize(size as usize, 0);
            let offset = segment.offset.checked_add(inside)?;
            let got = elf.read_some(&mut self.data, offset).ok()?;
            self.data.truncate(got);
            self.start = at;
            self.scanned += got as u64;
        }
        let from = usize::try_from(at - self.start).ok()?;
        let rest = self.data.get(from..)?;
        let code = rest.get(..(end - at).min(rest.len() as u64) as usize)?;
        (code.len() >= least).then_some(code)
    }
}

fn positions<'a>(code: &'a [u8], wanted: &'a [u8]) -> impl Iterator<Item = usize> + 'a {
    let windows = code.windows(wanted.len()).enumerate();
    windows.filter(move |(_, w)| *w == wanted).map(|(i, _)| i)
}

/// The program's or the loader's first instructions, which have no caller, if they are in a gap.
pub fn entry_span(elf: &Elf, gaps: &[(u64, u64)]) -> Option<Span> {
    let (entry, size) = match elf.entry() {
        Some(entry) => (entry, ENTRY_SIZE),
        None => (loader_entry(elf)?, LOADER_ENTRY_SIZE),
    };
    let inside = |(start, end): &&(u64, u64)| (*start..*end).contains(&entry);
    gaps.iter().find(inside).map(|(_, end)| Span {
        start: entry,
        end: (*end).min(entry.saturating_add(size)),
        source: Source::Entry,
        entry: 0,
    })
}

/// The entry address of a dynamic loader. Its exported function distinguishes it from other libraries.
fn loader_entry(elf: &Elf) -> Option<u64> {
    let function = elf.extents(SHT_DYNSYM, [LOADER_FUNCTION]);
    let entry = elf.header_entry();
    (entry != 0 && matches!(function, Ok([Some(_)]))).then_some(entry)
}
