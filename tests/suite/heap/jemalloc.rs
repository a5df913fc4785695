//! jemalloc's heap: its own statistics, what Redis says of it, forgotten blocks, damage.

use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::common::allocators::{JEMALLOC, LINK_JEMALLOC, allocator};
use crate::common::process::{signal, state, wait_until};
use crate::common::redis::Redis;
use crate::common::skip::skip;
use crate::common::workload::Workload;
use crate::heap::busy_targets::snapshots;
use crate::heap::glibc::{COPY, compiled, snapshot};
use crate::heap::unreachable::compare;
use crate::samples::inside::{archive, rust_program};
use memprof_heap::{Heap, HeapRegion, JemallocFigures, JemallocHeap};
use memprof_sys::ids::Pid;

/// What the workload prints.
#[derive(Debug, Deserialize)]
struct Said {
    pid: u32,
    #[serde(flatten)]
    stats: Option<Stats>,
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
struct Stats {
    allocated: u64,
    cached: u64,
    active: u64,
    resident: u64,
    retained: u64,
}

fn is_missing() -> bool {
    allocator(JEMALLOC).is_none()
}

/// (Tests that run at the same time do not write it again.)
static PROGRAM: LazyLock<PathBuf> =
    LazyLock::new(|| compiled("heap", &["-DJEMALLOC", LINK_JEMALLOC]));

fn workload(threads: u32, seed: u32) -> Workload {
    let args = [threads.to_string(), seed.to_string()];
    Workload::start_with(&PROGRAM, &args.each_ref().map(String::as_str))
}

/// Each arena by itself. (Without threads' caches, whose regions count as allocated.)
#[test]
fn arenas_equal_those_of_its_statistics() {
    #[derive(Debug, Deserialize)]
    struct Said {
        pid: u32,
        arenas: Vec<u64>,
    }
    if is_missing() {
        return;
    }
    let mut command = Command::new(&*PROGRAM);
    command.args(["4", "21"]);
    command.env("MALLOC_CONF", "tcache:false,narenas:3");
    let mut workload = Workload::start_as(&mut command);
    for line in ["", "m", "f", "mx", "tm"] {
        workload.lines.send(line);
        let said: Said = serde_json::from_str(&workload.lines.line()).unwrap();
        let heap = snapshot(Pid(said.pid));
        let live = |index: usize| {
            let name = format!("jemalloc's arena {index}");
            let row = heap.arenas.iter().find(|row| row.name == name);
            row.map_or(0, |row| row.live)
        };
        let ours: Vec<u64> = (0..said.arenas.len()).map(live).collect();
        assert_eq!(ours, said.arenas, "{line}: {:#?}", heap.arenas);
        let used = said.arenas.iter().filter(|live| **live > 0).count();
        assert!(used >= 3 || line.is_empty(), "{said:?}");
    }
    workload.end();
}

/// What was read, with the sums that hold for each heap.
fn figures(heap: &Heap) -> JemallocFigures {
    let figures = match &heap.jemalloc {
        Some(JemallocHeap::Read { figures, .. }) => *figures,
        other => panic!("{other:?}"),
    };
    let bytes = |of: &[HeapRegion]| -> u64 {
        let rows = heap.rows.iter().filter(|row| of.contains(&row.what));
        rows.map(|row| row.bytes).sum()
    };
    let live = bytes(&[HeapRegion::JemallocLive, HeapRegion::JemallocLarge]);
    let cached = bytes(&[HeapRegion::JemallocCache]);
    assert_eq!(cached, figures.cached);
    // The rest is jemalloc's own: the stacks of the caches.
    assert!(live + cached <= figures.allocated, "{heap:#?}");
    assert_eq!(heap.types.as_ref().unwrap().bytes, live + glibc(heap));
    let pages = [
        HeapRegion::JemallocDirty,
        HeapRegion::JemallocMuzzy,
        HeapRegion::JemallocRetained,
    ];
    let free = figures.dirty + figures.muzzy + figures.retained;
    assert_eq!(bytes(&pages), free);
    figures
}

/// Bytes that are live in glibc's heap beside jemalloc's.
fn glibc(heap: &Heap) -> u64 {
    let rows = heap.rows.iter();
    let rows = rows.filter(|row| [HeapRegion::Live, HeapRegion::LiveMapped].contains(&row.what));
    rows.map(|row| row.bytes).sum()
}

#[test]
fn figures_equal_those_of_its_statistics() {
    if is_missing() {
        return;
    }
    for (threads, seed) in [(1, 1), (2, 2), (3, 3), (8, 4)] {
        let mut workload = workload(threads, seed);
        for line in ["", "m", "f", "mm", "t", "x", "mfm", "p", "a", "t", "m"] {
            workload.lines.send(line);
            agrees(&workload.lines.line());
        }
        workload.end();
    }
}

/// Inside the executable, whose symbols are gone.
#[test]
fn figures_equal_those_of_its_statistics_in_stripped_programs() {
    const INSIDE: [&str; 5] = ["-DJEMALLOC", "-l:libjemalloc.a", "-lstdc++", "-lm", "-s"];
    if archive("libjemalloc.a").is_none() {
        return;
    }
    for (flags, threads) in [(&["-static"][..], "1"), (&[], "4")] {
        let program = compiled("heap", &[&INSIDE, flags].concat());
        let mut workload = Workload::start_with(&program, &[threads, "7"]);
        for line in ["", "m", "f", "x", "mfm", "a", "m"] {
            workload.lines.send(line);
            agrees(&workload.lines.line());
        }
        workload.end();
    }
}

/// The allocators of two crates. That of jemalloc has no statistics, so that its caches form no ring.
#[test]
fn stripped_rust_programs_have_what_they_hold() {
    for name in ["jemalloc", "mimalloc"] {
        let Some(program) = rust_program(name) else {
            continue;
        };
        let stripped = tempfile::Builder::new()
            .tempfile()
            .unwrap()
            .into_temp_path();
        let mut strip = Command::new("strip");
        let status = strip.arg("-o").arg(&stripped).arg(program).status();
        assert!(status.unwrap().success());
        let mut workload = Workload::start_as(&mut Command::new(&stripped));
        let mut held = |line: &str| {
            workload.lines.send(line);
            assert_eq!(workload.lines.line(), "ok");
            // It still frees what it read.
            wait_until(|| state(workload.child.pid()) == 'S');
            let heap = snapshot(workload.child.pid());
            match (&heap.jemalloc, &heap.other_heaps[..]) {
                (Some(JemallocHeap::Read { thread_caches, .. }), []) => {
                    let figures = figures(&heap);
                    assert_eq!(*thread_caches, 1, "{line}");
                    assert!(figures.cached > 0, "{line}");
                    figures.allocated - figures.cached
                }
                (None, [other]) => other.figures().unwrap_or_else(|| panic!("{other:?}")).live,
                other => panic!("{other:#?} {:#?}", heap.seen),
            }
        };
        let first = held("hold 0 1");
        for (line, blocks) in [
            ("hold 20000 500", 20_000),
            ("release 15000", 5_000),
            ("churn 1000 500", 5_000),
            ("hold 7 500", 5_007),
        ] {
            assert_eq!(held(line) - first, blocks * 512, "{name} {line}");
        }
        workload.end();
    }
}

/// Compares a snapshot with what the workload says of itself.
pub fn agrees(said: &str) {
    let said: Said = serde_json::from_str(said).expect(said);
    let mut theirs = said.stats.expect("figures");
    let heap = snapshot(Pid(said.pid));
    let read = figures(&heap);
    if version(&heap).starts_with("5.2.") {
        // These releases forget the large regions in caches (`bins_large[i]` in `arena.c`).
        assert!(theirs.cached <= read.cached);
        theirs.cached = read.cached;
    }
    let ours = Stats {
        allocated: read.allocated,
        cached: read.cached,
        active: read.active,
        resident: read.resident,
        retained: read.retained,
    };
    assert_eq!(ours, theirs, "{heap:#?}");
}

fn version(heap: &Heap) -> &str {
    match &heap.jemalloc {
        Some(JemallocHeap::Read { version, .. }) => version.as_deref().unwrap_or_default(),
        _ => "",
    }
}

/// Redis's own figures, while no client does anything.
#[test]
fn redis_agrees() {
    if is_missing() {
        return;
    }
    let Some(redis) = Redis::start() else {
        return skip("there is no redis-server");
    };
    let run = |program: &str, args: &str| redis.run(program, args);
    for step in ["", "set,lpush,sadd", "evict", "set,hset", "flushall"] {
        match step {
            "" => {}
            "flushall" => assert_eq!(run("redis-cli", step), "OK"),
            "evict" => {
                // Three quarters of the keys, at random.
                for limit in ["8mb", "0"] {
                    run("redis-cli", &format!("config set maxmemory {limit}"));
                    run("redis-cli", "config set maxmemory-policy allkeys-random");
                    run("redis-cli", "ping");
                }
            }
            tests => {
                let args = format!("-t {tests} -n 60000 -r 1000000 -d 150 -P 16 -q");
                assert!(!run("redis-benchmark", &args).is_empty());
            }
        }
        let heap = redis_at_rest(redis.pid(), || run("redis-cli", "info memory"));
        let lost = heap.unreachable.unwrap();
        assert!(lost.bytes < heap.anonymous / 1000, "{lost:#?}");
    }
}

/// Compares what Redis says before and after with a snapshot in between. A client's connection takes some memory, and the
/// server does something ten times in a second, so that it is tried again.
fn redis_at_rest(server: Pid, info: impl Fn() -> String) -> Heap {
    let mut tried = Vec::new();
    for _ in 0..10 {
        let before = info();
        let heap = snapshot(server);
        let after = info();
        let said = |info: &str, name: &str| -> u64 {
            let line = info.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_else(|| panic!("{name} {info}"))
                .parse()
                .unwrap()
        };
        let read = figures(&heap);
        let pairs = [
            ("allocator_allocated:", read.allocated),
            ("allocator_active:", read.active),
            ("allocator_resident:", read.resident),
        ];
        let fits = |(name, ours): &(&str, u64)| {
            let near = |theirs: u64| theirs.abs_diff(*ours) * 1000 <= theirs;
            near(said(&before, name)) || near(said(&after, name))
        };
        if pairs.iter().all(fits) {
            return heap;
        }
        tried.push((pairs, before, after));
    }
    panic!("{tried:#?}");
}

#[test]
fn forgotten_blocks_are_found() {
    if is_missing() {
        return;
    }
    compare(Workload::start(&compiled("leaks", &[LINK_JEMALLOC])));
}

/// Snapshots of a target that allocates all the time: read or refused.
#[test]
fn snapshots_of_a_busy_target_are_right_or_refused() {
    if is_missing() {
        return;
    }
    let mut workload = workload(4, 9);
    workload.lines.send("m");
    workload.lines.line();
    workload.lines.send("r");
    let (mut read, mut refused) = (0, Vec::new());
    for _ in 0..snapshots() {
        std::thread::sleep(Duration::from_millis(7));
        let heap = crate::heap::measure(workload.pid(), &COPY, 1).unwrap();
        let rows: u64 = heap.rows.iter().map(|row| row.resident).sum();
        let others: u64 = heap.others.iter().map(|row| row.resident).sum();
        assert_eq!(rows + others, heap.anonymous);
        crate::heap::map_adds_up(&heap);
        match heap.jemalloc {
            Some(JemallocHeap::Read { .. }) => read += 1,
            Some(JemallocHeap::Refused { reason }) => refused.push(reason),
            None => panic!("the heap was not found"),
        }
    }
    println!("{read} read, {} refused: {refused:#?}", refused.len());
    assert!(read > 0, "{refused:#?}");
}

/// Damage in what jemalloc notes of its extents: read or refused, in bounded time.
#[test]
fn damaged_heaps_are_read_or_refused() {
    if is_missing() {
        return;
    }
    let mut workload = workload(3, 11);
    workload.lines.send("m");
    workload.lines.line();
    let (mut read, mut refused) = (0, Vec::new());
    for _ in 0..snapshots() {
        workload.lines.send("d");
        let said: Said = serde_json::from_str(&workload.lines.line()).unwrap();
        let begun = Instant::now();
        let heap = snapshot(Pid(said.pid));
        assert!(begun.elapsed() < Duration::from_secs(60));
        match heap.jemalloc {
            Some(JemallocHeap::Read { .. }) => read += 1,
            Some(JemallocHeap::Refused { reason }) => refused.push(reason),
            // Its first block cannot be told from others.
            None => refused.push("not found".to_owned()),
        }
        signal(Pid(said.pid), libc::SIGKILL);
    }
    refused.sort();
    println!("{read} read, {} refused: {refused:#?}", refused.len());
    assert!(!refused.is_empty());
    workload.end();
}
