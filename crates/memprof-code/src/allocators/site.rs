//! Chooses the instruction of a function at which the kernel puts its trap.
//!
//! After a trap the kernel emulates some instructions, in less than a microsecond. All others it lets the processor
//! execute alone, with a second trap after it: 15 to 50 µs (`arch/x86/kernel/uprobes.c`: `branch_setup_xol_ops()`,
//! `push_setup_xol_ops()`). So the trap belongs at the first emulated instruction. Until there, nothing may have branched
//! or changed the stack pointer, and each argument must still be in some register.

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, OpAccess,
    Register,
};
use object::elf::{EM_X86_64, Machine};

use memprof_sys::kernel_version::KernelVersion;

/// `nop5` is emulated from this version on (a89b5aea5a24 "uprobes/x86: Add support to emulate nop instructions").
const EMULATES_NOP5: KernelVersion = KernelVersion(6, 18);
/// Number of arguments that a function of the table has at most.
const ARGUMENTS: usize = 4;

/// The place of a trap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Site {
    /// Distance from the function's entry in bytes.
    pub(super) offset: u64,
    /// Where its arguments are then: indices of words in `struct pt_regs`.
    pub(super) registers: [u8; ARGUMENTS],
    pub(super) emulated: bool,
}

/// The registers of the arguments at the entry.
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

    /// The entry of a function for 64-bit ARM, where the kernel executes nearly all instructions alone.
    pub(super) fn entry_of_aarch64() -> Site {
        Site {
            offset: 0,
            registers: [0, 1, 2, 3],
            emulated: false,
        }
    }
}

/// The best place in a function for a trap that needs these arguments.
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

/// Follows the arguments through an instruction; false if it changes the stack pointer.
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

/// Whether the kernel emulates an instruction.
fn is_emulated(bytes: &[u8], kernel: KernelVersion) -> bool {
    match bytes {
        // push
        [0x50..=0x57] | [0x41, 0x50..=0x57] => true,
        // jmp, call, jumps on a condition; none with a prefix
        [0xeb | 0x70..=0x7f, _] | [0xe9 | 0xe8, _, _, _, _] => true,
        [0x0f, 0x80..=0x8f, _, _, _, _] => true,
        // nop
        [0x90] | [0x66, 0x90] => true,
        [0x0f, 0x1f, 0x44, 0, 0] => kernel >= EMULATES_NOP5,
        _ => false,
    }
}

/// Whether a branch within the function leads behind its first instruction, up to `site`: it would be reached several
/// times in one call.
fn is_jumped_into(code: &[u8], site: u64) -> bool {
    let mut all = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
    all.iter()
        .any(|i| (1..=site).contains(&target(&i).unwrap_or(0)))
}

/// Where a direct branch or call leads.
fn target(instruction: &Instruction) -> Option<u64> {
    let direct = matches!(
        instruction.flow_control(),
        FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch | FlowControl::Call
    );
    (direct && instruction.op0_kind() == iced_x86::OpKind::NearBranch64)
        .then(|| instruction.near_branch_target())
}

/// Where a function's calls and jumps lead: to an address, or to the function whose address is in a word of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Callee {
    At(u64),
    In(u64),
}

/// Where the calls and jumps of a function lead, other than to its own instructions.
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

/// Where `b` and `bl` of 64-bit ARM lead: 26 bits, in words, signed.
fn called_on_aarch64(word: u32, at: u64) -> Option<u64> {
    let is_branch = word & 0x7c00_0000 == 0x1400_0000;
    let distance = i64::from(word.cast_signed() << 6 >> 6) * 4;
    is_branch.then(|| at.wrapping_add_signed(distance))
}

/// What each call of a function calls or jumps to first; `None` if that depends on something, or is not known.
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

/// Where the code of an entry in the table of imports (`.plt`) leads.
pub(super) fn import(code: &[u8], address: u64) -> Option<Callee> {
    let mut all = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
    let mut some = all.iter().take(2);
    let first = some.next()?;
    match first.code() {
        Code::Endbr64 => callee(&some.next()?),
        _ => callee(&first),
    }
}

/// Where a call or a jump leads; `None` if it says that by a register.
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

/// The index of a register's word in `struct pt_regs`; `None` for those that are not whole, or none.
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
