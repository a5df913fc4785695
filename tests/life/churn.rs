//! A target whose memory changes as fast as it can.

use std::time::{Duration, Instant};

use ::memprof::event::Pid;
use ::memprof::residency::figures;

use crate::KIB;
use crate::common::memprof::Memprof;
use crate::common::process::{cont, stop};
use crate::common::tree::Node;
use crate::common::workload::{Workload, program};

const RUN: Duration = Duration::from_secs(20);
/// How much memprof may grow once it has seen all the target does, in KiB.
const GROWTH: u64 = 16 * 1024;
/// What the C library, the loader and exec bring in before and beside the program's own functions.
const START_KIB: u64 = 512;
/// What the C library touches of threads' stacks, before churn_touch and after.
const OTHERS_KIB: u64 = 64;

fn rss(pid: Pid) -> u64 {
    let figures = figures::status(pid).unwrap();
    (figures.rss_anon + figures.rss_file + figures.rss_shmem) / KIB
}

#[track_caller]
fn compare(m: &Memprof, pid: Pid) -> Node {
    stop(pid);
    let tree = m.tree();
    let kernel = figures::read(pid).unwrap();
    cont(pid);
    let ours = tree.resident();
    println!(
        "{ours} KiB, kernel {} KiB, difference {}; without a stack {} KiB; memprof holds {} KiB",
        kernel.resident() / KIB,
        ours as i64 - (kernel.resident() / KIB) as i64,
        tree.unknown(),
        rss(m.pid())
    );
    assert_eq!(ours * KIB, kernel.resident());
    assert_eq!(ours * KIB, kernel.anonymous.unwrap() + kernel.rss_shmem);
    tree
}

#[test]
fn nothing_grows_and_nothing_is_lost() {
    let mut workload = Workload::start_with(&program("churn"), &["3"]);
    assert_eq!(workload.lines.line(), "ready");
    let pid = workload.pid();
    let m = Memprof::start(&["--pid", &pid.to_string()]);
    let start = Instant::now();
    let mut early = None;
    let mut checks = 0;
    while start.elapsed() < RUN {
        // A while undisturbed, then a moment stopped.
        std::thread::sleep(Duration::from_millis(400));
        let tree = compare(&m, pid);
        checks += 1;
        // What was there at the attach is soon gone, but for what the program's start left.
        if start.elapsed() > RUN / 4 {
            early.get_or_insert_with(|| rss(m.pid()));
            assert!(tree.unknown() <= START_KIB, "{}", tree.text());
            let rest = tree.resident() - tree.unknown() - tree.through("churn_touch").value;
            assert!(rest <= OTHERS_KIB, "{}", tree.text());
        }
    }
    let (early, late) = (early.unwrap(), rss(m.pid()));
    println!("{checks} checks; memprof held {early} KiB, then {late} KiB");
    assert!(late <= early + GROWTH, "{early} KiB, then {late} KiB");
    let mut m = m;
    let mut out = m.child.stdout.take().unwrap();
    m.interrupt();
    let mut summary = String::new();
    std::io::Read::read_to_string(&mut out, &mut summary).unwrap();
    assert!(summary.contains("Losses: none"), "{summary}");
    workload.end();
}
