//! Unwind rules: how to find the caller's registers from a frame's.

use object::elf::{EM_AARCH64, EM_X86_64, Machine};

/// An unwind rule: how to find the caller's registers from a frame's. 16 bytes, as in `memprof.h`.
///
/// `sp`, `fp` and `pc` are the frame's own registers; the CFA is the caller's stack pointer. The
/// frame pointer register is `rbp` on x86-64 and `x29` on 64-bit ARM. Fields that a kind does not
/// use are zero, so that equal rules compare equal.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Rule {
    /// How the CFA is found: a [`CfaKind`].
    pub cfa: u8,
    /// How the caller's frame pointer register is found: a [`FpKind`].
    pub fp: u8,
    /// Bits 0 to 3: [`RA_IN_LINK_REGISTER`], [`BX_KEPT`], [`BX_SAVED`], [`OTHER_STACK`]; bits 8 to 15: bytes added to a CFA that
    /// was read from memory ([`CfaKind::DerefFp`], [`CfaKind::DerefSp`]).
    pub flags: u16,
    /// Offset of the CFA, or of the memory it is read from, in bytes.
    pub cfa_offset: i32,
    /// Offset of the saved frame pointer register of the caller, in bytes, from the base that `fp` gives.
    pub fp_offset: i32,
    /// Offset of the saved return address from the CFA, in bytes (x86-64: -8; 0 with [`CfaKind::GoStopped`]: the goroutine
    /// has it, beside its stack pointer); with [`BX_SAVED`] that of
    /// the saved `rbx`.
    pub ra_offset: i32,
}

const _: () = assert!(size_of::<Rule>() == 16);

/// Bit of [`Rule::flags`]: the return address is still in the link register (64-bit ARM).
pub const RA_IN_LINK_REGISTER: u16 = 1;
/// Bit of [`Rule::flags`]: `rbx` is unchanged. This bit and `BX_SAVED` are set only in tables of files
/// that use [`CfaKind::Bx`]; if neither is set, `rbx` is lost.
pub const BX_KEPT: u16 = 2;
/// Bit of [`Rule::flags`]: `rbx` was saved at the CFA plus `ra_offset`, the return address is at CFA - 8.
pub const BX_SAVED: u16 = 4;
/// Bit of [`Rule::flags`]: the caller's stack may be another one, at any address. (A frame pointer of 0 then ends the
/// stack.)
pub const OTHER_STACK: u16 = 8;
/// Bit of [`Rule::needs`]: the rule needs the frame pointer register.
pub const NEEDS_FP: u16 = 0x10;
/// Bit of the same: the rule needs `rbx`.
pub const NEEDS_BX: u16 = 0x20;
/// Position in [`Rule::flags`] of the number of bytes added to a CFA read from memory.
pub const ADDEND_SHIFT: u32 = 8;

/// How the CFA, the caller's stack pointer, is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CfaKind {
    /// No unwind information covers these addresses.
    NotCovered = 0,
    /// `sp + cfa_offset`.
    Sp = 1,
    /// `fp + cfa_offset`.
    Fp = 2,
    /// The outermost frame: it has no return address.
    Stop = 3,
    /// `sp + 8`, or `sp + 16` from byte `cfa_offset` of each 16-byte slot on: `(pc & 15) >= cfa_offset`.
    Plt = 4,
    /// `*(fp + cfa_offset) + (flags >> 8)`.
    DerefFp = 5,
    /// `*(sp + cfa_offset) + (flags >> 8)`.
    DerefSp = 6,
    /// A signal frame: all of the interrupted code's registers are on the stack. `sp = *(sp +
    /// cfa_offset)`, `fp = *(sp + fp_offset)`, `pc = *(sp + ra_offset)`, all three with the frame's
    /// own `sp`. On 64-bit ARM the interrupted code's link register is at `sp + ra_offset - 16`.
    Signal = 7,
    /// There is unwind information, but no rule can express it.
    Unsupported = 8,
    /// `rbx + cfa_offset` (x86-64): the lazy-binding resolver saves all registers in a frame of unknown
    /// size.
    Bx = 9,
    /// Go up to 1.20 on x86-64, a call of C on the thread's own stack: the frame says which goroutine called, and how
    /// deep its stack was. `*(*(sp + high half of cfa_offset) + fp_offset) - *(sp + low half of cfa_offset) +
    /// (flags >> 8)`.
    GoCall = 10,
    /// Go on x86-64, a goroutine whose thread uses its own stack: the goroutine has its stack pointer. `*(*(*(*(TLS +
    /// low half of cfa_offset) + high half of cfa_offset) + low half of fp_offset) + high half of fp_offset) +
    /// (flags >> 8)`, where TLS is the thread pointer.
    GoStopped = 11,
}

/// How the caller's frame pointer register is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FpKind {
    /// It is unchanged.
    Same = 0,
    /// `*(CFA + fp_offset)`.
    AtCfa = 1,
    /// `*(fp + fp_offset)`: functions that realign the stack.
    AtFp = 2,
    /// It is unknown.
    Lost = 3,
}

impl Rule {
    /// No unwind information covers these addresses.
    pub const NOT_COVERED: Rule = Rule::bare(CfaKind::NotCovered);
    /// The outermost frame.
    pub const STOP: Rule = Rule::bare(CfaKind::Stop);
    /// Unwind information of an unsupported kind.
    pub const UNSUPPORTED: Rule = Rule::bare(CfaKind::Unsupported);

    const fn bare(cfa: CfaKind) -> Rule {
        Rule {
            cfa: cfa as u8,
            fp: 0,
            flags: 0,
            cfa_offset: 0,
            fp_offset: 0,
            ra_offset: 0,
        }
    }

    /// How the CFA is found; an invalid number counts as unsupported.
    pub fn cfa_kind(&self) -> CfaKind {
        match self.cfa {
            0 => CfaKind::NotCovered,
            1 => CfaKind::Sp,
            2 => CfaKind::Fp,
            3 => CfaKind::Stop,
            4 => CfaKind::Plt,
            5 => CfaKind::DerefFp,
            6 => CfaKind::DerefSp,
            7 => CfaKind::Signal,
            9 => CfaKind::Bx,
            10 => CfaKind::GoCall,
            11 => CfaKind::GoStopped,
            _ => CfaKind::Unsupported,
        }
    }

    /// How the caller's frame pointer register is found.
    pub fn fp_kind(&self) -> FpKind {
        match self.fp {
            0 => FpKind::Same,
            1 => FpKind::AtCfa,
            2 => FpKind::AtFp,
            _ => FpKind::Lost,
        }
    }

    /// The `RULE_NEEDS_*` flags of memprof.h: the registers of the frame that the rule needs.
    pub fn needs(&self) -> u16 {
        let fp = matches!(self.cfa_kind(), CfaKind::Fp | CfaKind::DerefFp)
            || self.fp_kind() == FpKind::AtFp;
        let bx = self.cfa_kind() == CfaKind::Bx;
        (u16::from(fp) * NEEDS_FP) | (u16::from(bx) * NEEDS_BX)
    }

    /// Bytes added to a CFA that was read from memory.
    pub fn cfa_addend(&self) -> u64 {
        u64::from(self.flags >> ADDEND_SHIFT)
    }
}

/// A processor architecture that tables support.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arch {
    /// x86-64.
    X86_64,
    /// 64-bit ARM.
    Aarch64,
}

impl Arch {
    /// The processor of an ELF file, by its `EM_*` constant.
    pub fn of_machine(machine: Machine) -> Option<Arch> {
        match machine {
            EM_X86_64 => Some(Arch::X86_64),
            EM_AARCH64 => Some(Arch::Aarch64),
            _ => None,
        }
    }

    /// The processor memprof runs on.
    pub const fn native() -> Option<Arch> {
        if cfg!(target_arch = "x86_64") {
            Some(Arch::X86_64)
        } else if cfg!(target_arch = "aarch64") {
            Some(Arch::Aarch64)
        } else {
            None
        }
    }

    /// DWARF number of the stack pointer.
    pub(super) fn sp(self) -> u16 {
        match self {
            Arch::X86_64 => 7,
            Arch::Aarch64 => 31,
        }
    }

    /// DWARF number of the frame pointer register.
    pub(super) fn fp(self) -> u16 {
        match self {
            Arch::X86_64 => 6,
            Arch::Aarch64 => 29,
        }
    }

    /// DWARF number of `rbx`.
    pub(super) fn bx(self) -> Option<u16> {
        (self == Arch::X86_64).then_some(3)
    }

    /// The rule of the kernel's or C library's signal return trampoline.
    ///
    /// The offsets are those of the saved registers in the kernel's `struct rt_sigframe`. `sp` points
    /// to this structure on 64-bit ARM, and to the `struct ucontext` inside it on x86-64.
    pub(super) fn signal_rule(self) -> Rule {
        let (sp, fp, pc) = match self {
            Arch::X86_64 => (160, 120, 168),
            Arch::Aarch64 => (560, 544, 568),
        };
        Rule {
            cfa_offset: sp,
            fp_offset: fp,
            ra_offset: pc,
            ..Rule::bare(CfaKind::Signal)
        }
    }

    /// The machine code of that trampoline.
    pub(super) fn signal_trampoline(self) -> &'static [u8] {
        match self {
            // mov $15, %rax; syscall
            Arch::X86_64 => &[0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05],
            // mov x8, #139; svc #0
            Arch::Aarch64 => &[0x68, 0x11, 0x80, 0xd2, 0x01, 0, 0, 0xd4],
        }
    }
}
