//! Tracks the effects of instructions on the stack pointer and the frame pointer register.

use iced_x86::{
    Code, FlowControl, Instruction, InstructionInfoFactory, OpAccess, OpKind, Register,
};

use crate::unwind::rule::{CfaKind, FpKind, Rule};

/// Limit of a frame's size, in bytes.
const MAX_DEPTH: i32 = 1 << 28;

/// The state of a function's frame before an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameState {
    /// Bytes on the stack below the return address; `None` if unknown.
    depth: Option<i32>,
    rbp: Rbp,
}

/// Location of the caller's `rbp`. Stack slots are given in bytes below the return address, like [`FrameState::depth`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rbp {
    /// In the register.
    Kept,
    /// On the stack at `saved`.
    Saved { saved: i32 },
    /// On the stack at `saved`, and the register points to the stack slot `at`.
    Frame { saved: i32, at: i32 },
    /// Lost; the register was cleared, so the function never returns.
    Cleared,
    /// Lost.
    Lost,
}

impl FrameState {
    /// The state at a function's first instruction.
    pub const ENTRY: FrameState = FrameState {
        depth: Some(0),
        rbp: Rbp::Kept,
    };

    /// Whether a jump to another function is possible in this state.
    pub fn is_entry(self) -> bool {
        self == FrameState::ENTRY
    }

    /// Whether a `ret` may find the return address, as far as is known.
    pub fn may_return(self) -> bool {
        !self.is_outermost() && self.depth.is_none_or(|depth| depth == 0)
    }

    /// Whether the function has no caller.
    pub fn is_outermost(self) -> bool {
        self.rbp == Rbp::Cleared
    }

    /// The common state where two paths meet; `None` if they contradict each other. With a frame pointer, the stack
    /// depth may differ (`alloca`).
    pub fn joined(self, other: FrameState) -> Option<FrameState> {
        match (self.rbp, other.rbp) {
            _ if self == other => Some(self),
            (Rbp::Frame { .. }, rbp) if rbp == self.rbp => Some(FrameState {
                depth: None,
                ..self
            }),
            _ => None,
        }
    }

    /// The rule of the instruction; `None` if it has none.
    pub fn rule(self) -> Option<Rule> {
        let saved_at = |saved: i32| (FpKind::AtCfa, -8 - saved);
        let (cfa, cfa_offset, (fp, fp_offset)) = match (self.rbp, self.depth) {
            (Rbp::Cleared, _) => return Some(Rule::STOP),
            (Rbp::Frame { saved, at }, _) => (CfaKind::Fp, at + 8, saved_at(saved)),
            // The code has popped its return address.
            (_, None | Some(..0)) => return None,
            (Rbp::Kept, Some(depth)) => (CfaKind::Sp, depth + 8, (FpKind::Same, 0)),
            (Rbp::Saved { saved }, Some(depth)) => (CfaKind::Sp, depth + 8, saved_at(saved)),
            (Rbp::Lost, Some(depth)) => (CfaKind::Sp, depth + 8, (FpKind::Lost, 0)),
        };
        Some(Rule {
            cfa: cfa as u8,
            fp: fp as u8,
            flags: 0,
            cfa_offset,
            fp_offset,
            ra_offset: -8,
        })
    }

    /// The state after an instruction. For a call, it is the state after the called function has returned.
    pub fn after(self, instruction: &Instruction, info: &mut InstructionInfoFactory) -> FrameState {
        match self.known(instruction) {
            Some(state) => state,
            None => self.unless_written(instruction, info),
        }
    }

    /// The state after one of the instructions with which compilers create and leave frames; `None` for other
    /// instructions.
    fn known(self, i: &Instruction) -> Option<FrameState> {
        let (to, from) = (i.op0_register(), i.op1_register());
        // The called function pops what a call pushes.
        if matches!(
            i.flow_control(),
            FlowControl::Call | FlowControl::IndirectCall
        ) {
            return Some(self);
        }
        match i.code() {
            Code::Push_r64 if to == Register::RBP => Some(self.moved(8).saved(self.depth? + 8)),
            Code::Pop_r64 if to == Register::RBP => Some(self.restored(self.depth?).moved(-8)),
            Code::Push_r64 | Code::Pushq_imm8 | Code::Pushq_imm32 | Code::Push_rm64 => {
                Some(self.moved(8))
            }
            Code::Pop_r64 if to != Register::RSP => Some(self.moved(-8)),
            Code::Pop_rm64 => Some(self.moved(-8)),
            Code::Pushfq => Some(self.moved(8)),
            Code::Popfq => Some(self.moved(-8)),
            Code::Sub_rm64_imm8 | Code::Sub_rm64_imm32 if to == Register::RSP => {
                Some(self.moved(constant(i)?))
            }
            Code::Add_rm64_imm8 | Code::Add_rm64_imm32 if to == Register::RSP => {
                Some(self.moved(constant(i)?.checked_neg()?))
            }
            Code::Lea_r64_m if to == Register::RSP => {
                let place = self.place(i)?;
                Some(FrameState {
                    depth: Some(place),
                    ..self
                })
            }
            Code::Mov_r64_rm64 | Code::Mov_rm64_r64 => self.moving(i, to, from),
            Code::Leaveq => match self.rbp {
                Rbp::Frame { at, .. } => {
                    let there = FrameState {
                        depth: Some(at),
                        ..self
                    };
                    Some(there.restored(at).moved(-8))
                }
                _ => None,
            },
            Code::Xor_r32_rm32 | Code::Xor_rm32_r32 | Code::Xor_r64_rm64 | Code::Xor_rm64_r64
                if to == from && to.full_register() == Register::RBP && self.rbp == Rbp::Kept =>
            {
                Some(FrameState {
                    rbp: Rbp::Cleared,
                    ..self
                })
            }
            _ => None,
        }
    }

    /// The state after a move between the two registers, or between `rbp` and the stack.
    fn moving(self, i: &Instruction, to: Register, from: Register) -> Option<FrameState> {
        match (to, from, self.rbp) {
            (Register::RBP, Register::RSP, Rbp::Saved { saved }) => Some(FrameState {
                rbp: Rbp::Frame {
                    saved,
                    at: self.depth?,
                },
                ..self
            }),
            (Register::RSP, Register::RBP, Rbp::Frame { at, .. }) => Some(FrameState {
                depth: Some(at),
                ..self
            }),
            (Register::None, Register::RBP, Rbp::Kept) => Some(self.saved(self.place(i)?)),
            (Register::RBP, Register::None, Rbp::Saved { saved }) if self.place(i)? == saved => {
                Some(self.restored(saved))
            }
            _ => None,
        }
    }

    /// The state after any other instruction: a register that it writes becomes unknown.
    fn unless_written(mut self, i: &Instruction, info: &mut InstructionInfoFactory) -> FrameState {
        // Most instructions use neither register.
        let is_either = |operand| {
            let register = match i.op_kind(operand) {
                OpKind::Register => i.op_register(operand).full_register(),
                _ => Register::None,
            };
            matches!(register, Register::RSP | Register::RBP)
        };
        if !i.is_stack_instruction() && !(0..i.op_count()).any(is_either) {
            return self;
        }
        for used in info.info(i).used_registers() {
            let reads = matches!(
                used.access(),
                OpAccess::Read | OpAccess::CondRead | OpAccess::None | OpAccess::NoMemAccess
            );
            match used.register().full_register() {
                _ if reads => {}
                Register::RSP => self.depth = None,
                Register::RBP => self.rbp = self.rbp.written(),
                _ => {}
            }
        }
        self
    }

    /// The state with `bytes` more bytes on the stack.
    fn moved(self, bytes: i32) -> FrameState {
        let depth = self.depth.and_then(|depth| depth.checked_add(bytes));
        FrameState {
            depth: depth.filter(is_possible),
            ..self
        }
    }

    /// The state after `rbp` was stored in the stack slot `saved`.
    fn saved(self, saved: i32) -> FrameState {
        let rbp = match self.rbp {
            Rbp::Kept if saved > 0 => Rbp::Saved { saved },
            other => other,
        };
        FrameState { rbp, ..self }
    }

    /// The state after `rbp` was loaded from the stack slot `place`.
    fn restored(self, place: i32) -> FrameState {
        let rbp = match self.rbp {
            Rbp::Saved { saved } | Rbp::Frame { saved, .. } if saved == place => Rbp::Kept,
            other => other.written(),
        };
        FrameState { rbp, ..self }
    }

    /// The stack slot of a memory operand.
    fn place(self, i: &Instruction) -> Option<i32> {
        let offset = i32::try_from(i.memory_displacement64().cast_signed()).ok()?;
        let base = match (i.memory_base(), self.rbp) {
            _ if i.memory_index() != Register::None => return None,
            (Register::RSP, _) => self.depth?,
            (Register::RBP, Rbp::Frame { at, .. }) => at,
            _ => return None,
        };
        base.checked_sub(offset).filter(is_possible)
    }
}

impl Rbp {
    /// The state after another value was written to the register.
    fn written(self) -> Rbp {
        match self {
            Rbp::Saved { saved } | Rbp::Frame { saved, .. } => Rbp::Saved { saved },
            Rbp::Kept | Rbp::Cleared | Rbp::Lost => Rbp::Lost,
        }
    }
}

fn is_possible(place: &i32) -> bool {
    place.abs() < MAX_DEPTH
}

/// The constant operand; `None` if the operand is not a constant.
fn constant(i: &Instruction) -> Option<i32> {
    match i.op1_kind() {
        OpKind::Immediate8to64 | OpKind::Immediate32to64 => {
            i32::try_from(i.immediate(1).cast_signed()).ok()
        }
        _ => None,
    }
}
