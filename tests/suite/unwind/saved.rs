//! The probe's walk, compiled for user space, of saved stacks, including those of 64-bit ARM.
//!
//! `walk/walk.c` is the walk with its stand-ins for the kernel. `saved/` contains the stacks, their programs, and the
//! script that regenerates both. Needs `gcc` and `readelf`.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::common::random::Random;
use memprof_code::elf::Elf;
use memprof_code::unwind::walk::{Ended, Mapped, Process, Reason, Registers, walk};
use memprof_code::unwind::{Arch, RA_IN_LINK_REGISTER, Rule, Table};

const PROGRAMS: [(&str, Arch); 3] = [
    ("x86_64", Arch::X86_64),
    ("aarch64", Arch::Aarch64),
    ("aarch64-signed", Arch::Aarch64),
];
const CASES: usize = 16;
/// `MAX_FRAMES` of memprof.h: deeper stacks are not cached, and are sent in parts. The deepest saved stack has 154
/// frames.
const DEPTH: usize = 128;
const DEPTHS: [usize; 3] = [DEPTH, 140, 1024];
/// `enum outcome` and `enum unwind_mode` of memprof.h.
const COMPLETE: u64 = 0;
const NO_FRAME_POINTER: u64 = 2;
const DEPTH_LIMIT: u64 = 3;
const ASSISTED: u64 = 5;
const NO_MAPPING: u64 = 6;
const NO_TABLE: u64 = 7;
const FRAME_POINTERS: u64 = 1;
const TABLES: u64 = 2;
const AUTO: u64 = 3;

fn path(name: &str) -> PathBuf {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/suite/unwind/saved");
    PathBuf::from(dir).join(name)
}

/// One saved stack.
struct Saved {
    name: String,
    /// Innermost first.
    truth: Vec<String>,
    base: u64,
    start: Registers,
    in_syscall: bool,
    /// Regions: the first address and the words from there on.
    memory: Vec<(u64, Vec<u64>)>,
}

impl Saved {
    fn read_all(program: &str) -> Vec<Saved> {
        let text = std::fs::read_to_string(path(&format!("{program}.stacks"))).unwrap();
        let mut all: Vec<Saved> = Vec::new();
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let number = |n: usize| u64::from_str_radix(words[n], 16).unwrap();
            if words[0] == "case" {
                all.push(Saved::named(words[1]));
                continue;
            }
            let one = all.last_mut().unwrap();
            match words[0] {
                "truth" => one.truth = words[1..].iter().map(|w| (*w).to_owned()).collect(),
                "base" => one.base = number(1),
                "ip" => one.start.ip = number(1),
                "sp" => one.start.sp = number(1),
                "fp" => one.start.fp = number(1),
                "lr" => one.start.lr = number(1),
                "bx" => one.start.bx = number(1),
                "in_syscall" => one.in_syscall = number(1) == 1,
                "stack" => {
                    // Memory consists of whole pages.
                    let (start, end) = (number(1) & !0xfff, number(2).next_multiple_of(0x1000));
                    one.memory
                        .push((start, vec![0; (end - start) as usize / 8]));
                }
                _ => {
                    let (start, words) = one.memory.last_mut().unwrap();
                    words[((number(0) - *start) / 8) as usize] = number(1);
                }
            }
        }
        assert_eq!(all.len(), CASES);
        all
    }

    fn named(name: &str) -> Saved {
        Saved {
            name: name.to_owned(),
            truth: Vec::new(),
            base: 0,
            start: Registers {
                ip: 0,
                sp: 0,
                fp: 0,
                lr: 0,
                bx: 0,
            },
            in_syscall: false,
            memory: Vec::new(),
        }
    }
}

/// A program: its table, its functions, its stacks.
struct Program {
    arch: Arch,
    table: Table,
    /// Addresses in the file.
    code: (u64, u64),
    functions: Vec<(u64, u64, String)>,
    stacks: Vec<Saved>,
}

impl Program {
    fn read(name: &str, arch: Arch) -> Program {
        let file = File::open(path(name)).unwrap();
        let elf = Elf::read(&file).unwrap();
        let code = elf.code_segments().next().unwrap();
        Program {
            arch,
            table: Table::build(&file).unwrap(),
            code: (code.addr, code.addr + code.size),
            functions: functions(name),
            stacks: Saved::read_all(name),
        }
    }

    /// Its code in memory: the first address, and the words from there on.
    fn code_at(&self, base: u64, name: &str) -> (u64, Vec<u64>) {
        let file = std::fs::read(path(name)).unwrap();
        let opened = File::open(path(name)).unwrap();
        let elf = Elf::read(&opened).unwrap();
        let code = elf.code_segments().next().unwrap();
        let bytes = &file[code.offset as usize..][..code.size as usize & !7];
        let words = bytes.chunks_exact(8);
        let words = words.map(|w| u64::from_le_bytes(w.try_into().unwrap()));
        (base + code.addr, words.collect())
    }

    fn names(&self, saved: &Saved, frames: &[u64]) -> Vec<&str> {
        let name = |pc: &u64| {
            let at = pc.wrapping_sub(saved.base);
            let holds = |(start, end, _): &&(u64, u64, String)| (*start..*end).contains(&at);
            self.functions
                .iter()
                .find(holds)
                .map_or("?", |(_, _, name)| name)
        };
        frames.iter().map(name).collect()
    }
}

fn functions(program: &str) -> Vec<(u64, u64, String)> {
    let mut readelf = Command::new("readelf");
    let out = readelf.arg("-sW").arg(path(program)).output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    let function = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, start, size, "FUNC", _, _, _, name] = words.as_slice() else {
            return None;
        };
        let start = u64::from_str_radix(start, 16).ok()?;
        Some((start, start + size.parse::<u64>().ok()?, (*name).to_owned()))
    };
    text.lines().filter_map(function).collect()
}

/// A saved stack's memory, and the mapped program.
struct Image<'a> {
    program: &'a Program,
    base: u64,
    memory: &'a [(u64, Vec<u64>)],
    /// The program has a table.
    table: bool,
}

impl Process for Image<'_> {
    fn read(&self, addr: u64) -> Option<u64> {
        if addr & 7 != 0 {
            return None;
        }
        self.memory.iter().find_map(|(start, words)| {
            let at = usize::try_from(addr.checked_sub(*start)? / 8).ok()?;
            words.get(at).copied()
        })
    }

    fn module(&self, pc: u64) -> Mapped<'_> {
        let (start, end) = self.program.code;
        match (start..end).contains(&pc.wrapping_sub(self.base)) {
            true if self.table => Mapped::Table(&self.program.table, self.base),
            true => Mapped::NoTable,
            false => Mapped::Nothing,
        }
    }
}

/// The compiled walk.
struct Walker {
    child: Child,
    input: BufWriter<ChildStdin>,
    output: BufReader<ChildStdout>,
}

/// The result of a walk.
#[derive(Debug, PartialEq, Eq)]
struct Stack {
    id: u64,
    outcome: u64,
    frames: Vec<u64>,
}

impl Walker {
    fn compile(arch: Arch, name: &str) -> PathBuf {
        let (target, headers) = match arch {
            Arch::X86_64 => ("x86", "x86_64"),
            Arch::Aarch64 => ("arm64", "aarch64"),
        };
        let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        // The linker drops the rest of the probe, whose functions are not called.
        let flags = "-std=gnu11 -O1 -g -w -Wno-error=implicit-function-declaration \
             -fsanitize=undefined -fsanitize-undefined-trap-on-error \
             -ffunction-sections -Wl,--gc-sections -Itests/suite/unwind/walk -Isrc/bpf";
        let ended = Command::new("gcc")
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .args(flags.split_whitespace())
            .arg(format!("-D__TARGET_ARCH_{target}"))
            .arg(format!("-Ivmlinux/{headers}"))
            .arg("tests/suite/unwind/walk/walk.c")
            .arg("-o")
            .arg(&out)
            .output()
            .expect("gcc is installed");
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "{said}");
        out
    }

    fn start(program: &Program, name: &str) -> Walker {
        let mut child = Command::new(Walker::compile(program.arch, name))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut walker = Walker {
            input: BufWriter::new(child.stdin.take().unwrap()),
            output: BufReader::new(child.stdout.take().unwrap()),
            child,
        };
        walker.tables(&program.table);
        let base = program.stacks[0].base;
        assert!(program.stacks.iter().all(|s| s.base == base));
        walker.map(program, true);
        walker
    }

    /// Maps the program with or without a table.
    fn map(&mut self, program: &Program, table: bool) {
        let base = program.stacks[0].base;
        let (start, end) = program.code;
        self.send(&[2, 1, 1, base + start, base + end, base, table.into()]);
    }

    fn send(&mut self, words: &[u64]) {
        for word in words {
            self.input.write_all(&word.to_le_bytes()).unwrap();
        }
    }

    fn tables(&mut self, table: &Table) {
        let packed = table.pack();
        self.send(&[1, table.rules.len() as u64]);
        for rule in &table.rules {
            let low = u64::from(rule.cfa)
                | u64::from(rule.fp) << 8
                | u64::from(rule.flags | rule.needs()) << 16
                | u64::from(rule.cfa_offset as u32) << 32;
            let high = u64::from(rule.fp_offset as u32) | u64::from(rule.ra_offset as u32) << 32;
            self.send(&[low, high]);
        }
        self.send(&[packed.rows.len() as u64]);
        let rows: Vec<u64> = packed.rows.iter().map(|r| u64::from(*r)).collect();
        self.send(&rows);
        self.send(&[packed.pages.len() as u64]);
        for page in &packed.pages {
            let [number, first, count] = [page.number, page.first, page.count].map(u64::from);
            self.send(&[1, number, first, count, 0]);
        }
    }

    fn memory(&mut self, memory: &[(u64, Vec<u64>)]) {
        self.send(&[3, memory.len() as u64]);
        for (start, words) in memory {
            self.send(&[*start, words.len() as u64]);
            self.send(words);
        }
    }

    /// `how`: the mode, and the maximum number of frames.
    fn walk(
        &mut self,
        fresh: bool,
        how: (u64, usize),
        start: Registers,
        in_syscall: bool,
    ) -> Stack {
        let Registers { ip, sp, fp, lr, bx } = start;
        let [fresh, in_syscall] = [fresh, in_syscall].map(u64::from);
        let (mode, depth) = (how.0, how.1 as u64);
        self.send(&[5, fresh, 1, mode, depth, ip, sp, fp, bx, lr, in_syscall]);
        self.input.flush().unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        let mut words = line.split_whitespace();
        let mut number = || words.next().expect("a line for each walk").parse().unwrap();
        let (id, outcome) = (number(), number());
        let frames = words.map(|w| u64::from_str_radix(w, 16).unwrap());
        Stack {
            id,
            outcome,
            frames: frames.collect(),
        }
    }

    /// Ends it; it checks that nothing was lost.
    fn end(mut self) {
        drop(self.input);
        assert!(self.child.wait().unwrap().success());
    }
}

/// The reference's walk of the same stack.
fn reference(image: &Image, depth: usize, start: Registers, in_syscall: bool) -> (Vec<u64>, Ended) {
    let start = Registers {
        ip: start.ip - u64::from(in_syscall),
        ..start
    };
    let found = walk(image, image.program.arch, start, depth);
    (found.frames, found.ended)
}

#[test]
fn every_frame_of_saved_stacks() {
    for (name, arch) in PROGRAMS {
        let program = Program::read(name, arch);
        let mut walker = Walker::start(&program, &format!("walk-{name}"));
        for saved in &program.stacks {
            walker.memory(&saved.memory);
            check_saved(name, &program, &mut walker, saved);
        }
        walker.end();
    }
}

#[track_caller]
fn check_saved(name: &str, program: &Program, walker: &mut Walker, saved: &Saved) {
    let what = format!("{name}: {}", saved.name);
    let image = Image {
        program,
        base: saved.base,
        memory: &saved.memory,
        table: true,
    };
    let in_register =
        program.table.rule_at(saved.start.ip - saved.base).flags & RA_IN_LINK_REGISTER;
    let bare = ["leaf", "late"].contains(&saved.name.as_str());
    if program.arch == Arch::Aarch64 && bare {
        assert_ne!(in_register, 0, "{what}: stopped before it was saved");
    }
    let modes = [TABLES, AUTO].into_iter();
    for (mode, depth) in modes.flat_map(|mode| DEPTHS.map(|depth| (mode, depth))) {
        let what = format!("{what}, {depth} frames");
        // One function has no unwind information, but a frame pointer. On x86-64 its machine code has rules.
        let without_rule =
            program.arch != Arch::X86_64 && ["assisted", "framed"].contains(&saved.name.as_str());
        let (frames, outcome) = match (saved.name.as_str(), mode) {
            (_, TABLES) if without_rule => (2, NO_TABLE),
            _ if without_rule => (saved.truth.len(), ASSISTED),
            ("deep", _) if depth < saved.truth.len() => (depth, DEPTH_LIMIT),
            _ => (saved.truth.len(), COMPLETE),
        };
        let how = (mode, depth);
        let first = walker.walk(true, how, saved.start, saved.in_syscall);
        let names = program.names(saved, &first.frames);
        assert_eq!(names, saved.truth[..frames], "{what}");
        assert_eq!(first.outcome, outcome, "{what}");
        if mode == TABLES {
            let (theirs, _) = reference(&image, depth, saved.start, saved.in_syscall);
            assert_eq!(first.frames, theirs, "{what}");
        }
        // With the cached walks of the previous stacks, and then with that of this one.
        for _ in 0..2 {
            let again = walker.walk(false, how, saved.start, saved.in_syscall);
            assert_eq!(again, first, "{what}");
        }
    }
}

/// A frame pointer of 0, or to a return address of 0, ends a stack only in a frame that a frame pointer and a call led
/// to, and only in known code: code without frame pointers may have 0 in the register by chance.
#[test]
fn chains_of_frame_pointers_end_where_they_led() {
    const STACK: u64 = 0x7000_0000_0000;
    for (name, arch) in PROGRAMS {
        let program = Program::read(name, arch);
        let mut walker = Walker::start(&program, &format!("walk-chains-{name}"));
        let saved = &program.stacks[0];
        let image = Image {
            program: &program,
            base: saved.base,
            memory: &saved.memory,
            table: true,
        };
        let (frames, _) = reference(&image, 2, saved.start, saved.in_syscall);
        let called = frames[1] + 1;
        let uncalled = saved.base + program.functions[0].0;
        for (chain, frames, whole) in [
            (&[][..], 1, false),
            (&[0][..], 1, false),
            (&[called, 0][..], 2, true),
            (&[called][..], 2, true),
            (&[uncalled, 0][..], 2, false),
            (&[uncalled][..], 2, false),
        ] {
            // Pairs of a frame pointer and a return address.
            let link = |n: usize| match n < chain.len() {
                true => STACK + 64 + 16 * n as u64,
                false => 0,
            };
            let pairs = chain.iter().enumerate();
            let pairs = pairs.flat_map(|(n, ret)| [link(n + 1), *ret]);
            let stack = [0; 8].into_iter().chain(pairs).chain([0; 1024]).collect();
            walker.memory(&[(STACK, stack), program.code_at(saved.base, name)]);
            let start = Registers {
                sp: STACK,
                fp: link(0),
                ..saved.start
            };
            for (mode, known, fresh, [complete, cut]) in [
                (AUTO, true, true, [ASSISTED, NO_TABLE]),
                (AUTO, false, false, [NO_MAPPING, NO_MAPPING]),
                // This thread has cached the walk before; the mapping has become known since.
                (AUTO, true, false, [ASSISTED, NO_TABLE]),
                (FRAME_POINTERS, true, true, [COMPLETE, NO_FRAME_POINTER]),
            ] {
                match known {
                    true => walker.map(&program, false),
                    false => walker.send(&[2, 1, 0]),
                }
                let found = walker.walk(fresh, (mode, DEPTH), start, false);
                let what = format!("{name}: {chain:x?}, {mode}, known: {known}");
                assert_eq!(found.frames.len(), frames, "{what}");
                assert_eq!(found.outcome, if whole { complete } else { cut }, "{what}");
            }
        }
        walker.end();
    }
}

/// Randomly changed stacks and registers: walks with and without the unwind cache give the same frames as the
/// reference.
#[test]
fn remembered_walks_of_changed_stacks() {
    for (name, arch) in PROGRAMS {
        let program = Program::read(name, arch);
        let mut walker = Walker::start(&program, &format!("walk-changed-{name}"));
        let mut r = Random(0x2545_f491_4f6c_dd1d);
        let mut ended = HashMap::new();
        for _ in 0..400 {
            let saved = &program.stacks[r.index(CASES)];
            changed(&program, &mut walker, &mut r, saved, &mut ended);
        }
        walker.end();
        println!("{name}: {ended:?}");
        let whole = ended.get(&COMPLETE).copied().unwrap_or(0);
        assert!(whole > 1000, "most must be whole stacks: {ended:?}");
        assert!(ended.len() >= 5, "walks must end in many ways: {ended:?}");
    }
}

fn changed(
    program: &Program,
    walker: &mut Walker,
    r: &mut Random,
    saved: &Saved,
    ended: &mut HashMap<u64, usize>,
) {
    let mut memory = saved.memory.clone();
    walker.memory(&memory);
    let whole = reference(
        &Image {
            program,
            base: saved.base,
            memory: &memory,
            table: true,
        },
        DEPTH,
        saved.start,
        saved.in_syscall,
    );
    let mut table = true;
    let depth = r.choose(&DEPTHS);
    for _ in 0..25 {
        let mut start = saved.start;
        // The table is sometimes removed, and added again.
        if r.index(if table { 60 } else { 2 }) == 0 {
            table = !table;
            walker.map(program, table);
        }
        match r.index(8) {
            0 => start.sp = start.sp.wrapping_add(8 * r.index(40) as u64),
            1 => start.fp = start.sp.wrapping_add(8 * r.index(40) as u64),
            2 => start.ip = whole.0[r.index(whole.0.len())] + r.index(2) as u64,
            3 => start.lr = whole.0[r.index(whole.0.len())] + 1,
            4 | 5 => {
                let (region, at) = some_word(r, saved.start.sp, &memory);
                let old = memory[region].1[at];
                let (other, from) = some_word(r, saved.start.sp, &memory);
                let new = match r.index(4) {
                    0 => 0,
                    1 => old.wrapping_add(r.choose(&[4, 8, 16, u64::MAX])),
                    2 => whole.0[r.index(whole.0.len())] + 1,
                    _ => memory[other].1[from],
                };
                memory[region].1[at] = new;
                walker.send(&[4, memory[region].0 + 8 * at as u64, new]);
            }
            _ => {}
        }
        let mode = r.choose(&[TABLES, AUTO]);
        let own = walker.walk(false, (mode, depth), start, saved.in_syscall);
        let fresh = walker.walk(true, (mode, depth), start, saved.in_syscall);
        assert_eq!(own, fresh, "{}: {start:x?}", saved.name);
        *ended.entry(own.outcome).or_default() += 1;
        let image = Image {
            program,
            base: saved.base,
            memory: &memory,
            table,
        };
        let (theirs, how) = reference(&image, depth, start, saved.in_syscall);
        if mode == TABLES && begins_function(&image, &fresh, &theirs, how) {
            continue;
        }
        // An unreadable word ends the reference's walk even if nothing depends on it.
        if mode == TABLES && how != Ended::Partial(Reason::UnreadableStack) {
            assert_eq!(
                fresh.frames, theirs,
                "{}: {start:x?}: {how:?} {fresh:x?}",
                saved.name
            );
            let complete = how == Ended::Complete;
            assert_eq!(fresh.outcome == COMPLETE, complete, "{}", saved.name);
        }
    }
    if !table {
        walker.map(program, true);
    }
}

/// Whether the walk ends where a function begins behind code without a table. The machine code is not there; the reference does not
/// look at it.
fn begins_function(image: &Image, found: &Stack, theirs: &[u64], how: Ended) -> bool {
    let (Some((last, inner)), Some((end, others))) =
        (found.frames.split_last(), theirs.split_last())
    else {
        return false;
    };
    let rule = image.program.table.rule_at(last.wrapping_sub(image.base));
    let is_end = how == Ended::Partial(Reason::NotCovered) && found.outcome == COMPLETE;
    is_end && inner == others && *last == end + 1 && *rule != Rule::NOT_COVERED
}

/// A word of memory, usually near the inner end of the stack.
fn some_word(r: &mut Random, sp: u64, memory: &[(u64, Vec<u64>)]) -> (usize, usize) {
    let region = r.index(memory.len());
    let (start, words) = &memory[region];
    let inner = sp.checked_sub(*start).map_or(0, |at| at as usize / 8);
    let from = if inner < words.len() { inner } else { 0 };
    let most = r.choose(&[40, words.len()]);
    (region, from + r.index((words.len() - from).min(most)))
}
