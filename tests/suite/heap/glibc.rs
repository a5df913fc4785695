//! glibc's heap: each figure of `mallinfo2`, and the sum of all rows.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde::Deserialize;

use crate::common::process::{cont, stop};
use crate::common::skip::skip;
use crate::common::workload::{Workload, program};
use memprof_heap::{
    Allocator, Approach, ArenaKind, ArenaRow, Heap, HeapRegion, Mallinfo, RegionRow,
    SnapshotOptions,
};
use memprof_sys::ids::Pid;

/// The limit of a stop: long, as the machine may be busy.
pub const COPY: SnapshotOptions = SnapshotOptions {
    limit: "--max-stop",
    approach: Approach::Copy,
    max_stop: Duration::from_secs(20),
};

/// What the workload prints.
#[derive(Debug, Deserialize)]
struct Said {
    pid: u32,
    mallinfo2: Mallinfo,
}

/// A snapshot of a process that is stopped, with the sums that hold for each.
pub fn snapshot(pid: Pid) -> Heap {
    stop(pid);
    let heap = crate::heap::measure(pid, &COPY, 5).expect("a snapshot");
    let rows: u64 = heap.rows.iter().map(|row| row.resident).sum();
    let others: u64 = heap.others.iter().map(|row| row.resident).sum();
    assert_eq!(rows + others, heap.anonymous, "{heap:#?}");
    assert_eq!(heap.kernel, [heap.anonymous; 2], "{heap:#?}");
    crate::heap::map_adds_up(&heap);
    cont(pid);
    arenas_have_the_same_bytes(&heap);
    heap
}

/// Checks that the arenas add up to the rows.
pub fn arenas_have_the_same_bytes(heap: &Heap) {
    let is_free = |what: HeapRegion| !what.is_live() && !what.is_overhead();
    let rows = |of: fn(&RegionRow) -> u64, wanted: &dyn Fn(HeapRegion) -> bool| -> u64 {
        let rows = heap.rows.iter().filter(|row| wanted(row.what));
        rows.map(of).sum()
    };
    let arenas = |of: fn(&ArenaRow) -> u64| heap.arenas.iter().map(of).sum::<u64>();
    for (by_arena, by_kind) in [
        (
            arenas(|a| a.live),
            rows(|row| row.bytes, &HeapRegion::is_live),
        ),
        (arenas(|a| a.free), rows(|row| row.bytes, &is_free)),
        (
            arenas(|a| a.overhead),
            rows(|row| row.bytes, &HeapRegion::is_overhead),
        ),
        (arenas(|a| a.resident), rows(|row| row.resident, &|_| true)),
        (
            arenas(|a| a.chunks),
            rows(|row| row.chunks, &HeapRegion::is_live),
        ),
    ] {
        assert_eq!(by_arena, by_kind, "{:#?} {:#?}", heap.arenas, heap.rows);
    }
    if let Allocator::Glibc { arenas, .. } = heap.allocator {
        let of = |kind: ArenaKind| heap.arenas.iter().filter(move |a| a.kind == kind).count();
        assert_eq!(of(ArenaKind::Thread), arenas - 1);
    }
}

fn mallinfo2(heap: &Heap) -> Mallinfo {
    match &heap.allocator {
        Allocator::Glibc { mallinfo2, .. } => *mallinfo2,
        other => panic!("{other:?}"),
    }
}

fn bytes(heap: &Heap, of: &[HeapRegion]) -> u64 {
    let rows = heap.rows.iter().filter(|row| of.contains(&row.what));
    rows.map(|row| row.bytes).sum()
}

/// Compares a snapshot with what the workload says of itself.
pub fn compare(said: &str) {
    let said: Said = serde_json::from_str(said).expect(said);
    let heap = snapshot(Pid(said.pid));
    assert_eq!(mallinfo2(&heap), said.mallinfo2);
    let all: u64 = heap.rows.iter().map(|row| row.bytes).sum();
    assert_eq!(all, said.mallinfo2.arena + said.mallinfo2.hblkhd);
    let free = [
        HeapRegion::Fast,
        HeapRegion::Unsorted,
        HeapRegion::Small,
        HeapRegion::Large,
        HeapRegion::Top,
    ];
    let contents = bytes(&heap, &free);
    assert!(contents <= said.mallinfo2.fordblks, "{heap:#?}");
    let live = heap.sizes.iter().map(|class| class.live_bytes).sum::<u64>();
    assert!(live <= said.mallinfo2.uordblks + said.mallinfo2.hblkhd);
}

/// Runs the workload with these lines, and compares after each.
fn run(program: &Path, threads: u32, seed: u32, lines: &[&str]) {
    let args = [threads.to_string(), seed.to_string()];
    let mut workload = Workload::start_with(program, &args.each_ref().map(String::as_str));
    for line in lines {
        workload.lines.send(line);
        compare(&workload.lines.line());
    }
    workload.end();
}

#[test]
fn figures_equal_those_of_mallinfo2() {
    let lines = ["", "m", "f", "mm", "t", "x", "mfm", "p", "a", "t", "m"];
    for (threads, seed) in [(1, 1), (2, 2), (3, 3), (8, 4)] {
        run(&program("heap"), threads, seed, &lines);
    }
}

#[test]
fn those_of_a_static_program_too() {
    run(
        &compiled("heap", &["-static"]),
        3,
        5,
        &["m", "f", "x", "mt"],
    );
}

/// A workload, compiled with further flags.
pub fn compiled(name: &str, flags: &[&str]) -> PathBuf {
    let source = format!("{}/tests/workloads/{name}.c", env!("CARGO_MANIFEST_DIR"));
    let binary = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}{}", flags.concat()));
    // Another test may be running the existing program, or compile it at the same time, so it is replaced.
    let fresh = tempfile::Builder::new()
        .prefix(name)
        .tempfile_in(env!("CARGO_TARGET_TMPDIR"))
        .unwrap()
        .into_temp_path();
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-pthread", &source, "-o"])
        .arg(&fresh)
        .args(flags);
    assert!(cc.status().unwrap().success());
    fresh.persist(&binary).unwrap();
    binary
}

/// Options of the allocator that change what there is: no threads' caches, one arena, all blocks in mappings of their own.
#[test]
fn those_of_an_allocator_with_other_options_too() {
    for tunables in [
        "glibc.malloc.tcache_count=0",
        "glibc.malloc.arena_max=1",
        "glibc.malloc.mmap_threshold=4096",
        "glibc.malloc.mxfast=0",
    ] {
        let mut command = Command::new(program("heap"));
        command.args(["2", "6"]).env("GLIBC_TUNABLES", tunables);
        let mut workload = Workload::start_as(&mut command);
        for line in ["m", "f", "m"] {
            workload.lines.send(line);
            compare(&workload.lines.line());
        }
        workload.end();
    }
}

/// Asks the C library of a program that nobody prepared, through the program itself.
#[test]
fn python_as_packaged_agrees() {
    const PYTHON: &str = "/usr/bin/python3";
    const SCRIPT: &str = "\
import ctypes, json, os, sys
class Info(ctypes.Structure):
    _fields_ = [(n, ctypes.c_size_t) for n in
                'arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost'.split()]
libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Info
keep = [bytearray(n) for n in range(1, 200000, 97)]
text = json.dumps({str(i): [i] * 10 for i in range(20000)})
keep = [json.loads(text), keep[::2]]
os.dup2(1, 3)
read = libc.read
buffer = ctypes.create_string_buffer(8)
format = b'{\"pid\":%d,\"mallinfo2\":{' + b','.join(b'\"%s\":%%zu' % n.encode() for n, _ in Info._fields_ if n != 'usmblks') + b'}}\\n'
names = [n for n, _ in Info._fields_ if n != 'usmblks']
info = libc.mallinfo2()
out = ctypes.create_string_buffer(1024)
args = [ctypes.c_int(os.getpid())] + [ctypes.c_size_t(0) for _ in names]
for _ in range(3):
    info = libc.mallinfo2()
    for i, n in enumerate(names):
        args[i + 1].value = getattr(info, n)
    libc.dprintf(3, format, *args)
    read(0, buffer, 1)
";
    if !Path::new(PYTHON).exists() {
        return skip("there is no /usr/bin/python3");
    }
    let mut command = Command::new(PYTHON);
    command.args(["-c", SCRIPT]).stderr(Stdio::inherit());
    let mut workload = Workload::start_as(&mut command);
    let said: Said = serde_json::from_str(&workload.lines.line()).unwrap();
    let heap = snapshot(Pid(said.pid));
    let (ours, theirs) = (mallinfo2(&heap), said.mallinfo2);
    // The call that prints takes and frees blocks itself.
    assert_eq!(
        (ours.arena, ours.hblks, ours.hblkhd),
        (theirs.arena, theirs.hblks, theirs.hblkhd)
    );
    assert!(
        ours.uordblks.abs_diff(theirs.uordblks) <= 16 << 10,
        "{ours:?} {theirs:?}"
    );
    workload.lines.close();
}

/// A program of Debian's that was not compiled here.
#[test]
fn sqlite_is_read() {
    const SQLITE: &str = "/usr/bin/sqlite3";
    if !Path::new(SQLITE).exists() {
        return skip("there is no sqlite3");
    }
    let mut workload = Workload::start(Path::new(SQLITE));
    let fill = "create table t(a, b); with recursive n(i) as (select 1 union all select i + 1 from n where i < 100000) \
                insert into t select i, hex(randomblob(i % 97)) from n; create index x on t(b); select 'ok';";
    workload.lines.tell(fill);
    let heap = snapshot(workload.pid());
    let info = mallinfo2(&heap);
    let live = bytes(&heap, &[HeapRegion::Live, HeapRegion::LiveMapped]);
    assert!(
        info.arena + info.hblkhd > 10 << 20 && live > 5 << 20,
        "{heap:#?}"
    );
    workload.end();
}
