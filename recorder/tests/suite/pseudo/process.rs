//! Pseudo nodes as processes: started, commanded, and waited for.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::log::NodeLog;

/// Timeout of every operation; long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The program. Cargo builds it with the tests unless some were chosen; then it is built here.
pub fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let tests = std::env::current_exe().unwrap();
        let profile = tests.parent().and_then(Path::parent).unwrap();
        let program = profile.join("examples/pseudo_node");
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--example", "pseudo_node"]);
        cargo.args([
            "--manifest-path",
            concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"),
        ]);
        if profile.ends_with("release") {
            cargo.arg("--release");
        }
        match cargo.status() {
            Ok(status) => assert!(status.success(), "cannot build the pseudo node"),
            // The tests run on a machine without Cargo.
            Err(_) => assert!(program.exists(), "no {}", program.display()),
        }
        program
    })
}

/// A directory with two identities, and the logs of both nodes.
pub struct Stage {
    dir: TempDir,
}

impl Stage {
    pub fn new() -> Self {
        let dir = TempDir::new().unwrap();
        for (seed, name) in [("1", "listen"), ("2", "connect")] {
            let out = dir.path().join(name).with_extension("json");
            let mut command = Command::new(program());
            command
                .args(["identity", "--seed", seed, "--out"])
                .arg(&out);
            assert!(command.status().unwrap().success());
        }
        Self { dir }
    }

    /// The identity.json of the node that listens (`listen`) or connects (`connect`).
    pub fn identity(&self, role: &str) -> PathBuf {
        self.dir.path().join(role).with_extension("json")
    }

    /// Starts a node: `role` is `listen` or `connect`.
    pub fn start(&self, role: &str, arguments: &[String]) -> Running {
        self.start_by(Command::new(program()), role, arguments)
    }

    /// Starts a node by a command that executes the program, which is its last argument so far.
    pub fn start_by(&self, mut command: Command, role: &str, arguments: &[String]) -> Running {
        let log = self.dir.path().join(role).with_extension("log");
        command.arg(role).args(arguments);
        command
            .arg("--identity")
            .arg(self.identity(role))
            .arg("--log")
            .arg(&log);
        Running::start(command, log)
    }
}

/// A node that runs. It is killed when this is dropped.
pub struct Running {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    stderr: Option<JoinHandle<String>>,
    log: PathBuf,
}

impl Running {
    fn start(mut command: Command, log: PathBuf) -> Self {
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut stderr = child.stderr.take().unwrap();
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            stdout
                .lines()
                .map_while(Result::ok)
                .try_for_each(|l| sender.send(l))
        });
        let stderr = std::thread::spawn(move || {
            let mut text = String::new();
            let _ = stderr.read_to_string(&mut text);
            text
        });
        Self {
            stdin: child.stdin.take(),
            child,
            lines,
            stderr: Some(stderr),
            log,
        }
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for a line that begins with `prefix`, and returns the rest of it; drops those before.
    pub fn line(&self, prefix: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left);
            let line = line.unwrap_or_else(|e| panic!("no line {prefix:?}: {e}"));
            if let Some(rest) = line.strip_prefix(prefix) {
                return rest.trim().to_owned();
            }
        }
    }

    /// The address on which it listens.
    pub fn address(&self) -> SocketAddr {
        self.line("listening").parse().unwrap()
    }

    /// Gives a command.
    pub fn command(&mut self, command: &str) {
        let stdin = self.stdin.as_mut().unwrap();
        writeln!(stdin, "{command}").unwrap();
    }

    /// What the log has now.
    pub fn log(&self) -> NodeLog {
        NodeLog::read(&self.log)
    }

    /// Waits until it ends, which it must do with success; returns its log.
    pub fn end(mut self) -> NodeLog {
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            match self.child.try_wait().unwrap() {
                Some(status) => break status,
                None if Instant::now() > deadline => panic!("the pseudo node did not end"),
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        let stderr = self.stderr.take().unwrap().join().unwrap();
        assert!(
            status.success() && !stderr.contains("panicked"),
            "{status}: {stderr}"
        );
        self.log()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
