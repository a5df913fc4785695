//! Heap snapshots over HTTP: of a real process, against the OpenAPI document and the allocator's own figures.

use std::process::Command;

use serde_json::Value;

use crate::common::document::check;
use crate::common::memprof::Memprof;
use crate::common::process::{cont, eventually, stop, wait_until};
use crate::common::workload::{Workload, program};
use memprof_sys::ids::Pid;

const HEAP: &str = "/v2/heap";

fn document(m: &Memprof) -> Value {
    m.get("/openapi/memprof-v2.json").json()
}

/// Takes a snapshot that may take long, as the machine may be busy.
#[track_caller]
fn take(m: &Memprof, name: &str) -> Value {
    let body = format!(r#"{{"name": "{name}", "max_stop": 10000, "top": 5}}"#);
    let reply = m.send("POST", HEAP, &body);
    assert_eq!(reply.status, 201, "{}", reply.text());
    reply.json()
}

fn id(info: &Value) -> &str {
    info["id"].as_str().unwrap()
}

/// The figure of a row of a table, before and after.
fn figures(diff: &Value, table: &str, key: &str, column: &str) -> [i64; 2] {
    let tables = diff["tables"].as_array().unwrap();
    let table = tables.iter().find(|t| t["name"] == table).unwrap();
    let columns = table["columns"].as_array().unwrap();
    let at = columns.iter().position(|c| c == column).unwrap();
    let rows = table["rows"].as_array().unwrap();
    let row = rows.iter().find(|row| row["key"][0] == key).unwrap();
    ["from", "to"].map(|side| row[side][at].as_i64().unwrap())
}

#[test]
fn snapshots_are_taken_listed_compared_and_removed() {
    let mut workload = Workload::start_with(&program("heap"), &["2", "21"]);
    workload.lines.send("m");
    let said: Value = serde_json::from_str(&workload.lines.line()).unwrap();
    let m = Memprof::attach(workload.pid(), &[]);
    m.said("following ");
    let document = document(&m);
    let first = take(&m, "before");
    check(&document, HEAP, "post", 201, &first);
    assert_eq!(
        (&first["name"], &first["allocator"]),
        (&Value::from("before"), &Value::from("glibc"))
    );
    let whole = m.get(&format!("{HEAP}/{}", id(&first)));
    assert_eq!(whole.status, 200, "{}", whole.text());
    let whole = whole.json();
    check(&document, "/v2/heap/{id}", "get", 200, &whole);
    assert_eq!(whole["snapshot"], first);
    assert_eq!(
        whole["heap"]["allocator"]["mallinfo2"], said["mallinfo2"],
        "{whole}"
    );
    assert!(whole["heap"]["largest"].as_array().unwrap().len() <= 5);
    // It frees every other block.
    workload.lines.send("f");
    workload.lines.line();
    let second = take(&m, "after");
    let list = m.get(HEAP).json();
    check(&document, HEAP, "get", 200, &list);
    assert_eq!(
        list["snapshots"],
        Value::from(vec![first.clone(), second.clone()])
    );
    let path = format!("/v2/heap/diff?from={}&to={}", id(&first), id(&second));
    let diff = m.get(&path);
    assert_eq!(diff.status, 200, "{}", diff.text());
    let diff = diff.json();
    check(&document, "/v2/heap/diff", "get", 200, &diff);
    let [before, after] = figures(&diff, "rows", "live", "resident");
    let resident = |info: &Value| info["live"].as_i64().unwrap();
    assert!(after < before && before <= resident(&first), "{diff}");
    assert_eq!((&diff["from"], &diff["to"]), (&first, &second));
    assert_eq!(diff["occupancy"][0], whole["heap"]["occupancy"], "{diff}");
    let path = format!("{HEAP}/{}", id(&first));
    assert_eq!(m.send("DELETE", &path, "").status, 204);
    assert_eq!(m.send("DELETE", &path, "").status, 404);
    assert_eq!(m.get(&path).status, 404);
    workload.end();
}

#[test]
fn sums_are_the_kernels_while_the_target_stands_still() {
    let mut workload = Workload::start_with(&program("heap"), &["1", "22"]);
    workload.lines.send("mf");
    workload.lines.line();
    let pid = workload.pid();
    let m = Memprof::attach(pid, &[]);
    m.said("following ");
    stop(pid);
    let info = take(&m, "");
    assert_eq!(info["name"], Value::Null);
    let heap = &m.get(&format!("{HEAP}/{}", id(&info))).json()["heap"];
    let sum = |table: &str| -> u64 {
        let rows = heap[table].as_array().unwrap().iter();
        rows.map(|row| row["resident"].as_u64().unwrap()).sum()
    };
    assert_eq!(heap["anonymous"], sum("rows") + sum("others"));
    assert_eq!(
        heap["kernel"],
        Value::from(vec![heap["anonymous"].clone(); 2])
    );
    let of = |name: &str| info[name].as_u64().unwrap();
    assert_eq!(sum("rows"), of("live") + of("free") + of("overhead"));
    cont(pid);
    workload.end();
}

/// Half of the heap is from before the attach.
#[test]
fn who_made_the_heap_grow_adds_up_to_its_resident_bytes() {
    let mut workload = Workload::start_with(&program("heap"), &["1", "26"]);
    workload.lines.send("mm");
    workload.lines.line();
    let pid = workload.pid();
    let m = Memprof::attach(pid, &[]);
    m.said("following ");
    workload.lines.send("mm");
    workload.lines.line();
    stop(pid);
    let body = r#"{"max_stop": 10000, "top": 1000}"#;
    let info = m.send("POST", HEAP, body);
    assert_eq!(info.status, 201, "{}", info.text());
    let info = info.json();
    let whole = m.get(&format!("{HEAP}/{}", id(&info))).json();
    check(&document(&m), "/v2/heap/{id}", "get", 200, &whole);
    let grown = &whole["grown_by"];
    assert_eq!(grown["error"], Value::Null, "{grown}");
    let rows = grown["rows"].as_array().unwrap();
    let of = |stack: &dyn Fn(&str) -> bool| -> u64 {
        let rows = rows
            .iter()
            .filter(|row| stack(row["stack"].as_str().unwrap()));
        rows.map(|row| row["bytes"].as_u64().unwrap()).sum()
    };
    let heap = whole["heap"]["rows"].as_array().unwrap().iter();
    let resident: u64 = heap.map(|row| row["resident"].as_u64().unwrap()).sum();
    let figure = |name: &str| grown[name].as_u64().unwrap();
    assert_eq!(figure("resident"), resident, "{grown}");
    let listed = of(&|_| true);
    assert_eq!(
        listed + figure("left_out_bytes") + figure("shared"),
        resident,
        "{grown}"
    );
    let before = of(&|stack| stack.starts_with("[before attach"));
    let by_the_program = of(&|stack| stack.contains("work;mix;"));
    assert!(before > 0 && by_the_program > 0, "{grown}");
    // Nearly all of it is one or the other.
    assert!(before + by_the_program > resident / 10 * 9, "{grown}");
    cont(pid);
    // In a difference, stacks are told apart, too.
    let path = format!("/v2/heap/diff?from={0}&to={0}", id(&info));
    let diff = m.get(&path).json();
    let tables = diff["tables"].as_array().unwrap();
    let table = tables
        .iter()
        .find(|t| t["name"] == "grown_by.rows")
        .unwrap();
    assert_eq!(table["keys"], Value::from(vec!["stack"]));
    workload.end();
}

#[test]
fn there_is_room_for_some_and_the_target_is_stopped_for_no_more() {
    let workload = Workload::start_with(&program("heap"), &["1", "23"]);
    let m = Memprof::attach(workload.pid(), &[]);
    m.said("following ");
    let limit = m.get(HEAP).json()["limit"].as_u64().unwrap();
    let ids: Vec<String> = (0..limit).map(|_| id(&take(&m, "x")).to_owned()).collect();
    let reply = m.send("POST", HEAP, "");
    assert_eq!(reply.status, 409, "{}", reply.text());
    assert!(reply.text().contains("DELETE /v2/heap/ID"));
    let path = format!("{HEAP}/{}", ids[3]);
    assert_eq!(m.send("DELETE", &path, "").status, 204);
    let new = take(&m, "y");
    assert!(!ids.contains(&id(&new).to_owned()), "an id was reused");
    workload.end();
}

#[test]
fn what_is_wrong_with_a_request_is_said() {
    let workload = Workload::start_with(&program("heap"), &["1", "24"]);
    let m = Memprof::attach(workload.pid(), &[]);
    m.said("following ");
    for (body, said) in [
        ("{", "the body must be JSON"),
        (r#"{"nam": "x"}"#, "unknown field"),
        (r#"{"max_stop": 0}"#, "max_stop"),
        (r#"{"max_stop": 10001}"#, "from 1 to 10000"),
        (r#"{"top": 1001}"#, "from 1 to 1000"),
    ] {
        let reply = m.send("POST", HEAP, body);
        assert_eq!(reply.status, 400, "{body}: {}", reply.text());
        assert!(reply.text().contains(said), "{body}: {}", reply.text());
    }
    let other = m.send("POST", HEAP, r#"{"pid": 1}"#);
    assert_eq!(other.status, 404, "{}", other.text());
    assert!(other.text().contains("does not follow a process 1"));
    let pid = workload.pid();
    workload.end();
    wait_until(|| m.send("POST", HEAP, "").text().contains("has ended"));
    let gone = m.send("POST", HEAP, &format!(r#"{{"pid": {pid}}}"#));
    assert_eq!(gone.status, 503, "{}", gone.text());
    assert_eq!(m.get(HEAP).json()["snapshots"], Value::Array(Vec::new()));
}

#[test]
fn where_several_are_followed_one_is_chosen() {
    let args = ["--follow-forks", "--listen", "127.0.0.1:0"];
    let script = "sleep 600 & sleep 600 & wait";
    let mut m = Memprof::spawn_as(
        Command::new(crate::common::memprof::BINARY)
            .args(args)
            .args(["--", "sh", "-c", script])
            .stdin(std::process::Stdio::null()),
    );
    let mut pids = Vec::new();
    eventually(crate::common::process::LIMIT, "both children run", || {
        let rows = m.get("/v2/processes").json()["rows"].clone();
        let sleeping = rows.as_array().into_iter().flatten();
        let sleeping = sleeping.filter(|row| row["comm"] == "sleep");
        pids = sleeping.map(|row| row["pid"].as_u64().unwrap()).collect();
        pids.len() == 2
    });
    let reply = m.send("POST", HEAP, "");
    assert_eq!(reply.status, 400, "{}", reply.text());
    assert!(
        reply.text().contains(&pids[0].to_string()),
        "{}",
        reply.text()
    );
    for pid in &pids {
        let body = format!(r#"{{"pid": {pid}, "max_stop": 10000}}"#);
        let reply = m.send("POST", HEAP, &body);
        assert_eq!(reply.status, 201, "{}", reply.text());
        assert_eq!(reply.json()["pid"], *pid);
    }
    let children = pids.into_iter().map(|pid| Pid(pid as u32));
    children.for_each(|pid| crate::common::process::signal(pid, libc::SIGTERM));
    m.wait();
}

/// An exact report and a heap snapshot of one process at the same time: one waits for the other, or says why it cannot.
#[test]
fn exact_reports_and_snapshots_do_not_release_each_other() {
    let mut workload = Workload::start_with(&program("heap"), &["2", "25"]);
    workload.lines.send("r");
    let m = Memprof::attach(workload.pid(), &["--max-freeze", "2000"]);
    m.said("following ");
    let (mut exact, mut snapshots) = (0, 0);
    std::thread::scope(|scope| {
        let marks = scope.spawn(|| {
            let tries = (0..8).map(|_| {
                let reply = m.send("POST", "/v2/marks", r#"{"freeze": true}"#);
                assert!([201, 503].contains(&reply.status), "{}", reply.text());
                let told = reply.status == 503 || reply.json()["exact"] == true;
                assert!(told, "{}", reply.text());
                u32::from(reply.status == 201)
            });
            tries.sum::<u32>()
        });
        for _ in 0..8 {
            let reply = m.send("POST", HEAP, r#"{"max_stop": 10000}"#);
            assert!([201, 503].contains(&reply.status), "{}", reply.text());
            snapshots += u32::from(reply.status == 201);
        }
        exact = marks.join().unwrap();
    });
    println!("{exact} of 8 exact reports, {snapshots} of 8 snapshots");
    assert!(exact > 0 && snapshots > 0);
}
