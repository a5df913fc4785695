//! The whole recorder under load: two pseudo nodes with eight connections and 20,000 messages of 250 bytes per second in all.
//!
//! ```sh
//! cargo bench -p tezos-recorder --bench whole          # 10 seconds; as root
//! MEMPROF_BENCH_FULL=1 cargo bench -p tezos-recorder --bench whole     # 60 seconds
//! ```
//!
//! Prints how many messages were sent and recorded, what was lost, and the processor time and memory of the recorder.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, Uid};
use serde_json::Value;
use tezos_recorder::cgroups;

const CONNECTIONS: u32 = 8;
const RATE: u32 = 20_000;

fn main() {
    let full = std::env::var_os("MEMPROF_BENCH_FULL").is_some();
    let short = std::env::var_os("MEMPROF_BENCH_SHORT").is_some();
    let seconds = if full {
        60
    } else if short {
        2
    } else {
        10
    };
    if !Uid::effective().is_root() {
        println!("whole: skipped: needs root for BPF");
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let group = cgroups::mount().expect("control groups");
    let group = group.join(format!("recorder-bench-{}", std::process::id()));
    fs::create_dir(&group).expect("a control group");
    measure(dir.path(), &group, seconds);
    while fs::remove_dir(&group).is_err() {
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn measure(dir: &Path, group: &Path, seconds: u32) {
    let node = pseudo_node();
    for role in ["listen", "connect"] {
        let made = Command::new(&node)
            .args(["identity", "--out"])
            .arg(dir.join(role))
            .status();
        assert!(made.expect("an identity").success());
    }
    let api = free_port();
    let config = format!(
        "http_v2 = {api}\n[[nodes]]\nname = \"node\"\nhttp_v3 = 0\ndb = {:?}\ncgroup = {group:?}\npow = 8\n\
         p2p = {{ identity = {:?}, port = 1 }}\n",
        dir.join("db"),
        dir.join("listen")
    );
    fs::write(dir.join("config.toml"), config).expect("a configuration");
    let began = Instant::now();
    let mut recorder = Command::new(env!("CARGO_BIN_EXE_tezos-recorder"))
        .args(["run", "--config"])
        .arg(dir.join("config.toml"))
        .stderr(Stdio::piped())
        .spawn()
        .expect("the recorder");
    let stderr = BufReader::new(recorder.stderr.take().expect("stderr"));
    let mut lines = stderr.lines().map_while(Result::ok);
    assert!(
        lines.any(|line| line.contains("capturing")),
        "nothing is captured"
    );
    println!("start: {:.3} s", began.elapsed().as_secs_f64());
    std::thread::spawn(move || lines.for_each(drop));

    let port = free_port();
    let options = format!(
        "--connections {CONNECTIONS} --kinds operation --size 250 --rate {} --duration {seconds} --batch 10 --writes batch",
        RATE / 2 / CONNECTIONS
    );
    let start = |role: &str, address: &[String]| {
        // The node that connects is another machine, as it were.
        let group = if role == "listen" {
            group
        } else {
            group.parent().expect("the root")
        };
        let mut command = Command::new("sh");
        command
            .args(["-c", "echo $$ > \"$0\" && exec \"$@\""])
            .arg(group.join("cgroup.procs"));
        command
            .arg(&node)
            .arg(role)
            .args(address)
            .args(options.split(' '));
        command
            .arg("--identity")
            .arg(dir.join(role))
            .arg("--log")
            .arg(dir.join(role).with_extension("log"));
        command
            .stdout(Stdio::piped())
            .spawn()
            .expect("a pseudo node")
    };
    let mut listener = start("listen", &["--port".into(), port.to_string()]);
    let listens = BufReader::new(listener.stdout.take().expect("stdout"));
    let mut lines = listens.lines().map_while(Result::ok);
    assert!(
        lines.any(|line| line.starts_with("listening")),
        "the pseudo node does not listen"
    );
    let mut connector = start("connect", &[format!("127.0.0.1:{port}")]);
    for node in [&mut connector, &mut listener] {
        node.wait().expect("the end of a pseudo node");
    }
    let sent = messages(&dir.join("listen.log"));
    let (recorded, waited) = recorded(api, sent);
    report(&recorder, api, (sent, recorded), waited, seconds);
    let ended = Instant::now();
    kill(Pid::from_raw(recorder.id() as i32), Signal::SIGTERM).expect("a signal");
    assert!(recorder.wait().expect("the end of the recorder").success());
    println!("end: {:.3} s", ended.elapsed().as_secs_f64());
}

fn report(
    recorder: &Child,
    api: u16,
    (sent, recorded): (u64, u64),
    waited: Duration,
    seconds: u32,
) {
    let stat = fs::read_to_string(format!("/proc/{}/stat", recorder.id())).expect("stat");
    let fields: Vec<&str> = stat
        .rsplit(") ")
        .next()
        .expect("fields")
        .split(' ')
        .collect();
    let ticks: u64 = fields[11..13]
        .iter()
        .map(|field| field.parse::<u64>().expect("ticks"))
        .sum();
    let status = fs::read_to_string(format!("/proc/{}/status", recorder.id())).expect("status");
    let memory = status
        .lines()
        .find(|line| line.starts_with("VmHWM"))
        .expect("VmHWM");
    println!(
        "{seconds} s, {CONNECTIONS} connections: {sent} messages sent and received, {recorded} recorded ({:.0} per second), the last one {:.2} s later",
        recorded as f64 / f64::from(seconds),
        waited.as_secs_f64()
    );
    println!(
        "recorder: {:.2} s of processor time, {memory}",
        ticks as f64 / 100.0
    );
    println!("health: {}", get(api, "/v4/health"));
    assert_eq!(sent, recorded);
}

/// The number of messages, once it does not grow any more, and how long that took.
fn recorded(api: u16, sent: u64) -> (u64, Duration) {
    let (began, mut last, mut since) = (Instant::now(), 0, Instant::now());
    loop {
        let nodes = get(api, "/v4/nodes");
        let recorded = nodes["items"][0]["messages"].as_u64().expect("a number");
        if recorded > last {
            (last, since) = (recorded, Instant::now());
        }
        if recorded >= sent || since.elapsed() > Duration::from_secs(5) {
            return (recorded, since - began);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn get(port: u16, path: &str) -> Value {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("a connection");
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n").expect("a request");
    let mut reply = String::new();
    stream.read_to_string(&mut reply).expect("a reply");
    let body = reply.split_once("\r\n\r\n").expect("a body").1;
    serde_json::from_str(body).expect("JSON")
}

/// The messages in a log of a pseudo node.
fn messages(log: &Path) -> u64 {
    let log = BufReader::new(fs::File::open(log).expect("a log"));
    let lines = log.lines().map_while(Result::ok);
    lines
        .filter(|line| line.contains("\"event\":\"message\""))
        .count() as u64
}

fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    listener.local_addr().expect("its number").port()
}

fn pseudo_node() -> PathBuf {
    let built = Command::new(env!("CARGO"))
        .args([
            "build",
            "--quiet",
            "--release",
            "--example",
            "pseudo_node",
            "--manifest-path",
        ])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
        .status();
    assert!(built.expect("cargo").success());
    Path::new(env!("CARGO_BIN_EXE_tezos-recorder"))
        .parent()
        .expect("a directory")
        .join("examples/pseudo_node")
}
