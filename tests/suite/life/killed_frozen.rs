//! A process that is killed while memprof freezes it.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::memprof::Memprof;
use crate::common::process::{LIMIT, signal, state};
use crate::common::workload::{Lines, Running, Workload, program};
use memprof_sys::ids::Pid;

/// Its parent learns of its end at once, not only when memprof ends.
#[test]
fn its_parent_can_collect_it() {
    let mut child = Command::new(program("reaper"))
        .arg(program("scenarios"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = Lines::new(&mut child);
    let mut parent = Workload {
        child: Running(child),
        lines,
    };
    let line = parent.lines.line();
    let pid = line
        .strip_prefix("reaper ")
        .and_then(|l| l.split(' ').next());
    let pid = Pid(pid.unwrap().parse().unwrap());
    // Enough memory for a long freeze.
    parent.lines.tell("pin");
    parent.lines.tell("mmap 268435456");
    let m = Memprof::attach(pid, &[]);
    let killed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (m, killed) = (&m, &killed);
        scope.spawn(move || {
            while !killed.load(Ordering::Relaxed) {
                // The last request fails. There is none after it, which might collect what that has left.
                m.send("POST", "/v2/marks", r#"{"freeze": true}"#);
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let begun = Instant::now();
        while state(pid) != 't' && begun.elapsed() < LIMIT {}
        let held = state(pid) == 't';
        killed.store(true, Ordering::Relaxed);
        signal(pid, libc::SIGKILL);
        assert!(held, "it was never frozen");
    });
    // Fails if there is no line within a minute: then the parent waits for a child that memprof still traces.
    assert_eq!(parent.lines.line(), format!("reaper {pid} signal 9"));
    m.interrupt();
}
