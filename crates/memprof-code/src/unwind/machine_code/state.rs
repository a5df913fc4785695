//! What an instruction does to the stack pointer and to the frame pointer register.

use iced_x86::{
    Code, FlowControl, Instruction, InstructionInfoFactory, OpAccess, OpKind, Register,
};

use crate::unwind::rule::{CfaKind, FpKind, Rule};

/// Frames are smaller, in bytes.
const MAX_DEPTH: i32 = 1 << 28;

/// The frame of a function before an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// Bytes on the stack below the return address; `None` if that is not known.
    depth: Option<i32>,
    rbp: Rbp,
}

/// Where the caller's `rbp` is. Places on the stack are bytes below the return address, as [`State::depth`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rbp {
    /// In the register.
    Kept,
    /// On the stack at `saved`.
    Saved { saved: i32 },
    /// The same, and the register points to the stack `at` this place.
    Frame { saved: i32, at: i32 },
    /// Nowhere; the register was cleared: the function never returns.
    Cleared,
    /// Nowhere.
    Lost,
}

impl State {
    /// That of a function's first instruction.
    pub const ENTRY: State = State {
        depth: Some(0),
        rbp: Rbp::Kept,
    };

    /// Whether another function may be jumped to.
    pub fn is_entry(self) -> bool {
        self == State::ENTRY
    }

    /// Whether a `ret` finds the return address, as far as is known.
    pub fn may_return(self) -> bool {
        !self.is_outermost() && self.depth.is_none_or(|depth| depth == 0)
    }

    /// Whether it has no caller.
    pub fn is_outermost(self) -> bool {
        self.rbp == Rbp::Cleared
    }

    /// What is known where two paths meet; `None` if they contradict each other. With a frame pointer, code may have
    /// differently much on the stack (`alloca`).
    pub fn joined(self, other: State) -> Option<State> {
        match (self.rbp, other.rbp) {
            _ if self == other => Some(self),
            (Rbp::Frame { .. }, rbp) if rbp == self.rbp => Some(State {
                depth: None,
                ..self
            }),
            _ => None,
        }
    }

    /// The rule of the instruction.
    pub fn rule(self) -> Option<Rule> {
        let saved_at = |saved: i32| (FpKind::AtCfa, -8 - saved);
        let (cfa, cfa_offset, (fp, fp_offset)) = match (self.rbp, self.depth) {
            (Rbp::Cleared, _) => return Some(Rule::STOP),
            (Rbp::Frame { saved, at }, _) => (CfaKind::Fp, at + 8, saved_at(saved)),
            // (It has taken its return address from the stack.)
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

    /// The state after an instruction. (After a call, that in which it returns.)
    pub fn after(self, instruction: &Instruction, info: &mut InstructionInfoFactory) -> State {
        match self.known(instruction) {
            Some(state) => state,
            None => self.unless_written(instruction, info),
        }
    }

    /// After one of the instructions with which compilers make and leave frames.
    fn known(self, i: &Instruction) -> Option<State> {
        let (to, from) = (i.op0_register(), i.op1_register());
        // What a call pushes, the called function pops.
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
                Some(State {
                    depth: Some(place),
                    ..self
                })
            }
            Code::Mov_r64_rm64 | Code::Mov_rm64_r64 => self.moving(i, to, from),
            Code::Leaveq => match self.rbp {
                Rbp::Frame { at, .. } => {
                    let there = State {
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
                Some(State {
                    rbp: Rbp::Cleared,
                    ..self
                })
            }
            _ => None,
        }
    }

    /// After a move between the two registers, or between `rbp` and the stack.
    fn moving(self, i: &Instruction, to: Register, from: Register) -> Option<State> {
        match (to, from, self.rbp) {
            (Register::RBP, Register::RSP, Rbp::Saved { saved }) => Some(State {
                rbp: Rbp::Frame {
                    saved,
                    at: self.depth?,
                },
                ..self
            }),
            (Register::RSP, Register::RBP, Rbp::Frame { at, .. }) => Some(State {
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

    /// Whatever an instruction writes to is not known afterwards.
    fn unless_written(mut self, i: &Instruction, info: &mut InstructionInfoFactory) -> State {
        // Most instructions have nothing to do with either register.
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

    /// With so many bytes more on the stack.
    fn moved(self, bytes: i32) -> State {
        let depth = self.depth.and_then(|depth| depth.checked_add(bytes));
        State {
            depth: depth.filter(is_possible),
            ..self
        }
    }

    /// After `rbp` was written to this place on the stack.
    fn saved(self, saved: i32) -> State {
        let rbp = match self.rbp {
            Rbp::Kept if saved > 0 => Rbp::Saved { saved },
            other => other,
        };
        State { rbp, ..self }
    }

    /// After `rbp` was read from this place on the stack.
    fn restored(self, place: i32) -> State {
        let rbp = match self.rbp {
            Rbp::Saved { saved } | Rbp::Frame { saved, .. } if saved == place => Rbp::Kept,
            other => other.written(),
        };
        State { rbp, ..self }
    }

    /// The place on the stack that a memory operand names.
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
    /// After something else was written to the register.
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

/// The constant operand.
fn constant(i: &Instruction) -> Option<i32> {
    match i.op1_kind() {
        OpKind::Immediate8to64 | OpKind::Immediate32to64 => {
            i32::try_from(i.immediate(1).cast_signed()).ok()
        }
        _ => None,
    }
}
