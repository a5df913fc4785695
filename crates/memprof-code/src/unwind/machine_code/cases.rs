//! Where a jump by a table of addresses leads, as compilers make it of a `switch`.

use iced_x86::{Code, Instruction, OpKind, Register};

use crate::elf::{Elf, u32_at, u64_at};

/// Maximum number of cases of a table.
const MAX_CASES: u64 = 1024;

/// The table of a jump, as far as the instructions before the jump show it.
#[derive(Clone, Copy, Default)]
pub struct Switch {
    /// The address of the table.
    table: Option<u64>,
    /// The number of its last case.
    last: Option<u64>,
}

impl Switch {
    /// After an instruction.
    pub fn after(self, instruction: &Instruction) -> Switch {
        match instruction.code() {
            Code::Lea_r64_m if instruction.is_ip_rel_memory_operand() => Switch {
                table: Some(instruction.ip_rel_memory_address()),
                ..self
            },
            Code::Cmp_rm8_imm8
            | Code::Cmp_AL_imm8
            | Code::Cmp_EAX_imm32
            | Code::Cmp_rm32_imm8
            | Code::Cmp_rm32_imm32
            | Code::Cmp_RAX_imm32
            | Code::Cmp_rm64_imm8
            | Code::Cmp_rm64_imm32 => Switch {
                last: Some(instruction.immediate(1)).filter(|last| *last < MAX_CASES),
                ..self
            },
            _ => self,
        }
    }

    /// Where a jump leads: to the addresses in a table, or to distances from the table in it. Empty if that is not known.
    pub fn cases(self, jump: &Instruction, elf: &Elf) -> Vec<u64> {
        let is_indexed = jump.op0_kind() == OpKind::Memory
            && jump.memory_base() == Register::None
            && jump.memory_index_scale() == 8;
        let (table, size) = match jump.op0_kind() {
            OpKind::Register => (self.table, 4),
            _ if is_indexed => (Some(jump.memory_displacement64()), 8),
            _ => (None, 0),
        };
        let (Some(table), Some(last)) = (table, self.last) else {
            return Vec::new();
        };
        let Some((segment, inside)) = elf.loaded_at(table) else {
            return Vec::new();
        };
        let mut bytes = vec![0; (last + 1) as usize * size];
        let offset = segment.offset.saturating_add(inside);
        if elf.read_at(&mut bytes, offset).is_err() {
            return Vec::new();
        }
        let entries = bytes.chunks_exact(size);
        entries
            .map(|entry| match size {
                4 => table.wrapping_add_signed(u32_at(entry, 0).cast_signed().into()),
                _ => u64_at(entry, 0),
            })
            .collect()
    }
}
