//! Programs at work: those of `programs/busy.sh`.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common::process::eventually;
use crate::unwind::chains::source;
use memprof_sys::ids::Pid;

/// Most time for the preparations of `busy.sh`: compilers, databases.
const PREPARED: Duration = Duration::from_secs(300);

/// A program at work, with all that it has started.
pub struct Busy {
    child: Child,
    _dir: tempfile::TempDir,
}

impl Busy {
    /// `None` if it is not installed.
    pub fn start(name: &str) -> Option<Busy> {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let mut command = Command::new("sh");
        command
            .arg(source("busy.sh"))
            .arg(name)
            .current_dir(&dir)
            .stdin(Stdio::null())
            .process_group(0);
        for stream in [Command::stdout, Command::stderr] {
            stream(&mut command, File::create(dir.path().join("said")).unwrap());
        }
        let mut busy = Busy {
            child: command.spawn().unwrap(),
            _dir: dir,
        };
        let mut missing = false;
        eventually(PREPARED, "the program is not ready", || {
            missing = busy
                .child
                .try_wait()
                .unwrap()
                .is_some_and(|s| s.code() == Some(3));
            missing || !busy.is_shell()
        });
        (!missing).then_some(busy)
    }

    pub fn pid(&self) -> Pid {
        Pid(self.child.id())
    }

    /// Whether it is still the shell that prepares the program.
    fn is_shell(&self) -> bool {
        let path = fs::read_link(format!("/proc/{}/exe", self.pid()));
        path.is_ok_and(|p| p.ends_with("dash") || p.ends_with("sh"))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        // SAFETY: the group of a process that this test started and has not waited for.
        unsafe { libc::kill(-(self.child.id() as i32), libc::SIGKILL) };
        let _ = self.child.wait();
    }
}

/// The names of all programs of `busy.sh`.
pub fn all() -> Vec<String> {
    let script = fs::read_to_string(source("busy.sh")).unwrap();
    let name = |line: &str| {
        line.strip_suffix(")")
            .filter(|l| !l.contains(' '))
            .map(str::to_owned)
    };
    script.lines().filter_map(name).collect()
}
