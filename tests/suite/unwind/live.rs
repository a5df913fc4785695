//! Walks of this process's own stacks, compared with those of the C++ exception unwinder.
//!
//! A thread is interrupted repeatedly at arbitrary places. The signal handler saves the registers, a copy of the
//! stack, and the frames of the other unwinder. The copy is walked later.

use std::arch::asm;
use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::fmt::Write;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::process::LIMIT;
use crate::unwind::images::{Code, Mapping, image, mapped, mappings, modules};
use memprof_code::elf::Elf;
use memprof_code::unwind::walk::{Ended, Mapped, Process, Registers, walk};
use memprof_code::unwind::{Arch, CfaKind, Table};

const SAMPLES: usize = 1000;
const STACK: usize = 24 << 10;
const DEPTH: usize = 96;
/// Where the registers are in `struct ucontext`, in 8-byte words.
const GREGS: usize = 5;

unsafe extern "C" {
    fn _Unwind_Backtrace(
        each: extern "C-unwind" fn(*mut c_void, *mut c_void) -> c_int,
        arg: *mut c_void,
    ) -> c_int;
    fn _Unwind_GetIPInfo(context: *mut c_void, before: *mut c_int) -> usize;
}

/// One interruption.
#[derive(Clone)]
struct Sample {
    /// The registers in the handler, and those of the interrupted code.
    handler: Registers,
    interrupted: Registers,
    /// The stack from the handler's stack pointer on.
    stack: [u8; STACK],
    copied: usize,
    /// The frames of the other unwinder: instruction addresses as in `walk`.
    frames: [u64; DEPTH],
    count: usize,
}

/// The output of the handler, which runs on only one thread.
struct Store(UnsafeCell<Vec<Sample>>);
// SAFETY: only the handler writes, on one thread, and it is read after that thread has ended.
unsafe impl Sync for Store {}

static STORE: Store = Store(UnsafeCell::new(Vec::new()));
static TAKEN: AtomicUsize = AtomicUsize::new(0);
static STACK_END: AtomicUsize = AtomicUsize::new(0);

extern "C-unwind" fn each(context: *mut c_void, sample: *mut c_void) -> c_int {
    let mut before = 0;
    // SAFETY: the unwinder passes its context, and `handler` the sample it is filling.
    let (ip, sample) = unsafe {
        let ip = _Unwind_GetIPInfo(context, &mut before);
        (ip as u64, &mut *sample.cast::<Sample>())
    };
    // After the outermost frame there is another one without an address.
    if let Some(frame) = sample.frames.get_mut(sample.count).filter(|_| ip != 0) {
        *frame = if before == 0 { ip.wrapping_sub(1) } else { ip };
        sample.count += 1;
    }
    0
}

extern "C" fn handler(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    let taken = TAKEN.load(Ordering::Relaxed);
    // SAFETY: see `Store`; the vector was filled before, so nothing is allocated here.
    let Some(sample) = (unsafe { (&mut *STORE.0.get()).get_mut(taken) }) else {
        return;
    };
    let (ip, sp, fp, bx): (u64, u64, u64, u64);
    // SAFETY: four registers are read.
    unsafe {
        asm!("lea {0}, [rip]", "mov {1}, rsp", "mov {2}, rbp", "mov {3}, rbx",
            out(reg) ip, out(reg) sp, out(reg) fp, out(reg) bx, options(nomem, nostack));
    }
    let lr = 0;
    sample.handler = Registers { ip, sp, fp, lr, bx };
    let register = |n| {
        // SAFETY: the kernel passes a `struct ucontext`.
        unsafe { *context.cast::<u64>().add(GREGS + n as usize) }
    };
    sample.interrupted = Registers {
        ip: register(libc::REG_RIP),
        sp: register(libc::REG_RSP),
        fp: register(libc::REG_RBP),
        lr: 0,
        bx: register(libc::REG_RBX),
    };
    let end = STACK_END.load(Ordering::Relaxed) as u64;
    sample.copied = STACK.min((end - sp) as usize);
    // SAFETY: the thread's own stack between its stack pointer and its end.
    unsafe {
        let from = sp as *const u8;
        std::ptr::copy_nonoverlapping(from, sample.stack.as_mut_ptr(), sample.copied);
        _Unwind_Backtrace(each, (&raw mut *sample).cast());
    }
    TAKEN.store(taken + 1, Ordering::Relaxed);
}

/// A saved stack and the files of this process.
struct Saved<'a> {
    sample: &'a Sample,
    modules: &'a [Code],
}

impl Process for Saved<'_> {
    fn read(&self, addr: u64) -> Option<u64> {
        let at = usize::try_from(addr.checked_sub(self.sample.handler.sp)?).ok()?;
        let bytes = self.sample.stack[..self.sample.copied].get(at..at.checked_add(8)?)?;
        Some(u64::from_le_bytes(bytes.try_into().unwrap()))
    }

    fn module(&self, pc: u64) -> Mapped<'_> {
        mapped(self.modules, pc)
    }
}

/// PLT stubs: some linkers generate no unwind information for them, so the exception unwinder stops
/// there.
fn stubs() -> Vec<std::ops::Range<u64>> {
    let range = |m: &Mapping| {
        let file = image("self", m)?;
        let elf = Elf::read(&file).ok()?;
        let bias = m
            .start
            .wrapping_sub(elf.address_of_mapping(m.offset, m.end - m.start)?);
        let plt = elf.section_named(".plt")?;
        let start = bias.wrapping_add(plt.addr);
        Some(start..start + plt.size)
    };
    let code = mappings("self").into_iter().filter(|m| m.code);
    code.filter_map(|m| range(&m)).collect()
}

extern "C" fn compare(a: *const c_void, b: *const c_void) -> c_int {
    // SAFETY: `qsort` passes elements of the array.
    let (a, b) = unsafe { (*a.cast::<u64>(), *b.cast::<u64>()) };
    let text = format!("{a:x}{b:e}", b = b as f64);
    a.cmp(&b) as c_int + c_int::from(text.is_empty())
}

/// Work that is spread over this program, the C library and the kernel's code page.
fn work(depth: u32, stop: &AtomicBool) -> usize {
    let mut kept: HashMap<u64, String> = HashMap::new();
    let mut sum = 0;
    while !stop.load(Ordering::Relaxed) {
        let mut values: Vec<u64> = (0..200u64)
            .map(|n| n.wrapping_mul(0x9e37_79b9) % 1009)
            .collect();
        // SAFETY: an array of 8-byte elements and a function that compares two.
        unsafe { libc::qsort(values.as_mut_ptr().cast(), values.len(), 8, Some(compare)) };
        for v in values {
            let text = kept.entry(v).or_default();
            let _ = write!(text, "{:?}", std::time::Instant::now());
            text.truncate(500);
            sum += text.len();
        }
        kept.retain(|k, _| k % 3 == 0);
        let text = fs::read_to_string("/proc/self/stat").unwrap();
        sum += text
            .split(' ')
            .filter_map(|w| w.parse::<f64>().ok())
            .count();
        if depth > 0 {
            return sum + work(depth - 1, stop);
        }
    }
    sum
}

/// The end of this thread's stack. (The end of its mapping may differ: the kernel may have merged it with the next one,
/// which may be unmapped.)
fn own_stack_end() -> usize {
    let (mut at, mut size) = (std::ptr::null_mut(), 0);
    // SAFETY: the attributes are filled in before they are read, and destroyed after.
    unsafe {
        let mut attributes = std::mem::zeroed();
        let got = libc::pthread_getattr_np(libc::pthread_self(), &mut attributes);
        assert_eq!(got, 0);
        let got = libc::pthread_attr_getstack(&attributes, &mut at, &mut size);
        assert_eq!(got, 0);
        libc::pthread_attr_destroy(&mut attributes);
    }
    at as usize + size
}

#[test]
fn saved_stacks_are_walked_as_the_exception_unwinder_walks_them() {
    let empty = Registers {
        ip: 0,
        sp: 0,
        fp: 0,
        lr: 0,
        bx: 0,
    };
    let blank = Sample {
        handler: empty,
        interrupted: empty,
        stack: [0; STACK],
        copied: 0,
        frames: [0; DEPTH],
        count: 0,
    };
    // SAFETY: the handler is not installed yet.
    unsafe { *STORE.0.get() = vec![blank; SAMPLES] };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (send, receive) = std::sync::mpsc::channel();
        let stop = &stop;
        let worker = scope.spawn(move || {
            STACK_END.store(own_stack_end(), Ordering::Relaxed);
            // SAFETY: the handler is async-signal-safe, and runs on a thread that expects it.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = handler as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
                assert_eq!(
                    libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut()),
                    0
                );
                send.send(libc::pthread_self()).unwrap();
            }
            work(6, stop)
        });
        let thread = receive.recv().unwrap();
        // Signals that arrive while the thread does not run are merged.
        let limit = Instant::now() + LIMIT;
        while TAKEN.load(Ordering::Relaxed) < SAMPLES && Instant::now() < limit {
            // SAFETY: the thread runs until `stop` is set.
            unsafe { libc::pthread_kill(thread, libc::SIGUSR2) };
            std::thread::sleep(Duration::from_micros(700));
        }
        stop.store(true, Ordering::Relaxed);
        worker.join().unwrap();
    });
    check(&modules("self", &mut HashMap::new()));
}

/// The other unwinder's frames. It reports the place before the signal trampoline, which no call precedes.
fn own_addresses(saved: &Saved, frames: &[u64]) -> Vec<u64> {
    let own = |pc: &u64| match saved.module(*pc) {
        Mapped::Table(table, bias) => {
            let rule = table.rule_at(pc.wrapping_sub(bias));
            pc + u64::from(rule.cfa_kind() == CfaKind::Signal)
        }
        _ => *pc,
    };
    frames.iter().map(own).collect()
}

fn check(modules: &[Code]) {
    // SAFETY: the thread that wrote has ended.
    let samples = unsafe { &(&*STORE.0.get())[..TAKEN.load(Ordering::Relaxed)] };
    let (mut frames, mut places) = (0, std::collections::BTreeSet::new());
    let (stubs, mut ended_in_stubs) = (stubs(), 0);
    for sample in samples {
        let saved = Saved { sample, modules };
        let theirs = own_addresses(&saved, &sample.frames[..sample.count]);
        let whole = walk(&saved, Arch::X86_64, sample.handler, DEPTH);
        // The handler's own address was read at another of its instructions.
        if theirs
            .last()
            .is_some_and(|f| stubs.iter().any(|s| s.contains(f)))
        {
            assert!(whole.frames[1..].starts_with(&theirs[1..]));
            ended_in_stubs += 1;
            continue;
        }
        assert_eq!(
            whole.frames[1..],
            theirs[1..],
            "{:x?} {:?}",
            sample.handler,
            whole.ended
        );
        assert_eq!(whole.ended, Ended::Complete, "{:x?}", whole.frames);
        let from = theirs
            .iter()
            .position(|f| *f == sample.interrupted.ip)
            .unwrap();
        let ours = walk(&saved, Arch::X86_64, sample.interrupted, DEPTH);
        assert_eq!(ours.frames, theirs[from..], "{:x?}", sample.interrupted);
        assert_eq!(ours.ended, Ended::Complete);
        frames += whole.frames.len();
        places.insert(sample.interrupted.ip);
    }
    println!(
        "{} stacks, {frames} frames, {} places: no difference; in stubs that it does not know the \
         exception unwinder ended {ended_in_stubs} times",
        samples.len() - ended_in_stubs,
        places.len()
    );
    assert!(samples.len() - ended_in_stubs > SAMPLES / 2 && places.len() > 20);
}

#[test]
fn the_kernels_own_code_page_has_a_table() {
    let vdso = mappings("self")
        .into_iter()
        .find(|m| m.path == "[vdso]")
        .unwrap();
    let table = Table::build(&image("self", &vdso).unwrap()).unwrap();
    assert!(table.rows.len() > 10 && table.rows.last().unwrap().pc < vdso.end - vdso.start);
}
