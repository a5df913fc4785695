//! More stacks than the tables hold: each event either has its stack or is counted as lost.
//!
//! Needs root and `cc`.

use serde_json::Value;

use crate::common::memprof::Memprof;
use crate::common::process::{cont, stop, wait_until};
use crate::common::workload::{Workload, program};

const PAGE: u64 = 4096;
const RING_FULL: &str = "stack records not sent: ring buffer full (retried at the next event)";
const TABLE_FULL: &str = "events without a stack: stack table full";
const NO_PAUSE: u64 = 1 << 30;

/// memprof's view of a program that touches each page under a different stack.
struct Target {
    workload: Workload,
    m: Memprof,
    pages: u64,
}

impl Target {
    fn start(depth: u32) -> Target {
        let workload = Workload::start_with(&program("stacks"), &[&depth.to_string()]);
        let m = Memprof::attach(workload.pid(), &[]);
        m.said("following ");
        Target {
            workload,
            m,
            pages: 1 << depth,
        }
    }

    fn touch(&mut self, pages_between_pauses: u64) {
        self.workload
            .lines
            .tell(&format!("touch {pages_between_pauses}"));
    }

    fn lost(&self, what: &str) -> u64 {
        let health = self.m.get("/v2/health").json();
        let losses = health["losses"].as_array().unwrap();
        let found = losses.iter().find(|loss| loss["what"] == what);
        found.map_or(0, |loss| loss["count"].as_u64().unwrap())
    }

    /// Waits until every page of the stopped program is under its stack or was lost since `before`. Returns the number
    /// of lost events.
    fn settle(&self, before: u64) -> u64 {
        let pid = self.workload.pid();
        stop(pid);
        let mut lost = 0;
        wait_until(|| {
            let now = self.m.get("/v2/summary").json();
            lost = self.lost(RING_FULL) + self.lost(TABLE_FULL) - before;
            let without = bytes(&now["not_observed"], "stack_lost");
            let with = bytes(&now["outcomes"], "complete");
            let done = now["agreement"]["verdict"] == "equal"
                && without == lost * PAGE
                && with + without >= self.pages * PAGE;
            if !done {
                println!("{with} bytes with a stack, {without} without; {lost} events lost");
            }
            done
        });
        cont(pid);
        lost
    }
}

/// The bytes of the row with this name.
fn bytes(rows: &Value, name: &str) -> u64 {
    let rows = rows.as_array().unwrap();
    let called = |row: &&Value| row["reason"] == name || row["outcome"] == name;
    rows.iter().find(called).map_or(0, |row| {
        let bytes = &row["bytes"];
        bytes["all"].as_u64().or(bytes.as_u64()).unwrap()
    })
}

/// Nobody reads the ring buffer during 32,768 stacks. It holds about 20,000.
#[test]
fn a_full_ring_buffer() {
    let mut target = Target::start(15);
    stop(target.m.pid());
    target.touch(NO_PAUSE);
    cont(target.m.pid());
    let lost = target.settle(0);
    println!("{lost} of {} stacks lost", target.pages);
    assert!(lost > 1000 && lost < target.pages - 1000);

    // Stacks that were not sent are sent the next time.
    target.workload.lines.tell("drop");
    target.touch(256);
    let again = target.settle(lost);
    println!("{again} lost the next time");
    assert!(again < lost / 2);
    target.workload.end();
}

/// As many stacks as the table holds, in addition to those of the program's start.
#[test]
fn a_full_table_of_stacks() {
    let mut target = Target::start(18);
    // Not faster than memprof reads them.
    target.touch(256);
    let lost = target.settle(0);
    println!("{lost} of {} stacks lost", target.pages);
    assert!(target.lost(TABLE_FULL) > 0);
    // A stack may use one of 64 slots; even in a full table, few stacks find none.
    assert!(lost < target.pages / 10);
    target.workload.end();
}
