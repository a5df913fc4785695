//! What the machine code of Go's run time says of the stacks between which it switches.

use crate::elf::u32_at;
use crate::unwind::rule::{ADDEND_SHIFT, CfaKind, FpKind, OTHER_STACK, Rule};

/// A rule from an address on.
pub type Step = (u64, Rule);

/// Where a thread's goroutine has its stack pointer: an offset from the thread pointer, then one from each address read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Goroutine {
    thread: i16,
    offsets: [u16; 3],
}

/// A rule of code that keeps the frame pointer register, or has saved it where Go does.
pub const fn returned_to(cfa: CfaKind, fp: FpKind) -> Rule {
    Rule {
        cfa: cfa as u8,
        fp: fp as u8,
        flags: 0,
        cfa_offset: 0,
        fp_offset: if matches!(fp, FpKind::AtCfa) { -16 } else { 0 },
        ra_offset: -8,
    }
}

/// Where a prologue has saved the frame pointer register, and where it has set it: distances from the first instruction
/// after it made room on the stack. The code begins one byte before.
pub fn frame_record(code: &[u8]) -> Option<(u64, u64)> {
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
    pub fn rule(self, above: u16) -> Rule {
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
pub fn goroutine(code: &[u8]) -> Option<Goroutine> {
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
pub fn call_of_c(start: u64, code: &[u8]) -> Option<Vec<Step>> {
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
    Some(
        steps
            .map(|(at, rule)| (start.saturating_add(at as u64), rule))
            .into(),
    )
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
