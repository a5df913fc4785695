//! Detours of short functions.

use iced_x86::{Code, Decoder, DecoderOptions, Instruction};

use super::entry::{FIVE_ARGUMENTS, detour};
use super::*;
use crate::allocators::{FoundFunction, functions};

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
        all: vec![detour(&named("malloc", code)).unwrap()],
        near: NEAR,
        ..Detours::default()
    };
    detours.assemble(ThreadStates::ThreadLocal);
    assert_eq!(detours.all.len(), 1, "{:?}", detours.refused);
    let at = NEAR.cast_unsigned().wrapping_add(MOVED as u64);
    let moved = &detours.code[MOVED..SIZE];
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
    let detour = detour(&named("malloc", &code)).unwrap();
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
    let of = |name| detour(&named(name, &code)).map(|d| (d.kind, d.arguments));
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
        // nop; nop; nop; nop; and one of 15 bytes
        (
            &[
                0x90, 0x90, 0x90, 0x90, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x2e, 0x0f, 0x1f, 0x84,
                0, 0, 0, 0, 0, 0xc3,
            ],
            "its first instructions are too long",
        ),
        // inc rdi; dec rsi; jne to the second instruction
        (
            &[0x48, 0xff, 0xc7, 0x48, 0xff, 0xce, 0x75, 0xfb],
            "it branches into its beginning",
        ),
    ] {
        assert_eq!(detour(&named("malloc", code)), Err(why), "{code:x?}");
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
    let entry = u64::from(detours.all[0].entry);
    assert_eq!(
        jump.near_branch_target(),
        NEAR.cast_unsigned().wrapping_add(entry)
    );
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
fn quick_calls_go_on_with_the_moved_instructions() {
    let nops = [0x90; 5];
    let slot = NEAR.cast_unsigned();
    let words = slot.wrapping_add(PAGE);
    for threads in [ThreadStates::ThreadLocal, ThreadStates::Table] {
        for (name, slow, read) in [
            ("malloc", [&[0, 0][..], &[0, 0, 0]], &[0, 2][..]),
            ("_rjem_mallocx", [&[0, 0], &[0, 0, 0]], &[0, 2]),
            ("_Znwm", [&[0, 0], &[0, 0, 0]], &[0, 2]),
            ("free", [&[0], &[0]], &[2]),
            ("_rjem_sdallocx", [&[0], &[0]], &[2]),
        ] {
            let mut detours = Detours {
                all: vec![detour(&named(name, &nops)).unwrap()],
                near: NEAR,
                ..Detours::default()
            };
            detours.assemble(threads);
            let entry = usize::from(detours.all[0].entry);
            let code = &detours.code[entry..MOVED];
            let at = slot.wrapping_add(entry as u64);
            let code: Vec<Instruction> = Decoder::with_ip(64, code, at, DecoderOptions::NONE)
                .iter()
                .collect();
            assert_eq!(
                code.last().unwrap().next_ip(),
                slot.wrapping_add(MOVED as u64)
            );
            let branches: Vec<u64> = code
                .iter()
                .filter(|i| i.is_jcc_short())
                .map(|i| i.near_branch_target().wrapping_sub(slot))
                .collect();
            assert_eq!(branches, slow[threads as usize], "{name} {threads:?}");
            let reads: Vec<u64> = code
                .iter()
                .filter(|i| i.is_ip_rel_memory_operand())
                .map(|i| i.ip_rel_memory_address().wrapping_sub(words) / WORD)
                .collect();
            assert_eq!(reads, read, "{name} {threads:?}");
        }
    }
    for name in ["calloc", "realloc", "posix_memalign", "aligned_alloc"] {
        let mut detours = Detours {
            all: vec![detour(&named(name, &nops)).unwrap()],
            ..Detours::default()
        };
        detours.assemble(ThreadStates::Table);
        assert_eq!(detours.all[0].entry, 0, "{name}");
    }
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
        all: vec![detour(&named("malloc", &[0x48, 0x8b, 0x05, 0x10, 0, 0, 0])).unwrap()],
        near: -(3 << 30),
        ..Detours::default()
    };
    detours.assemble(ThreadStates::ThreadLocal);
    assert_eq!((detours.all.len(), detours.refused.len()), (0, 1));
}
