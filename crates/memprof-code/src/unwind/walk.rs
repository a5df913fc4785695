//! The stack walk in user space: the reference for the one in the BPF program.

use super::rule::{
    Arch, BX_KEPT, BX_SAVED, CfaKind, FpKind, OTHER_STACK, RA_IN_LINK_REGISTER, Rule,
};
use super::table::Table;

/// The registers that a walk starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    /// The instruction pointer.
    pub ip: u64,
    /// The stack pointer.
    pub sp: u64,
    /// The frame pointer register: `rbp` on x86-64, `x29` on 64-bit ARM.
    pub fp: u64,
    /// The link register of 64-bit ARM; 0 elsewhere.
    pub lr: u64,
    /// `rbx` of x86-64; 0 elsewhere.
    pub bx: u64,
}

/// Access to the process whose stack is walked.
pub trait Process {
    /// The eight bytes of memory at an address; `None` if they cannot be read.
    fn read(&self, addr: u64) -> Option<u64>;

    /// The file mapped at an address.
    fn module(&self, pc: u64) -> Mapped<'_>;
}

/// What is mapped at a code address.
#[derive(Clone, Copy, Debug)]
pub enum Mapped<'t> {
    /// No executable file.
    Nothing,
    /// A file that has no table.
    NoTable,
    /// A file with its table, and the load bias: address in the process minus address in the file.
    Table(&'t Table, u64),
}

/// How a walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Ended {
    /// It reached the outermost frame.
    Complete,
    /// It could not continue; the frames so far are right.
    Partial(Reason),
}

/// Why a walk could not continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// No executable file is mapped at the last frame's address (JIT code, a damaged stack).
    NoMapping,
    /// The file at the last frame's address has no table.
    NoTable,
    /// The table does not cover the last frame's address.
    NotCovered,
    /// No rule can express the unwind information for the last frame's address.
    Unsupported,
    /// The last frame's memory could not be read.
    UnreadableStack,
    /// The last frame's rule needs a register that an earlier frame lost.
    LostRegister,
    /// The caller's stack pointer would not be higher: a damaged stack or a wrong rule.
    NoProgress,
    /// The stack has more frames than the walk's limit.
    DepthLimit,
}

/// The frames of a stack, innermost first, and how the walk ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Walk {
    /// Instruction addresses: return addresses minus one; the first address, addresses that a signal interrupted, and
    /// the trampoline to which its handler returns, unchanged.
    pub frames: Vec<u64>,
    /// How it ended.
    pub ended: Ended,
}

/// The current frame of a walk.
#[derive(Clone, Copy)]
struct Frame {
    /// `pc` is a return address minus one.
    called: bool,
    /// An address inside the frame's current or calling instruction.
    pc: u64,
    sp: u64,
    /// `None` once it is lost.
    fp: Option<u64>,
    /// Known only in the first frame and in one that a signal interrupted.
    lr: Option<u64>,
    bx: Option<u64>,
}

/// Walks a stack of at most `limit` frames.
///
/// 1. A return address is looked up minus one, so that it lies in the call. The first frame's address and
///    an address that a signal interrupted are looked up unchanged.
/// 2. A return address of 0 ends a stack, as a [`CfaKind::Stop`] rule does.
/// 3. Each caller's stack pointer must be greater than its callee's, with three exceptions: after a signal
///    frame, whose handler may have its own stack, and by a rule with [`OTHER_STACK`], it may have any value; if
///    the return address is still in the link register of 64-bit ARM, it may be equal.
///
/// The walk in the BPF program also follows frame pointers and reads machine code where no table covers an address
/// (`step.bpf.h`, `ends.bpf.h`), and knows the thread pointer, which [`CfaKind::GoStopped`] needs. This one does not: here a
/// return address of 0 was always found by a table.
pub fn walk(process: &impl Process, arch: Arch, start: Registers, limit: usize) -> Walk {
    let mut frame = Frame {
        called: false,
        pc: start.ip,
        sp: start.sp,
        fp: Some(start.fp),
        lr: Some(start.lr),
        bx: Some(start.bx),
    };
    let mut frames = Vec::new();
    let ended = loop {
        if frames.len() == limit {
            break Ended::Partial(Reason::DepthLimit);
        }
        let returns_from_signal = frame.called && rule_of(process, &frame).is_ok_and(is_signal);
        frames.push(frame.pc + u64::from(returns_from_signal));
        match step(process, arch, &frame) {
            Ok(Some(caller)) => frame = caller,
            Ok(None) => break Ended::Complete,
            Err(reason) => break Ended::Partial(reason),
        }
    };
    Walk { frames, ended }
}

fn is_signal(rule: &Rule) -> bool {
    rule.cfa_kind() == CfaKind::Signal
}

fn rule_of<'t>(process: &'t impl Process, frame: &Frame) -> Result<&'t Rule, Reason> {
    match process.module(frame.pc) {
        Mapped::Nothing => Err(Reason::NoMapping),
        Mapped::NoTable => Err(Reason::NoTable),
        Mapped::Table(table, bias) => Ok(table.rule_at(frame.pc.wrapping_sub(bias))),
    }
}

fn step(process: &impl Process, arch: Arch, frame: &Frame) -> Result<Option<Frame>, Reason> {
    let rule = rule_of(process, frame)?;
    match rule.cfa_kind() {
        CfaKind::Stop => Ok(None),
        CfaKind::NotCovered => Err(Reason::NotCovered),
        CfaKind::Unsupported => Err(Reason::Unsupported),
        CfaKind::Signal => interrupted(process, arch, rule, frame).map(Some),
        _ => caller(process, arch, rule, frame),
    }
}

fn at(base: u64, offset: i32) -> u64 {
    base.wrapping_add_signed(i64::from(offset))
}

fn read(process: &impl Process, addr: u64) -> Result<u64, Reason> {
    process.read(addr).ok_or(Reason::UnreadableStack)
}

fn interrupted(
    process: &impl Process,
    arch: Arch,
    rule: &Rule,
    frame: &Frame,
) -> Result<Frame, Reason> {
    let saved = |offset| read(process, at(frame.sp, offset));
    let lr = match arch {
        Arch::X86_64 => None,
        Arch::Aarch64 => Some(saved(rule.ra_offset.wrapping_sub(16))?),
    };
    Ok(Frame {
        called: false,
        pc: saved(rule.ra_offset)?,
        sp: saved(rule.cfa_offset)?,
        fp: Some(saved(rule.fp_offset)?),
        lr,
        bx: None,
    })
}

fn caller(
    process: &impl Process,
    arch: Arch,
    rule: &Rule,
    frame: &Frame,
) -> Result<Option<Frame>, Reason> {
    let fp = || frame.fp.ok_or(Reason::LostRegister);
    let other_stack = rule.flags & OTHER_STACK != 0;
    if other_stack && rule.cfa_kind() == CfaKind::Fp && fp()? == 0 {
        return Ok(None);
    }
    let cfa = match rule.cfa_kind() {
        CfaKind::Sp => at(frame.sp, rule.cfa_offset),
        CfaKind::Fp => at(fp()?, rule.cfa_offset),
        CfaKind::Bx => at(frame.bx.ok_or(Reason::LostRegister)?, rule.cfa_offset),
        CfaKind::Plt => {
            let pushed = (frame.pc & 15) as i32 >= rule.cfa_offset;
            frame.sp.wrapping_add(if pushed { 16 } else { 8 })
        }
        CfaKind::GoCall => {
            let in_frame = |half: i32| read(process, at(frame.sp, half & 0xffff));
            let goroutine = in_frame(rule.cfa_offset >> 16)?;
            read(process, at(goroutine, rule.fp_offset))?
                .wrapping_sub(in_frame(rule.cfa_offset)?)
                .wrapping_add(rule.cfa_addend())
        }
        // The thread pointer is not known here.
        CfaKind::GoStopped => return Err(Reason::Unsupported),
        CfaKind::DerefSp => {
            read(process, at(frame.sp, rule.cfa_offset))?.wrapping_add(rule.cfa_addend())
        }
        _ => read(process, at(fp()?, rule.cfa_offset))?.wrapping_add(rule.cfa_addend()),
    };
    let in_register = rule.flags & RA_IN_LINK_REGISTER != 0;
    let ra = match (in_register, frame.lr) {
        (false, _) if rule.flags & BX_SAVED != 0 => read(process, cfa.wrapping_sub(8))?,
        (false, _) => read(process, at(cfa, rule.ra_offset))?,
        (true, Some(lr)) => lr,
        // A function that has called another must have saved its return address.
        (true, None) => return Err(Reason::Unsupported),
    };
    if (cfa < frame.sp && !other_stack) || (cfa == frame.sp && !in_register) {
        return Err(Reason::NoProgress);
    }
    let fp = match rule.fp_kind() {
        FpKind::Same => frame.fp,
        FpKind::AtCfa => Some(read(process, at(cfa, rule.fp_offset))?),
        FpKind::AtFp => Some(read(process, at(fp()?, rule.fp_offset))?),
        FpKind::Lost => None,
    };
    let bx = match rule.flags & (BX_KEPT | BX_SAVED) {
        BX_KEPT => frame.bx,
        BX_SAVED => Some(read(process, at(cfa, rule.ra_offset))?),
        _ => None,
    };
    let ra = return_address(arch, ra);
    Ok((ra != 0).then(|| Frame {
        called: true,
        pc: ra - 1,
        sp: cfa,
        fp,
        lr: None,
        bx,
    }))
}

/// Removes the signature that 64-bit ARM keeps in the upper bits of a return address.
fn return_address(arch: Arch, ra: u64) -> u64 {
    match arch {
        Arch::X86_64 => ra,
        Arch::Aarch64 => ra & ((1 << 48) - 1),
    }
}
