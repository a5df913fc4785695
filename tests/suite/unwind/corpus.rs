//! The generated files of tests/corpus, which tests/alone/fuzz_smoke.rs damages.

use crate::unwind::synthetic::{
    AARCH64, ARM_START, CODE, Frames, Made, PCREL, X86_64, X86_START, debug_frame,
};

fn x86_64() -> Made {
    let mut frames = Frames::default();
    let cie = frames.cie("zR", 16, PCREL, X86_START);
    let programs: [&[u8]; 5] = [
        // A frame pointer; a PLT; a realigned stack; an outermost frame; location advances of every size.
        &[
            0x41, 0x0e, 16, 0x86, 2, 0x43, 0x0d, 6, 0x0a, 0x58, 0x0c, 7, 8, 0x0b,
        ],
        &[
            0x0f, 11, 0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22,
        ],
        &[
            0x44, 0x0f, 3, 0x76, 0x58, 0x06, 0x10, 6, 2, 0x76, 0, 0x2e, 16,
        ],
        &[0x07, 16],
        &[
            0x02, 2, 0x0e, 24, 0x03, 4, 0, 0x0e, 32, 0x04, 4, 0, 0, 0, 0x13, 0x7a, 0x08, 6,
        ],
    ];
    for (start, program) in (CODE..).step_by(0x1c).zip(programs) {
        // Some overlap.
        frames.fde(cie, start, 0x20, PCREL, program);
    }
    let cie = frames.cie("zRS", 16, PCREL, &[]);
    let sigreturn = [
        0x0f, 4, 0x77, 0xa0, 1, 0x06, 0x10, 6, 3, 0x77, 0xf8, 0, 0x10, 16, 3, 0x77, 0xa8, 1,
    ];
    frames.fde(cie, CODE + 0xb0, 10, PCREL, &sigreturn);
    let mut made = Made::new(X86_64, frames.0);
    made.code.truncate(0x400);
    let trampoline = [0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05];
    made.code[0x100..0x109].copy_from_slice(&trampoline);
    made.debug_frame = debug_frame();
    made.entry = CODE + 0x200;
    made
}

fn aarch64() -> Made {
    let mut frames = Frames::default();
    let cie = frames.cie("zR", 30, PCREL, ARM_START);
    let small = [0x2d, 0x48, 0x0e, 32, 0x9d, 4, 0x9e, 3];
    let framed = [
        0x44, 0x0e, 0x90, 1, 0x9d, 18, 0x9e, 17, 0x44, 0x0d, 29, 0x0a, 0x48, 0x0c, 31, 0, 0xdd,
        0xde, 0x0b,
    ];
    frames.fde(cie, CODE, 64, PCREL, &small);
    frames.fde(cie, CODE + 64, 64, PCREL, &framed);
    let mut made = Made::new(AARCH64, frames.0);
    made.code.truncate(0x400);
    let trampoline = [0x68, 0x11, 0x80, 0xd2, 0x01, 0, 0, 0xd4];
    made.code[0x100..0x108].copy_from_slice(&trampoline);
    made
}

/// With WRITE_CORPUS in the environment, the files are rewritten.
#[test]
fn the_corpus_is_what_these_programs_make() {
    let check = |name: &str, made: &Made| {
        let path = format!("{}/tests/corpus/{name}", env!("CARGO_MANIFEST_DIR"));
        if std::env::var_os("WRITE_CORPUS").is_some() {
            std::fs::write(&path, made.bytes()).unwrap();
        }
        assert!(std::fs::read(&path).unwrap() == made.bytes(), "{name}");
    };
    let mut x86 = x86_64();
    check("rules-x86_64", &x86);
    x86.stripped = true;
    check("stripped-x86_64", &x86);
    check("rules-aarch64", &aarch64());
}
