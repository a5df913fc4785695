//! Signals to `memprof heap -- COMMAND`, and to its command.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::fcntl::{FcntlArg, fcntl};
use tempfile::NamedTempFile;

use crate::common::binary::{Kept, MEMPROF, wait};
use crate::common::process::{LIMIT, eventually, signal, state, wait_until};
use crate::common::terminal;
use crate::common::workload::Lines;
use memprof_sys::ids::Pid;

const ENDING: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];
/// Signals within half a second count as one.
const APART: Duration = Duration::from_millis(700);

/// `memprof heap` with a command that has printed its process id.
struct MemprofAndCommand {
    memprof: Kept,
    command: Pid,
    /// Both's input and output.
    lines: Lines,
    /// What memprof says.
    said: NamedTempFile,
}

impl MemprofAndCommand {
    /// Runs `exec PROGRAM` in a shell, after `before`.
    fn start(before: &str, program: &str) -> MemprofAndCommand {
        MemprofAndCommand::start_with(&[], before, program)
    }

    /// The same, with options of memprof.
    fn start_with(options: &[&str], before: &str, program: &str) -> MemprofAndCommand {
        let script = format!("ulimit -c 0; {before} echo $$; exec {program}");
        let said = NamedTempFile::new().unwrap();
        let mut memprof = Command::new(MEMPROF);
        memprof
            .arg("heap")
            .args(options)
            .args(["--", "sh", "-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(said.reopen().unwrap());
        let mut memprof = Kept::start(&mut memprof);
        let mut lines = Lines::new(&mut memprof.0);
        MemprofAndCommand {
            memprof,
            command: Pid(lines.line().parse().unwrap()),
            lines,
            said,
        }
    }

    /// One whose command ignores the signals, and answers with each line that it is told.
    fn stubborn() -> MemprofAndCommand {
        MemprofAndCommand::stubborn_with(&[])
    }

    fn stubborn_with(options: &[&str]) -> MemprofAndCommand {
        MemprofAndCommand::start_with(options, "trap '' INT TERM HUP QUIT;", "cat")
    }

    fn pid(&self) -> Pid {
        Pid(self.memprof.0.id())
    }

    fn must_say(&self, part: &str) {
        eventually(LIMIT, part, || {
            let said = std::fs::read_to_string(self.said.path()).unwrap();
            said.contains(part)
        });
    }

    fn answers(&mut self) {
        self.lines.send("hello");
        assert_eq!(self.lines.line(), "hello");
    }

    /// Checks that the command runs, without a tracer, and ends when it is told to.
    fn runs_on(mut self) {
        let command = self.command;
        wait_until(|| tracer(command) == "0" && state(command) == 'S');
        self.answers();
        self.lines.close();
        wait_until(|| state(command) == 'X');
    }
}

/// The thread that traces a process; `0` for none.
fn tracer(pid: Pid) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let tracer = status
        .lines()
        .find_map(|line| line.strip_prefix("TracerPid:"));
    tracer.unwrap().trim().to_owned()
}

/// The command ends by the signal, and memprof looks at it then.
#[test]
fn each_is_passed_on_to_the_command() {
    for ending in ENDING {
        let mut held = MemprofAndCommand::start("", "sleep 300");
        signal(held.pid(), ending);
        let status = wait(&mut held.memprof.0);
        assert_eq!(status.code(), Some(128 + ending));
        // It may not have a heap yet.
        let report = held.lines.line();
        let of = format!("(pid {})", held.command);
        assert!(report.contains(&of), "{report}");
        assert_eq!(state(held.command), 'X');
    }
}

/// The terminal sends it to both; the command gets it once, and its heap is shown as it ends.
#[test]
fn a_key_is_not_passed_on() {
    for (trap, status, got) in [
        (
            "trap 'echo INT >>\"$0\"; sleep 1; exit 5' INT;",
            5,
            "r\nINT\n",
        ),
        ("", 128 + libc::SIGINT, "r\n"),
    ] {
        let file = NamedTempFile::new().unwrap();
        let read = || std::fs::read_to_string(file.path()).unwrap();
        let pty = terminal::open(80, 24);
        let script = format!("{trap} echo r >>\"$0\"; while :; do sleep 0.05; done");
        let mut child = Command::new("setsid");
        child
            .args(["--ctty", MEMPROF, "heap", "--", "sh", "-c", &script])
            .arg(file.path())
            .stdin(Stdio::from(pty.slave.try_clone().unwrap()))
            .stdout(Stdio::piped());
        let mut child = Kept::start(&mut child);
        wait_until(|| read() == "r\n");
        File::from(pty.master.try_clone().unwrap())
            .write_all(&[3])
            .unwrap();
        let mut report = String::new();
        let mut stdout = child.0.stdout.take().unwrap();
        stdout.read_to_string(&mut report).unwrap();
        assert_eq!(wait(&mut child.0).code(), Some(status), "{report}");
        assert!(report.contains("Allocator: glibc"), "{report}");
        assert_eq!(read(), got);
    }
}

#[test]
fn a_later_one_does_not_wait_for_the_command() {
    let mut held = MemprofAndCommand::stubborn();
    let pid = held.command;
    signal(held.pid(), libc::SIGTERM);
    held.must_say(&format!(
        "waiting for the command (pid {pid}) to end, at most 10 s"
    ));
    // A repetition would count as the same one.
    std::thread::sleep(APART);
    assert_eq!(held.memprof.0.try_wait().unwrap(), None);
    signal(held.pid(), libc::SIGINT);
    let status = wait(&mut held.memprof.0);
    assert_eq!(status.code(), Some(128 + libc::SIGTERM));
    held.must_say(&format!("memprof ends; the command (pid {pid}) runs on"));
    held.must_say("SIGTERM came before there was a snapshot");
    held.runs_on();
}

#[test]
fn the_command_survives_memprof() {
    let mut held = MemprofAndCommand::stubborn();
    held.answers();
    signal(held.pid(), libc::SIGKILL);
    wait(&mut held.memprof.0);
    held.runs_on();
}

/// Where a session follows the command, too.
#[test]
fn with_stacks_it_is_the_same() {
    let options = ["--by-stack"];
    let mut held = MemprofAndCommand::start_with(&options, "", "sleep 300");
    signal(held.pid(), libc::SIGINT);
    assert_eq!(wait(&mut held.memprof.0).code(), Some(128 + libc::SIGINT));
    let report = held.lines.line();
    assert!(report.contains("(pid "), "{report}");
    assert_eq!(state(held.command), 'X');

    let mut held = MemprofAndCommand::stubborn_with(&options);
    signal(held.pid(), libc::SIGTERM);
    held.must_say("to end, at most 10 s");
    std::thread::sleep(APART);
    signal(held.pid(), libc::SIGINT);
    let status = wait(&mut held.memprof.0);
    assert_eq!(status.code(), Some(128 + libc::SIGTERM));
    held.must_say("SIGTERM came before there was a snapshot");
    held.runs_on();

    let mut held = MemprofAndCommand::stubborn_with(&options);
    held.answers();
    signal(held.pid(), libc::SIGKILL);
    wait(&mut held.memprof.0);
    held.runs_on();
}

/// As by Ctrl-Z and `fg`: memprof, which sees the stops of its command, is stopped as well.
#[test]
fn both_stop_and_go_on() {
    let mut held = MemprofAndCommand::stubborn();
    let both = [held.pid(), held.command];
    for order in [both, [both[1], both[0]]] {
        order.into_iter().for_each(|pid| signal(pid, libc::SIGSTOP));
        wait_until(|| both.iter().all(|pid| matches!(state(*pid), 'T' | 't')));
        order.into_iter().for_each(|pid| signal(pid, libc::SIGCONT));
        held.answers();
    }
    held.lines.close();
    assert_eq!(wait(&mut held.memprof.0).code(), Some(0));
}

/// memprof waits for somebody to read its report. A signal ends it, as the command has ended.
#[test]
fn one_ends_memprof_after_the_end_of_the_command() {
    let mut memprof = Command::new(MEMPROF);
    memprof
        .args(["heap", "--format", "json", "--", "sh", "-c", "exit 3"])
        .stdout(Stdio::piped());
    let mut memprof = Kept::start(&mut memprof);
    let stdout = memprof.0.stdout.take().unwrap();
    let room = fcntl(&stdout, FcntlArg::F_SETPIPE_SZ(4096)).unwrap();
    wait_until(|| {
        let mut bytes: libc::c_int = 0;
        // SAFETY: the call writes the number of bytes in the pipe to `bytes`, which outlives it.
        unsafe { libc::ioctl(stdout.as_raw_fd(), libc::FIONREAD, &raw mut bytes) };
        bytes == room
    });
    let pid = Pid(memprof.0.id());
    let mut status = None;
    wait_until(|| {
        signal(pid, libc::SIGTERM);
        status = memprof.0.try_wait().unwrap();
        status.is_some()
    });
    assert_eq!(status.unwrap().signal(), Some(libc::SIGTERM));
}
