//! The recorder as a process, and pseudo nodes in a control group of their own.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::api::client::Server;
use crate::capture::common::Group;
use crate::pseudo::compare::{Recorded, compare, from_json};
use crate::pseudo::log::NodeLog;
use crate::pseudo::process::{Running, Stage, program};

/// Timeout of everything.
const PATIENCE: Duration = Duration::from_secs(60);

/// A recorder, killed when it is dropped.
pub struct Recorder {
    child: Child,
    lines: Receiver<String>,
    /// Its API.
    pub server: Server,
}

/// Ports that are free now.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

impl Recorder {
    /// Starts a recorder of nodes, `[[nodes]]` sections of a configuration, and waits until it serves.
    pub fn start(dir: &Path, nodes: &str) -> Self {
        Self::with(dir, "", nodes)
    }

    /// The same with top-level keys.
    pub fn with(dir: &Path, keys: &str, nodes: &str) -> Self {
        let port = free_port();
        let config = dir.join("config.toml");
        fs::write(&config, format!("http_v2 = {port}\n{keys}\n{nodes}")).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_tezos-recorder"))
            .args(["run", "--config"])
            .arg(&config)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            let mut lines = stderr.lines().map_while(Result::ok);
            lines.try_for_each(|line| sender.send(line))
        });
        Self {
            child,
            lines,
            server: Server::at(SocketAddr::from(([127, 0, 0, 1], port))),
        }
    }

    /// Waits for a message that contains a text.
    #[track_caller]
    pub fn says(&self, text: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        let mut before = Vec::new();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) if line.contains(text) => return line,
                Ok(line) => before.push(line),
                Err(e) => panic!("the recorder does not say {text:?} ({e}), but {before:#?}"),
            }
        }
    }

    /// Ends it by a signal, after which it must end with success. Returns what it said since the last line that was read.
    #[track_caller]
    pub fn end(mut self) -> Vec<String> {
        self.signal(Signal::SIGTERM);
        let status = self.child.wait().unwrap();
        let said: Vec<String> = self.lines.iter().collect();
        assert!(status.success(), "{status}: {said:#?}");
        assert!(
            !said.iter().any(|line| line.contains("panicked")),
            "{said:#?}"
        );
        said
    }

    /// Kills it.
    pub fn kill(&mut self) {
        self.signal(Signal::SIGKILL);
        self.child.wait().unwrap();
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Stops it for a while: nothing is read out of the ring buffer.
    pub fn pause(&self) {
        self.signal(Signal::SIGSTOP);
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.signal(Signal::SIGCONT);
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// All messages of a node, once there are that many and all that was captured is stored.
    #[track_caller]
    pub fn messages(&self, node: &str, number: usize) -> Vec<Value> {
        self.wait(&format!("{number} messages of {node}"), || {
            self.node(node)["messages"].as_u64() >= Some(number as u64)
        });
        let list = format!("/v4/messages?node={node}&direction=forward&limit=10000");
        self.server.json(&list)["items"].as_array().unwrap().clone()
    }

    /// The state of a node.
    pub fn node(&self, name: &str) -> Value {
        let nodes = self.server.json("/v4/nodes");
        let mut nodes = nodes["items"].as_array().unwrap().iter();
        nodes.find(|node| node["name"] == name).unwrap().clone()
    }

    /// The connections of a node, once all of them have ended.
    #[track_caller]
    pub fn ended_connections(&self, node: &str, number: usize) -> Vec<Value> {
        let list = || {
            let list = format!("/v4/connections?node={node}&direction=forward");
            self.server.json(&list)["items"].as_array().unwrap().clone()
        };
        self.wait(&format!("{number} ended connections of {node}"), || {
            let ended = |connection: &&Value| !connection["ended"].is_null();
            list().iter().filter(ended).count() >= number
        });
        list()
    }

    /// Waits until something holds.
    #[track_caller]
    pub fn wait(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !holds() {
            let health = || self.server.json("/v4/health");
            assert!(Instant::now() < deadline, "not {what}: {:#}", health());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until the recorder has all messages of a pseudo node, and compares each.
    #[track_caller]
    pub fn must_have(&self, node: &str, log: &NodeLog) {
        let messages = self.messages(node, log.messages());
        let recorded: Vec<Recorded> = from_json(&messages);
        if let Err(difference) = compare(log, &recorded) {
            let connections = self.server.json(&format!("/v4/connections?node={node}"));
            panic!("{node}: {difference}\n{connections:#}");
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Two pseudo nodes in a control group, and the directory of a recorder.
pub struct Scene {
    stage: Stage,
    pub group: Group,
    pub dir: tempfile::TempDir,
}

impl Scene {
    pub fn new(name: &str) -> Self {
        Self {
            stage: Stage::new(),
            group: Group::new(name),
            dir: tempfile::tempdir().unwrap(),
        }
    }

    pub fn identity(&self, role: &str) -> PathBuf {
        self.stage.identity(role)
    }

    /// The sections of a configuration that records nodes with these roles, under these names.
    pub fn nodes(&self, roles: &[&str]) -> String {
        let node = |role: &&str| {
            format!(
                "[[nodes]]\nname = {role:?}\nhttp_v3 = 0\ndb = {:?}\ncgroup = {:?}\npow = 8\n\
                 p2p = {{ identity = {:?}, port = 1 }}\n",
                self.dir.path().join(role),
                self.group.0,
                self.identity(role),
            )
        };
        roles.iter().map(node).collect()
    }

    /// Starts a recorder of the nodes with these roles, and waits until it captures.
    #[track_caller]
    pub fn record(&self, roles: &[&str]) -> Recorder {
        let recorder = Recorder::start(self.dir.path(), &self.nodes(roles));
        recorder.says("capturing in control group");
        recorder
    }

    /// Starts a pseudo node in another control group.
    pub fn start_outside(&self, role: &str, options: &str) -> Running {
        let words: Vec<String> = options.split_whitespace().map(str::to_owned).collect();
        self.stage.start(role, &words)
    }

    /// Starts a pseudo node in the control group.
    pub fn start(&self, role: &str, options: &str) -> Running {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]);
        command
            .arg(self.group.0.join("cgroup.procs"))
            .arg(program());
        let words: Vec<String> = options.split_whitespace().map(str::to_owned).collect();
        self.stage.start_by(command, role, &words)
    }
}
