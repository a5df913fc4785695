//! Of many processes, those alone are scanned again that have changed.

use serde_json::Value;

use crate::common::cgroup::Group;
use crate::common::memprof::Memprof;
use crate::common::process::{cont, stop, wait_until};
use crate::common::workload::{Workload, program};
use crate::life::MIB;
use memprof_sys::ids::Pid;
use memprof_sys::residency::figures;

/// More than are scanned each time.
const MANY: usize = 36;

struct Run {
    m: Memprof,
    group: Group,
    workloads: Vec<Workload>,
}

impl Run {
    fn start() -> Run {
        let group = Group::new();
        let mut workloads = Vec::new();
        for _ in 0..MANY {
            let mut workload = Workload::start(&program("scenarios"));
            group.put(workload.pid());
            workload.lines.tell("mmap 1048576");
            workloads.push(workload);
        }
        let name = format!("/{}", group.name().display());
        let m = Memprof::start(&["-vv", "--cgroup", &name]);
        m.followed();
        let run = Run {
            m,
            group,
            workloads,
        };
        wait_until(|| run.row(run.workloads[MANY - 1].pid()).is_some());
        run
    }

    fn row(&self, pid: Pid) -> Option<Value> {
        let reply = self.m.get("/v2/processes").json();
        let mut rows = reply["rows"].as_array().unwrap().iter();
        rows.find(|row| row["pid"] == pid.0).cloned()
    }

    /// How many processes had changed, by each pass since the first `passes`.
    fn changed(&self, passes: usize) -> Vec<u64> {
        let said = self.m.has_said("a pass processes=");
        let changed = said[passes..].iter().map(|line| {
            let (_, rest) = line.split_once("changed=").unwrap();
            rest.split(' ').next().unwrap().parse().unwrap()
        });
        changed.collect()
    }

    /// Stops all and compares the sum, and each process, with the kernel.
    #[track_caller]
    fn equals(&self) {
        let pids = self.group.pids();
        pids.iter().for_each(|pid| stop(*pid));
        let reply = self.m.get("/v2/processes").json();
        let rows = reply["rows"].as_array().unwrap();
        assert_eq!(rows.len(), pids.len());
        let mut sum = 0;
        for row in rows {
            let pid = Pid(row["pid"].as_u64().unwrap() as u32);
            let kernel = figures::read(pid).unwrap();
            let resident = kernel.anonymous.unwrap() + kernel.rss_shmem;
            assert_eq!(row["total"]["resident"], resident, "{row}");
            assert_eq!(row["total"]["file"], kernel.rss_file, "{row}");
            sum += resident;
        }
        assert_eq!(reply["total"]["resident"], sum);
        pids.iter().for_each(|pid| cont(*pid));
    }
}

#[test]
fn every_change_is_seen_and_nothing_else_scanned() {
    let mut run = Run::start();
    run.equals();
    // They stand still now.
    wait_until(|| {
        run.row(Pid(1));
        run.changed(0).last() == Some(&0)
    });
    for (change, least) in [
        ("mmap 4194304", 1),
        ("mremap_grow", 1),
        ("mremap_move", 1),
        ("munmap", 1),
        ("shared_anon 2097152", 1),
        ("memfd 1048576", 1),
        ("populate 3145728", 1),
        ("fork_cow", 2),
        // What ends is the child.
        ("fork_end", 0),
    ] {
        let passes = run.changed(0).len();
        run.workloads[7].lines.tell(change);
        run.equals();
        // It may say so just after its reply.
        wait_until(|| !run.changed(passes).is_empty());
        let changed = run.changed(passes);
        let most = changed.iter().max().unwrap();
        assert!((least..=3).contains(most), "{change}: {changed:?}");
    }
    for workload in run.workloads {
        workload.end();
    }
    run.m.interrupt();
}

/// A mapping moves without a page fault.
#[test]
fn a_mapping_that_moves() {
    let mut run = Run::start();
    let pid = run.workloads[3].pid();
    run.workloads[3].lines.tell("memfd 7340032");
    let places = |run: &Run| -> Vec<Value> {
        let maps = run.m.get(&format!("/v2/maps?pid={pid}&limit=10000")).json();
        let rows = maps["rows"].as_array().unwrap().iter();
        let large = rows.filter(|row| row["size"] == 7 * MIB);
        large.map(|row| row["start"].clone()).collect()
    };
    let before = places(&run);
    assert_eq!(before.len(), 1, "{before:?}");
    run.workloads[3].lines.tell("mremap_move");
    let after = places(&run);
    assert!(after.len() == 1 && after != before, "{before:?} {after:?}");
    for workload in run.workloads {
        workload.end();
    }
    run.m.interrupt();
}
