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

use std::ops::Range;

use super::rule::{ADDEND_SHIFT, Arch, CfaKind, FpKind, OTHER_STACK, Rule};
use super::spans::{Source, Span};
use crate::elf::{Elf, ElfError, GoFunction, GoFunctions, u32_at};

/// Bytes read of a function that switches stacks; the longest, `cgocallback`, has about 300.
const SWITCH_SIZE: u64 = 512;
/// Bytes read of each function's prologue.
const PROLOGUE_SIZE: u64 = 17;
/// The trampoline of signals, which is recognised by its code.
const SIGNAL_RETURN: &[u8] = b"runtime.sigreturn";

/// Go's functions in a file.
#[derive(Debug)]
pub struct GoCode<'e> {
    elf: &'e Elf<'e>,
    functions: GoFunctions<'e>,
    goroutine: Option<Goroutine>,
}

/// Where a thread's goroutine has its stack pointer: an offset from the thread pointer, then one from each address read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Goroutine {
    thread: i16,
    offsets: [u16; 3],
}

/// A rule from an address on.
type Step = (u64, Rule);

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
        };
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
                    code.goroutine = goroutine(&code.bytes(start, end - start))
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
        self.functions
            .depths(function, start, |range, depth| ranges.push((range, depth)))?;
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
            Some((range.start + saved, range.start + set))
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

/// A rule of code that keeps the frame pointer register, or has saved it where Go does.
const fn returned_to(cfa: CfaKind, fp: FpKind) -> Rule {
    Rule {
        cfa: cfa as u8,
        fp: fp as u8,
        flags: 0,
        cfa_offset: 0,
        fp_offset: if matches!(fp, FpKind::AtCfa) { -16 } else { 0 },
        ra_offset: -8,
    }
}

/// The frame pointer leads to the frame, on whichever stack it is.
const BY_FRAME_POINTER: Rule = Rule {
    cfa_offset: 16,
    flags: OTHER_STACK,
    ..returned_to(CfaKind::Fp, FpKind::AtCfa)
};

/// Where a prologue has saved the frame pointer register, and where it has set it: distances from the first instruction
/// after it made room on the stack. The code begins one byte before.
fn frame_record(code: &[u8]) -> Option<(u64, u64)> {
    match code {
        // push %rbp; mov %rsp, %rbp
        [0x55, 0x48, 0x89, 0xe5, ..] => Some((0, 3)),
        // mov %rbp, N(%rsp); lea N(%rsp), %rbp
        [_, 0x48, 0x89, 0x6c, 0x24, _, 0x48, 0x8d, 0x6c, 0x24, ..] => Some((5, 10)),
        [
            _,
            0x48,
            0x89,
            0xac,
            0x24,
            _,
            _,
            _,
            _,
            0x48,
            0x8d,
            0xac,
            0x24,
            ..,
        ] => Some((8, 16)),
        _ => None,
    }
}

impl Goroutine {
    /// The rule of code whose caller's frame ends `above` the goroutine's stack pointer, where its return address is. If
    /// it ends right there, the goroutine has that.
    fn rule(self, above: u16) -> Rule {
        let [m, goroutine, sp] = self.offsets;
        Rule {
            flags: OTHER_STACK | above << ADDEND_SHIFT,
            cfa_offset: halves(self.thread.cast_unsigned(), m),
            fp_offset: halves(goroutine, sp),
            ra_offset: -i32::from(above),
            ..returned_to(CfaKind::GoStopped, FpKind::Same)
        }
    }
}

fn halves(low: u16, high: u16) -> i32 {
    (u32::from(low) | u32::from(high) << 16).cast_signed()
}

/// Where the goroutine of a thread has its stack pointer, from the end of `systemstack`, which goes back to it.
fn goroutine(code: &[u8]) -> Option<Goroutine> {
    (0..code.len()).find_map(|at| Code(&code[at..]).goroutine())
}

/// Machine code, from an instruction on.
struct Code<'c>(&'c [u8]);

impl Code<'_> {
    fn is(&mut self, wanted: &[u8]) -> Option<()> {
        self.0 = self.0.strip_prefix(wanted)?;
        Some(())
    }

    fn byte(&mut self) -> Option<u16> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(u16::from(*first))
    }

    fn word(&mut self) -> Option<i32> {
        let (first, rest) = self.0.split_at_checked(4)?;
        self.0 = rest;
        Some(u32_at(first, 0).cast_signed())
    }

    fn goroutine(&mut self) -> Option<Goroutine> {
        // mov %fs:THREAD, %rax, or in position-independent code mov $THREAD, %rcx; mov %fs:(%rcx), %rax
        let at_once = self.is(&[0x64, 0x48, 0x8b, 0x04, 0x25]).is_some();
        if !at_once {
            self.is(&[0x48, 0xc7, 0xc1])?;
        }
        let thread = i16::try_from(self.word()?).ok()?;
        if !at_once {
            self.is(&[0x64, 0x48, 0x8b, 0x01])?;
        }
        // mov M(%rax), %rbx
        self.is(&[0x48, 0x8b, 0x58])?;
        let m = self.byte()?;
        // mov GOROUTINE(%rbx), %rax
        self.is(&[0x48, 0x8b, 0x83])?;
        let goroutine = u16::try_from(self.word()?).ok()?;
        // mov %rax, %fs:THREAD or %fs:(%rcx)
        match self.is(&[0x64, 0x48, 0x89, 0x01]) {
            Some(()) => {}
            None => {
                self.is(&[0x64, 0x48, 0x89, 0x04, 0x25])?;
                self.word()?;
            }
        }
        // mov SP(%rax), %rsp
        self.is(&[0x48, 0x8b, 0x60])?;
        let sp = self.byte()?;
        Some(Goroutine {
            thread,
            offsets: [m, goroutine, sp],
        })
    }
}

/// The rules of `asmcgocall` up to Go 1.20.
fn call_of_c(start: u64, code: &[u8]) -> Option<Vec<Step>> {
    let find = |from: usize, wanted: &[u8]| {
        let at = code
            .get(from..)?
            .windows(wanted.len())
            .position(|w| w == wanted)?;
        Some(from + at)
    };
    // mov SP(%rsi), %rsp
    let switched = find(0, &[0x48, 0x8b, 0x66])?;
    // mov %rdi, GOROUTINE(%rsp); mov END(%rdi), %rdi; sub %rdx, %rdi; mov %rdi, DEPTH(%rsp)
    let noted = find(switched, &[0x48, 0x89, 0x7c, 0x24])?;
    let [
        goroutine,
        0x48,
        0x8b,
        0x7f,
        end,
        0x48,
        0x29,
        0xd7,
        0x48,
        0x89,
        0x7c,
        0x24,
        depth,
        ..,
    ] = *code.get(noted + 4..)?
    else {
        return None;
    };
    // mov %rsi, %rsp; mov %eax, …(%rsp); ret
    let back = find(noted, &[0x48, 0x89, 0xf4])? + 3;
    let returned = find(back, &[0xc3])? + 1;
    // Already on the thread's stack: mov %rdx, CALLER(%rsp)
    let stayed = find(returned, &[0x48, 0x89, 0x54, 0x24])?;
    let caller = *code.get(stayed + 4)?;
    let stayed_back = find(stayed, &[0x48, 0x89, 0xf4])? + 3;
    let own = Rule {
        cfa_offset: 8,
        ..returned_to(CfaKind::Sp, FpKind::Same)
    };
    let other = Rule {
        flags: OTHER_STACK | 8 << ADDEND_SHIFT,
        cfa_offset: halves(depth.into(), goroutine.into()),
        fp_offset: end.into(),
        ..returned_to(CfaKind::GoCall, FpKind::Same)
    };
    let same = Rule {
        flags: 8 << ADDEND_SHIFT,
        cfa_offset: caller.into(),
        ..returned_to(CfaKind::DerefSp, FpKind::Same)
    };
    let steps = [
        (0, own),
        (switched + 4, Rule::UNSUPPORTED),
        (noted + 17, other),
        (back, own),
        (returned, Rule::UNSUPPORTED),
        (stayed + 5, same),
        (stayed_back, own),
    ];
    Some(steps.map(|(at, rule)| (start + at as u64, rule)).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The end of `systemstack`, by a constant and by a register, after other code.
    #[test]
    fn where_a_goroutine_has_its_stack_pointer() {
        let load = [0x48, 0x8b, 0x58, 0x30, 0x48, 0x8b, 0x83, 0xc0, 0, 0, 0];
        let back = [0x48, 0x8b, 0x60, 0x38, 0xc3];
        let minus_8 = [0xf8, 0xff, 0xff, 0xff];
        let fixed = [&[0x64, 0x48, 0x8b, 0x04, 0x25][..], &minus_8, &load].concat();
        let fixed = [&fixed[..], &[0x64, 0x48, 0x89, 0x04, 0x25], &minus_8, &back].concat();
        let moved = [
            &[0x48, 0xc7, 0xc1][..],
            &minus_8,
            &[0x64, 0x48, 0x8b, 0x01],
            &load,
        ]
        .concat();
        let moved = [&moved[..], &[0x64, 0x48, 0x89, 0x01], &back].concat();
        let wanted = Goroutine {
            thread: -8,
            offsets: [0x30, 0xc0, 0x38],
        };
        for code in [fixed, moved] {
            let code = [&[0x64, 0x48, 0x8b, 0x04, 0x25, 0xf8][..], &code].concat();
            assert_eq!(goroutine(&code), Some(wanted));
            for size in 0..code.len() - 1 {
                assert_eq!(goroutine(&code[..size]), None);
            }
        }
        let rule = wanted.rule(8);
        assert_eq!((rule.cfa_offset, rule.fp_offset), (0x30_fff8, 0x38_00c0));
        assert_eq!((rule.cfa_addend(), rule.ra_offset), (8, -8));
    }

    #[test]
    fn where_a_prologue_has_set_the_frame_pointer() {
        assert_eq!(frame_record(&[0x55, 0x48, 0x89, 0xe5]), Some((0, 3)));
        let near = [
            0x18, 0x48, 0x89, 0x6c, 0x24, 0x18, 0x48, 0x8d, 0x6c, 0x24, 0x18,
        ];
        assert_eq!(frame_record(&near), Some((5, 10)));
        assert_eq!(frame_record(&near[1..]), None);
    }
}
