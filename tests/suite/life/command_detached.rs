//! memprof traces a command only during its start, and still knows its last state.

use std::process::Command;
use std::time::Duration;

use crate::common::memprof::{Memprof, run};
use crate::common::process::{comm, cont, signal, threads, wait_until};
use crate::common::workload::program;
use memprof_sys::ids::Pid;

fn tracer(pid: Pid) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let tracer = status.lines().find_map(|l| l.strip_prefix("TracerPid:"));
    tracer.unwrap().trim().to_owned()
}

#[test]
fn a_debugger_can_have_a_command() {
    let program = program("scenarios");
    let (m, mut lines) = Memprof::start_command(&[], &[program.to_str().unwrap()]);
    let pid = m.followed();
    // It is not traced before it runs.
    let comm = || std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
    wait_until(|| comm().trim() == "scenarios");
    wait_until(|| tracer(pid) == "0");
    let gdb = Command::new("gdb")
        .args(["-batch", "-nx", "-p", &pid.to_string(), "-ex", "detach"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&gdb.stderr) + String::from_utf8_lossy(&gdb.stdout);
    assert!(gdb.status.success() && said.contains("detached"), "{said}");
    // memprof still follows it.
    lines.tell("mmap 8388608");
    assert_eq!(m.tree().at(&["cmd_mmap"]).value, 8192);
    lines.close();
    m.all_said();
}

/// The summary of a command's last state.
fn last_state(command: &[&str]) -> String {
    let mut args = vec!["--no-server", "--"];
    args.extend(command);
    let out = run(&args);
    let said = String::from_utf8_lossy(&out.stderr) + String::from_utf8_lossy(&out.stdout);
    let resident = said.lines().find(|l| l.starts_with("resident "));
    let resident = resident.unwrap_or_else(|| panic!("{said}"));
    assert!(resident.ends_with("equal"), "{said}");
    said.into_owned()
}

#[test]
fn the_last_state_is_exact_however_a_command_ends() {
    let fill = "x = bytearray(50 << 20); import os, signal, time; ";
    for end in [
        "os._exit(3)",
        "os.kill(os.getpid(), signal.SIGKILL)",
        "os.kill(os.getpid(), signal.SIGRTMIN + 3)",
        "time.sleep(1.5); os.abort()",
        "import threading; threading.Thread(target=lambda: (time.sleep(0.1), os._exit(0))).start()",
        // Long after memprof stopped tracing it.
        "time.sleep(1.5); os.execv('/bin/sh', ['sh', '-c', 'sleep 0.3'])",
    ] {
        let said = last_state(&["/usr/bin/python3", "-S", "-c", &format!("{fill}{end}")]);
        let (name, sizes) = match end.contains("execv") {
            true => ("\nsh (pid ", 0..10 << 10),
            false => ("\npython3 (pid ", 50 << 10..100 << 10),
        };
        assert!(said.contains(name), "{end}: {said}");
        let resident = said.lines().find(|l| l.starts_with("resident ")).unwrap();
        let kib: u64 = resident.split_whitespace().nth(1).unwrap().parse().unwrap();
        assert!(sizes.contains(&kib), "{end}: {said}");
    }
}

#[test]
fn signals_do_not_disturb_a_command() {
    // SIGCHLD interrupts a system call only in a process that handles it or is traced.
    let program = "
import os, select, subprocess, sys, time
subprocess.Popen(['sleep', '1.6'])
time.sleep(1.3)
poll = select.epoll()
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print(libc.epoll_wait(poll.fileno(), ctypes.create_string_buffer(64), 1, 1000), flush=True)
";
    let out = run(&["--no-server", "--", "/usr/bin/python3", "-c", program]);
    assert_eq!(String::from_utf8_lossy(&out.stdout), "0\n");
}

#[test]
fn a_command_that_is_stopped_early_stays_so() {
    let (mut m, mut lines) = Memprof::start_command(&[], &[program("scenarios").to_str().unwrap()]);
    let pid = m.followed();
    signal(pid, libc::SIGSTOP);
    std::thread::sleep(Duration::from_millis(1500));
    assert!(matches!(crate::common::process::state(pid), 'T' | 't'));
    signal(pid, libc::SIGCONT);
    lines.close();
    assert!(m.wait().success());
}

/// Processor time of memprof's thread of this name, in ticks of the clock.
fn ticks(m: &Memprof, name: &str) -> u64 {
    let of = |thread: &Pid| {
        let stat = format!("/proc/{}/task/{thread}/stat", m.pid());
        let stat = std::fs::read_to_string(stat).unwrap_or_default();
        let (head, rest) = stat.rsplit_once(") ")?;
        let fields: Vec<&str> = rest.split(' ').collect();
        let time = |i: usize| fields[i].parse::<u64>().unwrap();
        head.ends_with(name).then(|| time(11) + time(12))
    };
    threads(m.pid()).iter().filter_map(of).sum()
}

/// The kernel has the thread that keeps a command's memory try again and again once it was told to stop.
#[test]
fn memprof_that_was_stopped_and_continued_takes_no_processor() {
    let program = program("scenarios");
    let (m, mut lines) = Memprof::start_command(&[], &[program.to_str().unwrap()]);
    // The collector replies once the thread waits in the kernel. (One that does not wait yet stops like any other.)
    wait_until(|| threads(m.pid()).iter().any(|t| comm(*t) == "memprof-keep"));
    m.tree();
    let second = Duration::from_secs(1);
    signal(m.pid(), libc::SIGSTOP);
    std::thread::sleep(second);
    let stopped = ticks(&m, "memprof-keep");
    if stopped == 0 {
        return crate::common::skip::skip("this kernel lets a thread stop that waits for a page");
    }
    cont(m.pid());
    // It is replaced.
    wait_until(|| ticks(&m, "memprof-keep") < stopped.div_ceil(4));
    let before = ticks(&m, "memprof-keep");
    std::thread::sleep(second);
    let taken = ticks(&m, "memprof-keep") - before;
    assert!(
        taken <= stopped / 10,
        "{taken} ticks a second, {stopped} while memprof was stopped"
    );
    // The memory is still kept: the last profile is exact.
    lines.tell("mmap 8388608");
    lines.close();
    let said = m.all_said();
    assert!(!said.contains("no profile"), "{said}");
}
