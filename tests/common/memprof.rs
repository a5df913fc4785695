//! The real `memprof`, started as a user would start it.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use super::process::LIMIT;
use super::tree::Node;
use super::workload::Lines;
use super::{Reply, exchange};
use memprof_sys::ids::Pid;

pub const BINARY: &str = env!("CARGO_BIN_EXE_memprof");
/// A running memprof; killed when dropped.
pub struct Memprof {
    pub child: Child,
    stderr: Arc<Stderr>,
    address: Option<SocketAddr>,
}

#[derive(Default)]
struct Stderr {
    lines: Mutex<(Vec<String>, bool)>,
    news: Condvar,
}

impl Stderr {
    /// Waits until its output satisfies `enough`, it has ended, or `end` is reached. Returns its output, and
    /// whether it has ended.
    fn news_until(&self, end: Instant, enough: impl Fn(&[String]) -> bool) -> (Vec<String>, bool) {
        let mut lines = self.lines.lock().unwrap();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if lines.1 || left.is_zero() || enough(&lines.0) {
                return lines.clone();
            }
            lines = self.news.wait_timeout(lines, left).unwrap().0;
        }
    }
}

/// Runs it to its end.
pub fn run(args: &[&str]) -> Output {
    let mut command = Command::new(BINARY);
    isolated(command.args(args).stdin(Stdio::null()))
        .output()
        .unwrap()
}

/// Takes away what this machine's user has configured, unless a test sets it.
fn isolated(command: &mut Command) -> &mut Command {
    let servers = OsStr::new("DEBUGINFOD_URLS");
    if !command.get_envs().any(|(name, _)| name == servers) {
        command.env_remove(servers);
    }
    command
}

/// Runs it to its end and checks for exit status 1; returns its messages.
#[track_caller]
pub fn run_to_error(args: &[&str]) -> String {
    let out = run(args);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(1), "{args:?}: {said}");
    said
}

/// The arguments of a memprof with a server on a free port. Tests look at owners, so all stacks are walked unless a test
/// says otherwise.
pub fn served<'a>(args: &[&'a str]) -> Vec<&'a str> {
    let mut all = vec!["--listen", "127.0.0.1:0"];
    if !args.contains(&"--stacks") {
        all.extend(["--stacks", "all"]);
    }
    all.extend(args);
    all
}

impl Memprof {
    /// Starts it with a server on a free port and waits until it serves.
    pub fn start(args: &[&str]) -> Memprof {
        let all = served(args);
        let mut m = Memprof::spawn(&all, Stdio::null(), Stdio::piped());
        m.wait_served();
        m
    }

    /// Starts it with a server for this process.
    pub fn attach(pid: Pid, args: &[&str]) -> Memprof {
        Memprof::start(&[&["--pid", &pid.to_string()], args].concat())
    }

    /// Starts it with a command; also returns the command's stdin and stdout.
    pub fn start_command(args: &[&str], command: &[&str]) -> (Memprof, Lines) {
        let mut all = served(args);
        all.push("--");
        all.extend(command);
        let mut m = Memprof::spawn(&all, Stdio::piped(), Stdio::piped());
        m.wait_served();
        let lines = Lines::new(&mut m.child);
        m.said("following ");
        (m, lines)
    }

    /// Starts it with these arguments and streams.
    pub fn spawn(args: &[&str], stdin: Stdio, stdout: Stdio) -> Memprof {
        Memprof::start_process(Command::new(BINARY).args(args).stdin(stdin).stdout(stdout))
    }

    /// Starts it by a command that executes memprof with a server.
    pub fn spawn_as(command: &mut Command) -> Memprof {
        let mut m = Memprof::start_process(command);
        m.wait_served();
        m
    }

    /// Starts it by a command that executes memprof, which need not serve.
    pub fn spawn_unserved(command: &mut Command) -> Memprof {
        Memprof::start_process(command)
    }

    fn start_process(command: &mut Command) -> Memprof {
        let mut child = isolated(command).stderr(Stdio::piped()).spawn().unwrap();
        let stderr = Arc::new(Stderr::default());
        let (to, from) = (Arc::clone(&stderr), child.stderr.take().unwrap());
        std::thread::spawn(move || {
            for line in BufReader::new(from).lines() {
                to.lines.lock().unwrap().0.push(line.unwrap());
                to.news.notify_all();
            }
            to.lines.lock().unwrap().1 = true;
            to.news.notify_all();
        });
        Memprof {
            child,
            stderr,
            address: None,
        }
    }

    pub fn wait_served(&mut self) {
        let line = self.said("serving http://");
        let address = line.split("http://").nth(1).unwrap();
        let address = address.strip_suffix('/').unwrap();
        self.address = Some(address.parse().unwrap());
    }

    pub fn address(&self) -> SocketAddr {
        self.address.expect("it serves no HTTP")
    }

    pub fn pid(&self) -> Pid {
        Pid(self.child.id())
    }

    /// Waits until it has printed this; returns the line.
    #[track_caller]
    pub fn said(&self, what: &str) -> String {
        self.said_times(what, 1)
    }

    /// Waits until it has printed this `times` times; returns the latest of these lines.
    #[track_caller]
    pub fn said_times(&self, what: &str, times: usize) -> String {
        let says = |line: &&String| line.contains(what);
        let end = Instant::now() + LIMIT;
        let (lines, _) = self
            .stderr
            .news_until(end, |lines| lines.iter().filter(says).count() >= times);
        match lines.iter().filter(says).nth(times - 1) {
            Some(line) => line.clone(),
            None => panic!("it never said `{what}`, but:\n{}", lines.join("\n")),
        }
    }

    /// What it has printed until now that contains this.
    pub fn has_said(&self, what: &str) -> Vec<String> {
        let (lines, _) = self.stderr.news_until(Instant::now(), |_| true);
        lines
            .into_iter()
            .filter(|line| line.contains(what))
            .collect()
    }

    /// Everything it printed until its end.
    pub fn all_said(&self) -> String {
        let end = Instant::now() + LIMIT;
        let (lines, ended) = self.stderr.news_until(end, |_| false);
        assert!(ended, "it did not end");
        lines.join("\n")
    }

    pub fn get(&self, target: &str) -> Reply {
        let address = self.address();
        let request =
            format!("GET {target} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        Reply::parse(&exchange(address, request.as_bytes()))
    }

    /// Sends a request that changes memprof's state: `POST` or `DELETE`.
    pub fn send(&self, method: &str, target: &str, body: &str) -> Reply {
        let (address, length) = (self.address(), body.len());
        let request = format!(
            "{method} {target} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        );
        Reply::parse(&exchange(address, request.as_bytes()))
    }

    /// The tree with threshold 0 and further parameters.
    #[track_caller]
    fn tree_with(&self, more: &str) -> Node {
        let reply = self.get(&format!("/v1/tree?threshold=0{more}"));
        assert_eq!(reply.status, 200, "{}", reply.text());
        Node::parse(&reply.body)
    }

    /// The tree, innermost function first.
    #[track_caller]
    pub fn tree(&self) -> Node {
        self.tree_with("")
    }

    /// The tree, outermost function first.
    #[track_caller]
    pub fn reversed(&self) -> Node {
        self.tree_with("&reverse=true")
    }

    /// The losses in its newest report.
    #[track_caller]
    pub fn lost(&self) -> Vec<String> {
        let summary = self.get("/v2/summary");
        assert_eq!(summary.status, 200, "{}", summary.text());
        let (summary, health) = (summary.json(), self.get("/v2/health").json());
        let mut rows = health["losses"].as_array().unwrap().clone();
        rows.retain(|row| row["count"] != 0);
        let without = summary["not_observed"].as_array().unwrap();
        let lost = without.iter().filter(|row| row["reason"] == "stack_lost");
        rows.extend(lost.cloned());
        rows.iter().map(ToString::to_string).collect()
    }

    /// The number of entries in one of its BPF maps.
    #[track_caller]
    pub fn map_entries(&self, name: &str) -> u64 {
        let health = self.get("/v2/health").json();
        let mut maps = health["maps"].as_array().unwrap().iter();
        let map = maps.find(|map| map["name"] == name);
        let map = map.unwrap_or_else(|| panic!("no map {name}: {health}"));
        map["entries"].as_u64().unwrap()
    }

    /// The process it follows.
    pub fn followed(&self) -> Pid {
        let reply = self.get("/v1/pid");
        assert_eq!(reply.status, 200, "{}", reply.text());
        Pid(reply.text().trim().parse().unwrap())
    }

    pub fn signal(&self, signal: i32) {
        super::process::signal(self.pid(), signal);
    }

    /// Waits for its end; fails the test if it does not end.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        let end = Instant::now() + LIMIT;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < end, "it did not end");
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    }

    /// Ends it with SIGINT; returns everything it printed.
    #[track_caller]
    pub fn interrupt(mut self) -> String {
        self.signal(libc::SIGINT);
        let status = self.wait();
        let said = self.all_said();
        assert!(status.success(), "{status}: {said}");
        said
    }
}

impl Drop for Memprof {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
