//! Real programs, stopped at random: memprof's walk compared with gdb's unwinder, on the same registers and memory.
//!
//! `programs/busy.sh` has the programs. Needs gdb. With `MEMPROF_TEST_ROUNDS=200` each installed one is stopped so often, and
//! memprof says how many of the bytes that it brings in have a whole stack; `MEMPROF_TEST_PROGRAMS='nginx perl'` chooses.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::Duration;

use crate::common::effort;
use crate::common::memprof::BINARY;
use crate::common::process::{cont, state, stop, wait_until};
use crate::common::random::Random;
use crate::common::skip::skip;
use crate::unwind::busy::{Busy, all};
use crate::unwind::images::{Code, Tables, code_at, mapped, modules};
use crate::unwind::packaged_programs::installed;
use crate::unwind::results::{attached_by, cpu_time, wait_until_idle};
use crate::unwind::stopped_by_gdb::{Gdb, Stop};
use memprof_code::unwind::walk::{Ended, Mapped, Process, walk};
use memprof_code::unwind::{Arch, OTHER_STACK, Rule};

/// Frames that are compared; the script has the same limit.
const DEPTH: usize = 1000;
/// Programs that are installed wherever the tests run, and the number of stops of each unless `MEMPROF_TEST_ROUNDS` is set.
const USUAL: [&str; 3] = ["perl", "python", "git"];
const USUAL_STOPS: usize = 20;
/// A program that ends is started again, at most so often.
const STARTS: usize = 40;

/// A stopped process.
struct Stopped {
    memory: File,
    modules: Vec<Code>,
}

impl Process for Stopped {
    fn read(&self, addr: u64) -> Option<u64> {
        let mut word = [0; 8];
        self.memory.read_exact_at(&mut word, addr).ok()?;
        Some(u64::from_le_bytes(word))
    }

    fn module(&self, pc: u64) -> Mapped<'_> {
        mapped(&self.modules, pc)
    }
}

impl Stopped {
    /// Whether a call precedes the return address that follows this one.
    fn is_call(&self, pc: u64) -> bool {
        let mut code = [0; 7];
        let from = pc.wrapping_sub(6);
        if self.memory.read_exact_at(&mut code, from).is_err() {
            return false;
        }
        let indirect = |n: &usize| code[7 - n] == 0xff && code[8 - n] & 0x38 == 0x10;
        code[2] == 0xe8 || (2..=7).any(|n| indirect(&n))
    }

    fn rule(&self, pc: u64) -> Option<&Rule> {
        match self.module(pc) {
            Mapped::Table(table, bias) => Some(table.rule_at(pc.wrapping_sub(bias))),
            _ => None,
        }
    }

    /// Whether the function's caller may be on another stack.
    fn leaves_stack(&self, pc: u64) -> bool {
        self.rule(pc).is_some_and(|r| r.flags & OTHER_STACK != 0)
    }

    /// Whether the function says itself that nothing called it.
    fn is_outermost(&self, pc: u64) -> bool {
        self.rule(pc).is_some_and(|r| *r == Rule::STOP)
    }

    fn place(&self, pc: u64) -> String {
        let Some(code) = code_at(&self.modules, pc) else {
            return format!("{pc:x}");
        };
        let m = &code.mapping;
        format!("{}+{:x}", m.path, pc - m.start + m.offset)
    }
}

/// What became of the comparison of a stack.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    Equal,
    /// gdb ends earlier; the rest of ours are calls.
    GdbEnds,
    /// gdb continues where nothing called, or on a stack that was left: it guesses, without unwind information.
    GdbStrays,
    /// memprof ends, completely, at a function that says that nothing called it (Go's run time, a thread's start), and gdb continues.
    Outermost,
    /// memprof ends earlier, for this reason, in this file.
    Ends(String),
    /// Another frame.
    Wrong(String),
}

fn verdict(process: &Stopped, stop: &Stop) -> Verdict {
    let ours = walk(process, Arch::X86_64, stop.registers, DEPTH);
    let common = ours.frames.iter().zip(&stop.frames);
    let common = common
        .take_while(|(ours, theirs)| **ours == theirs.0)
        .count();
    let (mine, theirs) = (&ours.frames[common..], stop.frames.get(common));
    // What gdb has of such a frame is not its caller's, who may be on another stack.
    let is_left = common > 0 && process.leaves_stack(ours.frames[common - 1]);
    // A stack's outermost function need not have been called.
    let root = usize::from(ours.ended == Ended::Complete && !mine.is_empty());
    let last = ours.frames.last().copied().unwrap_or_default();
    let are_calls = mine[..mine.len() - root]
        .iter()
        .all(|pc| process.is_call(*pc));
    match (mine.is_empty(), theirs, ours.ended) {
        (true, None, _) => Verdict::Equal,
        (false, None, _) if are_calls => Verdict::GdbEnds,
        (true, Some(_), Ended::Complete) if process.is_outermost(last) => Verdict::Outermost,
        (true, Some(_), Ended::Partial(reason)) => {
            let place = code_at(&process.modules, last).map_or("no file", |c| &c.mapping.path);
            Verdict::Ends(format!("{reason:?} in {place}"))
        }
        (_, Some((pc, _)), _) if are_calls && (is_left || !process.is_call(*pc)) => {
            Verdict::GdbStrays
        }
        _ => Verdict::Wrong(both(process, stop, &ours.frames, ours.ended)),
    }
}

/// Both stacks, as text.
fn both(process: &Stopped, stop: &Stop, ours: &[u64], ended: Ended) -> String {
    let mut text = format!("{ended:?}\n");
    for n in 0..ours.len().max(stop.frames.len()) {
        let ours = ours.get(n).map(|pc| process.place(*pc));
        let theirs = stop.frames.get(n);
        let theirs = theirs.map(|(pc, name)| format!("{} {name}", process.place(*pc)));
        let same = if ours.as_deref() == theirs.as_deref().and_then(|t| t.split(' ').next()) {
            "  "
        } else {
            "! "
        };
        text += &format!("{same}{ours:?}  gdb: {theirs:?}\n");
    }
    text
}

/// Stops a program so often; `None` if it is not installed.
fn stops(name: &str, count: usize) -> Option<BTreeMap<Verdict, usize>> {
    let (mut verdicts, mut tables) = (BTreeMap::new(), Tables::new());
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut done = 0;
    for _ in 0..STARTS {
        let before = done;
        let busy = Busy::start(name)?;
        std::thread::sleep(Duration::from_millis(300));
        let pid = busy.pid();
        let mut gdb = Gdb::attach(pid);
        while done < count
            && let Some(stop) = gdb.stop(pid, &mut random)
            && let Ok(memory) = File::open(format!("/proc/{pid}/mem"))
        {
            let process = Stopped {
                memory,
                modules: modules(&pid.to_string(), &mut tables),
            };
            *verdicts.entry(verdict(&process, &stop)).or_default() += 1;
            done += 1;
        }
        if done == count || done == before {
            break;
        }
    }
    Some(verdicts)
}

/// Prints what share of the bytes that a program brings in has a whole stack, and the rest of the summary.
fn roots(name: &str) {
    let Some(busy) = Busy::start(name) else {
        return;
    };
    let pid = busy.pid();
    wait_until(|| cpu_time(pid) > Duration::from_millis(100) || state(pid) == 'X');
    // The tables are made while it is stopped, until memprof is idle: it is measured as a program that has run for long.
    stop(pid);
    let found = attached_by(&mut Command::new(BINARY), pid, |memprof| {
        wait_until_idle(memprof);
        cont(pid);
        std::thread::sleep(Duration::from_secs(5));
    });
    let (stacks, bytes) = found.complete();
    let summary = &found.summary;
    println!("{name}: {stacks:.2} % of stacks complete, {bytes:.3} % of bytes\n{summary}");
    if let Some(dir) = std::env::var_os("MEMPROF_TEST_KEEP") {
        let path = std::path::Path::new(&dir).join(format!("{name}.txt"));
        fs::write(path, found.text()).unwrap();
    }
}

#[test]
fn as_gdb_at_random_stops() {
    if !installed("gdb") {
        return;
    }
    let rounds = effort::number("MEMPROF_TEST_ROUNDS");
    let names: Vec<String> = match (std::env::var("MEMPROF_TEST_PROGRAMS").ok(), rounds) {
        (Some(names), _) => names.split(' ').map(str::to_owned).collect(),
        (None, Some(_)) => all(),
        (None, None) => USUAL.map(str::to_owned).into(),
    };
    let mut wrong = Vec::new();
    for name in names {
        let Some(verdicts) = stops(&name, effort::rounds(USUAL_STOPS)) else {
            skip(format_args!("{name} is not installed"));
            continue;
        };
        println!(
            "{name}: {:?}",
            verdicts
                .iter()
                .map(|(v, n)| match v {
                    Verdict::Wrong(_) => format!("wrong: {n}"),
                    other => format!("{other:?}: {n}"),
                })
                .collect::<Vec<_>>()
        );
        if rounds.is_some() {
            roots(&name);
        }
        let total: usize = verdicts.values().sum();
        assert!(total > 0, "{name}: gdb stopped it never");
        if USUAL.contains(&&*name) {
            let equal = verdicts.get(&Verdict::Equal).copied().unwrap_or(0);
            assert!(equal * 10 >= total * 9, "{name}: {verdicts:?}");
        }
        wrong.extend(verdicts.into_keys().filter_map(|v| match v {
            Verdict::Wrong(text) => Some(format!("{name}: {text}")),
            _ => None,
        }));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
