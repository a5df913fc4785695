//! Nodes and peers as processes in control groups and network namespaces.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tezos_recorder::capture::Target;
use tezos_recorder::cgroups;

const EXCHANGE: &str = include_str!("exchange.py");
/// Maximum time of anything.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Path of the Python interpreter. `python3` may be a script that searches for it every time.
fn python() -> &'static str {
    static PATH: OnceLock<String> = OnceLock::new();
    PATH.get_or_init(|| {
        let find = "import sys; print(sys.executable)";
        let output = Command::new("python3").args(["-c", find]).output();
        let output = output.expect("the tests need python3");
        String::from_utf8(output.stdout).unwrap().trim().to_string()
    })
}

/// A name that no other test uses.
pub fn unique(name: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("recorder-{name}-{}-{n}", std::process::id())
}

/// A control group that is removed at the end.
pub struct Group(pub PathBuf);

impl Group {
    pub fn new(name: &str) -> Self {
        let group = Self(cgroups::mount().unwrap().join(unique(name)));
        group.make();
        group
    }

    pub fn make(&self) {
        fs::create_dir(&self.0).unwrap();
    }

    /// Removes the group once its processes have ended.
    pub fn remove(&self) {
        let limit = Instant::now() + LIMIT;
        while self.0.exists() && fs::remove_dir(&self.0).is_err() && Instant::now() < limit {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn target(&self) -> Target {
        Target::Cgroup(self.0.clone())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.remove();
    }
}

/// A program that exchanges bytes, ended at the end.
pub struct Program {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Program {
    /// Starts a command, in a control group if one is given. It runs when it is told to.
    pub fn start(group: Option<&Path>, command: &[&str]) -> Self {
        let root = cgroups::mount().unwrap();
        let procs = group.unwrap_or(&root).join("cgroup.procs");
        let mut child = Command::new("sh")
            .args(["-c", "echo $$ > \"$0\" && read _ && exec \"$@\""])
            .arg(procs)
            .args(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            input: child.stdin.take().unwrap(),
            output: BufReader::new(child.stdout.take().unwrap()),
            child,
        }
    }

    /// Has a prepared program run. Returns its port.
    pub fn begin(&mut self) -> u16 {
        self.say("begin");
        self.line().parse().unwrap()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim().to_string()
    }

    pub fn say(&mut self, line: &str) {
        self.input
            .write_all(format!("{line}\n").as_bytes())
            .unwrap();
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// What it has sent and received, from its last line.
    pub fn exchanged(&mut self) -> Exchanged {
        let line = self.line();
        let words: Vec<_> = line.split(' ').collect();
        let [sent, sent_hash, received, received_hash] = words[..] else {
            panic!("the program failed: {line:?}");
        };
        Exchanged {
            sent: (sent.parse().unwrap(), sent_hash.into()),
            received: (received.parse().unwrap(), received_hash.into()),
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Number of bytes and their SHA-256.
pub type Sum = (usize, String);

#[derive(Debug, PartialEq)]
pub struct Exchanged {
    pub sent: Sum,
    pub received: Sum,
}

/// A place for a program: a control group and a network namespace.
#[derive(Clone, Copy, Default)]
pub struct Place<'a> {
    pub group: Option<&'a Path>,
    pub namespace: Option<&'a str>,
}

impl<'a> Place<'a> {
    /// A group, in this network namespace.
    pub fn group(group: &'a Path) -> Self {
        Self {
            group: Some(group),
            namespace: None,
        }
    }

    /// Starts `exchange.py`, and returns it with its port.
    pub fn exchange(
        self,
        role: &str,
        address: &str,
        port: u16,
        method: &str,
        size: usize,
    ) -> (Program, u16) {
        let mut program = self.prepare(role, address, port, method, size);
        let port = program.begin();
        (program, port)
    }

    /// Starts a process that will be `exchange.py`.
    pub fn prepare(
        self,
        role: &str,
        address: &str,
        port: u16,
        method: &str,
        size: usize,
    ) -> Program {
        let (port, size) = (port.to_string(), size.to_string());
        let script = [
            python(),
            "-I",
            "-S",
            "-c",
            EXCHANGE,
            role,
            address,
            &port,
            method,
            &size,
        ];
        let mut command = match self.namespace {
            Some(name) => vec!["ip", "netns", "exec", name],
            None => vec![],
        };
        command.extend(script);
        Program::start(self.group, &command)
    }
}

/// Two network namespaces joined by a pair of interfaces: 10.77.0.1, fd77::1 and 10.77.0.2, fd77::2.
pub struct Namespaces {
    pub node: String,
    pub peer: String,
}

impl Namespaces {
    pub fn new() -> Self {
        let names = Self {
            node: unique("a"),
            peer: unique("b"),
        };
        let (node, peer) = (&names.node, &names.peer);
        shell(&format!(
            "ip netns add {node}; ip netns add {peer}
             ip -n {node} link add va type veth peer name vb netns {peer}
             ip -n {node} address add 10.77.0.1/24 dev va; ip -n {peer} address add 10.77.0.2/24 dev vb
             ip -n {node} -6 address add fd77::1/64 dev va nodad; ip -n {peer} -6 address add fd77::2/64 dev vb nodad
             ip -n {node} link set va up; ip -n {peer} link set vb up"
        ));
        names
    }

    /// Has both queues drop packets.
    pub fn drop_packets(&self) {
        let tbf = "root tbf rate 400mbit burst 20kb limit 60kb";
        shell(&format!(
            "tc -n {} qdisc add dev va {tbf}; tc -n {} qdisc add dev vb {tbf}",
            self.node, self.peer
        ));
    }

    /// Number of packets that the node's and the peer's queue have dropped.
    pub fn dropped(&self) -> [u64; 2] {
        [(&self.node, "va"), (&self.peer, "vb")].map(|(name, device)| {
            let text = shell(&format!("tc -n {name} -s qdisc show dev {device}"));
            let (_, rest) = text.split_once("dropped ").unwrap();
            rest.split(',').next().unwrap().parse().unwrap()
        })
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in [&self.node, &self.peer] {
            let _ = Command::new("ip").args(["netns", "delete", name]).status();
        }
    }
}

pub fn shell(script: &str) -> String {
    let output = Command::new("sh").args(["-ec", script]).output().unwrap();
    assert!(output.status.success(), "{script}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}
