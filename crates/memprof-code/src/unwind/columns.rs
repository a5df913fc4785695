//! The columns of the DWARF call frame table that are tracked, and their conversion to rules.

use super::expression::Known;
use super::rule::{
    ADDEND_SHIFT, Arch, BX_KEPT, BX_SAVED, CfaKind, FpKind, RA_IN_LINK_REGISTER, Rule,
};

/// Location of a register's value in the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterRule {
    /// No instruction has set it.
    Unsaid,
    Same,
    Undefined,
    /// In memory at the CFA plus an offset.
    AtCfa(i64),
    /// In memory at a register plus an offset.
    At(u16, i64),
    /// In another register.
    In(u16),
    Other,
}

/// How the CFA is found. An expression does not change register and offset: assembler code that ends an
/// expression with `DW_CFA_def_cfa_register` expects the previous offset, and C++ exception unwinding does
/// the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cfa {
    pub how: How,
    pub register: Option<u16>,
    /// `None` if it is too large.
    pub offset: Option<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    Sum,
    Expression(Known),
    Other,
}

/// The columns at one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameColumns {
    pub cfa: Cfa,
    /// Usually `Unsaid`: the caller's stack pointer is the CFA.
    pub sp: RegisterRule,
    pub fp: RegisterRule,
    pub ra: RegisterRule,
    pub bx: RegisterRule,
}

impl FrameColumns {
    /// The state before the first instruction.
    pub const NEW: FrameColumns = FrameColumns {
        cfa: Cfa {
            how: How::Sum,
            register: None,
            offset: Some(0),
        },
        sp: RegisterRule::Unsaid,
        fp: RegisterRule::Unsaid,
        ra: RegisterRule::Unsaid,
        bx: RegisterRule::Unsaid,
    };
}

/// The properties that all functions of one CIE share.
#[derive(Clone, Copy, Debug)]
pub struct Common {
    pub arch: Arch,
    /// DWARF number of the return address column.
    pub ra: u16,
    pub code_factor: u64,
    pub data_factor: i64,
    /// The frame is a signal trampoline, to which a signal handler returns.
    pub signal: bool,
    /// The rules include `rbx`.
    pub with_bx: bool,
    /// The state at the start of every function.
    pub initial: FrameColumns,
}

impl Common {
    /// The rule for these columns; `UNSUPPORTED` if no rule can express them.
    pub fn rule(&self, state: &FrameColumns) -> Rule {
        let rule = match self.signal {
            true => self.signal_rule(state),
            false => self.plain_rule(state),
        };
        rule.unwrap_or(Rule::UNSUPPORTED)
    }

    fn signal_rule(&self, state: &FrameColumns) -> Option<Rule> {
        if self.arch == Arch::Aarch64 {
            // The unwind information of the kernel's trampoline describes a frame record, which contains
            // the interrupted code's link register instead of its program counter.
            return Some(self.arch.signal_rule());
        }
        let How::Expression(Known::Deref {
            register,
            offset,
            addend: 0,
        }) = state.cfa.how
        else {
            return None;
        };
        let sp = self.arch.sp();
        let said_twice = RegisterRule::At(register, offset);
        if state.sp != RegisterRule::Unsaid && state.sp != said_twice {
            return None;
        }
        let saved = |register, offset: i64| {
            let offset = i32::try_from(offset).ok();
            offset.filter(|_| register == sp)
        };
        let (RegisterRule::At(fp, fp_offset), RegisterRule::At(ra, ra_offset)) =
            (state.fp, state.ra)
        else {
            return None;
        };
        Some(Rule {
            cfa: CfaKind::Signal as u8,
            cfa_offset: saved(register, offset)?,
            fp_offset: saved(fp, fp_offset)?,
            ra_offset: saved(ra, ra_offset)?,
            ..Rule::default()
        })
    }

    fn plain_rule(&self, state: &FrameColumns) -> Option<Rule> {
        let (mut flags, mut ra_offset) = match state.ra {
            RegisterRule::Undefined => return Some(Rule::STOP),
            _ if state.sp != RegisterRule::Unsaid => return None,
            RegisterRule::AtCfa(offset) => (0, i32::try_from(offset).ok()?),
            RegisterRule::Unsaid | RegisterRule::Same
                if self.arch == Arch::Aarch64 && self.ra == 30 =>
            {
                (RA_IN_LINK_REGISTER, 0)
            }
            RegisterRule::In(30) if self.arch == Arch::Aarch64 => (RA_IN_LINK_REGISTER, 0),
            _ => return None,
        };
        let (cfa, cfa_offset, addend) = self.cfa(state.cfa)?;
        let (fp, fp_offset) = self.saved_fp(state.fp);
        if self.with_bx && ra_offset == -8 {
            match state.bx {
                RegisterRule::Unsaid | RegisterRule::Same => flags |= BX_KEPT,
                RegisterRule::AtCfa(offset) => {
                    ra_offset = i32::try_from(offset).ok()?;
                    flags |= BX_SAVED;
                }
                _ => {}
            }
        }
        Some(Rule {
            cfa: cfa as u8,
            fp: fp as u8,
            flags: flags | u16::from(addend) << ADDEND_SHIFT,
            cfa_offset,
            fp_offset,
            ra_offset,
        })
    }

    fn cfa(&self, cfa: Cfa) -> Option<(CfaKind, i32, u8)> {
        let (sp, fp) = (self.arch.sp(), self.arch.fp());
        let sums = (CfaKind::Sp, CfaKind::Fp);
        let (register, offset, addend, kinds) = match cfa.how {
            How::Sum => (cfa.register?, cfa.offset?, 0, sums),
            How::Expression(Known::Sum { register, offset }) => (register, offset, 0, sums),
            How::Expression(Known::Deref {
                register,
                offset,
                addend,
            }) => {
                let kinds = (CfaKind::DerefSp, CfaKind::DerefFp);
                (register, offset, u8::try_from(addend).ok()?, kinds)
            }
            How::Expression(Known::Plt { from }) if self.arch == Arch::X86_64 => {
                return Some((CfaKind::Plt, i32::from(from), 0));
            }
            _ => return None,
        };
        let offset = i32::try_from(offset).ok()?;
        match register {
            r if r == sp => Some((kinds.0, offset, addend)),
            r if r == fp => Some((kinds.1, offset, addend)),
            r if Some(r) == self.arch.bx() && kinds == sums => Some((CfaKind::Bx, offset, 0)),
            _ => None,
        }
    }

    fn saved_fp(&self, place: RegisterRule) -> (FpKind, i32) {
        let (kind, offset) = match place {
            RegisterRule::Unsaid | RegisterRule::Same => (FpKind::Same, 0),
            RegisterRule::AtCfa(offset) => (FpKind::AtCfa, offset),
            RegisterRule::At(register, offset) if register == self.arch.fp() => {
                (FpKind::AtFp, offset)
            }
            _ => (FpKind::Lost, 0),
        };
        match i32::try_from(offset) {
            Ok(offset) => (kind, offset),
            Err(_) => (FpKind::Lost, 0),
        }
    }
}
