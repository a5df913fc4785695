//! Page faults that end long after they have begun, as from a slow disk: nothing else tells that their pages are there.

use serde_json::Value;

use crate::common::memprof::Memprof;
use crate::common::process::{LIMIT, eventually};
use crate::common::workload::{Workload, program};
use memprof_sys::residency::figures;

/// What the timeline's last report has, which nobody requested: bytes with and without a stack, if there is one.
fn last_reported(m: &Memprof) -> Option<u64> {
    let reply = m.get("/v2/series").json();
    let last = |name: &str| {
        let series = reply["series"].as_array()?;
        let series = series.iter().find(|series| series["name"] == name)?;
        series["values"].as_array()?.last().and_then(Value::as_u64)
    };
    Some(last("attributed")? + last("not_observed")?)
}

#[test]
fn their_pages_are_found_without_a_request() {
    let mut workload = Workload::start(&program("moves"));
    assert_eq!(workload.lines.line(), "ok");
    let pid = workload.pid();
    let m = Memprof::attach(pid, &[]);
    // The first time, the program has other faults, too.
    for slot in ["0", "1"] {
        workload.lines.tell(&format!("uffd {slot} 4096 1500"));
        eventually(LIMIT, "the page is in the timeline", || {
            let kernel = figures::read(pid).unwrap();
            last_reported(&m) == Some(kernel.anonymous.unwrap() + kernel.rss_shmem)
        });
    }
    workload.end();
}
