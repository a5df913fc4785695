//! Call frame instructions, one kind at a time.

use crate::unwind::synthetic::{
    AARCH64, ARM_START, CODE, CODE_SIZE, Encoding, Frames, Made, PCREL, X86_64, X86_START,
    debug_frame, x86,
};
use memprof_code::unwind::{
    BX_KEPT, BX_SAVED, CfaKind, FpKind, RA_IN_LINK_REGISTER, Rule, TableError,
};

fn sp(offset: i32) -> Rule {
    Rule {
        cfa: CfaKind::Sp as u8,
        cfa_offset: offset,
        ra_offset: -8,
        ..Rule::default()
    }
}

/// The table's rows as (distance from the code's start, rule).
fn rows(made: &Made) -> Vec<(u64, Rule)> {
    let table = made.table().unwrap();
    let row = |r: &memprof_code::unwind::RuleRow| (r.pc - CODE, table.rules[usize::from(r.rule)]);
    table.rows.iter().map(row).collect()
}

/// The rule at the start of a function with these instructions.
fn first(program: &[u8]) -> Rule {
    rows(&x86(program))[0].1
}

#[test]
fn a_function_is_covered_from_its_start_to_its_end() {
    assert_eq!(rows(&x86(&[])), [(0, sp(8)), (0x100, Rule::NOT_COVERED)]);
}

#[test]
fn advances_of_every_size() {
    // By 1, 2 (one byte), 0x10 (two bytes), 0x20 (four bytes), each with its own offset.
    let program = [
        0x41, 0x0e, 16, 0x02, 2, 0x0e, 24, 0x03, 0x10, 0, 0x0e, 32, 0x04, 0x20, 0, 0, 0, 0x0e, 40,
    ];
    let want = [(0, 8), (1, 16), (3, 24), (0x13, 32), (0x33, 40)].map(|(pc, o)| (pc, sp(o)));
    assert_eq!(rows(&x86(&program))[..5], want);
}

#[test]
fn neighbours_with_one_rule_are_one_row() {
    // rbx is saved, which rules do not contain; then the same CFA is defined again.
    let program = [0x44, 0x83, 2, 0x44, 0x0e, 8];
    assert_eq!(rows(&x86(&program)).len(), 2);
}

#[test]
fn a_frame_pointer_is_saved_and_restored() {
    // rbp at CFA - 16, CFA = rbp + 16; then remember_state and restore_state.
    let program = [
        0x41, 0x86, 2, 0x0d, 6, 0x0e, 16, 0x44, 0x0a, 0xc6, 0x0c, 7, 8, 0x44, 0x0b,
    ];
    let framed = Rule {
        cfa: CfaKind::Fp as u8,
        fp: FpKind::AtCfa as u8,
        cfa_offset: 16,
        fp_offset: -16,
        ..sp(0)
    };
    let want = [(0, sp(8)), (1, framed), (5, sp(8)), (9, framed)];
    assert_eq!(rows(&x86(&program))[..4], want);
}

#[test]
fn offsets_are_of_32_bits() {
    // 540,088 as LEB128; -1 << 40 is too much.
    assert_eq!(first(&[0x0e, 0xb8, 0xfb, 0x20]), sp(540_088));
    let huge = [0x0e, 0x80, 0x80, 0x80, 0x80, 0x80, 0x20];
    assert_eq!(first(&huge), Rule::UNSUPPORTED);
    assert_eq!(
        first(&[0x13, 0x7e]),
        sp(16),
        "DW_CFA_def_cfa_offset_sf, -2 * -8"
    );
}

#[test]
fn an_undefined_return_address_is_the_outermost_frame() {
    assert_eq!(first(&[0x07, 16]), Rule::STOP);
}

#[test]
fn a_frame_pointer_may_be_the_same_lost_or_elsewhere() {
    assert_eq!(first(&[0x08, 6]), sp(8), "DW_CFA_same_value");
    let lost = Rule {
        fp: FpKind::Lost as u8,
        ..sp(8)
    };
    assert_eq!(first(&[0x07, 6]), lost, "DW_CFA_undefined");
    assert_eq!(first(&[0x09, 6, 3]), lost, "DW_CFA_register");
    assert_eq!(first(&[0x16, 6, 2, 0x76, 0]), lost, "DW_CFA_val_expression");
}

#[test]
fn realigned_stacks() {
    // CFA = *(rbp - 40), rbp = *(rbp + 0).
    let program = [0x0f, 3, 0x76, 0x58, 0x06, 0x10, 6, 2, 0x76, 0];
    let want = Rule {
        cfa: CfaKind::DerefFp as u8,
        fp: FpKind::AtFp as u8,
        cfa_offset: -40,
        ..sp(0)
    };
    assert_eq!(first(&program), want);
    // CFA = *(rsp + 152) + 8.
    let program = [0x0f, 6, 0x77, 0x98, 0x01, 0x06, 0x23, 8];
    let want = Rule {
        cfa: CfaKind::DerefSp as u8,
        flags: 8 << 8,
        ..sp(152)
    };
    assert_eq!(first(&program), want);
    // The same addition in two operations: CFA = *(rbp + 0) + 16.
    let program = [0x0f, 5, 0x76, 0, 0x06, 0x40, 0x22];
    let want = Rule {
        cfa: CfaKind::DerefFp as u8,
        flags: 16 << 8,
        ..sp(0)
    };
    assert_eq!(first(&program), want);
}

#[test]
fn procedure_linkage_tables() {
    for from in [9, 10, 11] {
        let program = [
            0x0f,
            11,
            0x77,
            8,
            0x80,
            0,
            0x3f,
            0x1a,
            0x30 + from,
            0x2a,
            0x33,
            0x24,
            0x22,
        ];
        let want = Rule {
            cfa: CfaKind::Plt as u8,
            ..sp(i32::from(from))
        };
        assert_eq!(first(&program), want);
        // Another shift: a different expression.
        let mut other = program;
        other[10] = 0x34;
        assert_eq!(first(&other), Rule::UNSUPPORTED);
    }
}

#[test]
fn what_is_not_understood_has_no_rule() {
    let other: [&[u8]; 7] = [
        &[0x0d, 0],              // CFA from rax
        &[0x09, 16, 1],          // the return address in rdx
        &[0x08, 16],             // the return address unchanged
        &[0x16, 16, 2, 0x77, 0], // the return address is rsp
        &[0x09, 7, 8],           // the caller's rsp in r8
        &[0x3f],                 // no instruction
        &[0x0b],                 // nothing was remembered
    ];
    for program in other {
        assert_eq!(first(program), Rule::UNSUPPORTED, "{program:x?}");
    }
    // It applies only from its address on.
    let want = [
        (0, sp(8)),
        (4, Rule::UNSUPPORTED),
        (0x100, Rule::NOT_COVERED),
    ];
    assert_eq!(rows(&x86(&[0x44, 0x0e, 16, 0x3f, 0x44, 0x0e, 24])), want);
    // Back from an expression to a register: the offset from before, as C++ exceptions have it.
    let program = [0x0e, 24, 0x0f, 1, 0x30, 0x44, 0x0d, 7];
    assert_eq!(
        rows(&x86(&program))[..2],
        [(0, Rule::UNSUPPORTED), (4, sp(24))]
    );
}

fn signal_frame(cfa_offset: i32, fp_offset: i32, ra_offset: i32) -> Rule {
    Rule {
        cfa: CfaKind::Signal as u8,
        cfa_offset,
        fp_offset,
        ra_offset,
        ..Rule::default()
    }
}

#[test]
fn signal_frames_of_both_kinds() {
    let mut frames = Frames::default();
    let cie = frames.cie("zRS", 16, PCREL, &[]);
    let sigreturn = [
        0x0f, 4, 0x77, 0xa0, 1, 0x06, 0x10, 6, 3, 0x77, 0xf8, 0, 0x10, 16, 3, 0x77, 0xa8, 1,
    ];
    frames.fde(cie, CODE, 10, PCREL, &sigreturn);
    let want = signal_frame(160, 120, 168);
    let mut made = Made::new(X86_64, frames.0);
    // The same without unwind information, at 0x2000: one byte early.
    let trampoline = [0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05];
    made.code[0x1000..0x1009].copy_from_slice(&trampoline);
    let none = Rule::NOT_COVERED;
    let rest = [(0, want), (10, none), (0xfff, want), (0x1009, none)];
    assert_eq!(rows(&made), rest);
}

#[test]
fn arm_functions_keep_the_return_address_in_a_register() {
    let mut frames = Frames::default();
    let cie = frames.cie("zR", 30, PCREL, ARM_START);
    // Signed return address (0x2d); after 8 bytes CFA = sp + 32, x29 at CFA - 32, x30 at CFA - 24.
    frames.fde(
        cie,
        CODE,
        64,
        PCREL,
        &[0x2d, 0x48, 0x0e, 32, 0x9d, 4, 0x9e, 3],
    );
    let leaf = Rule {
        flags: RA_IN_LINK_REGISTER,
        ra_offset: 0,
        ..sp(0)
    };
    let framed = Rule {
        fp: FpKind::AtCfa as u8,
        fp_offset: -32,
        ra_offset: -24,
        ..sp(32)
    };
    let mut made = Made::new(AARCH64, frames.0);
    let trampoline = [0x68, 0x11, 0x80, 0xd2, 0x01, 0, 0, 0xd4];
    made.code[0x1000..0x1008].copy_from_slice(&trampoline);
    let signal = signal_frame(560, 544, 568);
    let none = Rule::NOT_COVERED;
    let want = [
        (0, leaf),
        (8, framed),
        (64, none),
        (0xfff, signal),
        (0x1008, none),
    ];
    assert_eq!(rows(&made), want);
}

#[test]
fn addresses_are_written_in_many_ways() {
    // absptr, udata2, udata4, udata8, sdata4, sdata8; relative: sdata4, sdata8.
    for encoding in [0x00, 0x02, 0x03, 0x04, 0x0b, 0x0c, 0x1b, 0x1c].map(Encoding) {
        let mut frames = Frames::default();
        let cie = frames.cie("zR", 16, encoding, X86_START);
        frames.fde(cie, CODE + 0x80, 0x10, encoding, &[]);
        let want = [(0x80, sp(8)), (0x90, Rule::NOT_COVERED)];
        assert_eq!(
            rows(&Made::new(X86_64, frames.0)),
            want,
            "{:#x}",
            encoding.0
        );
    }
}

#[test]
fn overlapping_functions_are_settled() {
    let mut frames = Frames::default();
    let cie = frames.cie("zR", 16, PCREL, X86_START);
    let of = |n| [0x0e, n];
    frames.fde(cie, CODE + 0x40, 0x10, PCREL, &of(40));
    frames.fde(cie, CODE, 0x100, PCREL, &of(16));
    frames.fde(cie, CODE + 0x40, 0x20, PCREL, &of(48));
    frames.fde(cie, 0, 0x2000, PCREL, &of(56));
    let none = Rule::NOT_COVERED;
    let want = [(0, sp(16)), (0x40, sp(40)), (0x50, none)];
    assert_eq!(rows(&Made::new(X86_64, frames.0)), want);
}

#[test]
fn an_end_marker_in_the_middle_is_stepped_over() {
    let mut frames = Frames::default();
    let cie = frames.cie("zR", 16, PCREL, X86_START);
    frames.fde(cie, CODE, 0x10, PCREL, &[]);
    frames.0.extend([0; 4]);
    frames.fde(cie, CODE + 0x20, 0x10, PCREL, &[]);
    assert_eq!(rows(&Made::new(X86_64, frames.0)).len(), 4);
}

#[test]
fn without_section_headers_the_index_leads_to_the_entries() {
    let mut made = x86(&[]);
    let whole = rows(&made);
    made.stripped = true;
    assert_eq!(rows(&made), whole);
}

#[test]
fn debug_frame_fills_what_eh_frame_leaves() {
    let mut made = x86(&[]);
    made.debug_frame = debug_frame();
    let want = [(0, sp(8)), (0x100, sp(16)), (0x180, Rule::NOT_COVERED)];
    assert_eq!(rows(&made), want);
}

#[test]
fn a_program_begins_where_no_one_calls_it() {
    let mut made = x86(&[]);
    made.entry = CODE + 0x200;
    // `hlt`: the machine code says no more.
    made.code.fill(0xf4);
    let none = Rule::NOT_COVERED;
    let want = [
        (0, sp(8)),
        (0x100, none),
        (0x200, Rule::STOP),
        (0x220, none),
    ];
    assert_eq!(rows(&made), want);
    // The file's own information takes precedence.
    made.entry = CODE + 0x10;
    assert_eq!(rows(&made).len(), 2);
}

/// What a copy of a file from memory lacks reads as zeros.
#[test]
fn a_hole_is_no_code() {
    let mut made = Made::new(X86_64, Vec::new());
    (made.entry, made.code) = (CODE, vec![0; CODE_SIZE as usize]);
    assert_eq!(rows(&made), [(0, Rule::STOP), (0x20, Rule::NOT_COVERED)]);
    // The same of code: its first instructions are those of the program.
    made.code.fill(0x90);
    assert_eq!(rows(&made)[..2], [(0, Rule::STOP), (0x20, sp(8))]);
}

#[test]
fn only_code_is_covered() {
    let mut frames = Frames::default();
    let cie = frames.cie("zR", 16, PCREL, X86_START);
    frames.fde(cie, CODE - 0x80, 0x20000, PCREL, &[]);
    let want = [(0, sp(8)), (CODE_SIZE, Rule::NOT_COVERED)];
    assert_eq!(rows(&Made::new(X86_64, frames.0)), want);
}

#[test]
fn files_without_a_table_say_why() {
    let mut made = x86(&[]);
    made.code_addr = (1 << 48) - 0x1000;
    assert_eq!(made.table(), Err(TableError::Address(made.code_addr)));
    made.machine = 3;
    assert_eq!(made.table(), Err(TableError::Machine(3)));
    let none = Made::new(X86_64, Vec::new());
    assert_eq!(none.table(), Err(TableError::NoUnwindInformation));
}

#[test]
fn a_function_cut_into_many_parts_does_not_take_for_ever() {
    // 30,000 functions of one byte, and among them one with a million instructions.
    let mut frames = Frames::default();
    let cie = frames.cie("zR", 16, PCREL, X86_START);
    for n in 0..30_000 {
        frames.fde(cie, CODE + 2 * n, 1, PCREL, &[]);
    }
    let mut made = Made::new(X86_64, frames.0);
    let mut debug = vec![16, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 1, 0, 1, 0x78, 16];
    debug.extend([0x0c, 7, 8, 0x90, 1, 0, 0]);
    debug.extend((20 + 1_000_000u32).to_le_bytes());
    debug.extend(0u32.to_le_bytes());
    debug.extend(CODE.to_le_bytes());
    debug.extend(CODE_SIZE.to_le_bytes());
    // DW_CFA_same_value of rbx, repeated.
    debug.extend([8, 3].repeat(500_000));
    made.debug_frame = debug;
    let began = std::time::Instant::now();
    // Code that was not reached has no rule.
    assert!(rows(&made).iter().any(|(_, r)| *r == Rule::UNSUPPORTED));
    // Without a limit it takes many minutes; with one, less than that also on a busy machine.
    assert!(began.elapsed().as_secs() < 60, "{:?}", began.elapsed());
}

/// PLTs without unwind information, at 0x8000 in a file whose only function is elsewhere.
fn linked(machine: u16, start: &[u8], ra: u8, code: &[u8]) -> Vec<(u64, Rule)> {
    let mut frames = Frames::default();
    let cie = frames.cie("zR", ra, PCREL, start);
    frames.fde(cie, CODE, 0x40, PCREL, &[]);
    let mut made = Made::new(machine, frames.0);
    made.code[0x8000..0x8000 + code.len()].copy_from_slice(code);
    let rows = rows(&made).into_iter();
    rows.filter(|(pc, _)| *pc > 0x40).collect()
}

#[test]
fn linkage_tables_are_known_by_their_code() {
    let header = b"\xff\x35....\xff\x25....\x0f\x1f\x40\0";
    let lazy = b"\xff\x25....h....\xe9....";
    let plt = |from| Rule {
        cfa: CfaKind::Plt as u8,
        cfa_offset: from,
        ..sp(0)
    };
    let code = [&header[..], lazy, lazy].concat();
    let want = [
        (0x8000, sp(16)),
        (0x8006, sp(24)),
        (0x8010, plt(11)),
        (0x8030, Rule::NOT_COVERED),
    ];
    assert_eq!(linked(X86_64, X86_START, 16, &code), want);

    let protected = b"\xf3\x0f\x1e\xfah....\xf2\xe9....\x90";
    let second = b"\xf3\x0f\x1e\xfa\xf2\xff\x25....\x0f\x1f\x44\0\0";
    let got = b"\xff\x25....\x66\x90\xff\x25....\x66\x90";
    let code = [&protected[..], second, got].concat();
    let want = [
        (0x8000, plt(9)),
        (0x8010, sp(8)),
        (0x8030, Rule::NOT_COVERED),
    ];
    assert_eq!(linked(X86_64, X86_START, 16, &code), want);
}

#[test]
fn linkage_tables_of_64_bit_arm() {
    let jump = [0x9000_0110u32, 0xf947_fe11, 0x913f_e210, 0xd61f_0220];
    let words = [
        &[0xa9bf_7bf0][..],
        &jump,
        &[0xd503_201f; 3],
        &jump,
        &[0xd503_245f],
        &jump,
    ]
    .concat();
    let code: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    let entry = Rule {
        cfa: CfaKind::Sp as u8,
        flags: RA_IN_LINK_REGISTER,
        ..Rule::default()
    };
    let want = [
        (0x8000, entry),
        (0x8004, sp(16)),
        (0x8014, Rule::NOT_COVERED),
        (0x8020, entry),
        (0x8044, Rule::NOT_COVERED),
    ];
    assert_eq!(linked(AARCH64, ARM_START, 30, &code), want);
}

#[test]
fn a_frame_that_rbx_leads_to() {
    // CFA = rbx + 16, and before that rbx saved at CFA - 16.
    let program = [0x41, 0x0e, 16, 0x83, 2, 0x43, 0x0d, 3];
    let kept = Rule {
        flags: BX_KEPT,
        ..sp(8)
    };
    let saved = Rule {
        flags: BX_SAVED,
        ra_offset: -16,
        ..sp(16)
    };
    let by_bx = Rule {
        cfa: CfaKind::Bx as u8,
        ..saved
    };
    let want = [(0, kept), (1, saved), (4, by_bx)];
    assert_eq!(rows(&x86(&program))[..3], want);
    // Only if it is needed.
    assert_eq!(rows(&x86(&program[..5]))[..2], [(0, sp(8)), (1, sp(16))]);
}
