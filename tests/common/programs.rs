//! Installed programs, copies of programs, and processes with chosen names.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Whether there is a program with this name.
pub fn installed(name: &str) -> bool {
    Command::new(name).arg("-h").output().is_ok()
}

/// Copies a program so that the copy can be run at once. Another process makes the copy: if this one did, a child that another
/// test forks would also have it open for writing until its exec, and such a file cannot be executed (`ETXTBSY`).
pub fn copy_program(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    let done = Command::new("cp")
        .args([from.as_ref(), to.as_ref()])
        .status();
    assert!(done.unwrap().success());
}

/// A sleeping program.
pub struct Sleeper(Child);

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Sleeper {
    /// Starts `program`, a copy of `sleep`, in `directory`. `word` is the first argument (`argv[0]`).
    pub fn start(program: &Path, word: &str, directory: &Path) -> Sleeper {
        let mut command = Command::new(program);
        command.arg0(word).arg("60").current_dir(directory);
        command.stdin(Stdio::null());
        let sleeper = Sleeper(command.spawn().unwrap());
        // `spawn` may return before the kernel has filled the new address space.
        let limit = Instant::now() + Duration::from_secs(60);
        let stat = format!("/proc/{}/stat", sleeper.pid());
        while !fs::read_to_string(&stat).unwrap().contains(") S ") {
            assert!(Instant::now() < limit, "it does not sleep");
            std::thread::yield_now();
        }
        sleeper
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}
