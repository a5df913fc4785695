//! Targets that start, end, and start again.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::common::memprof::{BINARY, Memprof, run_to_error};
use crate::common::process::{comm, signal, state, stop, wait_until};
use crate::common::tree::Node;
use crate::common::workload::{Running, Workload, named, program, unique_name};
use crate::life::{KIB, MIB};

#[test]
fn the_last_profile_stays_and_the_next_target_is_followed() {
    let named = named("scenarios", &unique_name("s"));
    let m = Memprof::start(&["--comm", &named.name, "--wait", "600"]);
    m.said("for at most 600 s (--wait)");
    let nothing = m.tree();
    assert_eq!((nothing.value, nothing.frames.len()), (0, 0));

    let mut first = Workload::start(&named.path);
    first.lines.tell("mmap 8388608");
    m.said("following ");
    let pid = first.pid();
    assert_eq!(m.followed(), pid);
    m.tree().must_hold(&["cmd_mmap"], 8 * MIB);
    first.end();
    m.said("its last profile stays");
    assert_eq!(m.followed(), pid);
    m.tree().must_hold(&["cmd_mmap"], 8 * MIB);

    for round in 2..5 {
        let mut next = Workload::start(&named.path);
        m.said_times("following ", round);
        assert_eq!(m.followed(), next.pid());
        next.lines.tell("mmap 2097152");
        m.tree().must_hold(&["cmd_mmap"], 2 * MIB);
        if round == 3 {
            signal(next.pid(), libc::SIGKILL);
        } else {
            next.lines.close();
        }
        m.said_times("its last profile stays", round);
        assert_eq!(m.followed(), next.pid());
        m.tree().must_hold(&["cmd_mmap"], 2 * MIB);
    }
}

fn millis(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

/// There is a last profile even if no client requested one while the target ran.
#[test]
fn a_last_profile_without_being_asked() {
    let mut workload = Workload::start(&program("scenarios"));
    let pid = workload.pid().to_string();
    let m = Memprof::start(&["--pid", &pid]);
    workload.lines.tell("mmap 8388608");
    // memprof scans by itself about once a second, less often if a scan takes long. Health requests do not cause
    // a scan.
    let told = millis(SystemTime::now());
    wait_until(|| {
        let scan = m.get("/v2/health").json()["scan"].clone();
        let of = |key: &str| scan[key].as_u64();
        // The duration is rounded down.
        of("taken") > of("duration_ms").map(|took| told + took + 1)
    });
    workload.end();
    m.said("its last profile stays");
    m.tree().must_hold(&["cmd_mmap"], 8 * MIB);
}

#[test]
fn no_such_process() {
    // A reaped process, a zombie, and a kernel thread.
    let mut gone = Command::new("true").spawn().unwrap();
    gone.wait().unwrap();
    let zombie = Running(Command::new("true").spawn().unwrap());
    wait_until(|| state(zombie.pid()) == 'Z');
    let kernel_thread = memprof_sys::ids::Pid(2);
    assert_eq!(
        comm(kernel_thread),
        "kthreadd",
        "run this test outside a container"
    );
    for (pid, what) in [
        (gone.id(), "no such process"),
        (zombie.0.id(), "a zombie"),
        (kernel_thread.0, "is a kernel thread"),
        (i32::MAX as u32, "no such process"),
    ] {
        let said = run_to_error(&["--pid", &pid.to_string(), "--listen", "127.0.0.1:0"]);
        let failed = format!("cannot profile process {pid}: ");
        assert!(said.contains(&failed) && said.contains(what), "{said}");
        assert!(!said.contains("panicked"), "{said}");
    }
}

/// The target ends during memprof's start: memprof reports an error or what it has, and ends.
#[test]
fn a_target_that_ends_while_it_is_attached_to() {
    let mut ends = Vec::new();
    for step in 0..16 {
        let mut target = Command::new("sleep")
            .arg(format!("0.{:03}", step * 40))
            .spawn()
            .unwrap();
        let mut m = Memprof::spawn(
            &["--pid", &target.id().to_string(), "--no-server"],
            Stdio::null(),
            Stdio::null(),
        );
        // memprof sees the end of a process, not that somebody waited for it.
        target.wait().unwrap();
        let status = m.wait();
        let said = m.all_said();
        assert!(!said.contains("panicked"), "{said}");
        match status.code() {
            Some(0) => assert!(said.contains("following "), "{said}"),
            Some(1) => {
                // It was there when memprof looked, it was a zombie, or it was gone.
                let refused = [
                    "cannot follow process",
                    "it has no memory any more",
                    "there is no such process",
                ];
                assert!(refused.iter().any(|why| said.contains(why)), "{said}");
            }
            _ => panic!("{status}: {said}"),
        }
        ends.push(status.code());
    }
    println!("{ends:?}");
}

/// Each target ends about when memprof finds it. memprof must keep waiting for the next.
#[test]
fn many_short_lives() {
    let named = named("scenarios", &unique_name("s"));
    let m = Memprof::start(&["--comm", &named.name]);
    for _ in 0..60 {
        // It ends at once, because it has no input.
        let mut target = Command::new(&named.path)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        target.wait().unwrap();
        assert_eq!(m.get("/v1/tree?threshold=0").status, 200);
    }
    let mut last = Workload::start(&named.path);
    wait_until(|| m.followed() == last.pid());
    last.lines.tell("mmap 8388608");
    m.tree().must_hold(&["cmd_mmap"], 8 * MIB);
}

#[test]
fn a_target_that_is_killed_while_it_is_scanned() {
    let named = named("scenarios", &unique_name("s"));
    let m = Memprof::start(&["--comm", &named.name]);
    for round in 1..=10 {
        let mut target = Workload::start(&named.path);
        target.lines.tell("mmap 33554432");
        target.lines.tell("threads 50");
        m.said_times("following ", round);
        wait_until(|| m.tree().at(&["cmd_mmap"]).value * KIB == 32 * MIB);
        let done = AtomicBool::new(false);
        let (asked, _) = std::thread::scope(|scope| {
            let asking = scope.spawn(|| {
                let mut asked = 0;
                while !done.load(Ordering::Relaxed) {
                    let reply = m.get("/v1/tree?threshold=0");
                    assert_eq!(reply.status, 200, "{}", reply.text());
                    let tree = Node::parse(&reply.body);
                    assert!(tree.value > 0);
                    asked += 1;
                }
                asked
            });
            let killing = scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(7 * round as u64));
                signal(target.pid(), libc::SIGKILL);
                m.said_times("its last profile stays", round);
                done.store(true, Ordering::Relaxed);
            });
            (asking.join().unwrap(), killing.join().unwrap())
        });
        println!("{asked} trees");
        // The last profile is complete: from before the target was killed.
        m.tree().must_hold(&["cmd_mmap"], 32 * MIB);
    }
}

#[test]
fn threads_from_before_and_after_the_attach() {
    let mut workload = Workload::start(&program("scenarios"));
    workload.lines.tell("threads 300");
    let pid = workload.pid();
    let m = Memprof::attach(pid, &[]);
    let old = m.tree();
    assert_eq!(old.unknown(), old.resident());
    workload.lines.tell("mmap 4194304");
    m.tree().must_hold(&["cmd_mmap"], 4 * MIB);
    workload.lines.tell("threads_end");
    workload.lines.tell("threads 120");
    stop(pid);
    let tree = m.tree();
    // glibc reuses stacks, which still contain pages from before the attach.
    let kernel = memprof_sys::residency::figures::read(pid).unwrap();
    assert_eq!(tree.resident() * KIB, kernel.resident());
    println!("{:?} KiB of {}", tree.at(&["thread_body"]), 120 * 64);
    assert!(
        tree.at(&["thread_body"]).value >= 60 * 64,
        "{}",
        tree.text()
    );
    drop(m);

    // Without earlier threads, every stack is new.
    let mut workload = Workload::start(&program("scenarios"));
    let m = Memprof::attach(workload.pid(), &[]);
    workload.lines.tell("threads 120");
    assert_eq!(m.tree().at(&["thread_body"]).value, 120 * 64);
}

/// 300 threads with a limit of 200 descriptors: memprof needs none per thread.
#[test]
fn more_threads_than_descriptors() {
    let mut workload = Workload::start(&program("scenarios"));
    workload.lines.tell("threads 300");
    let limited = format!(
        "ulimit -n 200; exec {BINARY} --pid {} --listen 127.0.0.1:0",
        workload.pid()
    );
    let m = Memprof::spawn_as(
        Command::new("sh")
            .args(["-c", &limited])
            .stdin(Stdio::null())
            .stdout(Stdio::null()),
    );
    workload.lines.tell("mmap 4194304");
    m.tree().must_hold(&["cmd_mmap"], 4 * MIB);
}
