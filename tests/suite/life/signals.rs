//! The signals that end memprof, and which of them its command receives.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::pty::openpty;
use nix::sys::stat::Mode;
use nix::sys::termios::tcgetsid;

use crate::common::memprof::{BINARY, Memprof};
use crate::common::process::{LIMIT, state, wait_until};
use crate::common::tree::Node;
use crate::common::workload::{Lines, Workload, program};
use crate::life::{KIB, MIB};

const ENDING: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];
/// Signals within half a second count as one.
const APART: Duration = Duration::from_millis(700);

#[track_caller]
fn holds_8_mib(file: &Path, what: i32) {
    let text = std::fs::read(file).unwrap_or_else(|e| panic!("signal {what}: {e}"));
    let held = Node::parse(&text).at(&["cmd_mmap"]).value * KIB;
    assert_eq!(held, 8 * MIB, "signal {what}");
}

/// A workload that holds 8 MiB, and a memprof that follows it and will write its profile to a file.
fn followed(output: &Path) -> (Workload, Memprof) {
    let mut workload = Workload::start(&program("scenarios"));
    let m = Memprof::attach(workload.pid(), &["--output", output.to_str().unwrap()]);
    workload.lines.tell("mmap 8388608");
    (workload, m)
}

#[test]
fn each_has_the_outputs_written() {
    for ending in ENDING {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("out.json");
        let (mut workload, mut m) = followed(&file);
        m.signal(ending);
        assert_eq!(m.wait().code(), Some(0), "signal {ending}");
        holds_8_mib(&file, ending);
        let mut summary = String::new();
        let mut out = m.child.stdout.take().unwrap();
        out.read_to_string(&mut summary).unwrap();
        assert!(
            summary.contains("cmd_mmap"),
            "signal {ending}: no summary: {summary}"
        );
        workload.lines.tell("mmap 4096");
        workload.end();
    }
}

/// `timeout` sends its signal to the process and to its group.
#[test]
fn two_at_a_time_are_one() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("out.json");
    let (workload, mut m) = followed(&file);
    m.signal(libc::SIGTERM);
    std::thread::sleep(Duration::from_millis(20));
    m.signal(libc::SIGTERM);
    assert_eq!(m.wait().code(), Some(0));
    holds_8_mib(&file, libc::SIGTERM);
    workload.end();
}

/// The output is a pipe that is full, and nobody reads it.
#[test]
fn each_ends_it_though_nobody_reads_the_output() {
    for ending in ENDING {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fifo");
        nix::unistd::mkfifo(&path, Mode::S_IRWXU).unwrap();
        let mut pipe = File::options()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(&path)
            .unwrap();
        while pipe.write(&[0; 4096]).is_ok() {}
        let workload = Workload::start(&program("scenarios"));
        let pid = workload.pid().to_string();
        let output = ["--format", "json", "--output", path.to_str().unwrap()];
        let mut m = start_without_cores(&["--pid", &pid], &output, &[]);
        m.signal(ending);
        assert_eq!(m.wait().code(), Some(1), "signal {ending}");
        m.said("nobody reads what it writes");
        workload.end();
    }
}

/// memprof passes a signal that was sent only to it on to the command.
#[test]
fn each_is_passed_on_to_a_command() {
    for ending in ENDING {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("out.json");
        let output = ["--output", file.to_str().unwrap()];
        let scenarios = program("scenarios");
        let mut m = start_without_cores(&[], &output, &["--", scenarios.to_str().unwrap()]);
        m.said("following ");
        let mut lines = Lines::new(&mut m.child);
        lines.tell("mmap 8388608");
        let target = m.followed();
        m.signal(ending);
        assert_eq!(m.wait().code(), Some(128 + ending));
        assert_eq!(state(target), 'X', "signal {ending}");
        holds_8_mib(&file, ending);
    }
}

/// memprof waits for a command that continues, until a second signal.
#[test]
fn a_later_one_does_not_wait_for_a_command() {
    let (mut m, mut lines) = Memprof::start_command(
        &[],
        &[
            "sh",
            "-c",
            "trap '' INT TERM HUP QUIT; echo ready; exec cat 2>/dev/null",
        ],
    );
    assert_eq!(lines.line(), "ready");
    let target = m.followed();
    for _ in 0..2 {
        assert_eq!(m.child.try_wait().unwrap(), None);
        m.signal(libc::SIGHUP);
        std::thread::sleep(APART);
        m.said(&format!("waiting for the command (pid {target}) to end"));
    }
    assert_eq!(m.wait().code(), Some(128 + libc::SIGHUP));
    let said = m.all_said();
    assert!(!said.contains("has not ended"), "waited for: {said}");
    let end = format!("memprof ends; the command (pid {target}) runs on");
    assert!(said.contains(&end), "{said}");
    assert!(said.contains("resident "), "no summary: {said}");
    assert_eq!(state(target), 'S');
    lines.close();
    wait_until(|| state(target) == 'X');
}

#[test]
fn under_nohup_a_hangup_is_ignored() {
    let mut workload = Workload::start(&program("scenarios"));
    let pid = workload.pid().to_string();
    let mut command = Command::new(BINARY);
    command
        .args(["--listen", "127.0.0.1:0", "--pid", &pid])
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    // SAFETY: `signal` is async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            libc::signal(libc::SIGHUP, libc::SIG_IGN);
            Ok(())
        });
    }
    let mut m = Memprof::spawn_as(&mut command);
    m.signal(libc::SIGHUP);
    workload.lines.tell("mmap 8388608");
    m.tree().must_hold(&["cmd_mmap"], 8 * MIB);
    assert_eq!(m.child.try_wait().unwrap(), None);
    m.interrupt();
    workload.end();
}

/// Starts memprof by a shell that disables core files, which SIGQUIT would write.
fn start_without_cores(target: &[&str], args: &[&str], command: &[&str]) -> Memprof {
    Memprof::spawn_as(
        Command::new("sh")
            .args([
                "-c",
                "ulimit -c 0; exec \"$@\"",
                "sh",
                BINARY,
                "--listen",
                "127.0.0.1:0",
            ])
            .args(target)
            .args(args)
            .args(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped()),
    )
}

/// A command on a terminal. It writes a line to a file for each signal that it receives.
struct OnTerminal {
    child: Child,
    terminal: Option<File>,
    got: std::path::PathBuf,
    output: std::path::PathBuf,
    _dir: tempfile::TempDir,
}

impl OnTerminal {
    /// memprof is the leader of a new session, or the child of a shell that is.
    fn start(leads: bool) -> OnTerminal {
        let dir = tempfile::tempdir().unwrap();
        let (got, output) = (dir.path().join("got"), dir.path().join("out.json"));
        let script = format!(
            "trap 'echo INT >>{0}' INT; trap 'echo QUIT >>{0}' QUIT; trap 'echo HUP >>{0}; exit 9' HUP; \
             echo ready >>{0}; while :; do sleep 0.05; done",
            got.display()
        );
        let pty = openpty(None, None).unwrap();
        // The terminal hangs up when this side is closed.
        fcntl(&pty.master, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).unwrap();
        let end = || Stdio::from(pty.slave.try_clone().unwrap());
        let mut command = Command::new("setsid");
        command.arg("--ctty");
        if !leads {
            // The shell does not exec memprof; SIGHUP ends it.
            command.args(["sh", "-c", "\"$@\"; true", "sh"]);
        }
        let child = command
            .args([BINARY, "--no-server", "--output"])
            .arg(&output)
            .args(["--", "sh", "-c", &script])
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .unwrap();
        let on = OnTerminal {
            child,
            terminal: Some(File::from(pty.master)),
            got,
            output,
            _dir: dir,
        };
        wait_until(|| !on.got().is_empty());
        on
    }

    fn got(&self) -> String {
        let text = std::fs::read_to_string(&self.got).unwrap_or_default();
        text.replace('\n', " ").replacen("ready ", "r ", 1)
    }

    fn press(&mut self, key: u8) {
        self.terminal.as_mut().unwrap().write_all(&[key]).unwrap();
    }

    fn wait(&mut self) -> ExitStatus {
        let end = Instant::now() + LIMIT;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < end, "it did not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for OnTerminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The terminal sends the signal to both: the command receives it once.
#[test]
fn a_key_is_not_passed_on() {
    for (key, name, number) in [(3, "INT", libc::SIGINT), (28, "QUIT", libc::SIGQUIT)] {
        let mut on = OnTerminal::start(true);
        on.press(key);
        wait_until(|| on.got().contains(name));
        std::thread::sleep(APART);
        assert_eq!(on.got(), format!("r {name} "));
        wait_until(|| on.output.exists());
        // It has written its summary, too.
        std::thread::sleep(APART);
        // The command continues; a second signal ends only memprof.
        on.press(key);
        let status = on.wait();
        // The terminal hangs up when the session leader ends. A shell that has both signals handles this one first.
        wait_until(|| on.got().ends_with("HUP "));
        let got = on.got();
        let either = [format!("r {name} HUP "), format!("r {name} {name} HUP ")];
        assert!(either.contains(&got), "{got}");
        assert_eq!(status.code(), Some(128 + number), "{status}");
    }
}

/// A key that comes while memprof starts: the command does not run, or ends by it. A command that missed it would end
/// with its own status.
#[test]
fn a_key_before_the_command_runs() {
    let start = |keys_after: Option<Duration>| {
        let pty = openpty(None, None).unwrap();
        fcntl(&pty.master, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).unwrap();
        let end = || Stdio::from(pty.slave.try_clone().unwrap());
        let started = Instant::now();
        let mut child = Command::new("setsid")
            .args(["--ctty", BINARY, "--no-server", "--", "sh", "-c"])
            .arg(if keys_after.is_some() {
                "sleep 3; exit 3"
            } else {
                "exit 3"
            })
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .unwrap();
        if let Some(after) = keys_after {
            // A terminal without a session has nobody to interrupt.
            wait_until(|| tcgetsid(&pty.master).is_ok());
            std::thread::sleep(after.saturating_sub(started.elapsed()));
            File::from(pty.master.try_clone().unwrap())
                .write_all(&[3])
                .unwrap();
        }
        (child.wait().unwrap(), started.elapsed())
    };
    let (status, whole) = start(None);
    assert_eq!(status.code(), Some(3));
    for eighth in 1..8 {
        let (status, _) = start(Some(whole * eighth / 8));
        let interrupted =
            status.code() == Some(128 + libc::SIGINT) || status.signal() == Some(libc::SIGINT);
        assert!(interrupted, "{eighth}/8 of the start: {status}");
    }
}

#[test]
fn the_end_of_the_terminal_ends_both_and_the_output_is_written() {
    for leads in [true, false] {
        let mut on = OnTerminal::start(leads);
        on.terminal = None;
        let status = on.wait();
        wait_until(|| on.output.exists());
        wait_until(|| on.got() == "r HUP ");
        if leads {
            assert_eq!(status.code(), Some(9), "the command's own");
        }
    }
}
