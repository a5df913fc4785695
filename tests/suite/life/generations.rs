//! Many short-lived processes: of those that have ended, memprof keeps only the totals, and it continues to
//! record.
//!
//! 4,000 processes with 280,000 stacks by default, more than the table of stacks has slots; in full, 30,000
//! processes with 2,100,000: `MEMPROF_TEST_ROUNDS=30000 cargo test --test suite -- life::generations --nocapture`.

use std::cmp;
use std::time::{Duration, Instant};

use crate::common::effort;
use crate::common::memprof::Memprof;
use crate::common::process::wait_until;
use crate::common::workload::{Workload, program};
use crate::counters::{bpf_memory, held};
use crate::life::KIB;
use memprof_sys::ids::Pid;

/// Number of unique stacks of each process.
const STACKS: u64 = 70;
/// Maximum page faults per second, so that memprof can drain the ring buffer in time.
const RATE: u64 = 12_000;
/// Stacks after which memprof has reached its steady state: a tenth of the long form, half of the short form.
const SETTLED: u64 = 140_000;
/// memprof keeps the debug information of a file for 5 s after the last lookup in it: tens of MiB for the C library, where it is
/// installed. A report may look up names a second later.
const DEBUG_INFORMATION_GOES: Duration = Duration::from_secs(8);
/// Allowed growth of memprof at the end.
const RSS_KIB: u64 = 16 * 1024;
const MAPS_KIB: u64 = 4 * 1024;
const LATE_MIB: u64 = 64;

fn processes() -> u64 {
    effort::rounds(4_000)
}

/// memprof's own memory, in KiB: resident memory and BPF maps.
#[derive(Debug)]
struct Holds {
    rss: u64,
    maps: u64,
}

impl Holds {
    fn count(m: &Memprof) -> Holds {
        Holds {
            rss: held(m.pid().0).unwrap() / KIB,
            maps: bpf_memory(m.pid().0).unwrap().0 / KIB,
        }
    }

    /// memprof's memory without debug information: the lowest figure of some seconds, or the first one that is `little`.
    fn at_rest(m: &Memprof, little: impl Fn(&Holds) -> bool) -> Holds {
        let end = Instant::now() + DEBUG_INFORMATION_GOES;
        let mut least = Holds::count(m);
        while Instant::now() < end && !little(&least) {
            std::thread::sleep(Duration::from_millis(100));
            least = cmp::min_by_key(least, Holds::count(m), |held| held.rss);
        }
        least
    }
}

/// All of it; this may include pages of the caller's stack, which a fork has shared between two processes.
fn late_found(kib: u64) -> bool {
    (LATE_MIB * 1024..LATE_MIB * 1024 + 64).contains(&kib)
}

#[test]
fn the_dead_take_no_room() {
    let processes = processes();
    let mut workload = Workload::start(&program("generations"));
    let parent: Pid = workload.pid();
    let m = Memprof::attach(parent, &["--follow-forks"]);
    m.said("following ");
    let first = SETTLED.div_ceil(STACKS).min(processes / 2);
    // In parts, so that each is answered within the timeout.
    let mut run = |processes: u64| {
        let mut left = processes;
        while left > 0 {
            let part = left.min(2_000);
            workload.lines.tell(&format!("run {part} {STACKS} {RATE}"));
            left -= part;
            println!(
                "{} {:?}",
                m.get("/v2/health").json()["maps"],
                Holds::count(&m)
            );
        }
    };
    run(first);
    let early = Holds::at_rest(&m, |_| false);
    let early_lost = m.lost();
    println!("after {first} processes: {early:?}; lost: {early_lost:?}");
    run(processes - first);
    let late = Holds::at_rest(&m, |held| held.rss <= early.rss + RSS_KIB);
    println!(
        "after {processes} processes: {late:?}; lost: {:?}",
        m.lost()
    );
    workload.lines.tell(&format!("late {LATE_MIB}"));
    let mut wrong = Vec::new();
    // Its stack may not have arrived yet.
    let mut found = 0;
    wait_until(|| {
        let tree = m.tree();
        found = tree.through("late_allocation").value;
        late_found(found) || !m.lost().is_empty()
    });
    if !late_found(found) {
        wrong.push(format!(
            "{found} KiB of {} are under late_allocation",
            LATE_MIB * 1024
        ));
    }
    wrong.extend(m.lost().into_iter().map(|row| format!("lost: {row}")));
    if late.rss > early.rss + RSS_KIB {
        wrong.push(format!(
            "resident memory grew from {} to {} KiB",
            early.rss, late.rss
        ));
    }
    if late.maps > early.maps + MAPS_KIB {
        wrong.push(format!(
            "BPF maps grew from {} to {} KiB",
            early.maps, late.maps
        ));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    m.interrupt();
    workload.end();
}
