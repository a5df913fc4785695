//! Processes that cannot load the library, and moments at which they must not: each is refused with its reason, and goes on.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Duration;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch, apply_filter};

use crate::attach::{attach, attached, is_loaded, nothing_left};
use crate::common::binary::memprof;
use crate::common::process::{LIMIT, cont, eventually, stop};
use crate::common::sentinel::{sentinel, unharmed};
use crate::common::skip::skip;
use crate::common::workload::{Workload, program};

const SAYS_READY: &str = "#include <stdio.h>\nint main(void) { puts(\"ready\"); fflush(stdout); return getchar() > 0; }\n";

fn compiled(compiler: &str, flags: &[&str]) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (source, binary) = (dir.path().join("a.c"), dir.path().join("a"));
    fs::write(&source, SAYS_READY).unwrap();
    let mut command = Command::new(compiler);
    let status = command
        .args(flags)
        .arg("-o")
        .args([&binary, &source])
        .status();
    assert!(status.unwrap().success());
    (dir, binary)
}

#[track_caller]
fn refused(workload: &mut Workload, why: &str) {
    attach(workload.pid(), &["--wait", "1"]).must(1, &["cannot attach", why]);
    assert!(!is_loaded(workload.pid()));
}

#[test]
fn static_programs_without_symbols_are_refused() {
    let (_dir, binary) = compiled("cc", &["-static", "-s"]);
    let mut workload = Workload::start(&binary);
    assert_eq!(workload.lines.line(), "ready");
    refused(&mut workload, "linked statically");
    let pid = workload.pid();
    let said = attach(pid, &[]);
    said.must(
        1,
        &["no function of an allocator has a symbol", "--heap=exact"],
    );
    workload.end();
}

#[test]
fn programs_whose_own_allocator_cannot_be_reached_are_refused() {
    let mut workload = Workload::start(&program("unmovable_malloc"));
    assert_eq!(workload.lines.line(), "ready");
    refused(
        &mut workload,
        "its executable's own allocator (malloc), whose calls a loaded library does not see",
    );
    workload.end();
}

#[test]
fn a_process_that_is_traced_is_refused() {
    if Command::new("strace").arg("-V").output().is_err() {
        return skip("there is no strace");
    }
    let workload = sentinel(1);
    let pid = workload.pid().to_string();
    let mut strace = Command::new("strace");
    let strace = strace.args(["-f", "-e", "trace=none", "-o", "/dev/null", "-p", &pid]);
    let mut strace = crate::common::binary::Kept::start(strace);
    let status = || fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let traced = || !status().contains("TracerPid:\t0\n");
    eventually(LIMIT, "strace traces it", traced);
    attach(workload.pid(), &["--wait", "1"]).must(1, &["cannot attach", "traced by process"]);
    let _ = strace.0.kill();
    eventually(LIMIT, "strace has ended", || !traced());
    attached(workload.pid(), &[]);
}

/// Also one that is stopped while it starts, before its C library is loaded.
#[test]
fn a_stopped_process_is_refused() {
    for n in 0..8 {
        let mut workload = sentinel(1);
        thread::sleep(Duration::from_micros(200) * n);
        stop(workload.pid());
        refused(&mut workload, "is stopped");
        cont(workload.pid());
        unharmed(&mut workload);
    }
}

#[test]
fn a_process_that_has_just_started_is_attached_to() {
    for n in 0..8 {
        let mut workload = sentinel(1);
        thread::sleep(Duration::from_micros(200) * n);
        attached(workload.pid(), &[]);
        unharmed(&mut workload);
    }
}

fn filter(calls: &[i64], does: SeccompAction) -> BpfProgram {
    let rules: BTreeMap<i64, _> = calls.iter().map(|call| (*call, Vec::new())).collect();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, does, TargetArch::x86_64);
    filter.unwrap().try_into().unwrap()
}

/// Any of these calls would end the process.
#[test]
fn what_a_filter_forbids_is_not_tried() {
    for (call, name) in [
        (libc::SYS_memfd_create, "`memfd_create`"),
        (libc::SYS_pread64, "`pread64`"),
    ] {
        let mut workload = sentinel(1);
        install(&mut workload, call);
        refused(&mut workload, name);
        unharmed(&mut workload);
    }
}

/// Has the sentinel install a filter for all of its threads that ends it for a call.
fn install(sentinel: &mut Workload, call: i64) {
    let program = filter(&[call], SeccompAction::KillProcess);
    let words = program.iter().map(|i| {
        let word = u64::from(i.code)
            | u64::from(i.jt) << 16
            | u64::from(i.jf) << 24
            | u64::from(i.k) << 32;
        format!("{word:x}")
    });
    let words: Vec<String> = words.collect();
    sentinel.lines.send(&format!("L{}", words.join(" ")));
    assert!(sentinel.lines.line().contains("wrong"));
}

/// As in a container: a filter that permits all that is needed.
#[test]
fn a_filter_that_permits_it_is_no_obstacle() {
    let refuse = SeccompAction::Errno(libc::EPERM as u32);
    let program_of = filter(&[libc::SYS_ptrace, libc::SYS_bpf, libc::SYS_mount], refuse);
    let install = move || apply_filter(&program_of).map_err(io::Error::other);
    let mut command = Command::new(program("sentinel"));
    // SAFETY: between fork and exec, this only makes two system calls.
    let command = unsafe { command.arg("1").pre_exec(install) };
    let mut workload = Workload::start_as(command);
    attached(workload.pid(), &[]);
    unharmed(&mut workload);
}

#[test]
fn nothing_is_done_unless_the_user_agrees() {
    let mut workload = sentinel(1);
    let pid = workload.pid().to_string();
    memprof(&["attach-heap", "--pid", &pid]).must(1, &["--yes", "nothing was done"]);
    assert!(!is_loaded(workload.pid()));
    unharmed(&mut workload);
}

/// Another thread holds the loader's lock for a long time: memprof gives up, and nobody waits for ever.
#[test]
fn a_thread_that_loads_a_library_delays_it() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let fifo = dir.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let mut command = Command::new(program("loader"));
    let mut workload = Workload::start_as(command.env("PLUGIN_WAITS", &fifo));
    let plugin = program("plugin");
    workload.lines.tell(&format!("thread {}", plugin.display()));
    let mut writer = fs::File::options().write(true).open(&fifo).unwrap();
    attach(workload.pid(), &["--wait", "1"]).must(1, &["cannot attach", "loader"]);
    // The process answers meanwhile.
    workload.lines.tell("own 10 10");
    assert!(!is_loaded(workload.pid()));
    writer.write_all(b"x").unwrap();
    workload.lines.tell("loaded");
    workload.lines.tell("hold 10 10");
    attached(workload.pid(), &[]);
    workload.lines.tell("hold 10 10");
    nothing_left(workload.pid());
    workload.end();
}
