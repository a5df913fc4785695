//! The few DWARF expressions that compilers, linkers and assembler code write into unwind
//! information.

use gimli::{Encoding, EndianSlice, Expression, Format, LittleEndian, Operation};

pub type Reader<'d> = EndianSlice<'d, LittleEndian>;

const ENCODING: Encoding = Encoding {
    address_size: 8,
    format: Format::Dwarf32,
    version: 4,
};
/// Operations in the longest recognised expression.
const MAX_OPERATIONS: usize = 9;

/// A recognised expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// A register plus an offset.
    Sum { register: u16, offset: i64 },
    /// The memory at a register plus an offset, plus an addend.
    Deref {
        register: u16,
        offset: i64,
        addend: u64,
    },
    /// The stack pointer plus 8, or plus 16 from byte `from` of each 16-byte slot on. Linkers write this
    /// for `.plt`, whose entries push one word.
    Plt { from: u8 },
}

/// Recognises an expression; `None` if it is not one of the known forms.
pub fn recognise(expression: Expression<Reader<'_>>) -> Option<Known> {
    let mut ops = [const { None }; MAX_OPERATIONS];
    let mut count = 0;
    let mut all = expression.operations(ENCODING);
    while let Some(op) = all.next().ok()? {
        *ops.get_mut(count)? = Some(op);
        count += 1;
    }
    match ops.get(..count)? {
        [Some(sum)] => {
            let (register, offset) = register_offset(sum)?;
            Some(Known::Sum { register, offset })
        }
        [Some(sum), Some(deref)] => dereferenced(sum, deref, 0),
        [
            Some(sum),
            Some(deref),
            Some(Operation::PlusConstant { value }),
        ]
        | [
            Some(sum),
            Some(deref),
            Some(Operation::UnsignedConstant { value }),
            Some(Operation::Plus),
        ] => dereferenced(sum, deref, *value),
        _ => plt(&ops),
    }
}

type Op<'d> = Operation<Reader<'d>>;

fn register_offset(op: &Op<'_>) -> Option<(u16, i64)> {
    match op {
        Operation::RegisterOffset {
            register,
            offset,
            base_type,
        } if base_type.0 == 0 => Some((register.0, *offset)),
        _ => None,
    }
}

fn dereferenced(sum: &Op<'_>, deref: &Op<'_>, addend: u64) -> Option<Known> {
    let (register, offset) = register_offset(sum)?;
    match deref {
        Operation::Deref {
            base_type,
            size: 8,
            space: false,
        } if base_type.0 == 0 => Some(Known::Deref {
            register,
            offset,
            addend,
        }),
        _ => None,
    }
}

fn plt(ops: &[Option<Op<'_>>; MAX_OPERATIONS]) -> Option<Known> {
    use Operation::{And, Ge, Plus, Shl, UnsignedConstant as Constant};
    let [
        Some(sp),
        Some(pc),
        Some(Constant { value: 15 }),
        Some(And),
        Some(Constant { value: from @ ..16 }),
        Some(Ge),
        Some(Constant { value: 3 }),
        Some(Shl),
        Some(Plus),
    ] = ops
    else {
        return None;
    };
    // Registers 7 and 16 are x86-64's rsp and rip; other processors' PLTs push nothing.
    let registers = (register_offset(sp)?, register_offset(pc)?);
    (registers == ((7, 8), (16, 0))).then_some(Known::Plt { from: *from as u8 })
}
