//! Derives the rules of x86-64 functions without unwind information from their machine code.
//!
//! musl has no unwind information at all, and neither have many functions written in assembler. Such a function is
//! found by its symbol, by a call, or because its address is taken. All paths are followed from its first instruction,
//! where the stack contains only the return address. Each `push`, `pop` and addition updates the stack depth.
//!
//! Code has no rule where the analysis is uncertain. A function is rejected if two paths contradict each other, or if
//! it returns to anything but its return address. Code after an instruction that loads the stack pointer from elsewhere
//! has no rule, nor has code that two functions reach with different stacks.
//!
//! A function that clears the frame pointer register without having saved it never returns: the ABI prescribes this for
//! the start of programs and threads.

mod cases;
mod follow;
mod function;
mod state;

use object::elf::{SHT_DYNSYM, SHT_SYMTAB, STT_FUNC};

use self::follow::Follower;
use super::rule::{Arch, Rule};
use super::spans::{Source, Span};
use crate::elf::{Elf, u64_at};

/// Minimum size of a gap, in bytes; shorter gaps are padding between functions.
const LEAST: u64 = 16;
/// Gaps smaller than 1/`SHARE` of the code are ignored: they are what the compiler adds to every program.
const SHARE: u64 = 64;
/// Maximum size of the gaps, in bytes. Larger gaps are the code of a runtime (V8's built-in functions): it has its own
/// conventions, keeps frame pointers, and would take seconds to analyze.
const MAX_CODE: u64 = 1 << 20;

/// The rules of code without unwind information, by address.
#[derive(Debug, Default)]
pub struct MachineCode(Vec<(u64, Rule)>);

impl MachineCode {
    /// Analyzes the functions in uncovered code. Returns their rules, and the code ranges that have rules.
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
        // The entry address of a library may be meaningless.
        follower.begin(elf.header_entry(), false);
        for start in symbols(elf) {
            follower.begin(start, true);
        }
        // Some of the addresses that the loader writes into data are those of functions.
        for (_, start) in elf.relative_words() {
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

    /// Emits the rules of a span, like [`Cfi::rules`](super::cfi::Cfi::rules).
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

/// The start addresses of functions in the symbol tables. A damaged table is ignored.
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
