//! Ctrl-Z and `fg`: memprof and its command are stopped, which the shell hears of, and go on.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use crate::common::memprof::{BINARY, Memprof};
use crate::common::process::{LIMIT, comm, eventually, state, threads, wait_until};
use crate::common::workload::{Lines, program};
use crate::faults::{equals_the_kernel, times};

/// As a terminal does it: the whole group gets the signal.
fn signal_group(m: &Memprof, signal: i32) {
    // SAFETY: kill has no memory-safety preconditions; the group is that of a process that this test started.
    unsafe { libc::kill(-m.pid().0.cast_signed(), signal) };
}

#[test]
fn of_memprof_and_its_command() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = dir.path().join("p.folded");
    let mut command = Command::new(BINARY);
    command.args([
        "--listen",
        "127.0.0.1:0",
        "--stacks",
        "all",
        "-o",
        file.to_str().unwrap(),
        "--",
    ]);
    command.arg(program("scenarios")).process_group(0);
    let mut m = Memprof::spawn_as(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
    m.said("following ");
    let mut lines = Lines::new(&mut m.child);
    let target = m.followed();
    let keeps = |m: &Memprof| {
        threads(m.pid())
            .into_iter()
            .any(|t| comm(t) == "memprof-keep")
    };
    for _ in 0..times(2, 20) {
        lines.tell("mmap 1048576");
        // The command is no longer traced, and its memory is kept for the last scan.
        wait_until(|| keeps(&m));
        eventually(LIMIT, "it is not traced", || {
            let status = std::fs::read_to_string(format!("/proc/{target}/status")).unwrap();
            status.contains("TracerPid:\t0\n")
        });
        signal_group(&m, libc::SIGTSTP);
        eventually(LIMIT, "memprof and its command are stopped", || {
            let stopped = |pid| threads(pid).into_iter().all(|t| state(t) == 'T');
            stopped(m.pid()) && stopped(target)
        });
        signal_group(&m, libc::SIGCONT);
        equals_the_kernel(&m, target);
    }
    wait_until(|| keeps(&m));
    // Its last profile has all of it, which only a scan after its end finds.
    lines.tell("mmap 8388608");
    lines.close();
    let status = m.wait();
    assert!(status.success(), "{status}: {}", m.all_said());
    let text = std::fs::read_to_string(file).unwrap();
    let bytes = |line: &str| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap();
    let held: u64 = text
        .lines()
        .filter(|l| l.contains("cmd_mmap"))
        .map(bytes)
        .sum();
    assert!(held >= (8 + u64::from(times(2, 20))) << 20, "{text}");
}
