//! Processes that speak the contract by themselves: nothing is preloaded.

use std::process::Command;

use serde_json::Value;

use crate::common::memprof::Memprof;
use crate::common::process::wait_until;
use crate::common::workload::{Workload, program, program_with};
use crate::samples::{below, total};
use memprof_sys::ids::Pid;

/// The probes of `speaker`: four of `alloc`, one of `free`.
const LISTENED: &str = "4 1";

fn listeners(workload: &mut Workload) -> String {
    workload.lines.send("listeners");
    workload.lines.line()
}

pub fn attached(workload: &mut Workload, args: &[&str]) -> Memprof {
    let m = Memprof::attach(workload.pid(), &[&["--heap"], args].concat());
    wait_until(|| listeners(workload) == LISTENED);
    m
}

#[test]
fn every_sample_counts_under_its_stack_until_it_is_freed() {
    let mut workload = Workload::start(&program("speaker"));
    assert_eq!(listeners(&mut workload), "0 0");
    // Nobody listens.
    workload.lines.tell("hold 10");
    let m = attached(&mut workload, &["--heap-temporary", "3600000"]);
    for command in ["hold 1000", "large 3", "churn 500", "release 100"] {
        workload.lines.tell(command);
    }
    let figure = |function, kind| below(&m, function, kind).0;
    // 1,000 bytes and 10 objects each.
    assert_eq!(figure("hold_one", "inuse_space"), 900_000);
    assert_eq!(figure("hold_one", "inuse_objects"), 9_000);
    assert_eq!(figure("hold_one", "alloc_space"), 1_000_000);
    assert_eq!(figure("hold_one", "temporary_space"), 100_000);
    // The most was live in a round of `churn`, before anything was released.
    let at_peak = || {
        let functions = ["hold_one", "large_one", "churn_one"];
        functions.map(|function| figure(function, "at_peak_space"))
    };
    let [held, large, churned] = at_peak();
    assert_eq!((held, large), (1_000_000, 3 << 20));
    assert!((1..=6_400).contains(&churned), "{churned}");
    assert_eq!(figure("hold_one", "at_peak_objects"), 10_000);
    // A sample that stands for itself has no error.
    assert_eq!(below(&m, "large_one", "inuse_space"), (3 << 20, 0));
    assert_eq!(below(&m, "large_one", "alloc_objects"), (3, 0));
    // Arguments of two and four bytes: the registers hold more.
    assert_eq!(figure("churn_one", "inuse_space"), 0);
    assert_eq!(figure("churn_one", "alloc_space"), 500 * 6_400);
    assert_eq!(figure("churn_one", "temporary_objects"), 500 * 100);
    // Independent samples: the variance of each is weight² (1 − p).
    let error = (1_000f64 * 1e6 * (1.0 - 0.1)).sqrt().round() as u64;
    assert_eq!(below(&m, "hold_one", "alloc_space").1, error);
    let all = 900_000 + (3 << 20);
    assert_eq!(total(&m, "inuse_space"), all);
    assert_eq!(m.lost(), [""; 0]);
    // Samples from before are unknown: their frees change nothing.
    workload.lines.tell("release 2000");
    assert_eq!(total(&m, "inuse_space"), 3 << 20);
    assert_eq!(at_peak(), [held, large, churned]);
    m.interrupt();
    assert_eq!(listeners(&mut workload), "0 0");
}

/// Programs and libraries that speak the contract in each form.
#[test]
fn every_form_of_probes_is_listened_to() {
    let no_pie: &[&str] = &["-no-pie"];
    for form in [
        no_pie,
        &["-DBASE"],
        &["-static"],
        &["-static-pie"],
        &["-shared"],
    ] {
        for (semaphores, listened) in [("2", "4 1"), ("1", "5 5"), ("0", "1 1")] {
            let define = format!("-DSEMAPHORES={semaphores}");
            println!("{form:?} {define}");
            let mut workload = match form {
                ["-shared"] => {
                    let library = program_with("speaker_library", &[&define]);
                    let program = program("speaks_by_library");
                    Workload::start_as(Command::new(program).arg(library))
                }
                _ => Workload::start(&program_with("speaker", &[form, &[&define]].concat())),
            };
            let m = Memprof::attach(workload.pid(), &["--heap"]);
            wait_until(|| listeners(&mut workload) == listened);
            // Without a semaphore the program does not know.
            wait_until(|| {
                workload.lines.tell("churn 1");
                total(&m, "alloc_space") > 0
            });
            for command in ["hold 1000", "large 3", "edge 200", "release 100"] {
                workload.lines.tell(command);
            }
            let live = |function| below(&m, function, "inuse_space").0;
            let all = ["hold_one", "large_one", "edge_one", "churn_one"].map(live);
            assert_eq!(all, [900_000, 3 << 20, 200_000, 0]);
            assert_eq!(m.lost(), [""; 0]);
        }
    }
}

/// The kernel counts listeners in pages of the file alone.
#[test]
fn a_semaphore_outside_of_the_file_is_named() {
    let mut workload = Workload::start(&program_with("speaker", &["-DOUTSIDE"]));
    let m = Memprof::attach(workload.pid(), &["--heap"]);
    m.said("has its semaphore outside of its file");
    assert_eq!(listeners(&mut workload), "0 0");
    let lost = m.lost();
    let is_counted = |row: &String| row.contains("could not listen to");
    assert!(lost.iter().any(is_counted), "{lost:?}");
}

/// The kernel takes the probes away, and with them what makes the process sample.
#[test]
fn after_kill_9_nobody_listens() {
    let mut workload = Workload::start(&program("speaker"));
    for _ in 0..5 {
        let mut m = attached(&mut workload, &[]);
        workload.lines.tell("hold 100");
        m.signal(libc::SIGKILL);
        m.wait();
        wait_until(|| listeners(&mut workload) == "0 0");
    }
    workload.lines.tell("churn 100");
}

#[test]
fn a_filter_chooses_among_the_samples() {
    let mut workload = Workload::start(&program("speaker"));
    let m = attached(&mut workload, &[]);
    for command in ["hold 100", "large 3", "release 30", "churn 50"] {
        workload.lines.tell(command);
    }
    let reply = |filter: &str, kind: &str| {
        let filter: String = form_urlencoded::byte_serialize(filter.as_bytes()).collect();
        m.get(&format!("/v2/functions?kind={kind}&filter={filter}"))
    };
    let total = |filter: &str, kind: &str| {
        let reply = reply(filter, kind);
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply.json()["report"]["total"][kind].as_u64().unwrap_or(0)
    };
    assert_eq!(total("live", "inuse_space"), 70_000 + (3 << 20));
    assert_eq!(total("!live", "alloc_space"), 30_000 + 50 * 6_400);
    assert_eq!(total("size > 1000", "alloc_objects"), 3);
    assert_eq!(total("'hold_one' in functions", "alloc_space"), 100_000);
    assert_eq!(
        total("size == 64 && !('hold_one' in functions)", "alloc_space"),
        50 * 6_400
    );
    assert_eq!(total("at_peak", "alloc_space"), 100_000 + (3 << 20));
    let pid = workload.pid();
    assert_eq!(
        total(&format!("thread == {pid} && live"), "inuse_objects"),
        703
    );
    for (filter, kind, why) in [
        ("siz > 5", "alloc_space", "unknown name siz"),
        ("size >", "alloc_space", "not an expression"),
        ("size", "alloc_space", "neither true nor false"),
        ("live", "anon", "needs a kind of the sampled heap"),
    ] {
        let reply = reply(filter, kind);
        assert_eq!(reply.status, 400, "{filter}");
        assert!(reply.text().contains(why), "{filter}: {}", reply.text());
    }
    // (Others may have been freed as fast.)
    let filter = "temporary%20%26%26%20size%20%3D%3D%2064";
    let tree = m
        .get(&format!("/v2/tree?kind=alloc_space&filter={filter}"))
        .json();
    assert_eq!(tree["total"], 50 * 6_400);
    let csv = m.get("/v2/export/folded?kind=alloc_space&filter='churn_one'%20in%20functions");
    assert_eq!(csv.status, 200, "{}", csv.text());
    assert!(
        csv.text().lines().all(|line| line.contains("churn_one ")),
        "{}",
        csv.text()
    );
    // After the end there is one report, of which different filters choose different allocations.
    workload.end();
    wait_until(|| m.get("/v2/summary").json()["target"]["alive"] == false);
    assert_eq!(total("size > 1000", "alloc_space"), 3 << 20);
    assert_eq!(total("size == 64", "alloc_space"), 50 * 6_400);
}

/// What a filter chooses since a mark is what the heap has grown by, as the difference from the mark says.
#[test]
fn growth_since_a_mark() {
    let mut workload = Workload::start(&program("speaker"));
    let m = attached(&mut workload, &[]);
    workload.lines.tell("hold 100");
    let made = m.send("POST", "/v2/marks", r#"{"name": "before 'load'"}"#);
    assert_eq!(made.status, 201, "{}", made.text());
    for command in ["hold 20", "large 2", "churn 10", "release 5"] {
        workload.lines.tell(command);
    }
    let get = |filter: &str| {
        let filter: String = form_urlencoded::byte_serialize(filter.as_bytes()).collect();
        m.get(&format!("/v2/functions?kind=inuse_space&filter={filter}"))
    };
    let by_name = get(r#"born > mark("before 'load'") && live"#).json();
    let difference = m.get("/v2/diff?from=1&by=function&kind=inuse_space").json();
    let grown = 15_000 + (2 << 20);
    assert_eq!(by_name["total"], grown);
    let main = |reply: &Value, field: &str| {
        let mut rows = reply["rows"].as_array().unwrap().iter();
        let row = rows.find(|row| row["function"] == "main").unwrap();
        (row[field].clone(), row["total_error"].clone())
    };
    assert_eq!(main(&difference, "total").0, grown);
    let (total, error) = main(&by_name, "total");
    assert_eq!(total, grown);
    // 15 samples with p = 0.1; the large ones are exact.
    let variance = 15.0 * 1e6 * 0.9;
    assert_eq!(error, f64::sqrt(variance).round() as u64);
    let before = get("born < mark(1) && live").json();
    assert_eq!(before["total"], 100_000);
    let missing = get("born > mark('x')");
    assert_eq!(missing.status, 400);
    let said = missing.text();
    assert!(said.contains("'x'") && said.contains("before"), "{said}");
}

#[test]
fn a_filter_of_one_process() {
    let mut workload = Workload::start(&program("speaker"));
    let m = attached(&mut workload, &["--follow-forks"]);
    workload.lines.tell("hold 100");
    let pid = workload.pid();
    let of = |pid: u32| {
        m.get(&format!(
            "/v2/functions?kind=inuse_space&filter=live&pid={pid}"
        ))
    };
    workload.lines.tell("fork");
    wait_until(|| {
        m.get("/v2/processes").json()["rows"]
            .as_array()
            .unwrap()
            .len()
            == 2
    });
    workload.lines.tell("hold 7");
    let reply = of(pid.0);
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(reply.json()["total"], 100_000);
    let reply = of(1);
    assert_eq!(reply.status, 404, "{}", reply.text());
}

#[test]
fn a_child_has_a_copy_of_the_samples() {
    let mut workload = Workload::start(&program("speaker"));
    let m = attached(&mut workload, &["--follow-forks"]);
    workload.lines.tell("hold 100");
    workload.lines.tell("fork");
    let pid = workload.pid();
    let mut child = None;
    let of = |pid: Pid, kind: &str| {
        let reply = m.get(&format!("/v2/summary?pid={pid}"));
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply.json()["total"][kind].as_u64().unwrap_or(0)
    };
    wait_until(|| {
        let processes = m.get("/v2/processes").json();
        let rows = processes["rows"].as_array().unwrap().clone();
        let mut pids = rows.iter().filter_map(|row| row["pid"].as_u64());
        child = pids
            .find(|other| *other != u64::from(pid.0))
            .map(|pid| Pid(pid as u32));
        child.is_some()
    });
    let child = child.unwrap();
    // (The child has its parent's semaphores, but memprof still has to listen to it.)
    wait_until(|| {
        workload.lines.tell("hold 1");
        workload.lines.tell("release 1");
        of(child, "alloc_space") > 0
    });
    let before = of(child, "alloc_space");
    assert_eq!(of(child, "inuse_space"), 100_000);
    workload.lines.tell("release 40");
    workload.lines.tell("hold 7");
    assert_eq!(of(pid, "inuse_space"), 100_000);
    assert_eq!(of(child, "inuse_space"), 67_000);
    assert_eq!(of(child, "alloc_space"), before + 7_000);
    assert_eq!(total(&m, "alloc_space"), before + 107_000);
}

#[test]
fn two_memprofs_listen_at_once_and_neither_takes_from_the_other() {
    let mut workload = Workload::start(&program("speaker"));
    let first = attached(&mut workload, &[]);
    let second = Memprof::attach(workload.pid(), &["--heap"]);
    // (The semaphore counts probes, not listeners.)
    wait_until(|| {
        workload.lines.tell("hold 1");
        total(&second, "inuse_space") > 0
    });
    let both = |m: [&Memprof; 2]| m.map(|m| total(m, "inuse_space"));
    let before = both([&first, &second]);
    workload.lines.tell("hold 5");
    assert_eq!(both([&first, &second]), before.map(|n| n + 5_000));
    first.interrupt();
    assert_eq!(listeners(&mut workload), LISTENED);
    workload.lines.tell("hold 5");
    assert_eq!(total(&second, "inuse_space"), before[1] + 10_000);
}

/// Rows of `/v2/allocations` have the workload's own figures, and say the same as the kinds do.
#[test]
fn allocations_in_groups() {
    let mut workload = Workload::start(&program("speaker"));
    let m = attached(&mut workload, &["--heap-temporary", "3600000"]);
    for command in ["hold 100", "large 3", "release 30", "churn 50"] {
        workload.lines.tell(command);
    }
    let get = |query: &str| {
        let reply = m.get(&format!("/v2/allocations?{query}"));
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply.json()
    };
    let functions = get("sort=objects");
    let total = &functions["total"];
    let large = 3 << 20;
    assert_eq!(total["alloc_space"], 100_000 + 50 * 6_400 + large);
    assert_eq!(total["inuse_space"], 70_000 + large);
    assert_eq!(total["temporary_space"], 30_000 + 50 * 6_400);
    let row = |of: &Value, key: &str, name: &str| -> Value {
        let mut rows = of["rows"].as_array().unwrap().iter();
        let found = rows.find(|row| row[key] == name);
        found.unwrap_or_else(|| panic!("no {name} in {of}")).clone()
    };
    let held = row(&functions, "function", "hold_one");
    assert_eq!(held["alloc_objects"], 1_000);
    assert_eq!(
        (&held["average_size"], &held["average_size_error"]),
        (&100.0.into(), &0.0.into())
    );
    let error = (100f64 * 1e6 * 0.9).sqrt().round() as u64;
    assert_eq!(held["alloc_space_error"], error);
    assert!(held["average_lifetime"].as_f64() > Some(0.0));
    assert!(held["average_age"].as_f64() > Some(0.0));
    assert_eq!(
        row(&functions, "function", "large_one")["average_lifetime"],
        Value::Null
    );
    // The parts add up to the whole, and at the end lives what lives.
    let sum = |row: &Value| -> u64 {
        let parts = row["allocated"].as_array().unwrap().iter();
        parts.map(|part| part.as_u64().unwrap()).sum()
    };
    assert_eq!(sum(&held), 100_000);
    assert_eq!(held["live"].as_array().unwrap().last().unwrap(), 70_000);
    assert_eq!(get("parts=5")["total"]["live"].as_array().unwrap().len(), 5);
    let metrics = m.get("/metrics").text().to_owned();
    let error = functions["total"]["inuse_space_error"].as_u64().unwrap();
    let wanted = format!("memprof_standard_error{{kind=\"inuse_space\"}} {error}");
    assert!(metrics.contains(&wanted), "no {wanted}:\n{metrics}");
    // Every grouping but that by function has each allocation once.
    for by in ["stack", "thread", "size", "lifetime"] {
        let groups = get(&format!("by={by}"));
        let rows = groups["rows"].as_array().unwrap().iter();
        let all: u64 = rows.map(|row| row["alloc_space"].as_u64().unwrap()).sum();
        assert_eq!(all, total["alloc_space"].as_u64().unwrap(), "{by}");
    }
    let by_size = get("by=size&sort=key");
    let sizes: Vec<_> = by_size["rows"].as_array().unwrap().iter().collect();
    let sizes: Vec<_> = sizes
        .iter()
        .map(|row| row["size_from"].as_u64().unwrap())
        .collect();
    assert_eq!(sizes, [64, 1 << 20]);
    let pid = workload.pid();
    assert_eq!(get("by=thread")["rows"][0]["thread"], pid.0);
    let stacks = get("by=stack&sort=live&limit=1");
    let first = stacks["rows"][0]["frames"][0].as_str().unwrap();
    assert!(first.starts_with("large_one (speaker.c:"), "{first}");
    let chosen = get("filter=size%20%3E%201000");
    assert_eq!(chosen["total"]["alloc_objects"], 3);
    assert_eq!(get(&format!("pid={pid}"))["total"]["samples"], 153);
    for (query, status, why) in [
        ("by=size&sort=colour", 400, "sort"),
        ("filter=siz", 400, "unknown name siz"),
        ("limit=501", 400, "limit"),
        ("pid=1", 404, "1"),
    ] {
        let reply = m.get(&format!("/v2/allocations?{query}"));
        assert_eq!(reply.status, status, "{query}");
        assert!(reply.text().contains(why), "{query}: {}", reply.text());
    }
}
