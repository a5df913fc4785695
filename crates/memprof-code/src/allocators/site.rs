//! Chooses the instruction of a function at which the kernel puts its breakpoint.
//!
//! After a breakpoint the kernel emulates some instructions, in less than a microsecond. It single-steps all others out
//! of line, which takes a second trap and 15 to 50 µs (`arch/x86/kernel/uprobes.c`: `branch_setup_xol_ops()`,
//! `push_setup_xol_ops()`). So the breakpoint belongs at the first emulated instruction. Before it, no instruction may
//! have branched or changed the stack pointer, and each argument must still be in some register.

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, OpAccess,
    Register,
};
use object::elf::{EM_X86_64, Machine};

use memprof_sys::kernel_version::KernelVersion;

/// The kernel emulates `nop5` since this version (a89b5aea5a24 "uprobes/x86: Add support to emulate nop instructions").
const EMULATES_NOP5: KernelVersion = KernelVersion(6, 18);
/// Maximum number of arguments of a function in the table.
const ARGUMENTS: usize = 4;

/// A breakpoint's position, and the state of the arguments there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Site {
    /// Distance from the function's entry, in bytes.
    pub(super) offset: u64,
    /// Register of each argument at that instruction, as an index of words in `struct pt_regs`.
    pub(super) registers: [u8; ARGUMENTS],
    pub(super) emulated: bool,
}

/// Registers of the arguments at the entry.
const AT_ENTRY: [Register; ARGUMENTS] =
    [Register::RDI, Register::RSI, Register::RDX, Register::RCX];

impl Site {
    fn entry() -> Site {
        Site {
            offset: 0,
            registers: AT_ENTRY.map(|r| word_of(r).unwrap_or_default()),
            emulated: false,
        }
    }

    /// The entry of an arm64 function. There the kernel single-steps nearly all instructions out of line.
    pub(super) fn entry_of_aarch64() -> Site {
        Site {
            offset: 0,
            registers: [0, 1, 2, 3],
            emulated: false,
        }
    }
}

/// The cheapest position of a breakpoint in a function, given the arguments that the probe needs.
pub(super) fn choose(code: &[u8], needed: impl Iterator<Item = u8>, kernel: KernelVersion) -> Site {
    let needed: Vec<usize> = needed.map(usize::from).collect();
    let mut places = AT_ENTRY.map(|register| vec![register]);
    let mut info = InstructionInfoFactory::new();
    for instruction in &mut Decoder::with_ip(64, code, 0, DecoderOptions::NONE) {
        let at = instruction.ip();
        let bytes = code.get(at as usize..instruction.next_ip() as usize);
        let Some(bytes) = bytes.filter(|_| !instruction.is_invalid()) else {
            break;
        };
        if needed.iter().any(|argument| places[*argument].is_empty()) {
            break;
        }
        if is_emulated(bytes, kernel) {
            if at > 0 && is_jumped_into(code, at) {
                break;
            }
            let first = |registers: &Vec<Register>| registers.first().copied().and_then(word_of);
            return Site {
                offset: at,
                registers: std::array::from_fn(|i| first(&places[i]).unwrap_or_default()),
                emulated: true,
            };
        }
        if instruction.flow_control() != FlowControl::Next
            || !follow(&instruction, &mut info, &mut places)
        {
            break;
        }
    }
    Site::entry()
}

/// Tracks the arguments through an instruction. Returns false if it changes the stack pointer.
fn follow(
    instruction: &Instruction,
    info: &mut InstructionInfoFactory,
    places: &mut [Vec<Register>; ARGUMENTS],
) -> bool {
    let moves = matches!(instruction.code(), Code::Mov_r64_rm64 | Code::Mov_rm64_r64);
    let (to, from) = (instruction.op0_register(), instruction.op1_register());
    let copied: Vec<usize> = (0..ARGUMENTS)
        .filter(|i| moves && from != Register::None && places[*i].contains(&from))
        .collect();
    for used in info.info(instruction).used_registers() {
        let writes = !matches!(
            used.access(),
            OpAccess::Read | OpAccess::CondRead | OpAccess::None | OpAccess::NoMemAccess
        );
        let register = used.register().full_register();
        if writes && register == Register::RSP {
            return false;
        }
        if writes {
            places
                .iter_mut()
                .for_each(|all| all.retain(|r| *r != register));
        }
    }
    if to != Register::None && word_of(to).is_some() {
        copied.into_iter().for_each(|i| places[i].push(to));
    }
    true
}

/// Whether the kernel emulates the instruction.
fn is_emulated(bytes: &[u8], kernel: KernelVersion) -> bool {
    match bytes {
        // push
        [0x50..=0x57] | [0x41, 0x50..=0x57] => true,
        // jmp, call, conditional jumps; with a prefix they are not emulated
        [0xeb | 0x70..=0x7f, _] | [0xe9 | 0xe8, _, _, _, _] => true,
        [0x0f, 0x80..=0x8f, _, _, _, _] => true,
        // nop
        [0x90] | [0x66, 0x90] => true,
        [0x0f, 0x1f, 0x44, 0, 0] => kernel >= EMULATES_NOP5,
        _ => false,
    }
}

/// Whether a branch within the function targets an instruction after the first one, up to `site`. The breakpoint could
/// then be hit several times in one call.
fn is_jumped_into(code: &[u8], site: u64) -> bool {
    let mut all = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
    all.iter()
        .any(|i| (1..=site).contains(&target(&i).unwrap_or(0)))
}

/// The target of a direct branch or call.
pub(super) fn target(instruction: &Instruction) -> Option<u64> {
    let direct = matches!(
        instruction.flow_control(),
        FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch | FlowControl::Call
    );
    (direct && instruction.op0_kind() == iced_x86::OpKind::NearBranch64)
        .then(|| instruction.near_branch_target())
}

/// The target of a call or jump: an address, or the function whose address is in a word of memory (a GOT entry).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Callee {
    At(u64),
    In(u64),
}

/// The targets of a function's calls and jumps outside the function.
pub(super) fn callees(code: &[u8], address: u64, machine: Machine) -> Vec<Callee> {
    let own = address..address.saturating_add(code.len() as u64);
    let found: Vec<Callee> = if machine == EM_X86_64 {
        let mut all = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
        all.iter().filter_map(|i| callee(&i)).collect()
    } else {
        let words = code.chunks_exact(4).enumerate();
        let called = words.filter_map(|(at, word)| {
            let at = address.checked_add(4 * at as u64)?;
            called_on_aarch64(u32::from_le_bytes(word.try_into().ok()?), at)
        });
        called.map(Callee::At).collect()
    };
    let others = |callee: &Callee| !matches!(callee, Callee::At(to) if own.contains(to));
    found.into_iter().filter(others).collect()
}

/// The target of an arm64 `b` or `bl`: 26 bits, in words, signed.
fn called_on_aarch64(word: u32, at: u64) -> Option<u64> {
    let is_branch = word & 0x7c00_0000 == 0x1400_0000;
    let distance = i64::from(word.cast_signed() << 6 >> 6) * 4;
    is_branch.then(|| at.wrapping_add_signed(distance))
}

/// The target of the call or jump that every call of the function reaches first; `None` if it depends on a condition,
/// or is unknown.
pub(super) fn first_callee(code: &[u8], address: u64, machine: Machine) -> Option<Callee> {
    if machine != EM_X86_64 {
        return None;
    }
    let mut all = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
    let first = all.iter().find(|i| i.flow_control() != FlowControl::Next)?;
    match first.flow_control() {
        FlowControl::ConditionalBranch => None,
        _ => callee(&first),
    }
}

/// The target of a PLT entry's code.
pub(super) fn import(code: &[u8], address: u64) -> Option<Callee> {
    let mut all = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
    let mut some = all.iter().take(2);
    let first = some.next()?;
    match first.code() {
        Code::Endbr64 => callee(&some.next()?),
        _ => callee(&first),
    }
}

/// The target of a call or jump; `None` if it is in a register.
pub(super) fn callee(instruction: &Instruction) -> Option<Callee> {
    let indirect = matches!(
        instruction.flow_control(),
        FlowControl::IndirectBranch | FlowControl::IndirectCall
    );
    if indirect && instruction.is_ip_rel_memory_operand() {
        return Some(Callee::In(instruction.ip_rel_memory_address()));
    }
    target(instruction).map(Callee::At)
}

/// The index of a register's word in `struct pt_regs`; `None` for partial and other registers.
fn word_of(register: Register) -> Option<u8> {
    Some(match register {
        Register::R15 => 0,
        Register::R14 => 1,
        Register::R13 => 2,
        Register::R12 => 3,
        Register::RBP => 4,
        Register::RBX => 5,
        Register::R11 => 6,
        Register::R10 => 7,
        Register::R9 => 8,
        Register::R8 => 9,
        Register::RAX => 10,
        Register::RCX => 11,
        Register::RDX => 12,
        Register::RSI => 13,
        Register::RDI => 14,
        _ => return None,
    })
}
