//! Marks that the program sets, and those that a signal sets.

use serde_json::Value;

use crate::common::memprof::Memprof;
use crate::common::process::wait_until;
use crate::common::workload::{Workload, program};
use crate::samples::own_probes::attached;

fn marks(m: &Memprof) -> Vec<Value> {
    let list = m.get("/v2/marks").json();
    list["marks"].as_array().unwrap().clone()
}

fn filtered(m: &Memprof, filter: &str) -> u64 {
    let filter: String = form_urlencoded::byte_serialize(filter.as_bytes()).collect();
    let reply = m.get(&format!("/v2/functions?kind=inuse_space&filter={filter}"));
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()["total"].as_u64().unwrap()
}

/// The mark stands for the moment at which the program set it, not for that of its report.
#[test]
fn of_the_program() {
    let mut workload = Workload::start(&program("speaker"));
    let m = attached(&mut workload, &[]);
    // All of it before a report can be made.
    for command in ["hold 100", "mark after-start", "hold 20", "large 1"] {
        workload.lines.tell(command);
    }
    wait_until(|| marks(&m).len() == 1);
    assert_eq!(marks(&m)[0]["name"], "after-start");
    let since = "born > mark('after-start') && live";
    assert_eq!(filtered(&m, since), 20_000 + (1 << 20));
    assert_eq!(filtered(&m, "born < mark(1) && live"), 100_000);
    // A name that is too long is cut, one that is empty is none.
    workload.lines.tell(&format!("mark {}", "x".repeat(50)));
    workload.lines.tell("mark ");
    wait_until(|| marks(&m).len() == 3);
    let all = marks(&m);
    assert_eq!(all[1]["name"], "x".repeat(50));
    assert_eq!(all[2]["name"], Value::Null);
    // What does not fit is said, and the others stay.
    (0..20).for_each(|n| workload.lines.tell(&format!("mark {n}")));
    m.said("keeps at most 16 marks");
    assert_eq!(marks(&m).len(), 16);
    // Some may have come faster than memprof could take them.
    let lost = m.lost();
    assert!(
        lost.iter()
            .all(|row| row.contains("marks of programs left out")),
        "{lost:?}"
    );
}

#[test]
fn by_a_signal() {
    let mut workload = Workload::start(&program("speaker"));
    let m = attached(&mut workload, &[]);
    workload.lines.tell("hold 100");
    m.signal(libc::SIGUSR1);
    m.said("mark 1 (set by SIGUSR1)");
    workload.lines.tell("hold 7");
    assert_eq!(filtered(&m, "born > mark(1) && live"), 7_000);
}
