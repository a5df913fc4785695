//! The rules of x86-64 functions without unwind information, from their machine code.
//!
//! musl has none at all, nor have many functions that were written in assembler. Such a function is known by its symbol, by a
//! call, or because its address is taken. From its first instruction on, where the stack has only the return address, all
//! paths are followed; each `push`, `pop` and sum says how much the stack has then.
//!
//! Code has no rule where the analysis is not certain. A function with a path that contradicts another, or that returns to
//! anything but its return address, is left out; so is code after an instruction that takes the stack pointer from elsewhere, and code
//! that two functions reach with different stacks.
//!
//! A function that clears the frame pointer register and has not saved it never returns: so begin programs and threads, as the
//! ABI says.

mod cases;
mod follow;
mod function;
mod state;

use object::elf::{DT_RELA, DT_RELASZ, R_X86_64_RELATIVE, SHT_DYNSYM, SHT_SYMTAB, STT_FUNC};

use self::follow::Follower;
use super::rule::{Arch, Rule};
use super::spans::{Source, Span};
use crate::elf::{Elf, u32_at, u64_at};

/// Size of an entry of the relocation table, and the maximum size of the part that is read, in bytes.
const RELA_SIZE: usize = 24;
const MAX_RELA_BYTES: u64 = (RELA_SIZE as u64) << 15;
/// Shorter gaps are padding between functions, in bytes.
const LEAST: u64 = 16;
/// If gaps are a smaller part of the code than one of this, they are what the compiler adds to each program.
const SHARE: u64 = 64;
/// More is code that a run-time system brings along (V8's built-in functions): it has conventions of its own, keeps frame
/// pointers, and would take seconds. In bytes.
const MAX_CODE: u64 = 1 << 20;

/// The rules of code without unwind information, by address.
#[derive(Debug, Default)]
pub struct MachineCode(Vec<(u64, Rule)>);

impl MachineCode {
    /// Follows the functions in uncovered code. Returns their rules, and which code has some.
    pub fn read(elf: &Elf, arch: Arch, gaps: &[(u64, u64)]) -> (MachineCode, Vec<Span>) {
        let gaps: Vec<_> = gaps
            .iter()
            .copied()
            .filter(|(start, end)| end - start >= LEAST)
            .collect();
        let open: u64 = gaps.iter().map(|(start, end)| end - start).sum();
        let code: u64 = elf.code_segments().map(|segment| segment.size).sum();
        if arch != Arch::X86_64 || open == 0 || open < code / SHARE || open > MAX_CODE {
            return Default::default();
        }
        let mut follower = Follower::new(elf, &gaps);
        // The entry of a library may mean nothing.
        follower.begin(elf.header_entry(), false);
        for start in symbols(elf) {
            follower.begin(start, true);
        }
        for start in pointers(elf) {
            follower.begin(start, false);
        }
        let mut rules = MachineCode::default();
        let mut spans: Vec<Span> = Vec::new();
        for (start, end, rule) in follower.rules() {
            match spans.last_mut() {
                Some(last) if last.end >= start => last.end = last.end.max(end),
                _ => spans.push(Span {
                    start,
                    end,
                    source: Source::MachineCode,
                    entry: 0,
                }),
            }
            rules.0.push((start, rule));
        }
        (rules, spans)
    }

    /// Emits the rules of a span, as [`Cfi::rules`](super::cfi::Cfi::rules) does.
    pub fn rules(&self, span: &Span, mut emit: impl FnMut(u64, Rule) -> bool) {
        let first = self.0.partition_point(|(at, _)| *at < span.start);
        let own = self.0[first..].iter().take_while(|(at, _)| *at < span.end);
        for (at, rule) in own {
            if !emit(*at, *rule) {
                return;
            }
        }
    }
}

/// The beginnings of functions in the symbol tables. A damaged table has none.
fn symbols(elf: &Elf) -> Vec<u64> {
    let mut found = Vec::new();
    let tables = [SHT_SYMTAB, SHT_DYNSYM].map(|kind| elf.section_of_kind(kind));
    for table in tables.into_iter().flatten() {
        let _ = elf.for_each_symbol(table, |symbol| {
            if symbol[4] & 0xf == STT_FUNC.0 {
                found.push(u64_at(symbol, 8));
            }
            Ok(())
        });
    }
    found
}

/// The addresses that the loader writes into data: some are those of functions.
fn pointers(elf: &Elf) -> Vec<u64> {
    let dynamic = elf.dynamic();
    let value = |wanted| {
        let found = dynamic.iter().find(|(tag, _)| *tag == wanted);
        found.map(|(_, value)| *value)
    };
    let table = value(DT_RELA).and_then(|at| elf.loaded_at(at));
    let size = value(DT_RELASZ).map_or(0, |size| size.min(MAX_RELA_BYTES));
    let mut bytes = vec![0; size as usize];
    let got = table.and_then(|(segment, inside)| {
        let offset = segment.offset.checked_add(inside)?;
        elf.read_some(&mut bytes, offset).ok()
    });
    bytes.truncate(got.unwrap_or(0));
    let entries = bytes.chunks_exact(RELA_SIZE);
    let relative = entries.filter(|entry| u32_at(entry, 8) == R_X86_64_RELATIVE.0);
    relative.map(|entry| u64_at(entry, 16)).collect()
}
