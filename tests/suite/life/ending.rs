//! How memprof itself ends.

use std::collections::BTreeSet;
use std::io::Read;
use std::net::TcpStream;
use std::process::Stdio;

use crate::common::connect;
use crate::common::memprof::Memprof;
use crate::common::process::wait_until;
use crate::common::workload::{Workload, program};
use crate::life::MIB;
use memprof_sys::ids::Pid;

/// The ids of the BPF programs to which a process has descriptors.
fn programs_of(pid: Pid) -> BTreeSet<u32> {
    let mut ids = BTreeSet::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fdinfo")).unwrap() {
        let Ok(info) = std::fs::read_to_string(entry.unwrap().path()) else {
            continue;
        };
        let id = info.lines().find_map(|l| l.strip_prefix("prog_id:"));
        ids.extend(id.map(|id| id.trim().parse::<u32>().unwrap()));
    }
    ids
}

/// Those of these programs that are loaded.
fn loaded(ids: &BTreeSet<u32>) -> BTreeSet<u32> {
    let all = libbpf_rs::query::ProgInfoIter::default().map(|p| p.id);
    all.filter(|id| ids.contains(id)).collect()
}

#[test]
fn by_a_signal() {
    for kill in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT] {
        let mut workload = Workload::start(&program("scenarios"));
        let mut m = Memprof::attach(workload.pid(), &[]);
        workload.lines.tell("mmap 8388608");
        let programs = programs_of(m.pid());
        assert_eq!(loaded(&programs), programs);
        assert!(programs.len() > 10, "{programs:?}");
        // A client that keeps its connection open must not delay the end.
        let address = m.address();
        let idle = connect(address);
        let mut out = m.child.stdout.take().unwrap();
        m.signal(kill);
        assert_eq!(m.wait().code(), Some(0));
        let mut summary = String::new();
        out.read_to_string(&mut summary).unwrap();
        assert!(summary.contains("; equal"), "{summary}");
        assert!(summary.contains("cmd_mmap"), "{summary}");
        assert!(summary.contains("Losses: none"), "{summary}");
        assert!(TcpStream::connect(address).is_err());
        drop(idle);
        wait_until(|| loaded(&programs).is_empty());
        workload.lines.tell("mmap 4096");
        workload.end();
    }
}

#[test]
fn by_kill_9() {
    let mut workload = Workload::start(&program("scenarios"));
    workload.lines.tell("threads 50");
    let pid = workload.pid().to_string();
    let mut m = Memprof::start(&["--pid", &pid]);
    workload.lines.tell("mmap 8388608");
    let programs = programs_of(m.pid());
    m.signal(libc::SIGKILL);
    m.wait();
    wait_until(|| loaded(&programs).is_empty());
    workload.lines.tell("mmap 8388608");
    workload.lines.tell("threads_end");
    // memprof can be started again.
    let m = Memprof::start(&["--pid", &pid]);
    workload.lines.tell("mmap 4194304");
    m.tree().must_hold(&["cmd_mmap"], 4 * MIB);
    workload.end();
}

/// The command that memprof started and traces continues.
#[test]
fn by_kill_9_with_a_command() {
    let program = program("scenarios");
    let (mut m, mut lines) = Memprof::start_command(&[], &[program.to_str().unwrap()]);
    lines.tell("mmap 8388608");
    let programs = programs_of(m.pid());
    let target = m.followed();
    m.signal(libc::SIGKILL);
    m.wait();
    wait_until(|| loaded(&programs).is_empty());
    lines.tell("mmap 8388608");
    lines.tell("exec");
    lines.close();
    wait_until(|| !std::path::Path::new(&format!("/proc/{target}")).exists());
}

#[test]
fn with_its_target_where_there_is_no_server() {
    let workload = Workload::start(&program("scenarios"));
    let pid = workload.pid().to_string();
    let mut m = Memprof::spawn(
        &["--pid", &pid, "--no-server"],
        Stdio::null(),
        Stdio::piped(),
    );
    m.said("following ");
    assert_eq!(listening(m.pid()), 0);
    workload.end();
    assert_eq!(m.wait().code(), Some(0));
    let mut summary = String::new();
    let mut out = m.child.stdout.take().unwrap();
    out.read_to_string(&mut summary).unwrap();
    assert!(summary.contains(", ended)"), "{summary}");
}

/// The number of TCP sockets that a process listens on.
fn listening(pid: Pid) -> usize {
    let inodes: Vec<String> = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .filter_map(|e| std::fs::read_link(e.ok()?.path()).ok())
        .filter_map(|l| {
            let name = l.to_string_lossy().into_owned();
            Some(name.strip_prefix("socket:[")?.strip_suffix("]")?.to_owned())
        })
        .collect();
    let table = |kind| std::fs::read_to_string(format!("/proc/{pid}/net/{kind}"));
    let sockets = table("tcp").unwrap() + &table("tcp6").unwrap_or_default();
    sockets
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|f| f.get(3) == Some(&"0A") && inodes.iter().any(|i| f.get(9) == Some(&i.as_str())))
        .count()
}

#[test]
fn listening_is_seen() {
    let workload = Workload::start(&program("scenarios"));
    let m = Memprof::attach(workload.pid(), &[]);
    assert_eq!(listening(m.pid()), 1);
}
