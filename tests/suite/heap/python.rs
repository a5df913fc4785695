//! Python's allocator against its own figures, and objects by type against what the program counts itself.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::process::{cont, eventually, signal, stop};
use crate::common::pythons::{all_pythons, is_free_threaded, minor, pythons};
use crate::common::random::Random;
use crate::common::skip::skip;
use crate::common::workload::{Running, Workload};
use crate::heap::glibc::{COPY, arenas_have_the_same_bytes};
use memprof_heap::{BlockRole, Heap, HeapRegion, PoolClass, PythonHeap, PythonRead};
use memprof_sys::ids::Pid;

/// Fills stderr, a pipe of one page, so that the interpreter is stopped in the middle of `sys._debugmallocstats()`: behind
/// the first line, which it writes before it counts, and the empty line, which it writes after that.
const STATS: &str = "\
import fcntl, os, random, sys
random.seed(7)
keep = [[i, str(i), {i: (i, float(i))}] for i in range(20000)]
keep = [x for x in keep if random.random() < 0.4]
keep += [bytes(random.randrange(600)) for i in range(20000)]
fcntl.fcntl(2, 1031, 4096)
os.write(2, b'.' * (4096 - 64))
sys._debugmallocstats()
";
const FIRST: &str = "Small block threshold = 512, in 32 size classes.\n\n";
const FILLED: usize = 4096 - 64;

pub(super) fn python(heap: Heap) -> PythonRead {
    match heap.python {
        Some(PythonHeap::Read(read)) => read,
        other => panic!("{other:#?} {:?}", heap.allocator),
    }
}

/// A snapshot with all types; its rows sum to the kernel's figure.
pub(super) fn snapshot(pid: Pid) -> Heap {
    stop(pid);
    let heap = measure_stopped(pid);
    cont(pid);
    heap
}

fn measure_stopped(pid: Pid) -> Heap {
    let heap = crate::heap::measure(pid, &COPY, 100_000).expect("a snapshot");
    let rows: u64 = heap.rows.iter().map(|row| row.resident).sum();
    let others: u64 = heap.others.iter().map(|row| row.resident).sum();
    assert_eq!(rows + others, heap.anonymous, "{heap:#?}");
    assert_eq!(heap.kernel, [heap.anonymous; 2], "{heap:#?}");
    crate::heap::map_adds_up(&heap);
    arenas_have_the_same_bytes(&heap);
    if let Some(PythonHeap::Read(read)) = &heap.python {
        let in_arenas: u64 = read.types.iter().map(|row| row.arena_bytes).sum();
        let blocks = if read.arenas == 0 { 0 } else { read.live_bytes };
        assert_eq!(in_arenas, blocks, "{read:#?}");
    }
    heap
}

fn waiting(fd: &impl AsRawFd) -> usize {
    let mut bytes = 0;
    // SAFETY: FIONREAD writes an int to the address, which is that of one.
    let done = unsafe { libc::ioctl(fd.as_raw_fd(), libc::FIONREAD, &raw mut bytes) };
    assert_eq!(done, 0);
    usize::try_from(bytes).unwrap()
}

/// What `sys._debugmallocstats()` prints: its classes and the sums by the names of their lines.
fn parse(said: &str) -> (Vec<PoolClass>, BTreeMap<String, u64>) {
    let (mut classes, mut sums) = (Vec::new(), BTreeMap::new());
    for line in said.lines() {
        let numbers: Vec<u64> = line
            .split_whitespace()
            .map_while(|n| n.parse().ok())
            .collect();
        if let [_, size, pools, live, free] = numbers[..]
            && line.split_whitespace().count() == 5
        {
            classes.push(PoolClass {
                size,
                pools,
                live,
                free,
            });
        } else if let Some((name, value)) = line.split_once('=')
            && let Ok(value) = value.trim().replace(',', "").parse()
        {
            // (The nodes of the map of arenas have a total, too, behind that of the arenas.)
            sums.entry(name.trim().to_owned()).or_insert(value);
        }
    }
    (classes, sums)
}

fn compare(version: &str, program: &Path) {
    let mut command = Command::new(program);
    let child = command.args(["-c", STATS]).stderr(Stdio::piped()).spawn();
    let mut child = Running(child.unwrap());
    let mut stderr = child.0.stderr.take().unwrap();
    eventually(Duration::from_secs(60), "it counts its blocks", || {
        waiting(&stderr) >= FILLED + FIRST.len()
    });
    let heap = snapshot(child.pid());
    let row = |what| *heap.rows.iter().find(|row| row.what == what).unwrap();
    let [live, free, overhead] = [
        HeapRegion::PythonLive,
        HeapRegion::PythonFree,
        HeapRegion::PythonOverhead,
    ]
    .map(row);
    let free_pools = row(HeapRegion::PythonPools);
    let read = python(heap);
    let mut said = String::new();
    stderr.read_to_string(&mut said).unwrap();
    let (mut classes, sums) = parse(said.trim_start_matches('.'));
    classes.retain(|class| class.pools > 0);
    assert!(classes.len() > 20, "{version}: {said}");
    assert_eq!(read.classes, classes, "{version}");
    let sum = |name: &str| sums.get(name).copied();
    assert_eq!(
        sum("# arenas allocated current"),
        Some(read.arenas),
        "{version}"
    );
    assert_eq!(
        sum("# bytes in allocated blocks"),
        Some(live.bytes),
        "{version}"
    );
    assert_eq!(
        sum("# bytes in available blocks"),
        Some(free.bytes),
        "{version}"
    );
    let lost = ["pool headers", "quantization", "arena alignment"];
    let lost: u64 = lost
        .iter()
        .filter_map(|what| sum(&format!("# bytes lost to {what}")))
        .sum();
    assert_eq!(lost, overhead.bytes, "{version}");
    assert_eq!(sum("Total"), Some(read.arena_bytes), "{version}");
    assert_eq!(
        free_pools.bytes,
        read.free_pools * read.pool_size,
        "{version}"
    );
    println!(
        "{version}: {} arenas, {} blocks in use are equal",
        read.arenas, live.chunks
    );
}

#[test]
fn blocks_equal_those_that_python_counts() {
    let pythons = pythons();
    if pythons.is_empty() {
        return skip("there is no CPython");
    }
    pythons
        .iter()
        .for_each(|(version, path)| compare(version, path));
}

/// All interpreters, and those that may have mimalloc once more with it: version, path, and `PYTHONMALLOC`.
fn all_kinds() -> Vec<(String, PathBuf, &'static str)> {
    let all = all_pythons();
    if all.is_empty() {
        skip("there is no CPython");
    }
    let (plain, others) = (all.clone(), with_mimalloc());
    let plain = plain.into_iter().map(|(version, path)| (version, path, ""));
    plain.chain(others).collect()
}

/// Those with mimalloc.
fn with_mimalloc() -> Vec<(String, PathBuf, &'static str)> {
    let mut all = all_pythons();
    all.retain(|version, _| minor(version) >= 13);
    let of = |(version, path)| (version, path, "mimalloc");
    all.into_iter().map(of).collect()
}

/// Objects of many sizes, of threads that ended, and of one that lives on; the number of blocks in use; and a wait.
const ALLOCATED: &str = "\
import os, random, sys, threading
random.seed(7)
keep = [[i, str(i), {i: (i, float(i))}] for i in range(20000)]
keep = [x for x in keep if random.random() < 0.4]
keep += [bytes(random.randrange(600)) for i in range(20000)]
keep += [bytes(1 << i) for i in range(25)]
if sys.argv[1:] == ['threads']:
    ready, wait = threading.Event(), threading.Event()
    def more(n): keep.append([[i, str(i)] for i in range(n)])
    def stay(): more(5000); ready.set(); wait.wait()
    for i in range(4):
        ended = threading.Thread(target=more, args=[3000])
        ended.start()
        ended.join()
    threading.Thread(target=stay, daemon=True).start()
    ready.wait()
os.write(1, b'%d\\n' % sys.getallocatedblocks())
os.read(0, 1)
";

/// Python counts the blocks of mimalloc's pages; only the number itself is one more.
#[test]
fn blocks_of_mimalloc_equal_those_that_python_counts() {
    let all = with_mimalloc();
    if all.is_empty() {
        return skip("there is no CPython 3.13 or later");
    }
    for (version, path, allocator) in all {
        // Of threads that have no heap of their own, Python does not count the blocks.
        let threads = if is_free_threaded(&version) {
            "threads"
        } else {
            ""
        };
        let mut command = Command::new(path);
        let command = command.args(["-c", ALLOCATED, threads]);
        let mut workload = Workload::start_as(command.env("PYTHONMALLOC", allocator));
        let said: u64 = workload.lines.line().parse().unwrap();
        let heap = snapshot(workload.pid());
        let figures = heap.other_heaps[0].figures().unwrap();
        println!(
            "{version}: {} blocks, and Python counts {said}",
            figures.live_blocks
        );
        assert!(
            figures.live_blocks.abs_diff(said) <= 4,
            "{version}: {figures:?}, not {said}"
        );
        let read = python(heap);
        assert_eq!((read.allocator, read.arenas), ("mimalloc", 0), "{version}");
        assert_eq!(read.live_bytes, figures.live, "{version}");
        assert!(
            read.typed_bytes * 100 > read.live_bytes * 95,
            "{version}: {read:#?}"
        );
        workload.lines.close();
    }
}

/// Counts the objects that the garbage collector knows, by the names of their types, and waits.
const COUNTS: &str = "\
import collections, gc, json, os, threading
class Node:
    def __init__(self, n): self.own, self.items = n, [n]
class Slots:
    __slots__ = ('a', 'b')
    def __init__(self, n): self.a, self.b = n, {n}
class Text(str): pass
class Table(dict): pass
def maker(n):
    def inner(): return n
    return inner
keep = [Node(i) for i in range(1000)] + [Slots(i) for i in range(777)] + [maker(i) for i in range(321)]
keep.append([Text(i) for i in range(99)])
keep.append([Table({i: i}) for i in range(111)])
keep.append([collections.deque(range(200)) for i in range(55)])
keep.append([frozenset((i, 1, 2)) for i in range(66)])
keep.append([list(range(100)) for i in range(44)])
ended = threading.Thread(target=lambda: keep.append([Node(i) for i in range(500)]))
ended.start()
ended.join()
gc.collect()
gc.disable()
counts = dict.fromkeys('Node Slots Text Table list set frozenset function cell deque module'.split(), 0)
for o in gc.get_objects():
    if type(o).__name__ in counts: counts[type(o).__name__] += 1
del o
text = json.dumps(counts)
print(text, flush=True)
os.read(0, 1)
";

fn compare_types(version: &str, program: &Path, allocator: &str) {
    let mut command = Command::new(program);
    let command = command.args(["-c", COUNTS]).env("PYTHONMALLOC", allocator);
    let mut workload = Workload::start_as(command);
    let said: BTreeMap<String, u64> = serde_json::from_str(&workload.lines.line()).unwrap();
    let read = python(snapshot(workload.pid()));
    let count = |name: &str| -> u64 {
        let of = |row: &&memprof_heap::PyType| {
            row.role == BlockRole::Object && row.name.rsplit('.').next() == Some(name)
        };
        read.types.iter().filter(of).map(|row| row.count).sum()
    };
    let mut found: BTreeMap<String, u64> = said.keys().map(|n| (n.clone(), count(n))).collect();
    // The collector forgets immortal objects: constants, and in 3.13 the functions and modules at the first thread's start.
    let immortal = match (is_free_threaded(version), minor(version)) {
        (false, _) => &[][..],
        (true, 13) => &["frozenset", "function", "module"],
        (true, _) => &["frozenset"],
    };
    for kind in immortal {
        let (of_kind, known) = (found[*kind], said[*kind]);
        assert!(
            of_kind >= known,
            "{version}: {of_kind} {kind}s, not {known}"
        );
        found.insert((*kind).to_owned(), known);
    }
    assert_eq!(found, said, "{version} {allocator}");
    workload.lines.close();
}

#[test]
fn objects_equal_those_that_the_collector_knows() {
    for (version, path, allocator) in all_kinds() {
        compare_types(&version, &path, allocator);
    }
}

/// Makes texts of all forms and lengths below pymalloc's limit; prints their number, and the bytes of their blocks. Those of
/// pymalloc are multiples of 16 bytes; mimalloc has four sizes between a power of two and the next.
const TEXTS: &str = "\
import os, sys
def block(size):
    words = size + 15 >> 4 << 1
    if sys.argv[1] != 'mimalloc' or words <= 8: return words * 8
    words = (size + 7 >> 3) - 1
    step = words.bit_length() - 3
    return (words >> step) + 1 << step + 3
print('ready', flush=True)
os.read(0, 1)
made = [start + '%06d' % i + 'x' * (i % 100) for start in ('k', '\\xe9', '\\u03a9', '\\U0001f600') for i in range(10000)]
print(len(made), sum(block(sys.getsizeof(text)) for text in made), flush=True)
os.read(0, 1)
";

/// A short text is smaller than the size that its type states.
#[test]
fn texts_are_counted_at_every_length() {
    for (version, path, allocator) in all_kinds() {
        let is_mimalloc = is_free_threaded(&version) || !allocator.is_empty();
        let sizes = if is_mimalloc { "mimalloc" } else { "" };
        let mut command = Command::new(path);
        let command = command.args(["-c", TEXTS, sizes]);
        let mut workload = Workload::start_as(command.env("PYTHONMALLOC", allocator));
        assert_eq!(workload.lines.line(), "ready");
        let texts = |heap: Heap| -> [u64; 2] {
            let of_text =
                |row: &&memprof_heap::PyType| row.role == BlockRole::Object && row.name == "str";
            let types = python(heap).types;
            let row = types.iter().find(of_text).unwrap();
            [row.count, row.bytes]
        };
        let before = texts(snapshot(workload.pid()));
        workload.lines.send("");
        let said = workload.lines.line();
        let made: Vec<u64> = said.split(' ').map(|n| n.parse().unwrap()).collect();
        let after = texts(snapshot(workload.pid()));
        for at in 0..2 {
            let found = after[at] - before[at];
            // Printing makes and frees a few more.
            assert!(
                found.abs_diff(made[at]) <= made[at] / 1000,
                "{version}: {found} of {}",
                made[at]
            );
        }
        workload.lines.close();
    }
}

/// Damage in any place of the arenas, written from outside while the program is stopped: read or refused, in bounded time,
/// and the sum of all rows stays the kernel's.
#[test]
fn damaged_arenas_are_read_or_refused() {
    let pythons = pythons();
    let Some((version, path)) = pythons.iter().next_back() else {
        return skip("there is no CPython");
    };
    let (mut read, mut refused) = (0, Vec::new());
    let mut random = Random(12);
    for _ in 0..4 {
        let mut workload = Workload::start_as(Command::new(path).args(["-c", COUNTS]));
        workload.lines.line();
        let pid = workload.pid();
        let whole = python(snapshot(pid));
        stop(pid);
        let memory = File::options().write(true).open(format!("/proc/{pid}/mem"));
        let memory = memory.unwrap();
        for _ in 0..4 {
            let block = whole.types[random.index(whole.types.len())].example;
            let pool = block / whole.pool_size * whole.pool_size;
            // Half of the damage is in a pool's header.
            let at = match random.below(2) {
                0 => pool + 4 * random.below(12),
                _ => pool + 8 * random.below(whole.pool_size / 8),
            };
            let values = [0, 1, pool, block, block + 8, u64::MAX, 1 << 63];
            let value = random.choose(&values).to_ne_bytes();
            // (Some examples are in malloc's memory, whose pages are smaller.)
            if memory.write_at(&value, at).is_err() {
                continue;
            }
            match measure_stopped(pid).python {
                Some(PythonHeap::Refused { reason }) => refused.push(reason),
                _ => read += 1,
            }
        }
        signal(pid, libc::SIGKILL);
    }
    refused.sort();
    println!(
        "{version}: {read} read, {} refused: {refused:#?}",
        refused.len()
    );
    assert!(!refused.is_empty());
}
