//! For stopped programs: memprof's totals equal the kernel's figures, and each function has exactly the memory that it
//! touched.
//!
//! Needs root and `cc`.

use std::fmt::Write as _;

use crate::common::memprof::Memprof;
use crate::common::process::{cont, stop};
use crate::common::tree::Node;
use crate::common::workload::{Lines, Workload, program};
use memprof_sys::ids::Pid;
use memprof_sys::residency::figures;

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;
/// Limit for memory without a stack, in a program started by memprof: exec fills a few pages without a fault
/// (arguments and environment on the stack, the ends of the program's data).
const EXEC_KIB: u64 = 64;

/// `scenarios` under memprof.
struct Run {
    m: Memprof,
    lines: Lines,
    pids: Vec<Pid>,
    log: String,
}

/// Both trees of the stopped program.
struct Moment {
    direct: Node,
    reversed: Node,
}

impl Run {
    fn command(args: &[&str]) -> Run {
        let program = program("scenarios");
        let (m, mut lines) = Memprof::start_command(args, &[program.to_str().unwrap()]);
        // Any answer shows that it has started.
        lines.send("");
        assert!(lines.line().starts_with("error"));
        Run::new(m, lines)
    }

    fn new(m: Memprof, lines: Lines) -> Run {
        let pids = vec![m.followed()];
        Run {
            m,
            lines,
            pids,
            log: String::new(),
        }
    }

    /// Runs these commands and compares.
    #[track_caller]
    fn after(&mut self, commands: &[&str]) -> Moment {
        commands.iter().for_each(|c| self.lines.tell(c));
        self.measure(&commands.join(", "))
    }

    #[track_caller]
    fn measure(&mut self, what: &str) -> Moment {
        self.pids.iter().for_each(|pid| stop(*pid));
        let (direct, reversed) = (self.m.tree(), self.m.reversed());
        let mut status = 0;
        let mut rollup = 0;
        for pid in &self.pids {
            let figures = figures::read(*pid).unwrap();
            status += figures.resident();
            rollup += figures.anonymous.unwrap() + figures.rss_shmem;
        }
        self.pids.iter().for_each(|pid| cont(*pid));
        let ours = direct.resident();
        let line = format!(
            "{what}: {ours} KiB, kernel {} KiB, difference {}; without a stack {} KiB",
            status / KIB,
            ours as i64 - (status / KIB) as i64,
            direct.unknown()
        );
        println!("{line}");
        let _ = writeln!(self.log, "{line}");
        assert_eq!(ours * KIB, status, "status\n{}", self.log);
        assert_eq!(ours * KIB, rollup, "smaps_rollup\n{}", self.log);
        assert_eq!(ours, reversed.resident());
        Moment { direct, reversed }
    }

    /// Like `after`; in addition, almost all memory must have a stack.
    #[track_caller]
    fn seen(&mut self, commands: &[&str]) -> Moment {
        let moment = self.after(commands);
        let unknown = moment.direct.unknown();
        assert!(
            unknown <= EXEC_KIB * self.pids.len() as u64,
            "{}",
            moment.direct.text()
        );
        moment
    }

    fn end(mut self) {
        self.lines.close();
        let status = self.m.wait();
        assert!(status.success(), "{status}");
    }
}

impl Moment {
    /// Checks the bytes that the function's own stores brought in.
    #[track_caller]
    fn own(&self, function: &str, bytes: u64) -> &Moment {
        assert_eq!(
            self.direct.at(&[function]).value * KIB,
            bytes,
            "{function}\n{}",
            self.direct.text()
        );
        self
    }

    /// Checks the bytes that the function and its callees brought in.
    #[track_caller]
    fn all(&self, function: &str, bytes: u64) -> &Moment {
        let found = self.reversed.through(function).value;
        assert_eq!(found * KIB, bytes, "{function}\n{}", self.reversed.text());
        assert_eq!(self.direct.through(function).value, found, "{function}");
        self
    }
}

#[test]
fn malloc_and_free() {
    let mut run = Run::command(&[]);
    // A separate mapping. malloc writes its header to the first page.
    run.seen(&["malloc_large 41943040"])
        .own("cmd_malloc_large", 40 * MIB - 4096);
    // malloc's own memory, which it allocated on its first call, remains.
    run.seen(&["free_large"]).own("cmd_malloc_large", 0);
    // The first block also brings in malloc's own memory, once.
    let before = run.seen(&["malloc_small 10"]);
    let after = run.seen(&["malloc_small 200000"]);
    let grown = after.direct.resident() - before.direct.resident();
    assert!(grown > 90 * 1024, "{grown}");
    // malloc touches most pages first: it writes the header of the remaining heap.
    let allocating = ["cmd_malloc_small", "malloc", "_int_malloc", "sysmalloc"];
    let by = |m: &Moment| allocating.map(|f| m.direct.at(&[f]).value);
    println!("{allocating:?}: {:?} KiB", by(&after));
    let total = |m| by(m).iter().sum::<u64>();
    assert_eq!(
        total(&after) - total(&before),
        grown,
        "{}",
        after.direct.text()
    );
    run.seen(&["free_small"]);
    run.seen(&["malloc_trim"]);
    // malloc chooses between the heap and a mapping.
    run.seen(&["malloc_small 50000", "malloc_large 3145728"]);
    run.seen(&["free_small", "free_large", "malloc_trim"]);
    run.end();
}

#[test]
fn mappings() {
    let mut run = Run::command(&[]);
    run.seen(&["mmap 8388608"]).own("cmd_mmap", 8 * MIB);
    run.seen(&["dontneed"])
        .own("cmd_mmap", 4 * MIB)
        .all("cmd_mmap", 4 * MIB);
    run.seen(&["mmap 4096", "mmap 12288"])
        .own("cmd_mmap", 4 * MIB + 16 * KIB);
    run.seen(&["munmap", "munmap", "munmap"]).all("cmd_mmap", 0);
    // Another function uses the same address.
    run.seen(&["mmap 2097152", "munmap", "populate 2097152"])
        .all("cmd_populate", 2 * MIB)
        .all("cmd_mmap", 0);
    run.seen(&["munmap", "mlock 2097152"])
        .all("cmd_mlock", 2 * MIB)
        .all("cmd_populate", 0);
    run.seen(&["munmap", "mmap 2097152"])
        .own("cmd_mmap", 2 * MIB)
        .all("cmd_mlock", 0);
    run.end();
}

#[test]
fn the_heap_by_brk() {
    let mut run = Run::command(&[]);
    run.seen(&["brk_grow 6291456"]).own("cmd_brk_grow", 6 * MIB);
    run.seen(&["brk_trim"]).all("cmd_brk_grow", 0);
    run.seen(&["brk_grow 1048576"]).own("cmd_brk_grow", MIB);
    run.end();
}

#[test]
fn thread_stacks() {
    let mut run = Run::command(&[]);
    let moment = run.seen(&["threads 100"]);
    moment.own("thread_body", 100 * 64 * KIB);
    run.seen(&["threads_end"]);
    run.seen(&["threads 40"]);
    run.seen(&["threads_end"]);
    run.end();
}

#[test]
fn exec() {
    let mut run = Run::command(&[]);
    run.seen(&["mmap 8388608", "malloc_small 10000"])
        .own("cmd_mmap", 8 * MIB);
    run.seen(&["exec"])
        .all("cmd_mmap", 0)
        .all("cmd_malloc_small", 0);
    run.seen(&["mmap 3145728"]).own("cmd_mmap", 3 * MIB);
    run.seen(&["exec", "exec", "exec", "memfd 1048576"])
        .own("cmd_memfd", MIB);
    run.end();
}

#[test]
fn shared_memory() {
    let mut run = Run::command(&[]);
    run.seen(&["shared_anon 8388608"])
        .own("cmd_shared_anon", 8 * MIB);
    run.seen(&["memfd 4194304"])
        .own("cmd_memfd", 4 * MIB)
        .own("cmd_shared_anon", 8 * MIB);
    run.seen(&["munmap"])
        .all("cmd_memfd", 0)
        .own("cmd_shared_anon", 8 * MIB);
    run.seen(&["munmap"]).all("cmd_shared_anon", 0);
    run.end();
}

#[test]
fn moved_and_grown() {
    let mut run = Run::command(&[]);
    run.seen(&["mmap 4194304", "mremap_move"])
        .own("cmd_mmap", 4 * MIB);
    run.seen(&["mremap_grow"])
        .own("cmd_mmap", 4 * MIB)
        .own("cmd_mremap_grow", 4 * MIB);
    run.seen(&["mremap_move"])
        .own("cmd_mmap", 4 * MIB)
        .own("cmd_mremap_grow", 4 * MIB);
    run.seen(&["munmap"])
        .all("cmd_mmap", 0)
        .all("cmd_mremap_grow", 0);
    run.seen(&["memfd 1048576", "mremap_grow", "mremap_move"])
        .own("cmd_memfd", MIB)
        .own("cmd_mremap_grow", MIB);
    // Populated pages have no record of their own: their range moves.
    run.seen(&["munmap", "populate 1052672", "mremap_move"])
        .all("cmd_populate", MIB + 4096);
    run.seen(&["mremap_move"]).all("cmd_populate", MIB + 4096);
    run.end();
}

#[test]
fn filled_without_faults() {
    let mut run = Run::command(&[]);
    run.seen(&["populate 8388608"]).all("cmd_populate", 8 * MIB);
    run.seen(&["mlock 4194304"])
        .all("cmd_mlock", 4 * MIB)
        .all("cmd_populate", 8 * MIB);
    run.seen(&["munmap"])
        .all("cmd_mlock", 0)
        .all("cmd_populate", 8 * MIB);
    run.seen(&["dontneed"]).all("cmd_populate", 4 * MIB);
    run.seen(&["munmap"]).all("cmd_populate", 0);
    run.end();
}

#[test]
fn huge_pages() {
    let mut run = Run::command(&[]);
    run.seen(&["thp 8388608"]).own("cmd_thp", 8 * MIB);
    run.seen(&["mmap 4194304", "munmap", "thp 2097152"])
        .own("cmd_thp", 10 * MIB);
    run.seen(&["munmap"]).own("cmd_thp", 8 * MIB);
    run.seen(&["munmap"]).all("cmd_thp", 0);
    run.end();
}

#[test]
fn fork_and_the_parent_alone() {
    let mut run = Run::command(&[]);
    run.seen(&["pin", "mmap 8388608", "fork_cow"]);
    // The child has copied the first half before the parent writes to its first quarter, so the
    // parent's pages are its own and stay where they are.
    let moment = run.seen(&[]);
    moment.own("cmd_mmap", 8 * MIB).all("cow_parent_writes", 0);
    run.seen(&["fork_end"]).own("cmd_mmap", 8 * MIB);
    run.end();
}

#[test]
fn fork_and_both() {
    let mut run = Run::command(&["--follow-forks"]);
    run.seen(&["pin", "mmap 8388608"]);
    run.lines.tell("fork_cow");
    run.pids.extend(children(run.pids[0]));
    assert_eq!(run.pids.len(), 2);
    run.seen(&[])
        .own("cmd_mmap", 12 * MIB)
        .own("cow_child_writes", 4 * MIB);
    run.pids.pop();
    run.seen(&["fork_end"])
        .own("cmd_mmap", 8 * MIB)
        .all("cow_child_writes", 0);
    run.end();
}

fn children(pid: Pid) -> Vec<Pid> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    text.split_whitespace()
        .map(|p| Pid(p.parse().unwrap()))
        .collect()
}

#[test]
fn attached_to_what_has_run_for_a_while() {
    let Workload { child, mut lines } = Workload::start(&program("scenarios"));
    for command in [
        "malloc_small 50000",
        "mmap 8388608",
        "threads 20",
        "memfd 2097152",
        "thp 4194304",
    ] {
        lines.tell(command);
    }
    let pid = child.pid();
    let dir = tempfile::tempdir().unwrap();
    let report = dir.path().join("x.txt");
    let m = Memprof::start(&[
        "--pid",
        &pid.to_string(),
        "--output",
        report.to_str().unwrap(),
    ]);
    let mut run = Run::new(m, lines);
    let first = run.after(&[]);
    assert_eq!(first.direct.unknown(), first.direct.resident());
    let old = first.direct.unknown() * KIB;
    let moment = run.after(&["mmap 4194304"]);
    moment.own("cmd_mmap", 4 * MIB);
    assert_eq!(moment.direct.unknown() * KIB, old);
    // The latest mappings from before the attach: first the huge pages, then the memfd, then the one by mmap.
    let moment = run.after(&["munmap", "munmap"]);
    moment.all("cmd_mmap", 0);
    assert_eq!(moment.direct.unknown() * KIB, old - 4 * MIB);
    run.after(&["threads_end", "shared_anon 1048576"])
        .own("cmd_shared_anon", MIB);
    let moment = run.after(&["munmap", "munmap", "mremap_move"]);
    moment.all("cmd_mmap", 0);
    let moved = run.after(&["mremap_grow"]);
    moved.own("cmd_mremap_grow", 8 * MIB);
    run.after(&["free_small", "malloc_trim", "munmap"])
        .all("cmd_mremap_grow", 0);
    run.m.interrupt();
    let text = std::fs::read_to_string(report).unwrap();
    assert!(text.contains("[before attach: "), "{text}");
}

/// The sums do not depend on how many stacks are walked; every view says that bytes by stack are estimates.
#[test]
fn a_share_of_the_stacks() {
    let mut run = Run::command(&["--stacks", "1/8"]);
    let first = 20_000 * 4 * KIB;
    run.seen(&[&format!("mmap {first}")]);
    let begun = faults(&run.m);
    let bytes = 64 * MIB;
    let moment = run.seen(&[&format!("mmap {bytes}")]);
    let held = moment.reversed.through("cmd_mmap").value * KIB;
    assert!(held.abs_diff(first + bytes) <= 256 * KIB, "{held}");
    let now = faults(&run.m);
    let [all, unwalked] = [0, 1].map(|at| now[at] - begun[at]);
    let share = unwalked as f64 / all as f64;
    assert!(all >= bytes / (4 * KIB), "{all}");
    assert!((0.85..0.90).contains(&share), "{unwalked} of {all}");
    let text = run.m.get("/v2/export/text").text().to_owned();
    assert!(text.contains("estimates by stack: the stacks of"), "{text}");
    run.end();
}

/// All page faults, and those whose stack was not walked.
fn faults(m: &Memprof) -> [u64; 2] {
    let faults = m.get("/v2/summary").json()["report"]["faults"].clone();
    ["all", "unwalked"].map(|which| faults[which].as_u64().unwrap())
}

/// Without a hook on page faults, the sums are the kernel's all the same.
#[test]
fn no_stacks_of_faults() {
    let mut run = Run::command(&["--stacks", "off"]);
    let bytes = 16 * MIB;
    for commands in [&[format!("mmap {bytes}")][..], &["munmap".to_owned()]] {
        let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
        let moment = run.after(&commands);
        let held = moment.reversed.through("cmd_mmap").value * KIB;
        assert_eq!(held, if commands[0] == "munmap" { 0 } else { bytes });
    }
    let summary = run.m.get("/v2/summary").json();
    assert!(summary["report"]["faults"].is_null(), "{summary}");
    // A change that no hook has seen.
    run.lines.tell("mmap 4096");
    let now = run.m.get("/v2/summary").json();
    assert_ne!(summary["report"]["number"], now["report"]["number"]);
    run.end();
}
