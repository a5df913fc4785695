//! Processes to measure: started, set up, stopped, and ended with the test.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;

use crate::common::process::state;
pub use crate::common::process::{signal, stop, wait_until};
use memprof_sys::ids::Pid;

/// A running workload that waits.
pub struct Target {
    child: Child,
    stdin: ChildStdin,
    /// What it forked.
    pub children: Vec<Pid>,
}

/// The compiled workload; compiled once per test run, and removed at its end.
fn workload() -> &'static Path {
    BINARY.get_or_init(|| {
        let binary = compile(&[]);
        // SAFETY: the function is `extern "C"`, takes no arguments, and may run at any exit.
        unsafe { libc::atexit(remove_workload) };
        binary
    })
}

/// Compiles the workload into a directory of its own, which stays.
fn compile(flags: &[&str]) -> PathBuf {
    let dir = tempfile::tempdir().unwrap().keep();
    for (name, text) in [
        ("workload.c", include_str!("workload.c")),
        ("private.h", include_str!("private.h")),
        ("shared.h", include_str!("shared.h")),
    ] {
        std::fs::write(dir.join(name), text).unwrap();
    }
    let binary = dir.join("workload");
    let status = Command::new("cc")
        .args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"])
        .args(flags)
        .arg("-o")
        .args([&binary, &dir.join("workload.c")])
        .status()
        .expect("cc is needed for these tests");
    assert!(status.success());
    binary
}

static BINARY: OnceLock<PathBuf> = OnceLock::new();

extern "C" fn remove_workload() {
    if let Some(dir) = BINARY.get().and_then(|binary| binary.parent()) {
        let _ = std::fs::remove_dir_all(dir);
    }
}

impl Target {
    /// Starts a scenario of `workload.c` in `dir` and waits until it is set up.
    pub fn start(scenario: &str, dir: &Path) -> Target {
        Target::run(workload(), scenario, dir)
    }

    /// As [`Target::start`], from an executable that no other process maps, and without libraries.
    pub fn start_alone(scenario: &str, dir: &Path) -> Target {
        let binary = compile(&["-static"]);
        let target = Target::run(&binary, scenario, dir);
        std::fs::remove_dir_all(binary.parent().unwrap()).unwrap();
        target
    }

    fn run(binary: &Path, scenario: &str, dir: &Path) -> Target {
        let mut child = Command::new(binary)
            .arg(scenario)
            .arg(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let stdin = child.stdin.take().unwrap();
        let mut target = Target {
            child,
            stdin,
            children: Vec::new(),
        };
        loop {
            let line = lines.next().expect("the workload ended").unwrap();
            if let Some(pid) = line.strip_prefix("child ") {
                target.children.push(Pid(pid.parse().unwrap()));
            } else {
                assert_eq!(line, "ready", "{scenario}");
                return target;
            }
        }
    }

    pub fn pid(&self) -> Pid {
        Pid(self.child.id())
    }

    pub fn stop(&self) {
        self.children.iter().for_each(|&pid| stop(pid));
        stop(self.pid());
    }

    /// Makes it call exec.
    pub fn exec(&mut self) {
        self.stdin.write_all(b"x\n").unwrap();
        let path = format!("/proc/{}/comm", self.pid());
        wait_until(|| std::fs::read_to_string(&path).unwrap().trim() == "sleep");
    }

    /// Kills it; it stays a zombie until it is dropped.
    pub fn kill(&self) {
        signal(self.pid(), libc::SIGKILL);
        wait_until(|| state(self.pid()) == 'Z');
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.children.iter().for_each(|&c| signal(c, libc::SIGKILL));
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reports directly to stderr: the test harness captures the output of passing tests.
pub fn say(text: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
