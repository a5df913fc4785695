//! The programs of `tests/workloads`, compiled as described in their first lines.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::Deserialize;

use super::process::LIMIT;
use super::skip::skip;
use memprof_sys::ids::Pid;

const FLAGS: [&str; 6] = [
    "-O1",
    "-g",
    "-pthread",
    "-fno-omit-frame-pointer",
    "-fno-inline",
    "-fno-optimize-sibling-calls",
];

/// The compiled program of `tests/workloads/NAME.c`; compiled once per test binary.
pub fn program(name: &str) -> PathBuf {
    program_with(name, &[])
}

/// As above, linked with further libraries.
pub fn program_with(name: &str, link: &[&str]) -> PathBuf {
    program_by("cc", name, link)
}

/// A workload that is linked with musl, statically with `-static`; `None` without musl.
pub fn program_with_musl(name: &str, link: &[&str]) -> Option<PathBuf> {
    if Command::new("musl-gcc").arg("--version").output().is_err() {
        skip("there is no musl-gcc");
        return None;
    }
    Some(program_by("musl-gcc", name, link))
}

fn program_by(compiler: &str, name: &str, link: &[&str]) -> PathBuf {
    static DONE: Mutex<Option<HashMap<String, PathBuf>>> = Mutex::new(None);
    let mut done = DONE.lock().unwrap_or_else(PoisonError::into_inner);
    let done = done.get_or_insert_default();
    let binary = match compiler {
        "cc" => format!("{name}{}", link.concat()),
        _ => format!("{name}-{compiler}{}", link.concat()),
    };
    done.entry(binary.clone())
        .or_insert_with(|| compile(compiler, name, &binary, link))
        .clone()
}

fn compile(compiler: &str, name: &str, binary: &str, link: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/workloads/{name}.c"));
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("workloads");
    std::fs::create_dir_all(&dir).unwrap();
    // Another test binary may be running the existing program, so it is replaced, not overwritten.
    let fresh = dir.join(format!("{binary}.{}", std::process::id()));
    // What has no main() is a library.
    let text = std::fs::read_to_string(&source).unwrap();
    let library: &[&str] = match text.contains("\nint main(") {
        true => &[],
        false => &["-shared", "-fPIC"],
    };
    let status = Command::new(compiler)
        .args(FLAGS)
        .args(library)
        .args([&source, &PathBuf::from("-o"), &fresh])
        .args(link)
        .status()
        .expect("cc is needed for these tests");
    assert!(status.success(), "{compiler} could not compile {name}.c");
    let binary = dir.join(binary);
    std::fs::rename(fresh, &binary).unwrap();
    binary
}

/// A workload that is no C program, compiled with further flags; skips the test's part without the compiler.
pub fn compiled_by(compiler: &str, source: &str, flags: &[&str]) -> Option<PathBuf> {
    let path = format!("{}/tests/workloads/{source}", env!("CARGO_MANIFEST_DIR"));
    // rustc names its object files by what is before a dot: two at once would share them.
    let name = format!("{}{}", source.replace('.', "-"), flags.concat());
    let binary = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let status = Command::new(compiler)
        .args([path.as_str(), "-g", "-o"])
        .arg(&binary)
        .args(flags)
        .status();
    match status {
        Ok(status) => assert!(status.success(), "{compiler} {flags:?}"),
        Err(error) => {
            skip(format!("{compiler}: {error}"));
            return None;
        }
    }
    Some(binary)
}

/// The source of a workload.
pub fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/workloads")
        .join(name)
}

/// The line of a workload that ends with this, as `FILE:LINE`.
pub fn place(name: &str, end: &str) -> String {
    let text = std::fs::read_to_string(source(name)).unwrap();
    let at = text.lines().position(|line| line.ends_with(end));
    format!("{name}:{}", at.unwrap() + 1)
}

/// A hard link to a program with a name that no other process on this machine has, removed when dropped. With a
/// longer prefix, the name exceeds 15 bytes, and its first 15 bytes are not unique.
pub struct Named {
    pub name: String,
    pub path: PathBuf,
    _dir: tempfile::TempDir,
}

pub fn unique_name(prefix: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let n = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("{prefix}{:x}_{n}", std::process::id())
}

pub fn named(program_name: &str, name: &str) -> Named {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join(name);
    std::fs::hard_link(program(program_name), &path).unwrap();
    Named {
        name: name.to_owned(),
        path,
        _dir: dir,
    }
}

/// A running program that reads commands from stdin, one per line, and answers on stdout. It is killed
/// when dropped.
pub struct Workload {
    pub child: Running,
    pub lines: Lines,
}

/// A process, killed when dropped.
pub struct Running(pub Child);

/// A program's stdin and stdout.
pub struct Lines {
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Lines {
    pub fn new(child: &mut Child) -> Lines {
        Lines {
            stdin: child.stdin.take(),
            stdout: BufReader::new(child.stdout.take().unwrap()),
        }
    }

    /// Sends a command and waits for `ok`.
    #[track_caller]
    pub fn tell(&mut self, command: &str) {
        self.send(command);
        assert_eq!(self.line(), "ok", "{command}");
    }

    /// Sends a command without waiting for the answer.
    #[track_caller]
    pub fn send(&mut self, command: &str) {
        let stdin = self.stdin.as_mut().unwrap();
        if let Err(e) = writeln!(stdin, "{command}").and_then(|()| stdin.flush()) {
            panic!("{command}: {e}; before, the program said {:?}", self.line());
        }
    }

    /// The next line; empty at the end.
    #[track_caller]
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        if self.stdout.buffer().is_empty() {
            let mut fds = [PollFd::new(
                self.stdout.get_ref().as_fd(),
                PollFlags::POLLIN,
            )];
            let limit = PollTimeout::try_from(LIMIT).unwrap();
            assert_ne!(poll(&mut fds, limit), Ok(0), "the program does not answer");
        }
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Closes the program's stdin, which ends the program.
    pub fn close(&mut self) {
        self.stdin = None;
    }
}

impl Workload {
    pub fn start(path: &Path) -> Workload {
        Workload::start_with(path, &[])
    }

    pub fn start_with(path: &Path, args: &[&str]) -> Workload {
        Workload::start_as(Command::new(path).args(args))
    }

    /// Starts it by a command that executes it.
    pub fn start_as(command: &mut Command) -> Workload {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = Lines::new(&mut child);
        let child = Running(child);
        Workload { child, lines }
    }

    pub fn pid(&self) -> Pid {
        self.child.pid()
    }

    /// Ends it and waits for its exit.
    pub fn end(mut self) {
        self.lines.close();
        assert!(self.child.0.wait().unwrap().success());
    }
}

impl Running {
    pub fn pid(&self) -> Pid {
        Pid(self.0.id())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The output of `forked_allocator`.
#[derive(Debug, Deserialize)]
pub struct Family {
    pub processes: Vec<Member>,
}

#[derive(Debug, Deserialize)]
pub struct Member {
    pub role: String,
    pub pid: u32,
    pub functions: Vec<Expected>,
}

/// A function and the bytes that its own stores brought in.
#[derive(Debug, Deserialize)]
pub struct Expected {
    pub name: String,
    pub bytes: u64,
    /// Its callers, outermost first, then the function itself.
    pub chain: Vec<String>,
}

impl Family {
    pub fn read(lines: &mut Lines) -> Family {
        let line = lines.line();
        serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"))
    }

    pub fn parent(&self) -> &Member {
        &self.processes[0]
    }

    pub fn child(&self) -> &Member {
        &self.processes[1]
    }
}
