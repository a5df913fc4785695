//! Heaps of further allocators (`tests/workloads/spans.c`): the program's own blocks, what the allocator counts, damage,
//! forgotten blocks, targets that are busy.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::common::allocators::allocator;
use crate::common::effort;
use crate::common::process::signal;
use crate::common::skip::skip;
use crate::common::workload::Workload;
use crate::heap::glibc::{COPY, compiled, snapshot};
use memprof_heap::{Heap, HeapRegion, SpanFigures, SpanHeap};
use memprof_sys::ids::Pid;

/// What the workload prints.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Said {
    pub pid: u32,
    /// Its own blocks, and their usable bytes.
    pub blocks: u64,
    pub bytes: u64,
    pub own: Option<Own>,
}

/// What the allocator counts.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Own {
    #[serde(default)]
    pub blocks: u64,
    pub bytes: u64,
    #[serde(flatten)]
    tcmalloc: Option<Properties>,
}

/// Properties of `MallocExtension`.
#[derive(Clone, Copy, Debug, Deserialize)]
struct Properties {
    heap: u64,
    thread: u64,
    central: u64,
    transfer: u64,
    pages: u64,
    unmapped: u64,
}

/// The lines of commands that the workload gets; `spans.c` lists the commands.
pub fn steps() -> &'static [&'static str] {
    match effort::is_full() {
        true => &["m", "f", "h", "m", "g", "mh", "m", "x", "m", "h", "a", "m"],
        false => &["m", "fh", "mg", "mh", "m", "x", "ma"],
    }
}

/// Numbers of threads and other variants of a test; in short, the first two.
pub fn variants<T>(all: &[T]) -> &[T] {
    match effort::is_full() {
        true => all,
        false => &all[..2],
    }
}

/// The workload, linked with an allocator.
pub struct Target(pub Workload);

impl Target {
    pub fn start(mut program: Command, threads: u32, seed: u32) -> Target {
        program.args([threads.to_string(), seed.to_string()]);
        Target(Workload::start_as(&mut program))
    }

    pub fn ask(&mut self, line: &str) -> Said {
        self.0.lines.send(line);
        let said = self.0.lines.line();
        serde_json::from_str(&said).expect(&said)
    }
}

/// What was read of the allocator, with the sums that hold for each heap.
pub fn figures(heap: &Heap, allocator: &str) -> SpanFigures {
    let [other] = &heap.other_heaps[..] else {
        panic!("{:#?} {:#?}", heap.other_heaps, heap.seen);
    };
    assert_eq!(other.name(), allocator);
    let figures = other.figures().unwrap_or_else(|| panic!("{other:#?}"));
    let bytes = |what: &[HeapRegion]| -> u64 {
        let rows = heap.rows.iter().filter(|row| what.contains(&row.what));
        rows.map(|row| row.bytes).sum()
    };
    assert_eq!(
        bytes(&[HeapRegion::SpanLive, HeapRegion::SpanLarge]),
        figures.live
    );
    assert_eq!(bytes(&[HeapRegion::SpanCache]), figures.cached);
    assert_eq!(bytes(&[HeapRegion::SpanFree]), figures.free);
    assert_eq!(bytes(&[HeapRegion::SpanPages]), figures.pages);
    assert_eq!(bytes(&[HeapRegion::SpanOverhead]), figures.overhead);
    let rows: u64 = heap.rows.iter().map(|row| row.resident).sum();
    let others: u64 = heap.others.iter().map(|row| row.resident).sum();
    assert_eq!(rows + others, heap.anonymous);
    crate::heap::map_adds_up(heap);
    let arena = heap.arenas.iter().find(|row| row.name == allocator);
    assert_eq!(arena.map(|arena| arena.live), Some(figures.live));
    figures
}

/// Snapshots of a target that allocates all the time, and of children with damaged heaps: read or refused, in bounded time.
pub fn is_read_or_refused(program: [Command; 2]) {
    let [busy, damaged] = program;
    let mut target = Target::start(busy, 4, 9);
    target.ask("m");
    target.0.lines.send("r");
    let (mut read, mut refused) = (0, Vec::new());
    let mut count = |heap: Heap| {
        let rows: u64 = heap.rows.iter().map(|row| row.resident).sum();
        let others: u64 = heap.others.iter().map(|row| row.resident).sum();
        assert_eq!(rows + others, heap.anonymous);
        crate::heap::map_adds_up(&heap);
        match heap.other_heaps.first() {
            Some(SpanHeap::Read { .. }) => read += 1,
            Some(SpanHeap::Refused { reason, .. }) => refused.push(reason.clone()),
            None => refused.push("not found".to_owned()),
        }
    };
    let snapshots: u32 = effort::rounds(10);
    for _ in 0..snapshots {
        std::thread::sleep(Duration::from_millis(7));
        // (Its mmap lock may be held for a moment.)
        let Ok(heap) = crate::heap::measure(target.0.pid(), &COPY, 1) else {
            continue;
        };
        count(heap);
    }
    let mut target = Target::start(damaged, 3, 11);
    target.ask("mh");
    for _ in 0..snapshots {
        let said = target.ask("d");
        let begun = Instant::now();
        count(snapshot(Pid(said.pid)));
        assert!(begun.elapsed() < Duration::from_secs(60));
        signal(Pid(said.pid), libc::SIGKILL);
    }
    target.0.end();
    println!("{read} read, {} refused: {refused:#?}", refused.len());
    assert!(read > 0, "{refused:#?}");
}

/// The workload, compiled for musl. `None` without musl's compiler.
fn musl(flags: &[&str]) -> Option<Command> {
    let source = format!("{}/tests/workloads/spans.c", env!("CARGO_MANIFEST_DIR"));
    let binary = format!("spans-musl{}", flags.concat());
    let binary = Path::new(env!("CARGO_TARGET_TMPDIR")).join(binary);
    let fresh = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let fresh = fresh.into_temp_path();
    let mut cc = Command::new("musl-gcc");
    cc.args(["-O1", "-pthread", "-DMUSL", &source, "-o"])
        .arg(&fresh)
        .args(flags);
    match cc.status() {
        Ok(status) => assert!(status.success()),
        Err(_) => {
            skip("there is no musl-gcc");
            return None;
        }
    }
    fresh.persist(&binary).unwrap();
    Some(Command::new(binary))
}

/// In use is what the program has, whose slots it reads from the headers of its blocks; the C library has nothing.
#[test]
fn musl_s_figures_equal_its_own_structures() {
    for &(flags, threads, seed) in variants(&[
        (&[][..], 8, 2),
        (&["-static", "-s"], 1, 3),
        (&[], 1, 1),
        (&["-static", "-s"], 4, 4),
    ]) {
        let Some(program) = musl(flags) else { return };
        let mut target = Target::start(program, threads, seed);
        for line in steps() {
            let said = target.ask(line);
            let read = figures(&snapshot(Pid(said.pid)), "musl");
            let own = target.ask("v").own.expect("figures");
            assert_eq!(read.live_blocks, said.blocks, "{line}");
            assert_eq!(
                (read.live_blocks, read.live),
                (own.blocks, own.bytes),
                "{line}"
            );
        }
        target.0.end();
    }
}

#[test]
fn musl_s_heap_is_read_or_refused() {
    for flags in [&[][..], &["-static", "-s"]] {
        if let (Some(busy), Some(damaged)) = (musl(flags), musl(flags)) {
            is_read_or_refused([busy, damaged]);
        }
    }
}

fn tcmalloc(library: &str, flags: &[&str]) -> Option<Command> {
    allocator(library)?;
    let flags = [&["-DTCMALLOC"], flags].concat();
    Some(Command::new(compiled("spans", &flags)))
}

const TCMALLOC: &str = "libtcmalloc_minimal.so.4";
const LINK_TCMALLOC: &[&str] = &["-l:libtcmalloc_minimal.so.4"];

/// Each property equals what was read. (`central_cache_free_bytes` also has the ends of spans that no block fits into, so
/// that it is at most that larger.)
#[test]
fn tcmalloc_s_figures_equal_its_properties() {
    let linked = [
        (TCMALLOC, LINK_TCMALLOC, 8, 3),
        (
            "libtcmalloc_minimal.a",
            &["-l:libtcmalloc_minimal.a", "-lstdc++", "-lm", "-s"],
            3,
            5,
        ),
        ("libtcmalloc.so.4", &["-l:libtcmalloc.so.4"], 3, 4),
        (TCMALLOC, LINK_TCMALLOC, 1, 1),
        (TCMALLOC, LINK_TCMALLOC, 2, 2),
    ];
    for &(library, flags, threads, seed) in variants(&linked) {
        let Some(program) = tcmalloc(library, flags) else {
            continue;
        };
        let mut target = Target::start(program, threads, seed);
        for line in steps() {
            let said = target.ask(line);
            let read = figures(&snapshot(Pid(said.pid)), "tcmalloc");
            let own = target.ask("v").own.expect("figures");
            let theirs = own.tcmalloc.expect("properties");
            assert_eq!(read.live, own.bytes, "{library} {line}");
            assert_eq!(read.cached, theirs.thread, "{library} {line}");
            assert_eq!(
                read.pages,
                theirs.pages + theirs.unmapped,
                "{library} {line}"
            );
            let ends = theirs.central + theirs.transfer - read.free;
            assert!(
                ends < read.overhead,
                "{library} {line}: {read:?} {theirs:?}"
            );
            assert_eq!(
                read.live + read.cached + read.free + read.pages + ends,
                theirs.heap
            );
        }
        target.0.end();
    }
}

#[test]
fn tcmalloc_s_heap_is_read_or_refused() {
    let program = || tcmalloc(TCMALLOC, LINK_TCMALLOC);
    if let (Some(busy), Some(damaged)) = (program(), program()) {
        is_read_or_refused([busy, damaged]);
    }
}

/// What the Go program prints: figures of `runtime.MemStats`, and size and number of the objects of each size class.
#[derive(Debug, PartialEq, Eq, Deserialize)]
struct MemStats {
    pid: u32,
    alloc: u64,
    objects: u64,
    inuse: u64,
    idle: u64,
    sizes: Vec<(u64, u64)>,
}

/// Compiles the program, with this machine's Go or the one that `MEMPROF_TEST_GO` names. `None` without Go.
fn go(flags: &[&str]) -> Option<PathBuf> {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let binary = dir.join(format!("managed{}", flags.concat().replace(' ', "")));
    let compiler = std::env::var_os("MEMPROF_TEST_GO");
    let mut build = Command::new(compiler.unwrap_or_else(|| "go".into()));
    build.arg("build").args(flags).arg("-o").arg(&binary);
    build.arg(format!(
        "{}/tests/workloads/managed.go",
        env!("CARGO_MANIFEST_DIR")
    ));
    build.env("GOCACHE", dir.join("go-cache"));
    match build.status() {
        Ok(status) => assert!(status.success()),
        Err(_) => {
            skip("there is no go");
            return None;
        }
    }
    Some(binary)
}

/// Live, in number and bytes, idle, and each size class; also without symbols.
#[test]
fn go_s_figures_equal_its_memstats() {
    for (flags, goroutines, seed) in [(&[][..], 1, 1), (&[], 8, 2), (&["-ldflags=-s -w"], 4, 3)] {
        let Some(program) = go(flags) else {
            return;
        };
        let mut command = Command::new(program);
        command.args([goroutines.to_string(), seed.to_string()]);
        let mut workload = Workload::start_as(&mut command);
        for line in ["c", "m", "f", "c", "m", "fmc", "m", "ac", "c", "m"] {
            let mut ask = |line: &str| -> MemStats {
                workload.lines.send(line);
                let said = workload.lines.line();
                serde_json::from_str(&said).expect(&said)
            };
            // The runtime may start a thread after the program has asked it, which takes a few objects, or take a stack
            // for a moment; it does not do so time after time.
            let mut said = ask(line);
            let mut left = 10;
            let heap = loop {
                let heap = snapshot(Pid(said.pid));
                let before = std::mem::replace(&mut said, ask(""));
                let read = heap.other_heaps.first().and_then(|heap| heap.figures());
                let is_idle = read.is_some_and(|read| {
                    (read.pages, read.live_blocks) == (said.idle, said.objects)
                });
                left -= 1;
                if before == said && (is_idle || left <= 0) {
                    break heap;
                }
            };
            let [go] = &heap.other_heaps[..] else {
                panic!("{line}: {:#?} {:#?}", heap.other_heaps, heap.seen);
            };
            let read = go.figures().unwrap_or_else(|| panic!("{line}: {go:#?}"));
            let live = (read.live_blocks, read.live);
            assert_eq!(live, (said.objects, said.alloc), "{line}");
            assert_eq!(read.pages, said.idle, "{line}");
            assert!(read.live + read.free <= said.inuse, "{line}: {said:?}");
            for (bytes, objects) in said.sizes {
                let size = go.sizes().iter().find(|size| size.bytes == bytes);
                assert_eq!(size.map_or(0, |size| size.live), objects, "{line} {bytes}");
            }
            let bytes = |what: HeapRegion| {
                let row = heap.rows.iter().find(|row| row.what == what);
                row.map_or(0, |row| row.bytes)
            };
            assert_eq!(bytes(HeapRegion::ManagedLive), read.live);
            assert_eq!(bytes(HeapRegion::ManagedFree), read.free);
            assert_eq!(bytes(HeapRegion::ManagedPages), read.pages);
            let rows: u64 = heap.rows.iter().map(|row| row.resident).sum();
            let others: u64 = heap.others.iter().map(|row| row.resident).sum();
            assert_eq!(rows + others, heap.anonymous);
            crate::heap::map_adds_up(&heap);
            assert!(
                heap.unreachable.is_none(),
                "a collector's objects are not leaks"
            );
        }
        workload.end();
    }
}
