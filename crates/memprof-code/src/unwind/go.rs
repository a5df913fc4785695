//! The rules of Go's code, from the table by which Go's own run time unwinds (`.gopclntab`). `strip` keeps it.
//!
//! It says how much of the stack a function uses at each of its instructions, and which functions switch to another
//! stack. How those find the stack they came from depends on Go's version, and their machine code says it:
//!
//! - From Go 1.21 on they keep a frame pointer, which leads to the other stack. `cgocallback`, by which C calls Go,
//!   always has.
//! - Before, a call of C (`asmcgocall`) has noted the goroutine and the depth of its stack in its frame.
//! - Before, for `systemstack`, and in all versions for `morestack`, the goroutine has its stack pointer.
//!
//! 64-bit ARM: not supported. Its Go code is unwound by frame pointers.

mod code;

use std::cell::Cell;
use std::ops::Range;

use self::code::{Goroutine, Step, call_of_c, frame_record, goroutine, returned_to};
use super::rule::{Arch, CfaKind, FpKind, OTHER_STACK, Rule};
use super::spans::{Source, Span};
use crate::elf::{Elf, ElfError, GoFunction, GoFunctions};

/// Bytes read of a function that switches stacks; the longest, `cgocallback`, has about 300.
const SWITCH_SIZE: u64 = 512;
/// Bytes read of each function's prologue.
const PROLOGUE_SIZE: u64 = 17;
/// Maximum number of functions, and of ranges in them: Kubernetes' have 100,000 and a few each.
const MAX_FUNCTIONS: u64 = 4 << 20;
const MAX_RANGES: usize = 32 << 20;
/// The trampoline of signals, which is recognised by its code.
const SIGNAL_RETURN: &[u8] = b"runtime.sigreturn";

/// Go's functions in a file.
#[derive(Debug)]
pub struct GoCode<'e> {
    elf: &'e Elf<'e>,
    functions: GoFunctions<'e>,
    goroutine: Option<Goroutine>,
    /// Ranges of code that may still be read: it bounds the time for a malicious file, whose functions share them.
    budget: Cell<usize>,
}

impl<'e> GoCode<'e> {
    /// The functions of a file, sorted by address; `None` if it is not Go's or its table cannot be used.
    pub fn read(elf: &'e Elf<'e>, arch: Arch) -> Option<(Self, Vec<Span>)> {
        let read = GoCode::try_read(elf);
        read.ok().flatten().filter(|_| arch == Arch::X86_64)
    }

    fn try_read(elf: &'e Elf<'e>) -> Result<Option<(Self, Vec<Span>)>, ElfError> {
        let Some(mut functions) = GoFunctions::read(elf)? else {
            return Ok(None);
        };
        functions.load()?;
        let mut code = GoCode {
            elf,
            functions,
            goroutine: None,
            budget: Cell::new(MAX_RANGES),
        };
        if code.functions.count() > MAX_FUNCTIONS {
            return Ok(None);
        }
        let mut spans = Vec::new();
        let mut is_in_place = false;
        for index in 0..code.functions.count() {
            let Some(function) = code.functions.describe(index)? else {
                return Ok(None);
            };
            let (start, end) = (
                code.functions.start(index)?,
                code.functions.start(index + 1)?,
            );
            let name = code.special_name(index, function)?;
            match name.as_slice() {
                b"runtime.goexit" => is_in_place = code.bytes(start, 2) == [0x90, 0xe8],
                b"runtime.systemstack" => {
                    code.goroutine = goroutine(&code.bytes(start, end.saturating_sub(start)))
                }
                _ => {}
            }
            if start < end && !name.starts_with(SIGNAL_RETURN) {
                spans.push(Span {
                    start,
                    end,
                    source: Source::Go,
                    entry: index as usize,
                });
            }
        }
        spans.sort_by_key(|span| span.start);
        // The address that the table counts from is where it was thought to be.
        Ok(is_in_place.then_some((code, spans)))
    }

    /// The name of a function that may need a rule of its own; empty for most.
    fn special_name(&self, index: u64, function: GoFunction) -> Result<Vec<u8>, ElfError> {
        match function.assembler || function.sets_sp || function.outermost {
            true => self.functions.name(index),
            false => Ok(Vec::new()),
        }
    }

    /// Code from an address on; shorter where the file ends.
    fn bytes(&self, start: u64, size: u64) -> Vec<u8> {
        let mut bytes = vec![0; size.min(SWITCH_SIZE) as usize];
        let offset = self.elf.loaded_at(start);
        let offset = offset.and_then(|(segment, inside)| segment.offset.checked_add(inside));
        let got = offset.and_then(|offset| self.elf.read_some(&mut bytes, offset).ok());
        bytes.truncate(got.unwrap_or(0));
        bytes
    }

    /// Emits the rules of a function, as [`Cfi::rules`](super::cfi::Cfi::rules) does.
    pub fn rules(&self, span: &Span, mut emit: impl FnMut(u64, Rule) -> bool) {
        let steps = self.steps(span);
        let steps = steps.unwrap_or_else(|_| vec![(span.start, Rule::UNSUPPORTED)]);
        for (pc, rule) in steps {
            if !emit(pc, rule) {
                return;
            }
        }
    }

    fn steps(&self, span: &Span) -> Result<Vec<Step>, ElfError> {
        let index = span.entry as u64;
        let Some(function) = self.functions.describe(index)? else {
            return Ok(vec![(span.start, Rule::UNSUPPORTED)]);
        };
        let start = self.functions.start(index)?;
        let name = self.special_name(index, function)?;
        match name.as_slice() {
            // `mcall` leaves its goroutine for good: another thread may run it meanwhile.
            b"runtime.mcall" | b"runtime.gogo" => return Ok(vec![(start, Rule::STOP)]),
            // The function whose stack is too small called it. (The goroutine's stack pointer is that function's.)
            b"runtime.morestack" => {
                let rule = self.goroutine.map_or(Rule::STOP, |g| g.rule(0));
                return Ok(vec![(start, rule)]);
            }
            // It is called by the signal trampoline.
            b"runtime.sigtramp" => {}
            _ if function.outermost => return Ok(vec![(start, Rule::STOP)]),
            _ => {}
        }
        let mut ranges = Vec::new();
        self.functions.depths(function, start, |range, depth| {
            ranges.push((range, depth));
            self.budget.set(self.budget.get().saturating_sub(1));
            self.budget.get() > 0
        })?;
        if self.budget.get() == 0 {
            return Ok(vec![(start, Rule::UNSUPPORTED)]);
        }
        let mut steps = self.plain(&ranges, function.sets_sp);
        if function.sets_sp && !steps.iter().any(|(_, rule)| *rule == BY_FRAME_POINTER) {
            let code = self.bytes(start, span.end.saturating_sub(start));
            steps = match (name.as_slice(), self.goroutine) {
                (b"runtime.asmcgocall", _) => call_of_c(start, &code),
                (b"runtime.systemstack", Some(goroutine)) => Some(vec![(start, goroutine.rule(8))]),
                _ => None,
            }
            .unwrap_or_else(|| vec![(start, Rule::UNSUPPORTED)]);
        }
        if let Some((range, _)) = ranges.last() {
            steps.push((range.end, Rule::NOT_COVERED));
        }
        Ok(steps)
    }

    /// The rules of code that has so much on the stack; where that may be another stack, by its frame pointer.
    fn plain(&self, ranges: &[(Range<u64>, i32)], sets_sp: bool) -> Vec<Step> {
        let framed = ranges.iter().find(|(_, depth)| *depth > 0);
        let record = framed.and_then(|(range, _)| {
            let code = self.bytes(range.start.checked_sub(1)?, PROLOGUE_SIZE);
            let (saved, set) = frame_record(&code)?;
            Some((
                range.start.saturating_add(saved),
                range.start.saturating_add(set),
            ))
        });
        let mut steps = Vec::new();
        for (range, depth) in ranges {
            let by_depth = |fp| Rule {
                cfa_offset: depth.saturating_add(8),
                ..returned_to(CfaKind::Sp, fp)
            };
            steps.push((range.start, by_depth(FpKind::Same)));
            let Some((saved, set)) = record.filter(|_| *depth > 0) else {
                continue;
            };
            let framed = [(saved, by_depth(FpKind::AtCfa)), (set, BY_FRAME_POINTER)];
            for (from, rule) in framed.into_iter().take(1 + usize::from(sets_sp)) {
                if from < range.end {
                    steps.push((range.start.max(from), rule));
                }
            }
        }
        steps
    }
}

/// The frame pointer leads to the frame, on whichever stack it is.
const BY_FRAME_POINTER: Rule = Rule {
    cfa_offset: 16,
    flags: OTHER_STACK,
    ..returned_to(CfaKind::Fp, FpKind::AtCfa)
};
