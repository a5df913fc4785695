//! The first instructions of a function: whether a jump can displace them, and how they are moved.

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction};

use super::super::functions::{FunctionKind, Signature};
use super::super::{FoundFunction, site};
use super::{DISPLACED, Detour, DetourKind, JUMP};

/// Added to all addresses while instructions are moved, so that none is negative.
pub(super) const BIAS: u64 = 1 << 32;

/// Functions of the table with more than four arguments. The library's functions have the fifth for themselves.
pub(super) const FIVE_ARGUMENTS: [&str; 7] = [
    "mi_aligned_offset_recalloc",
    "mi_recalloc_aligned_at",
    "mi_heap_calloc_aligned_at",
    "mi_heap_realloc_aligned_at",
    "mi_heap_rezalloc_aligned_at",
    "mi_heap_recalloc_aligned",
    "mi_heap_recalloc_aligned_at",
];

/// A detour of a function, or the reason why it has none.
pub(super) fn detour(function: &FoundFunction) -> Result<Detour, &'static str> {
    let (kind, arguments) = meaning(&function.name, &function.signature)?;
    let mut start = None;
    let mut end = 0;
    let mut decoder = Decoder::with_ip(64, &function.code, 0, DecoderOptions::NONE);
    for instruction in &mut decoder {
        if instruction.is_invalid() {
            return Err("its code cannot be decoded");
        }
        if start.is_none() && instruction.code() == Code::Endbr64 {
            continue;
        }
        let from = *start.get_or_insert(instruction.ip());
        end = instruction.next_ip();
        match instruction.flow_control() {
            FlowControl::Next
            | FlowControl::ConditionalBranch
            | FlowControl::UnconditionalBranch
            | FlowControl::Return
            | FlowControl::IndirectBranch => {}
            _ => return Err("it begins with a call"),
        }
        if (end - from) as usize >= JUMP {
            break;
        }
        if is_end(&instruction) {
            return Err("it is too short");
        }
    }
    let from = start.ok_or("it is empty")?;
    let bytes = function
        .code
        .get(from as usize..end as usize)
        .unwrap_or_default();
    if bytes.len() < JUMP {
        return Err("it is too short");
    }
    if bytes.len() > DISPLACED {
        return Err("its first instructions are too long");
    }
    let inside = from + 1..end;
    let mut all = Decoder::with_ip(64, &function.code, 0, DecoderOptions::NONE);
    if all
        .iter()
        .any(|i| site::target(&i).is_some_and(|to| inside.contains(&to)))
    {
        return Err("it branches into its beginning");
    }
    Ok(Detour {
        name: function.name.clone(),
        address: function
            .address
            .checked_add(from)
            .ok_or("its address is too large")?,
        displaced: bytes.to_vec(),
        kind,
        arguments,
        entry: 0,
    })
}

/// Whether what follows an instruction is not its continuation.
fn is_end(instruction: &Instruction) -> bool {
    matches!(
        instruction.flow_control(),
        FlowControl::Return | FlowControl::IndirectBranch | FlowControl::UnconditionalBranch
    )
}

/// Effect and arguments of a function, for the library.
fn meaning(name: &str, signature: &Signature) -> Result<(DetourKind, [u8; 3]), &'static str> {
    let kind = match (signature.kind, signature.size) {
        (FunctionKind::Throws, _) => return Err("it allocates nothing"),
        (_, None) => DetourKind::Frees,
        (FunctionKind::Resizes, _) if signature.throws => return Err("it resizes, and may throw"),
        (FunctionKind::Resizes, _) => DetourKind::Resizes,
        (FunctionKind::ResizesOrFrees, _) => DetourKind::ResizesOrFrees,
        (FunctionKind::Stores, _) => DetourKind::Stores,
        (FunctionKind::Operator, _) => DetourKind::AllocatesOrThrows,
        (FunctionKind::Plain, _) => DetourKind::Allocates,
    };
    if FIVE_ARGUMENTS.contains(&name) {
        return Err("it has five arguments");
    }
    let none = 0xff;
    let arguments = [signature.size, signature.count, signature.pointer].map(|a| a.unwrap_or(none));
    Ok((kind, arguments))
}

/// The displaced instructions, and a jump back to the others; `None` if they cannot be decoded.
pub(super) fn moved(detour: &Detour) -> Option<Vec<Instruction>> {
    let from = detour.address.checked_add(BIAS)?;
    let mut decoder = Decoder::with_ip(64, &detour.displaced, from, DecoderOptions::NONE);
    let mut instructions: Vec<Instruction> = decoder.iter().collect();
    if !instructions.last().is_some_and(is_end) {
        let next = from.checked_add(detour.displaced.len() as u64)?;
        instructions.push(Instruction::with_branch(Code::Jmp_rel32_64, next).ok()?);
    }
    Some(instructions)
}
