//! A target that changes its memory at full rate: totals do not drift, memprof does not grow, and nothing is lost.
//!
//! `MEMPROF_TEST_SECS` seconds (default 20); for a minute:
//! `MEMPROF_TEST_SECS=60 cargo test --test suite -- life::churn --nocapture`.

use std::time::{Duration, Instant};

use crate::common::effort;
use crate::common::memprof::Memprof;
use crate::common::process::{cont, stop};
use crate::common::tree::Node;
use crate::common::workload::{Workload, program};
use crate::counters::FaultCounter;
use crate::life::KIB;
use memprof_sys::ids::Pid;
use memprof_sys::residency::figures;

/// Allowed growth of memprof after it has seen everything that the target does, in KiB.
const GROWTH: u64 = 16 * 1024;
/// Limit for memory brought in by the C library, the loader and exec instead of the program's own functions.
const START_KIB: u64 = 512;
/// Limit for the pages of thread stacks that the C library touches, before churn_touch and after.
const OTHERS_KIB: u64 = 64;
/// The target's threads: the main thread, three that map, one that starts threads, the one that it starts, and
/// the one that uses the heap.
const THREADS: u64 = 7;
/// Limit for the chunks of the page ledger, of 2 MiB of addresses each. The target has about 20 mappings, each of
/// which the kernel may place elsewhere after a while.
const CHUNKS: u64 = 400;

fn seconds() -> u64 {
    effort::duration(20).as_secs()
}

fn rss(pid: Pid) -> u64 {
    let figures = figures::status(pid).unwrap();
    (figures.rss_anon + figures.rss_file + figures.rss_shmem) / KIB
}

/// The kernel's count of page faults of all threads, including those that have ended.
fn faults(pid: Pid) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, rest) = stat.rsplit_once(") ").unwrap();
    let fields: Vec<&str> = rest.split(' ').collect();
    // The tenth and the twelfth field of the line: minor and major faults.
    [7, 9]
        .map(|i| fields[i].parse::<u64>().unwrap())
        .iter()
        .sum()
}

/// The number of entries of a table.
fn entries(m: &Memprof, table: &str) -> u64 {
    let health = m.get("/v2/health").json();
    let maps = health["maps"].as_array().unwrap();
    let found = maps.iter().find(|map| map["name"] == table).unwrap();
    found["entries"].as_u64().unwrap()
}

/// The stopped target's sum equals the kernel's.
#[track_caller]
fn compare(tree: &Node, pid: Pid) {
    let kernel = figures::read(pid).unwrap();
    let ours = tree.resident() * KIB;
    assert_eq!(ours, kernel.resident(), "{}", tree.text());
    assert_eq!(ours, kernel.anonymous.unwrap() + kernel.rss_shmem);
}

/// Page faults since the start of the count, by memprof and by the kernel.
struct Faults {
    pid: Pid,
    counter: FaultCounter,
    first: Option<(u64, u64)>,
}

impl Faults {
    fn open(pid: Pid, m: &Memprof) -> Faults {
        Faults {
            pid,
            counter: FaultCounter::open(m.pid().0).unwrap(),
            first: None,
        }
    }

    /// Of the stopped target.
    fn read(&mut self) -> (u64, u64) {
        let now = (self.counter.read().unwrap(), faults(self.pid));
        let first = self.first.get_or_insert(now);
        (now.0 - first.0, now.1 - first.1)
    }
}

#[test]
fn nothing_grows_and_nothing_is_lost() {
    let mut workload = Workload::start_with(&program("churn"), &["3"]);
    assert_eq!(workload.lines.line(), "ready");
    let pid = workload.pid();
    let m = Memprof::attach(pid, &[]);
    m.said("following ");
    let mut faults = Faults::open(pid, &m);
    let (start, run) = (Instant::now(), Duration::from_secs(seconds()));
    let (mut early, mut most_chunks, mut checks) = (None, 0, 0);
    while start.elapsed() < run {
        // The target runs for a while, then it is stopped for a moment.
        std::thread::sleep(Duration::from_millis(400));
        stop(pid);
        let tree = m.tree();
        compare(&tree, pid);
        let (seen, happened) = faults.read();
        let chunks = entries(&m, "pages");
        cont(pid);
        checks += 1;
        println!(
            "{} KiB, difference 0; {} KiB without a stack; {seen} faults, {happened} by the kernel's \
             count; {chunks} chunks; memprof holds {} KiB",
            tree.resident(),
            tree.unknown(),
            rss(m.pid())
        );
        // A stop in the middle of a fault makes the instruction, and thus the fault, repeat.
        assert!(
            (happened..=happened + checks * THREADS).contains(&seen),
            "{seen} faults counted, {happened} happened"
        );
        most_chunks = most_chunks.max(chunks);
        // The memory from before the attach is soon freed, except for that from the program's start.
        if start.elapsed() > run / 4 {
            early.get_or_insert_with(|| rss(m.pid()));
            assert!(tree.unknown() <= START_KIB, "{}", tree.text());
            let rest = tree.resident() - tree.unknown() - tree.through("churn_touch").value;
            assert!(rest <= OTHERS_KIB, "{}", tree.text());
        }
    }
    let (early, late) = (early.unwrap(), rss(m.pid()));
    println!("{checks} checks; memprof held {early} KiB, then {late} KiB; {most_chunks} chunks");
    assert!(late <= early + GROWTH, "{early} KiB, then {late} KiB");
    assert!(
        most_chunks <= CHUNKS,
        "{most_chunks} chunks of the page ledger"
    );
    let mut m = m;
    let mut out = m.child.stdout.take().unwrap();
    m.interrupt();
    let mut summary = String::new();
    std::io::Read::read_to_string(&mut out, &mut summary).unwrap();
    assert!(summary.contains("Losses: none"), "{summary}");
    workload.end();
}
