//! Compares the evaluator with the kernel: a child installs the same programs and makes the same calls.

use std::arch::asm;

use proptest::prelude::*;

use super::*;
use crate::random::Random;

/// System call numbers from here on do not exist. Filters permit all lower numbers, which the child needs.
const FIRST: u32 = 0x1000;

const ERRNO: u32 = libc::SECCOMP_RET_ERRNO;
const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;

fn jump(code: u16, k: u32, if_so: u8, if_not: u8) -> u64 {
    u64::from(code) | u64::from(if_so) << 16 | u64::from(if_not) << 24 | u64::from(k) << 32
}

fn step(code: u16, k: u32) -> u64 {
    jump(code, k, 0, 0)
}

/// Makes a call. Returns the result, and the address after the instruction, which is always the same.
#[inline(never)]
fn make(entry: &Entry) -> (i64, u64) {
    let (result, behind): (i64, u64);
    // SAFETY: the callers make calls that do not exist, or that a filter refuses, or `getpid`: none accesses memory.
    unsafe {
        asm!(
            "lea {behind}, [rip + 2f]",
            "syscall",
            "2:",
            behind = out(reg) behind,
            inout("rax") entry.number => result,
            in("rdi") entry.args[0],
            in("rsi") entry.args[1],
            in("rdx") entry.args[2],
            in("r10") entry.args[3],
            in("r8") entry.args[4],
            in("r9") entry.args[5],
            out("rcx") _,
            out("r11") _,
        );
    }
    (result, behind)
}

/// Installs a filter for the current thread. Returns whether the kernel accepts it.
fn install(filter: &mut [u64]) -> bool {
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr().cast(),
    };
    // SAFETY: the kernel reads `len` instructions of `filter`, each of the size of a `u64`.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        let mode = libc::SECCOMP_SET_MODE_FILTER;
        libc::syscall(libc::SYS_seccomp, mode, 0, &raw const program) == 0
    }
}

/// Runs a function in a child, which may write to `words` words; each is initially `i64::MIN`. Returns the words, and the signal
/// that killed the child, or 0.
fn in_child(words: usize, run: impl FnOnce(&mut [i64])) -> (Vec<i64>, i32) {
    let size = words * size_of::<i64>();
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    // SAFETY: this is a new mapping of `words` words, which is used until it is unmapped below. The child only makes system calls,
    // because other threads of this process may hold locks.
    unsafe {
        let shared = libc::mmap(std::ptr::null_mut(), size, prot, flags, -1, 0).cast::<i64>();
        assert_ne!(shared.cast(), libc::MAP_FAILED);
        let said = std::slice::from_raw_parts_mut(shared, words);
        said.fill(i64::MIN);
        let child = libc::fork();
        if child == 0 {
            // Prevent a core dump.
            libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
            run(said);
            libc::_exit(0);
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        let said = said.to_vec();
        libc::munmap(shared.cast(), size);
        let signal = if libc::WIFSIGNALED(status) {
            libc::WTERMSIG(status)
        } else {
            0
        };
        (said, signal)
    }
}

fn value(random: &mut Random) -> u32 {
    match random.below(3) {
        0 => random.choose(&[0, 1, 31, 32, 33, 0x7fff_ffff, 0x8000_0000, u32::MAX]),
        1 => random.below(64) as u32,
        _ => (random.below(1 << 16) << 16 | random.below(1 << 16)) as u32,
    }
}

fn wide(random: &mut Random) -> u64 {
    u64::from(value(random)) << 32 | u64::from(value(random))
}

/// The start of a filter: permits existing calls, and fills the scratch memory, as the kernel requires.
fn beginning(mut fill: impl FnMut() -> u32) -> Vec<u64> {
    let mut filter = vec![
        step(op::LD_ABS, 0),
        jump(op::JGE, FIRST, 1, 0),
        step(op::RET_K, ALLOW),
    ];
    for index in 0..libc::BPF_MEMWORDS as u32 {
        filter.extend([step(op::LD_IMM, fill()), step(op::ST, index)]);
    }
    filter
}

const BINARY: [u16; 9] = [
    op::ADD,
    op::SUB,
    op::MUL,
    op::DIV,
    op::OR,
    op::AND,
    op::LSH,
    op::RSH,
    op::XOR,
];

/// A filter that the kernel accepts, and that returns an error number to which all of its state contributes.
fn program(random: &mut Random) -> Vec<u64> {
    let mut filter = beginning(|| value(random));
    filter.push(step(op::LDX_IMM, value(random)));
    let len = 1 + random.below(40);
    for left in (0..len).rev() {
        let k = value(random);
        let index = k % libc::BPF_MEMWORDS as u32;
        let by_x = random.choose(&[0, op::X]);
        let mut to = || random.below(left.min(255) + 1) as u8;
        let (if_so, if_not) = (to(), to());
        filter.push(match random.below(14) {
            0..4 => {
                let code = random.choose(&BINARY);
                let k = match code {
                    op::DIV => k.max(1),
                    op::LSH | op::RSH => k % 32,
                    _ => k,
                };
                step(code | by_x, k)
            }
            4..7 => {
                let code = random.choose(&[op::JEQ, op::JGT, op::JGE, op::JSET]);
                jump(code | by_x, k, if_so, if_not)
            }
            7..9 => step(op::LD_ABS, k % WORDS as u32 * 4),
            9 => step(random.choose(&[op::LD_MEM, op::LDX_MEM]), index),
            10 => step(random.choose(&[op::ST, op::STX]), index),
            11 => step(
                random.choose(&[op::LD_IMM, op::LDX_IMM]),
                random.choose(&[0, k]),
            ),
            12 => step(random.choose(&[op::TAX, op::TXA, op::NEG]), 0),
            _ => match random.below(4) {
                0 => step(op::JA, if_so.into()),
                1 => step(op::RET_K, ERRNO | k & 0xfff),
                _ => step(random.choose(&[op::LD_LEN, op::LDX_LEN]), 0),
            },
        });
    }
    filter.push(step(op::XOR | op::X, 0));
    for index in 0..3 {
        let index = 5 * index + value(random) % 6;
        filter.extend([step(op::LDX_MEM, index), step(op::ADD | op::X, 0)]);
    }
    for half in [16, 12] {
        filter.extend([
            step(op::TAX, 0),
            step(op::RSH, half),
            step(op::XOR | op::X, 0),
        ]);
    }
    filter.extend([
        step(op::AND, 0xfff),
        step(op::OR, ERRNO),
        step(op::RET_A, 0),
    ]);
    filter
}

fn call(random: &mut Random, behind: u64) -> Entry {
    Entry {
        number: (FIRST + value(random) % (i32::MAX as u32 - FIRST)).into(),
        instruction_pointer: behind,
        args: [(); 6].map(|()| wide(random)),
    }
}

fn getpid() -> Entry {
    Entry {
        number: libc::SYS_getpid,
        instruction_pointer: 0,
        args: [0; 6],
    }
}

#[test]
fn the_kernel_decides_the_same() {
    const PROGRAMS: u64 = 2000;
    const CALLS: usize = 24;
    let (_, behind) = make(&getpid());
    let mut random = Random(41);
    let (mut killed, mut refused) = (0, std::collections::BTreeSet::new());
    for n in 0..PROGRAMS {
        let mut filter = program(&mut random);
        let calls: Vec<Entry> = (0..CALLS).map(|_| call(&mut random, behind)).collect();
        let (said, signal) = in_child(CALLS + 1, |said| {
            said[CALLS] = install(&mut filter).into();
            for (said, call) in said.iter_mut().zip(&calls) {
                *said = make(call).0;
            }
        });
        assert_eq!(said[CALLS], 1, "{n}: the kernel refuses {filter:x?}");
        for (call, said) in calls.iter().zip(&said) {
            let decision = evaluate(&filter, &call.data());
            if decision == Some(libc::SECCOMP_RET_KILL_THREAD) {
                assert_eq!(
                    (*said, signal),
                    (i64::MIN, libc::SIGSYS),
                    "{n}: {call:x?} {filter:x?}"
                );
                killed += 1;
                break;
            }
            let expected = decision.map(|it| (it & ERRNO, -i64::from(it & 0xffff)));
            assert_eq!(expected, Some((ERRNO, *said)), "{n}: {call:x?} {filter:x?}");
            refused.insert(*said);
        }
    }
    println!("{} results, {killed} killed", refused.len());
    assert!(refused.len() > 1000 && killed > 10);
}

/// Tries every opcode, with constants on both sides of the limits.
#[test]
fn the_kernel_takes_the_same_instructions() {
    const CONSTANTS: [u32; 10] = [0, 1, 2, 4, 15, 16, 31, 32, 60, 64];
    let tried = || (0..0x200).flat_map(|code| CONSTANTS.map(|k| (code, k)));
    let with = |filter: &mut Vec<u64>, (code, k)| {
        let begins = filter.len() - 10;
        filter[begins] = step(code, k);
    };
    let mut filter = beginning(|| 1);
    filter.extend([step(op::RET_K, ALLOW); 10]);
    let mut in_the_child = filter.clone();
    let (taken, _) = in_child(tried().count(), |said| {
        for (said, instruction) in said.iter_mut().zip(tried()) {
            with(&mut in_the_child, instruction);
            *said = install(&mut in_the_child).into();
        }
    });
    let data = Entry {
        number: FIRST.into(),
        ..getpid()
    };
    for (taken, instruction) in taken.iter().zip(tried()) {
        with(&mut filter, instruction);
        let evaluated = evaluate(&filter, &data.data()).is_some();
        assert_eq!(evaluated, *taken == 1, "{instruction:x?}");
    }
    println!("{} taken", taken.iter().filter(|it| **it == 1).count());
    assert!(taken.contains(&1) && taken.contains(&0));
}

fn filters(filters: &[&[u64]]) -> Filters {
    Filters(filters.iter().map(|it| it.to_vec()).collect())
}

#[test]
fn every_filter_must_permit_a_call() {
    let allow: &[u64] = &[step(op::RET_K, ALLOW | 7)];
    let log: &[u64] = &[step(op::RET_K, libc::SECCOMP_RET_LOG)];
    let check = |some: &[&[u64]]| {
        let clone = Entry {
            number: libc::SYS_clone,
            ..getpid()
        };
        filters(some).check(5, &clone)
    };
    assert_eq!(check(&[]), Ok(()));
    assert_eq!(check(&[allow, log]), Ok(()));
    let decided = |action| {
        let other = [step(op::RET_K, action)];
        let refused = check(&[allow, &other, log]);
        assert_eq!(check(&[&other, allow]), refused);
        refused.unwrap_err()
    };
    for action in [
        libc::SECCOMP_RET_KILL_PROCESS,
        libc::SECCOMP_RET_KILL_THREAD,
        libc::SECCOMP_RET_TRAP,
        ERRNO,
        // No kernel knows this action.
        0x0123_0000,
    ] {
        let said = "thread 5 runs under a seccomp filter that forbids `clone`";
        assert_eq!(decided(action), said, "{action:x}");
    }
    for action in [libc::SECCOMP_RET_USER_NOTIF, libc::SECCOMP_RET_TRACE] {
        assert!(decided(action).contains("another process"), "{action:x}");
    }
    let endless: &[u64] = &[step(op::JA, 0)];
    assert!(check(&[endless]).unwrap_err().contains("evaluate"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_filter_ends_memprof(
        filter in proptest::collection::vec(
            (prop_oneof![0_u16..0x100, any::<u16>()], 0_u8..9, 0_u8..9, prop_oneof![0_u32..70, any::<u32>()]),
            0..200,
        ),
        data in any::<[u32; WORDS]>(),
    ) {
        let filter: Vec<u64> = filter
            .into_iter()
            .map(|(code, if_so, if_not, k)| jump(code, k, if_so, if_not))
            .collect();
        let _ = evaluate(&filter, &data);
    }
}
