//! Snapshots of a copy-on-write child: they say the same, and the process notices nothing, however memprof ends.

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use crate::common::binary::{MEMPROF, memprof};
use crate::common::effort;
use crate::common::memprof::Memprof;
use crate::common::process::{LIMIT, cont, eventually, signal, state, stop, threads};
use crate::common::random::Random;
use crate::common::sentinel::{sentinel, unharmed};
use crate::common::workload::{Workload, program};
use memprof_heap::Mallinfo;
use memprof_sys::ids::Pid;

/// The number of times that memprof is killed.
fn kills() -> u32 {
    effort::rounds(15)
}

/// The children of a process, also those that it knows nothing of.
pub fn children(pid: Pid) -> Vec<Pid> {
    let tasks = threads(pid).into_iter();
    let lists = tasks.map(|tid| {
        std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/children")).unwrap_or_default()
    });
    let lists: String = lists.collect();
    let pids = lists
        .split_whitespace()
        .map(|pid| Pid(pid.parse().unwrap()));
    pids.collect()
}

/// What of a process a snapshot could leave behind: its descriptors, and its mappings.
fn left(pid: Pid) -> (usize, Vec<String>) {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .count();
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    // Arenas grow meanwhile.
    let named = maps.lines().filter(|line| line.contains(['/', '[']));
    (files, named.map(str::to_owned).collect())
}

pub fn heap(pid: Pid, more: &[&str]) -> Value {
    let pid = pid.to_string();
    let ended = memprof(&[&["heap", "--pid", &pid, "--format", "json"], more].concat());
    assert!(ended.status.success(), "{ended:?}");
    serde_json::from_str(&ended.stdout).unwrap()
}

#[test]
fn a_child_has_the_same_heap() {
    has_the_same_heap(Workload::start_with(&program("heap"), &["4", "21"]));
}

/// The program `heap` and its child.
pub fn has_the_same_heap(mut workload: Workload) {
    #[derive(Deserialize)]
    struct Said {
        mallinfo2: Mallinfo,
    }
    for line in ["m", "f", "mx", "tm"] {
        workload.lines.send(line);
        let said: Said = serde_json::from_str(&workload.lines.line()).unwrap();
        let heap = heap(workload.pid(), &["--snapshot", "fork"]);
        assert_eq!(heap["taken"]["approach"], "fork");
        let read: Mallinfo = serde_json::from_value(heap["allocator"]["mallinfo2"].clone())
            .unwrap_or_else(|e| panic!("{e}: {}", heap["allocator"]));
        assert_eq!(read, said.mallinfo2);
        let sum = |rows: &str| -> u64 {
            let rows = heap[rows].as_array().unwrap().iter();
            rows.map(|row| row["resident"].as_u64().unwrap()).sum()
        };
        assert_eq!(
            sum("rows") + sum("others"),
            heap["anonymous"].as_u64().unwrap()
        );
        assert_eq!(heap["kernel"][0], heap["anonymous"]);
        assert_eq!(children(workload.pid()), []);
    }
    workload.end();
}

#[test]
fn the_process_notices_nothing() {
    notices_nothing(sentinel(40));
}

pub fn notices_nothing(mut workload: Workload) {
    let pid = workload.pid();
    unharmed(&mut workload);
    let before = left(pid);
    let mut refused = 0;
    for _ in 0..super::busy_targets::snapshots() {
        let heap = heap(pid, &[]);
        assert_eq!(heap["taken"]["approach"], "fork", "{}", heap["taken"]);
        refused += u32::from(heap["allocator"]["name"] == "refused");
        assert_eq!(children(pid), []);
    }
    let said = unharmed(&mut workload);
    println!("{refused} refused; {said:?}");
    assert_eq!(said.early, 0, "{said:?}");
    assert_eq!(left(pid), before);
    // A stopped process stays stopped.
    stop(pid);
    heap(pid, &["--snapshot", "fork"]);
    assert!(threads(pid).into_iter().all(|tid| state(tid) == 'T'));
    cont(pid);
    unharmed(&mut workload);
}

fn start(pid: Pid) -> Child {
    let mut memprof = Command::new(MEMPROF);
    memprof.args(["heap", "--snapshot", "fork", "--pid", &pid.to_string()]);
    memprof.env(OF, pid.to_string());
    memprof.stdout(Stdio::null()).stderr(Stdio::null());
    memprof.spawn().unwrap()
}

/// At any moment: the guard cleans up.
#[test]
fn killing_memprof_harms_nobody() {
    let mut workload = sentinel(40);
    let pid = workload.pid();
    let mut random = Random(31);
    let mut caught = 0;
    for _ in 0..kills() {
        let mut memprof = start(pid);
        sleep(Duration::from_micros(random.below(120_000)));
        caught += u32::from(!children(pid).is_empty());
        memprof.kill().unwrap();
        memprof.wait().unwrap();
        eventually(LIMIT, "no child is left", || {
            children(pid).is_empty() && guards(pid).is_empty()
        });
    }
    let said = unharmed(&mut workload);
    println!(
        "{caught} of {} killed while there was a child; {said:?}",
        kills()
    );
    assert_eq!(said.early, 0, "{said:?}");
}

/// Whoever runs the process: what says so is a file of that user's.
#[test]
fn the_child_goes_first_if_memory_runs_out() {
    let mut command = Command::new(program("sentinel"));
    let mut workload = Workload::start_as(command.arg("200").uid(65534).gid(65534));
    let pid = workload.pid();
    unharmed(&mut workload);
    eventually(LIMIT, "a child says so", || {
        let mut memprof = start(pid);
        let mut seen = false;
        while memprof.try_wait().unwrap().is_none() {
            let says = |child: &Pid| {
                let file = format!("/proc/{child}/oom_score_adj");
                std::fs::read_to_string(file).is_ok_and(|score| score == "1000\n")
            };
            seen |= children(pid).iter().any(says);
        }
        seen
    });
    unharmed(&mut workload);
}

/// Marks the guards of a process.
const OF: &str = "MEMPROF_TEST_OF";

/// The guards of a process.
fn guards(pid: Pid) -> Vec<Pid> {
    let wanted = format!("{OF}={pid}\0");
    let all = std::fs::read_dir("/proc").unwrap();
    let pids = all.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    let has = |pid: &u32| {
        let has = |file: &str, what: &str| {
            let text = std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
            String::from_utf8_lossy(&text).contains(what)
        };
        has("cmdline", "\0fork-guard\0") && has("environ", &wanted)
    };
    pids.filter(has).map(Pid).collect()
}

/// The guard as well: threads find their way back, and no child runs. A thread's timed wait may end early, and what remains
/// of the child is its entry in the list of processes.
#[test]
fn killing_the_guard_as_well_harms_nobody() {
    killing_the_guard_harms_nobody(sentinel(300));
}

pub fn killing_the_guard_harms_nobody(mut workload: Workload) {
    let pid = workload.pid();
    let mut random = Random(32);
    // Those of earlier rounds that nobody reaps.
    let (mut caught, mut before) = (0, 0);
    for n in 0..kills() {
        let mut memprof = start(pid);
        eventually(LIMIT, "there is a guard", || {
            !guards(pid).is_empty() || memprof.try_wait().unwrap().is_some()
        });
        // At any moment, or as soon as there is a child: the process is still about to make it then.
        if n % 2 == 0 {
            sleep(Duration::from_micros(random.below(25_000)));
        } else {
            eventually(LIMIT, "there is a child", || !alive(pid).is_empty());
        }
        // Each has a process that it would replace.
        while let all = guards(pid)
            && !all.is_empty()
        {
            for guard in all {
                signal(guard, libc::SIGKILL);
            }
        }
        memprof.kill().unwrap();
        memprof.wait().unwrap();
        let remains = children(pid);
        caught += u32::from(remains.len() > before);
        before = remains.len();
        eventually(LIMIT, "no child is alive", || {
            remains
                .iter()
                .all(|child| matches!(state(*child), 'Z' | 'X'))
        });
        unharmed(&mut workload);
    }
    println!("{caught} of {} killed while there was a child", kills());
    assert!(caught >= kills() / 2, "{caught}");
}

/// Those of a process's children that have not ended.
fn alive(pid: Pid) -> Vec<Pid> {
    let mut children = children(pid);
    children.retain(|child| !matches!(state(*child), 'Z' | 'X'));
    children
}

/// It is not copied in that time either.
#[test]
fn a_process_that_may_take_too_long_is_not_forked() {
    let mut workload = sentinel(100);
    unharmed(&mut workload);
    let pid = workload.pid().to_string();
    let ended = memprof(&["heap", "--pid", &pid, "--max-stop", "1"]);
    ended.must(
        1,
        &["it was not forked: that may stop it for", "--max-stop"],
    );
    let taken = &heap(
        workload.pid(),
        &["--snapshot", "fork", "--max-stop", "1000"],
    )["taken"];
    assert_eq!(taken["approach"], "fork", "{taken}");
    unharmed(&mut workload);
}

/// The guard of a session, which is there from its start, does the same.
#[test]
fn killing_a_session_harms_nobody() {
    let mut workload = sentinel(40);
    let pid = workload.pid();
    let mut random = Random(33);
    let mut caught = 0;
    for _ in 0..kills().div_ceil(3) {
        let mut session = Command::new(MEMPROF);
        session.args(["--follow-forks", "--pid", &pid.to_string()]);
        session.args(["--listen", "127.0.0.1:0"]);
        session.env(OF, pid.to_string());
        let mut m = Memprof::spawn_as(&mut session);
        m.said("following ");
        let guards_of_it = guards(pid);
        // For reports, and for heap snapshots.
        assert_eq!(guards_of_it.len(), 2);
        guards_of_it.into_iter().for_each(limited);
        let taken = m.send("POST", "/v2/heap", r#"{"max_stop": 10000}"#).json();
        let taken = m.get(&format!("/v2/heap/{}", taken["id"].as_str().unwrap()));
        let taken = &taken.json()["heap"]["taken"];
        assert_eq!(taken["approach"], "fork", "{taken}");
        assert_eq!(children(pid), []);
        let rows = m.get("/v2/processes").json()["rows"].clone();
        assert_eq!(rows.as_array().unwrap().len(), 1, "{rows}");
        let address = m.address();
        std::thread::scope(|scope| {
            scope.spawn(|| post_heap(address));
            sleep(Duration::from_micros(random.below(60_000)));
            caught += u32::from(!children(pid).is_empty());
            m.signal(libc::SIGKILL);
        });
        m.wait();
        eventually(LIMIT, "no child is left", || {
            children(pid).is_empty() && guards(pid).is_empty()
        });
    }
    let said = unharmed(&mut workload);
    println!("{caught} killed while there was a child; {said:?}");
    assert_eq!(said.early, 0, "{said:?}");
}

/// It has the privileges that it needs alone: to trace others, and to see their filters. (It gives up the others once it has its
/// name.)
fn limited(guard: Pid) {
    // CAP_DAC_READ_SEARCH, CAP_KILL, CAP_SYS_PTRACE, CAP_SYS_ADMIN, CAP_CHECKPOINT_RESTORE
    let effective = [2, 5, 19, 21, 40].map(|bit| 1 << bit).iter().sum::<u64>();
    // CAP_DAC_OVERRIDE is for one file of each child.
    let permitted = effective | 1 << 1;
    eventually(LIMIT, "it has given up what it does not need", || {
        let status = std::fs::read_to_string(format!("/proc/{guard}/status")).unwrap();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_else(|| panic!("{name} {status}"))
                .trim()
                .to_owned()
        };
        let only = |name: &str, allowed: u64| {
            u64::from_str_radix(&field(name), 16).unwrap() & !allowed == 0
        };
        only("CapEff:", effective)
            && only("CapPrm:", permitted)
            && only("CapBnd:", 0)
            && field("NoNewPrivs:") == "1"
    });
}

/// Asks for a snapshot; there may be no answer.
fn post_heap(address: std::net::SocketAddr) {
    let request = format!("POST /v2/heap HTTP/1.1\r\nHost: {address}\r\nContent-Length: 0\r\n\r\n");
    if let Ok(mut connection) = std::net::TcpStream::connect(address) {
        let _ = connection.write_all(request.as_bytes());
        let _ = connection.read(&mut [0; 64]);
    }
}
