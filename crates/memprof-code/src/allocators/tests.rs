//! Tests of breakpoint positions in compiler output, and of the functions found in this machine's libraries.

use std::fs::File;

use super::site::{Site, choose};
use super::*;

const NEW: KernelVersion = KernelVersion(6, 18);

fn site(code: &[u8], needed: &[u8]) -> Site {
    choose(code, needed.iter().copied(), NEW)
}

#[test]
fn the_first_emulated_instruction_is_taken() {
    // push %r12
    let glibc = site(&[0x41, 0x54, 0x55, 0x53, 0xc3], &[0]);
    assert_eq!(
        (glibc.offset, glibc.emulated, glibc.registers[0]),
        (0, true, 14)
    );
    // endbr64; push %rbx
    assert_eq!(site(&[0xf3, 0x0f, 0x1e, 0xfa, 0x53, 0xc3], &[0]).offset, 4);
    // test %rdi,%rdi; je
    let free = site(&[0x48, 0x85, 0xff, 0x74, 0x10, 0xc3], &[0]);
    assert_eq!((free.offset, free.emulated), (3, true));
    // nopl 0(%rax,%rax,1), which 6.17 single-steps
    let nop = [0x0f, 0x1f, 0x44, 0, 0, 0xc3];
    assert!(site(&nop, &[0]).emulated);
    assert!(!choose(&nop, [0].into_iter(), KernelVersion(6, 17)).emulated);
}

#[test]
fn arguments_are_followed_into_other_registers() {
    // mov %rdi,%rbx; xor %edi,%edi; push %rbp
    let moved = [0x48, 0x89, 0xfb, 0x31, 0xff, 0x55, 0xc3];
    let found = site(&moved, &[0]);
    assert_eq!((found.offset, found.registers[0]), (5, 5));
    // xor %edi,%edi; push %rbp: the first argument is lost
    let lost = site(&[0x31, 0xff, 0x55, 0xc3], &[0]);
    assert_eq!((lost.offset, lost.emulated), (0, false));
    // It does not matter for a function that needs only the second argument.
    assert!(site(&[0x31, 0xff, 0x55, 0xc3], &[1]).emulated);
}

#[test]
fn a_site_lies_before_changes_of_the_stack_and_is_reached_once() {
    // sub $0x18,%rsp; push %rbx
    let late = site(&[0x48, 0x83, 0xec, 0x18, 0x53, 0xc3], &[0]);
    assert_eq!((late.offset, late.emulated), (0, false));
    // dec %rcx; jne -5: a loop
    let again = site(&[0x48, 0xff, 0xc9, 0x75, 0xfb, 0xc3], &[0]);
    assert!(again.emulated, "a branch to the entry is a call");
    // nop (not emulated: 3 bytes); dec %rcx; jne to the dec
    let middle = site(
        &[0x0f, 0x1f, 0x00, 0x48, 0xff, 0xc9, 0x75, 0xfb, 0xc3],
        &[0],
    );
    assert_eq!((middle.offset, middle.emulated), (0, false));
}

#[test]
fn no_bytes_make_it_panic() {
    let mut random = crate::random::Random(7);
    for _ in 0..2000 {
        let bytes: Vec<u8> = (0..40).map(|_| random.below(256) as u8).collect();
        let found = site(&bytes, &[0, 1, 2]);
        assert!(found.offset < 40);
        assert!(found.emulated || found.offset == 0);
    }
}

/// Needs a dynamic glibc, like every test.
#[test]
#[cfg(target_arch = "x86_64")]
fn the_functions_of_this_machines_libc_are_emulated() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let path = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5));
    let libc = path
        .into_iter()
        .find(|path| path.contains("/libc.so"))
        .unwrap();
    let functions = functions_of(&File::open(libc).unwrap(), NEW).unwrap();
    let of = |name: &str| {
        functions
            .iter()
            .find(|f| f.name == name || f.name == format!("__libc_{name}"))
    };
    for name in ["malloc", "calloc", "realloc", "free", "posix_memalign"] {
        let function = of(name).unwrap_or_else(|| panic!("no {name} in {functions:?}"));
        assert_eq!(function.role == FunctionRole::Frees, name == "free");
        assert!(function.emulated, "{function:?}");
    }
}

#[test]
fn calls_and_imports_are_followed() {
    use super::site::{Callee, callees, first_callee, import};
    // call +0x10; je to the first instruction; jmp *0x20(%rip); jmp *%rax
    let code = [
        0xe8, 0x10, 0, 0, 0, 0x74, 0xf9, 0xff, 0x25, 0x20, 0, 0, 0, 0xff, 0xe0,
    ];
    let found = callees(&code, 0x1000, EM_X86_64);
    assert_eq!(found, [Callee::At(0x1015), Callee::In(0x102d)]);
    // endbr64; jmp *0x8(%rip)
    let stub = [0xf3, 0x0f, 0x1e, 0xfa, 0xff, 0x25, 8, 0, 0, 0];
    assert_eq!(import(&stub, 0x2000), Some(Callee::In(0x2012)));
    assert_eq!(import(&stub[4..], 0x2000), Some(Callee::In(0x200e)));
    assert_eq!(import(&[0x90], 0), None);
    // push %rbx; call: always. test; je; call: not always.
    let always = first_callee(&[0x53, 0xe8, 0x10, 0, 0, 0], 0, EM_X86_64);
    assert_eq!(always, Some(Callee::At(0x16)));
    let perhaps = [0x48, 0x85, 0xff, 0x74, 5, 0xe8, 0x10, 0, 0, 0];
    assert_eq!(first_callee(&perhaps, 0, EM_X86_64), None);
    // bl -4; b +8; ret
    let words = [0x97ff_ffffu32, 0x1400_0002, 0xd65f_03c0];
    let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let found = callees(&code, 0x1000, object::elf::EM_AARCH64);
    assert_eq!(found, [Callee::At(0xffc), Callee::At(0x100c)]);
}

/// Needs a packaged allocator with its own operators.
#[test]
#[cfg(target_arch = "x86_64")]
fn operators_that_throw_return_at_all_of_their_exits() {
    let Ok(file) = File::open("/usr/lib/x86_64-linux-gnu/libjemalloc.so.2") else {
        return;
    };
    let functions = functions_of(&file, NEW).unwrap();
    let of = |name: &str| functions.iter().find(|f| f.name == name);
    let new = of("_Znwm").unwrap();
    assert!(!new.returns && !new.exits.is_empty(), "{new:?}");
    // The library's `aligned_alloc` is counted instead.
    assert_eq!(of("_ZnwmSt11align_val_t"), None);
    let plain = of("aligned_alloc").unwrap();
    assert!(plain.returns && plain.exits.is_empty(), "{plain:?}");
}

/// Operators that call `malloc` are counted in `malloc`.
#[test]
fn a_library_of_operators_alone_has_no_functions() {
    let found = std::process::Command::new("cc")
        .arg("-print-file-name=libstdc++.so.6")
        .output()
        .unwrap();
    let path = String::from_utf8(found.stdout).unwrap();
    let Ok(file) = File::open(path.trim()) else {
        return;
    };
    let functions = functions_of(&file, NEW).unwrap();
    let names: Vec<&str> = functions.iter().map(|f| f.name.as_str()).collect();
    assert_eq!(names, ["__cxa_throw"]);
}
