//! Executes the call frame instructions of a function to get its rules.
//!
//! Only five columns of the call frame table are tracked: the CFA, the stack and frame pointer registers, the return
//! address, and `rbx` of x86-64.

use std::cell::Cell;

use gimli::{CallFrameInstruction as Cfi, UnwindSection};

use super::columns::{Cfa, Common, FrameColumns, How, RegisterRule};
use super::expression::{Known, Reader, recognise};
use super::rule::Rule;

/// Maximum nesting of `DW_CFA_remember_state`; compilers do not nest it at all.
const MAX_REMEMBERED: usize = 64;

/// The error for unsupported instructions. Code that they describe has no rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unknown;

impl From<gimli::Error> for Unknown {
    fn from(_: gimli::Error) -> Self {
        Unknown
    }
}

/// The execution of one program of call frame instructions.
#[derive(Debug)]
pub struct Run<'a, S> {
    section: &'a S,
    common: &'a Common,
    state: FrameColumns,
    remembered: Vec<FrameColumns>,
    pc: u64,
}

/// The effect of one instruction on the address.
enum Step {
    Stay,
    To(u64),
}

impl<'a, 'd, S: UnwindSection<Reader<'d>>> Run<'a, S> {
    /// Starts the execution for a function at its first address.
    pub fn new(section: &'a S, common: &'a Common, pc: u64) -> Self {
        Run {
            section,
            common,
            state: common.initial,
            remembered: Vec::new(),
            pc,
        }
    }

    /// Executes a CIE's instructions.
    pub fn initial(
        mut self,
        mut instructions: gimli::CallFrameInstructionIter<'_, Reader<'d>>,
    ) -> Result<FrameColumns, Unknown> {
        while let Some(instruction) = instructions.next()? {
            if let Step::To(_) = self.apply(&instruction)? {
                return Err(Unknown);
            }
        }
        Ok(self.state)
    }

    /// Executes a function's instructions. Calls `emit` with the first address of each rule, in order, until it returns
    /// `false`. Instructions beyond the budget count as unsupported.
    pub fn rules(
        mut self,
        mut instructions: gimli::CallFrameInstructionIter<'_, Reader<'d>>,
        budget: &Cell<usize>,
        mut emit: impl FnMut(u64, Rule) -> bool,
    ) {
        loop {
            let step = match instructions.next() {
                Ok(Some(_)) if budget.get() == 0 => Err(Unknown),
                Ok(Some(instruction)) => {
                    budget.set(budget.get() - 1);
                    self.apply(&instruction)
                }
                Ok(None) => {
                    emit(self.pc, self.rule());
                    return;
                }
                Err(_) => Err(Unknown),
            };
            match step {
                Ok(Step::Stay) => {}
                Ok(Step::To(pc)) if pc == self.pc => {}
                Ok(Step::To(pc)) if pc > self.pc => {
                    if !emit(self.pc, self.rule()) {
                        return;
                    }
                    self.pc = pc;
                }
                Ok(Step::To(_)) | Err(Unknown) => {
                    emit(self.pc, Rule::UNSUPPORTED);
                    return;
                }
            }
        }
    }

    fn rule(&self) -> Rule {
        self.common.rule(&self.state)
    }

    fn apply(&mut self, instruction: &Cfi<usize>) -> Result<Step, Unknown> {
        match instruction {
            Cfi::AdvanceLoc { delta } => {
                let delta = u64::from(*delta).checked_mul(self.common.code_factor);
                let pc = delta.and_then(|d| self.pc.checked_add(d));
                return Ok(Step::To(pc.ok_or(Unknown)?));
            }
            Cfi::SetLoc { address } => return Ok(Step::To(*address)),
            Cfi::Undefined { register } => self.place(register.0, RegisterRule::Undefined),
            Cfi::SameValue { register } => self.place(register.0, RegisterRule::Same),
            Cfi::Offset {
                register,
                factored_offset,
            } => self.at_cfa(register.0, i64::try_from(*factored_offset).ok()),
            Cfi::OffsetExtendedSf {
                register,
                factored_offset,
            } => self.at_cfa(register.0, Some(*factored_offset)),
            Cfi::Register {
                dest_register,
                src_register,
            } => self.place(dest_register.0, RegisterRule::In(src_register.0)),
            Cfi::Expression {
                register,
                expression,
            } => {
                let place = match recognise(expression.get(self.section)?) {
                    Some(Known::Sum { register, offset }) => RegisterRule::At(register, offset),
                    _ => RegisterRule::Other,
                };
                self.place(register.0, place);
            }
            Cfi::ValOffset {
                register,
                factored_offset: 0,
            } if register.0 == self.common.arch.sp() => {
                self.place(register.0, RegisterRule::Unsaid)
            }
            Cfi::ValOffset { register, .. }
            | Cfi::ValOffsetSf { register, .. }
            | Cfi::ValExpression { register, .. } => self.place(register.0, RegisterRule::Other),
            Cfi::Restore { register } => {
                let initial = self.common.initial;
                let place = match register.0 {
                    r if r == self.common.arch.sp() => initial.sp,
                    r if r == self.common.arch.fp() => initial.fp,
                    r if Some(r) == self.common.arch.bx() => initial.bx,
                    _ => initial.ra,
                };
                self.place(register.0, place);
            }
            Cfi::RememberState if self.remembered.len() < MAX_REMEMBERED => {
                self.remembered.push(self.state);
            }
            Cfi::RememberState => return Err(Unknown),
            Cfi::RestoreState => self.state = self.remembered.pop().ok_or(Unknown)?,
            // The size of pushed arguments matters only to exception handlers. Whether the return address is signed
            // does not matter, because the walk removes the signature.
            Cfi::ArgsSize { .. } | Cfi::NegateRaState | Cfi::Nop => {}
            Cfi::DefCfa { register, offset } => {
                self.define_cfa(register.0, i64::try_from(*offset).ok());
            }
            Cfi::DefCfaSf {
                register,
                factored_offset,
            } => self.define_cfa(register.0, self.factored(*factored_offset)),
            Cfi::DefCfaRegister { register } => {
                self.define_cfa(register.0, self.state.cfa.offset);
            }
            Cfi::DefCfaOffset { offset } => self.state.cfa.offset = i64::try_from(*offset).ok(),
            Cfi::DefCfaOffsetSf { factored_offset } => {
                self.state.cfa.offset = self.factored(*factored_offset);
            }
            Cfi::DefCfaExpression { expression } => {
                let known = recognise(expression.get(self.section)?);
                self.state.cfa.how = known.map_or(How::Other, How::Expression);
            }
        }
        Ok(Step::Stay)
    }

    fn define_cfa(&mut self, register: u16, offset: Option<i64>) {
        self.state.cfa = Cfa {
            how: How::Sum,
            register: Some(register),
            offset,
        };
    }

    fn factored(&self, offset: i64) -> Option<i64> {
        offset.checked_mul(self.common.data_factor)
    }

    fn at_cfa(&mut self, register: u16, factored: Option<i64>) {
        let offset = factored.and_then(|f| self.factored(f));
        self.place(
            register,
            offset.map_or(RegisterRule::Other, RegisterRule::AtCfa),
        );
    }

    fn place(&mut self, register: u16, place: RegisterRule) {
        match register {
            r if r == self.common.arch.sp() => self.state.sp = place,
            r if r == self.common.arch.fp() => self.state.fp = place,
            r if r == self.common.ra => self.state.ra = place,
            r if Some(r) == self.common.arch.bx() => self.state.bx = place,
            _ => {}
        }
    }
}
