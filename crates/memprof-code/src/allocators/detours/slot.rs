//! The code of one detour.
//!
//! Most calls do not need the library: an allocation that is not sampled only takes its bytes from those that the thread
//! has left before the next sample, and a free of a block that is no sample only reads the library's filter. Where the
//! block's size, or the block, is the first argument, code before the moved instructions does that, and continues with
//! them. All other calls go to the library's function, which calls the moved instructions.

use iced_x86::{
    BlockEncoder, BlockEncoderOptions, Code, IcedError, Instruction, InstructionBlock,
    MemoryOperand, Register,
};

use super::entry::{self, BIAS};
use super::{Detour, DetourKind, ThreadStates, WORD};

/// Size of the code of one detour, and offset of the moved instructions in it, in bytes. The call of the library's function
/// is at the beginning. `sampler/detours.h` has the same values.
pub(super) const SIZE: usize = 192;
pub(super) const MOVED: usize = 128;
/// Offset in `struct detour` of the byte that is 0 while each call must go to the library (`sampler/replacements.h`), in bytes.
const QUICK: i64 = 11;
/// The library's filter: bits of an address that have one counter, and bits of the counters' index (`filter_index()`).
const SLICE_BITS: u32 = 10;
const FILTER_BITS: u32 = 16;
/// The table of threads (`sampler/threads.h`): the hash of a thread, and the offset of the owner in a place, in bytes. A place
/// has three words, of which the first is the number of bytes left.
const HASH: u64 = 0x9e37_79b9_7f4a_7c15;
const PLACE_BITS: u32 = 12;
const OWNER: i64 = 16;

/// The code of one detour.
pub(super) struct Slot {
    /// The bytes.
    pub code: [u8; SIZE],
    /// Offset of the instruction to which the jump leads, in bytes.
    pub entry: u8,
}

impl Slot {
    /// The code at `at` that reads the words at `words`; both in the file's addresses. `None` if the displaced instructions cannot
    /// be there.
    pub fn assemble(detour: &Detour, threads: ThreadStates, at: i64, words: i64) -> Option<Slot> {
        // Unused code traps.
        let mut code = [0xcc; SIZE];
        let address = |of: i64| BIAS.checked_add_signed(of);
        let (at, words) = (address(at)?, address(words)?);
        let slow = encoded(&slow(words).ok()?, at)?;
        code.get_mut(..slow.len())?.copy_from_slice(&slow);
        let moved_at = at + MOVED as u64;
        let moved = encoded(&entry::moved(detour)?, moved_at)?;
        code.get_mut(MOVED..MOVED + moved.len())?
            .copy_from_slice(&moved);
        let mut entry = 0;
        if is_quick(detour) {
            let quick = quick(detour.kind, threads, at, words).ok()?;
            // The size does not depend on the address: branches to the slot's beginning are short from everywhere in it.
            let size = encoded(&quick, at)?.len();
            entry = MOVED.checked_sub(size)?;
            let quick = encoded(&quick, at + entry as u64)?;
            code.get_mut(entry..MOVED)?.copy_from_slice(&quick);
        }
        Some(Slot {
            code,
            entry: u8::try_from(entry).ok()?,
        })
    }
}

fn encoded(instructions: &[Instruction], at: u64) -> Option<Vec<u8>> {
    let block = InstructionBlock::new(instructions, at);
    let encoded = BlockEncoder::encode(64, block, BlockEncoderOptions::NONE).ok()?;
    Some(encoded.code_buffer)
}

/// Whether most calls need not go to the library.
fn is_quick(detour: &Detour) -> bool {
    let [size, count, pointer] = detour.arguments;
    match detour.kind {
        DetourKind::Allocates | DetourKind::AllocatesOrThrows => size == 0 && count == 0xff,
        DetourKind::Frees => pointer == 0,
        _ => false,
    }
}

/// A word that the code reads, by its address.
fn word(address: u64) -> MemoryOperand {
    MemoryOperand::with_base_displ(Register::RIP, address.cast_signed())
}

fn at(base: Register, offset: i64) -> MemoryOperand {
    MemoryOperand::with_base_displ(base, offset)
}

/// Calls the library's function with the description of the detour as the fifth argument.
fn slow(words: u64) -> Result<Vec<Instruction>, IcedError> {
    Ok(vec![
        Instruction::with2(Code::Mov_r64_rm64, Register::R8, word(words))?,
        Instruction::with1(Code::Jmp_rm64, word(words + WORD))?,
    ])
}

/// Continues with the next instruction unless the call must go to the library. Changes registers that no function keeps.
fn quick(
    kind: DetourKind,
    threads: ThreadStates,
    slow: u64,
    words: u64,
) -> Result<Vec<Instruction>, IcedError> {
    use Code::*;
    use Register::{R11, RAX, RDI};
    let state = word(words + 2 * WORD);
    if kind == DetourKind::Frees {
        return Ok(vec![
            Instruction::with2(Mov_r64_rm64, RAX, RDI)?,
            Instruction::with2(Shr_rm64_imm8, RAX, SLICE_BITS)?,
            Instruction::with2(Mov_r64_rm64, R11, RAX)?,
            Instruction::with2(Shr_rm64_imm8, R11, FILTER_BITS)?,
            Instruction::with2(Xor_r32_rm32, Register::EAX, Register::R11D)?,
            Instruction::with2(Movzx_r32_rm16, Register::EAX, Register::AX)?,
            Instruction::with2(Add_r64_rm64, RAX, state)?,
            Instruction::with2(Cmp_rm8_imm8, at(RAX, 0), 0u32)?,
            Instruction::with_branch(Jne_rel8_64, slow)?,
        ]);
    }
    let mut code = vec![
        Instruction::with2(Mov_r64_rm64, R11, word(words))?,
        Instruction::with2(Cmp_rm8_imm8, at(R11, QUICK), 0u32)?,
        Instruction::with_branch(Je_rel8_64, slow)?,
    ];
    let left = match threads {
        ThreadStates::ThreadLocal => {
            code.push(Instruction::with2(Mov_r64_rm64, RAX, state)?);
            MemoryOperand::new(RAX, Register::None, 1, 0, 0, false, Register::FS)
        }
        ThreadStates::Table => {
            code.extend(find_thread(state, slow)?);
            at(Register::R10, 0)
        }
    };
    // Between reading and writing, a signal handler may take bytes, which then do not count.
    code.extend([
        Instruction::with2(Mov_r64_rm64, R11, left)?,
        Instruction::with2(Sub_r64_rm64, R11, RDI)?,
        Instruction::with_branch(Jb_rel8_64, slow)?,
        Instruction::with2(Mov_rm64_r64, left, R11)?,
    ]);
    Ok(code)
}

/// `this_thread()` of `sampler/threads.h`, with the address in `r10`.
fn find_thread(places: MemoryOperand, slow: u64) -> Result<[Instruction; 9], IcedError> {
    use Code::*;
    use Register::{R10, R11, RAX};
    let own = MemoryOperand::new(Register::None, Register::None, 1, 0, 8, false, Register::FS);
    let scaled = |base, index, scale| MemoryOperand::with_base_index_scale(base, index, scale);
    Ok([
        Instruction::with2(Mov_r64_rm64, RAX, own)?,
        Instruction::with2(Mov_r64_imm64, R11, HASH)?,
        Instruction::with2(Imul_r64_rm64, R11, RAX)?,
        Instruction::with2(Shr_rm64_imm8, R11, 64 - PLACE_BITS)?,
        Instruction::with2(Lea_r64_m, R11, scaled(R11, R11, 2))?,
        Instruction::with2(Mov_r64_rm64, R10, places)?,
        Instruction::with2(Lea_r64_m, R10, scaled(R10, R11, 8))?,
        Instruction::with2(Cmp_rm64_r64, at(R10, OWNER), RAX)?,
        Instruction::with_branch(Jne_rel8_64, slow)?,
    ])
}
