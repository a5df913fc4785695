//! Plans detours: an allocation function inside an executable is made to lead to the sampling library, by a jump at its
//! entry. The instructions that the jump displaces are moved to other memory, from which the library calls the function.
//!
//! A detour is planned only where it changes nothing else: no branch leads between the displaced instructions, and none
//! of them calls, so that no return address ever lies in the memory of moved instructions. What runs there is in
//! `memprof-heap`: `sampler/detours.c`.

use std::collections::BTreeMap;
use std::ops::Range;

use iced_x86::{
    BlockEncoder, BlockEncoderOptions, Code, Decoder, DecoderOptions, FlowControl, Instruction,
    InstructionBlock,
};
use object::elf::EM_X86_64;

use super::functions::{FunctionKind, Signature};
use super::{FoundFunction, site, symbols};
use crate::elf::{Elf, ElfError};
use crate::symbolize::debug_file_of;
use memprof_sys::target_file::ReadAt;

/// Size of a `jmp` with a 32-bit distance, in bytes.
pub const JUMP: usize = 5;
/// Size of the code of one detour, and offset of the moved instructions in it, in bytes.
const SLOT: usize = 64;
const MOVED: usize = 16;
/// Size of the two words that the code of one detour reads, in bytes.
const WORDS: usize = 16;
/// Size of a page, in bytes.
const PAGE: u64 = 4096;
/// Distance between the executable and the code of its detours, in bytes: programs sometimes place a guard there.
const GAP: u64 = 64 << 10;
/// Added to all addresses while instructions are moved, so that none is negative.
const BIAS: u64 = 1 << 32;
/// Number of bytes of code to read at once.
const PIECE: usize = 1 << 20;
/// Maximum number of bytes of code to search for branches.
const MAX_TEXT: u64 = 1 << 30;

/// Functions of the table with more than four arguments. The library's functions have the fifth for themselves.
const FIVE_ARGUMENTS: [&str; 7] = [
    "mi_aligned_offset_recalloc",
    "mi_recalloc_aligned_at",
    "mi_heap_calloc_aligned_at",
    "mi_heap_realloc_aligned_at",
    "mi_heap_rezalloc_aligned_at",
    "mi_heap_recalloc_aligned",
    "mi_heap_recalloc_aligned_at",
];

/// What a redirected function does: the values of `enum detour_kind` in `sampler/detours.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum DetourKind {
    /// Returns a new block.
    Allocates = 0,
    /// As `Allocates`, or throws an exception.
    AllocatesOrThrows = 1,
    /// Resizes a block, which stays if that fails.
    Resizes = 2,
    /// Resizes a block, which is freed if that fails.
    ResizesOrFrees = 3,
    /// Stores the address of a new block, and returns 0.
    Stores = 4,
    /// Frees a block.
    Frees = 5,
}

/// One redirected function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detour {
    /// Name of the function.
    pub name: String,
    /// Address in the file of the first displaced instruction: the function's entry, or after its `endbr64`.
    pub address: u64,
    /// The displaced instructions, at least [`JUMP`] bytes and at most 16.
    pub displaced: Vec<u8>,
    /// What the function does.
    pub kind: DetourKind,
    /// Indices of the arguments size, number of elements, and block or place of the result; 0xff: none.
    pub arguments: [u8; 3],
}

/// The detours of an executable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Detours {
    /// The redirected functions.
    pub all: Vec<Detour>,
    /// Address of `code`, in the file's addresses. Negative for most files: the code lies before the executable.
    pub near: i64,
    /// Whole pages of code: 64 bytes for each detour, at which its jump leads. They read two words for each detour, from
    /// the memory after them: what becomes the fifth argument, and the address of the library's function.
    pub code: Vec<u8>,
    /// Functions without a detour, by the reason.
    pub refused: Vec<(String, &'static str)>,
}

impl Detours {
    /// Plans the detours of an executable. `near` tells where the code can be, given its size in bytes and the executable's
    /// addresses; `None` leaves it to memprof.
    ///
    /// # Errors
    /// The file is not an ELF file that memprof can read.
    pub fn plan(
        executable: &dyn ReadAt,
        near: impl FnOnce(Range<u64>, u64) -> Option<i64>,
    ) -> Result<Detours, ElfError> {
        let elf = Elf::read(executable)?;
        if elf.machine() != EM_X86_64 {
            return Ok(Detours::default());
        }
        let mut found = symbols(&elf, &elf)?;
        if !has_allocator(&found) {
            // The symbols may have been moved to a debug file.
            let debug = elf.build_id().and_then(|id| debug_file_of(&id));
            let named = debug
                .as_ref()
                .and_then(|file| Elf::read_debug_file(file).ok());
            found = match named {
                Some(named) => symbols(&elf, &named)?,
                None => Vec::new(),
            };
        }
        if !has_allocator(&found) {
            return Ok(Detours::default());
        }
        let mut detours = Detours::default();
        let mut chosen = Vec::new();
        for function in &found {
            match displaced(function) {
                Ok(detour) => chosen.push(detour),
                Err(why) => detours.refused.push((function.name.clone(), why)),
            }
        }
        let branched = branched_into(&elf, &chosen)?;
        for detour in chosen {
            match branched.contains(&detour.address) {
                false => detours.all.push(detour),
                true => detours
                    .refused
                    .push((detour.name, "code branches into its beginning")),
            }
        }
        let addresses = extent(&elf);
        let bytes = (detours.all.len() * SLOT) as u64;
        let size = bytes.next_multiple_of(PAGE) + detours.words_bytes();
        let before = || -> i64 {
            let start = addresses.start & !(PAGE - 1);
            start.cast_signed().wrapping_sub_unsigned(GAP + size)
        };
        detours.near = near(addresses.clone(), size).unwrap_or_else(before);
        detours.assemble();
        Ok(detours)
    }

    /// Size of the words after the code, in whole pages.
    pub fn words_bytes(&self) -> u64 {
        ((self.all.len() * WORDS) as u64).next_multiple_of(PAGE)
    }

    /// Moves the displaced instructions into `code`. Detours whose instructions cannot be moved are refused.
    fn assemble(&mut self) {
        let near = self.near;
        let moves = |number: usize, detour: &Detour| {
            let at = near.wrapping_add_unsigned((number * SLOT + MOVED) as u64);
            moved(detour, at)
        };
        // Which ones can be moved does not depend on the place among the others.
        let (fit, unfit): (Vec<_>, Vec<_>) = std::mem::take(&mut self.all)
            .into_iter()
            .partition(|detour| moves(0, detour).is_some());
        let refused = unfit
            .into_iter()
            .map(|detour| (detour.name, "its first instructions cannot be moved"));
        self.refused.extend(refused);
        let pages = (fit.len() * SLOT).next_multiple_of(PAGE as usize);
        // Unused code traps.
        let mut code = vec![0xcc; pages];
        for (number, (detour, slot)) in fit.into_iter().zip(code.chunks_exact_mut(SLOT)).enumerate()
        {
            let words = pages + number * WORDS;
            let Some(moved) = moves(number, &detour) else {
                continue;
            };
            // mov r8, [rip + …]; jmp [rip + …]
            let own = number * SLOT;
            let distance = |word: usize, next: usize| ((word - own - next) as u32).to_le_bytes();
            slot[..3].copy_from_slice(&[0x4c, 0x8b, 0x05]);
            slot[3..7].copy_from_slice(&distance(words, 7));
            slot[7..9].copy_from_slice(&[0xff, 0x25]);
            slot[9..13].copy_from_slice(&distance(words + 8, 13));
            slot[MOVED..MOVED + moved.len()].copy_from_slice(&moved);
            self.all.push(detour);
        }
        self.code = code;
    }

    /// The jump to write at the address of a detour.
    pub fn jump(&self, number: usize) -> Option<[u8; JUMP]> {
        let detour = self.all.get(number)?;
        let to = self.near.wrapping_add_unsigned((number * SLOT) as u64);
        let next = detour.address.wrapping_add(JUMP as u64).cast_signed();
        let distance = i32::try_from(to.wrapping_sub(next)).ok()?;
        let [a, b, c, d] = distance.to_le_bytes();
        Some([0xe9, a, b, c, d])
    }
}

/// A function of the executable's own allocator if its calls cannot be sampled: it has one, and no function of it can have a detour.
pub fn unsampled_allocator(executable: &dyn ReadAt) -> Option<String> {
    let function = super::own_allocator(executable)?;
    let detours = Detours::plan(executable, |_, _| None);
    detours
        .is_ok_and(|detours| detours.all.is_empty())
        .then_some(function)
}

/// Whether these functions are an allocator, and not only C++'s operators.
fn has_allocator(found: &[FoundFunction]) -> bool {
    let real = |f: &&FoundFunction| {
        !matches!(
            f.signature.kind,
            FunctionKind::Operator | FunctionKind::Throws
        )
    };
    let (frees, allocates): (Vec<_>, Vec<_>) =
        found.iter().filter(real).partition(|f| f.signature.frees());
    !frees.is_empty() && !allocates.is_empty()
}

/// The addresses of a file's loaded segments.
fn extent(elf: &Elf<'_>) -> Range<u64> {
    let segments = || elf.loaded_segments();
    let start = segments().map(|s| s.addr).min().unwrap_or_default();
    let end = segments()
        .map(|s| s.addr.saturating_add(s.size_in_memory))
        .max();
    start..end.unwrap_or_default()
}

/// A detour of a function, or the reason why it has none.
fn displaced(function: &FoundFunction) -> Result<Detour, &'static str> {
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
            | FlowControl::UnconditionalBranch => {}
            FlowControl::Return | FlowControl::IndirectBranch => {}
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
    })
}

/// Whether what follows an instruction is not its continuation.
fn is_end(instruction: &Instruction) -> bool {
    matches!(
        instruction.flow_control(),
        FlowControl::Return | FlowControl::IndirectBranch | FlowControl::UnconditionalBranch
    )
}

/// What the library must know of a function.
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

/// The displaced instructions as they are at `at`, and a jump back to the others; `None` if they cannot be there.
fn moved(detour: &Detour, at: i64) -> Option<Vec<u8>> {
    let from = detour.address.checked_add(BIAS)?;
    let at = BIAS.checked_add_signed(at)?;
    let mut decoder = Decoder::with_ip(64, &detour.displaced, from, DecoderOptions::NONE);
    let mut instructions: Vec<Instruction> = decoder.iter().collect();
    if !instructions.last().is_some_and(is_end) {
        let next = from.checked_add(detour.displaced.len() as u64)?;
        instructions.push(Instruction::with_branch(Code::Jmp_rel32_64, next).ok()?);
    }
    let block = InstructionBlock::new(&instructions, at);
    let encoded = BlockEncoder::encode(64, block, BlockEncoderOptions::NONE).ok()?;
    let bytes = encoded.code_buffer;
    (bytes.len() <= SLOT - MOVED).then_some(bytes)
}

/// Addresses of the detours into whose displaced instructions a near branch anywhere in the code leads. Every four bytes of the
/// code are taken for a distance: that is more than there are.
fn branched_into(elf: &Elf<'_>, detours: &[Detour]) -> Result<Vec<u64>, ElfError> {
    let inside: BTreeMap<u64, &Detour> = detours.iter().map(|d| (d.address, d)).collect();
    let (Some((first, _)), Some((last, _))) = (inside.first_key_value(), inside.last_key_value())
    else {
        return Ok(Vec::new());
    };
    let possible = *first..last.saturating_add(16);
    let mut found = Vec::new();
    let mut left = MAX_TEXT;
    for segment in elf.code_segments() {
        let mut at = 0;
        while at < segment.size && left > 0 {
            let size = (segment.size - at).min(PIECE as u64 + 5) as usize;
            let mut code = vec![0; size];
            elf.read_at(&mut code, segment.offset.saturating_add(at))?;
            let address = segment.addr.wrapping_add(at);
            for (n, bytes) in code.windows(6).enumerate() {
                let [one, two, a, b, c, d] = *bytes else {
                    continue;
                };
                let distance = i64::from(i32::from_le_bytes([a, b, c, d]));
                let to = address
                    .wrapping_add(n as u64 + 6)
                    .wrapping_add_signed(distance);
                if !possible.contains(&to)
                    || !(matches!(two, 0xe8 | 0xe9) || one == 0x0f && two & 0xf0 == 0x80)
                {
                    continue;
                }
                if let Some((start, detour)) = inside.range(..to).next_back()
                    && to - start < detour.displaced.len() as u64
                {
                    found.push(*start);
                }
            }
            left = left.saturating_sub(PIECE as u64);
            at += PIECE as u64;
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocators::functions;

    const ADDRESS: u64 = 0x1000;
    const NEAR: i64 = -0x20000;

    fn named(name: &str, code: &[u8]) -> FoundFunction {
        let (name, signature) = functions::all().find(|(known, _)| known == name).unwrap();
        FoundFunction {
            name,
            signature,
            address: ADDRESS,
            code: code.to_vec(),
            exits: Vec::new(),
        }
    }

    /// The instructions from the place of the moved ones on, with addresses in the file.
    fn assembled(code: &[u8]) -> (Detours, Vec<Instruction>) {
        let mut detours = Detours {
            all: vec![displaced(&named("malloc", code)).unwrap()],
            near: NEAR,
            ..Detours::default()
        };
        detours.assemble();
        assert_eq!(detours.all.len(), 1, "{:?}", detours.refused);
        let at = NEAR.cast_unsigned().wrapping_add(MOVED as u64);
        let moved = &detours.code[MOVED..SLOT];
        let decoded = Decoder::with_ip(64, moved, at, DecoderOptions::NONE)
            .iter()
            .collect();
        (detours, decoded)
    }

    #[test]
    fn whole_instructions_are_displaced_after_the_mark_of_indirect_branches() {
        // endbr64; push rbp; mov rbp, rsp; push r15; ret
        let code = [
            0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0x48, 0x89, 0xe5, 0x41, 0x57, 0xc3,
        ];
        let detour = displaced(&named("malloc", &code)).unwrap();
        assert_eq!(
            (detour.address, &*detour.displaced),
            (ADDRESS + 4, &code[4..10])
        );
        assert_eq!(
            (detour.kind, detour.arguments),
            (DetourKind::Allocates, [0, 0xff, 0xff])
        );
    }

    #[test]
    fn what_a_function_does_follows_from_its_name() {
        let code = [0x90; 5];
        let of = |name| displaced(&named(name, &code)).map(|d| (d.kind, d.arguments));
        let none = 0xff;
        assert_eq!(
            of("_rjem_sdallocx"),
            Ok((DetourKind::Frees, [none, none, 0]))
        );
        assert_eq!(of("je_calloc"), Ok((DetourKind::Allocates, [0, 1, none])));
        assert_eq!(
            of("mi_heap_realloc"),
            Ok((DetourKind::Resizes, [2, none, 1]))
        );
        assert_eq!(
            of("mi_reallocf"),
            Ok((DetourKind::ResizesOrFrees, [1, none, 0]))
        );
        assert_eq!(of("posix_memalign"), Ok((DetourKind::Stores, [2, none, 0])));
        assert_eq!(
            of("_Znwm"),
            Ok((DetourKind::AllocatesOrThrows, [0, none, none]))
        );
        assert!(of("mi_recalloc_aligned_at").is_err());
        assert!(of("mi_new_realloc").is_err());
        assert!(of("__cxa_throw").is_err());
        // The names without a detour are names of the table.
        let known: Vec<String> = functions::all().map(|(name, _)| name).collect();
        assert!(
            FIVE_ARGUMENTS
                .iter()
                .all(|name| known.iter().any(|known| known == name))
        );
    }

    #[test]
    fn beginnings_that_cannot_be_moved_are_refused() {
        for (code, why) in [
            (&[0xe8, 0, 0, 0, 0, 0xc3][..], "it begins with a call"),
            (&[0x50, 0xe8, 0, 0, 0, 0, 0xc3], "it begins with a call"),
            (&[0x31, 0xc0, 0xc3, 0x90, 0x90], "it is too short"),
            (&[0x90; 4], "it is too short"),
            (
                &[0x06, 0x90, 0x90, 0x90, 0x90],
                "its code cannot be decoded",
            ),
            // inc rdi; dec rsi; jne to the second instruction
            (
                &[0x48, 0xff, 0xc7, 0x48, 0xff, 0xce, 0x75, 0xfb],
                "it branches into its beginning",
            ),
        ] {
            assert_eq!(displaced(&named("malloc", code)), Err(why), "{code:x?}");
        }
    }

    #[test]
    fn moved_code_reads_the_same_memory_and_goes_on_after_the_jump() {
        // mov rax, [rip + 0x10]
        let (detours, moved) = assembled(&[0x48, 0x8b, 0x05, 0x10, 0, 0, 0, 0xc3]);
        assert_eq!(moved[0].ip_rel_memory_address(), ADDRESS + 7 + 0x10);
        assert_eq!(moved[1].near_branch_target(), ADDRESS + 7);
        // The jump at the entry leads to code that reads the words after the page, and jumps.
        let jump = detours.jump(0).unwrap();
        let jump = Decoder::with_ip(64, &jump, ADDRESS, DecoderOptions::NONE).decode();
        assert_eq!(jump.near_branch_target(), NEAR.cast_unsigned());
        let words = NEAR.cast_unsigned().wrapping_add(PAGE);
        let mut slot = Decoder::with_ip(
            64,
            &detours.code,
            NEAR.cast_unsigned(),
            DecoderOptions::NONE,
        );
        assert_eq!(slot.decode().ip_rel_memory_address(), words);
        assert_eq!(slot.decode().ip_rel_memory_address(), words + 8);
        assert_eq!(
            (detours.code.len() as u64, detours.words_bytes()),
            (PAGE, PAGE)
        );
    }

    #[test]
    fn moved_branches_lead_where_they_led() {
        // test rdi, rdi; je + 0x10
        let (_, moved) = assembled(&[0x48, 0x85, 0xff, 0x74, 0x10, 0xc3]);
        assert_eq!(moved[1].near_branch_target(), ADDRESS + 5 + 0x10);
        assert_eq!(moved[2].near_branch_target(), ADDRESS + 5);
        // jmp to another function: nothing follows.
        let (_, moved) = assembled(&[0xe9, 0, 1, 0, 0]);
        assert_eq!(moved[0].near_branch_target(), ADDRESS + 5 + 0x100);
        assert_eq!(moved[1].code(), Code::Int3);
    }

    #[test]
    fn code_too_far_away_is_refused() {
        let mut detours = Detours {
            all: vec![displaced(&named("malloc", &[0x48, 0x8b, 0x05, 0x10, 0, 0, 0])).unwrap()],
            near: -(3 << 30),
            ..Detours::default()
        };
        detours.assemble();
        assert_eq!((detours.all.len(), detours.refused.len()), (0, 1));
    }
}
