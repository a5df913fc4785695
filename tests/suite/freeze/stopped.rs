//! A memprof that is stopped itself while it holds a process: somebody else lets that go.

use std::fs;
use std::process::Child;
use std::time::Duration;

use crate::common::cgroup::Group;
use crate::common::memprof::Memprof;
use crate::common::process::{LIMIT, eventually, runs, signal, state};
use crate::common::skip::skip;
use crate::freeze::states::Subject;
use crate::freeze::{is_held, start};
use memprof_sys::ids::Pid;

/// Number of times that memprof is stopped while it holds the process.
const TIMES: usize = 3;

/// Has a memprof hold the process, and stops that memprof by `stop`, until the process is let go and `go_on` was called.
fn let_go(
    args: &[&str],
    subject: &Subject,
    prepare: impl Fn(&Child),
    stop: impl Fn(Pid),
    go_on: impl Fn(Pid),
) {
    let pid = subject.pid();
    let text = pid.to_string();
    let args = [args, &["--pid", &text]].concat();
    let mut caught = 0;
    eventually(
        LIMIT,
        "memprof is stopped while it holds the process",
        || {
            let mut memprof = start(&args);
            prepare(&memprof);
            let own = Pid(memprof.id());
            let held = is_held(pid, &mut memprof);
            if held {
                stop(own);
                eventually(LIMIT, "the process is let go", || runs(pid));
                subject.beats_on();
                caught += 1;
            }
            go_on(own);
            crate::common::binary::wait(&mut memprof);
            caught >= TIMES
        },
    );
    subject.is_unharmed();
}

fn by_signal(args: &[&str], how: i32) {
    let subject = Subject::start("plain").unwrap();
    let stop = |memprof| signal(memprof, how);
    let_go(
        args,
        &subject,
        |_| (),
        stop,
        |memprof| {
            signal(memprof, libc::SIGCONT);
        },
    );
}

#[test]
fn a_copying_memprof_that_is_stopped_lets_go() {
    by_signal(
        &["heap", "--snapshot", "copy", "--max-stop", "10000"],
        libc::SIGSTOP,
    );
}

#[test]
fn a_forking_memprof_that_is_stopped_lets_go() {
    by_signal(
        &["heap", "--snapshot", "fork", "--max-stop", "10000"],
        libc::SIGTSTP,
    );
}

#[test]
fn a_memprof_that_freezes_for_reports_and_is_stopped_lets_go() {
    let subject = Subject::start("plain").unwrap();
    let pid = subject.pid();
    let m = Memprof::attach(pid, &["--freeze", "--max-freeze", "50"]);
    let address = m.address();
    let mut caught = 0;
    let asking = std::sync::atomic::AtomicBool::new(true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while asking.load(std::sync::atomic::Ordering::Relaxed) {
                ask(address);
            }
        });
        eventually(
            LIMIT,
            "memprof is stopped while it holds the process",
            || {
                if state(pid) == 't' {
                    m.signal(libc::SIGSTOP);
                    eventually(LIMIT, "the process is let go", || runs(pid));
                    subject.beats_on();
                    m.signal(libc::SIGCONT);
                    caught += 1;
                }
                caught >= TIMES
            },
        );
        asking.store(false, std::sync::atomic::Ordering::Relaxed);
    });
    m.interrupt();
    subject.is_unharmed();
}

/// Asks for a report; there may be no answer.
fn ask(address: std::net::SocketAddr) {
    use std::io::{Read, Write};
    let request =
        format!("GET /v2/summary HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    if let Ok(mut connection) = std::net::TcpStream::connect(address) {
        let _ = connection.set_read_timeout(Some(Duration::from_secs(5)));
        let _ = connection.write_all(request.as_bytes());
        let _ = connection.read_to_end(&mut Vec::new());
    }
}

/// All processes of memprof are: a timer of the kernel ends the one that holds.
#[test]
fn a_memprof_whose_control_group_is_frozen_lets_go() {
    let group = Group::new();
    let freezer = group.dir.join("cgroup.freeze");
    if !freezer.exists() {
        return skip("control groups of version 2 cannot be frozen here");
    }
    let freeze = |yes: &str| fs::write(&freezer, yes).unwrap();
    let subject = Subject::start("plain").unwrap();
    for how in ["copy", "fork"] {
        let args = ["heap", "--snapshot", how, "--max-stop", "1000"];
        let enter = |memprof: &Child| group.put(Pid(memprof.id()));
        let_go(&args, &subject, enter, |_| freeze("1"), |_| freeze("0"));
    }
    // One of whose threads none may load the library, so that they are stopped again and again.
    let subject = Subject::start("strict").unwrap();
    let attach = ["attach-heap", "--yes", "--wait", "5"];
    let enter = |memprof: &Child| group.put(Pid(memprof.id()));
    let_go(&attach, &subject, enter, |_| freeze("1"), |_| freeze("0"));
}
