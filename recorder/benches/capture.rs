//! The cost of the capture to the node and to others, in pairs of runs without and with it:
//!
//!     sudo cargo bench -p tezos-recorder --bench capture
//!
//! Goals: an exchange of 250 bytes ≤ 1.10, of 16 KiB ≤ 1.25, a bystander's exchange ≤ 1.01, a bystander's system call 1.00. Times are
//! those that the processors were busy for both programs: other programs on the machine count little.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use tezos_recorder::capture::{Capture, CaptureOptions, Source, Target};
use tezos_recorder::captured::{Captured, What};
use tezos_recorder::cgroups;

/// Pairs of runs for each row.
const PAIRS: usize = 15;
/// Bytes exchanged in a run, at most.
const BYTES: usize = 16 << 20;

/// Time that a thread of a process has run, in ns.
fn run_time(thread: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{thread}/schedstat")).unwrap_or_default();
    let nanos = text.split(' ').next().and_then(|n| n.parse().ok());
    nanos.expect("the kernel counts run time (CONFIG_SCHED_INFO)")
}

/// Runs this thread, and what it starts, on one processor.
fn pin(processor: usize) {
    let mut set = CpuSet::new();
    let pinned = set
        .set(processor)
        .and_then(|()| sched_setaffinity(Pid::from_raw(0), &set));
    pinned.expect("there is a second processor");
}

/// A control group with a program that sends back what it receives.
struct Node {
    group: PathBuf,
    child: Child,
    stream: TcpStream,
}

impl Node {
    fn start(name: &str) -> Self {
        let mount = cgroups::mount().expect("control groups of version 2");
        let group = mount.join(format!("recorder-bench-{name}-{}", std::process::id()));
        fs::create_dir(&group).expect("a control group (run as root)");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        drop(listener);
        let mut child = Command::new("sh")
            .args(["-c", "echo $$ > \"$0\" && exec \"$@\""])
            .arg(group.join("cgroup.procs"))
            .arg(std::env::current_exe().expect("own path"))
            .args(["echo", &address])
            .stdout(Stdio::piped())
            .spawn()
            .expect("the echo program");
        let mut ready = [0];
        let output = child.stdout.as_mut().expect("its output");
        output.read_exact(&mut ready).expect("it listens");
        let stream = TcpStream::connect(address).expect("a connection");
        stream.set_nodelay(true).expect("no delay");
        Self {
            group,
            child,
            stream,
        }
    }

    /// Exchanges so many bytes each way, again and again. Returns ns for each exchange.
    fn exchange(&mut self, size: usize) -> f64 {
        let rounds = (BYTES / size).min(5000);
        let mut data = vec![7; size];
        let node = self.child.id().to_string();
        let time = || run_time("thread-self") + run_time(&node);
        let began = time();
        for _ in 0..rounds {
            self.stream.write_all(&data).expect("sent");
            self.stream.read_exact(&mut data).expect("received");
        }
        (time() - began) as f64 / rounds as f64
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir(&self.group);
    }
}

/// Sends back what one connection receives.
fn echo(address: &str) {
    let listener = TcpListener::bind(address).expect("the port");
    print!("x");
    std::io::stdout().flush().expect("output");
    let (mut stream, _) = listener.accept().expect("a connection");
    stream.set_nodelay(true).expect("no delay");
    let mut buffer = vec![0; 1 << 20];
    while let Ok(n @ 1..) = stream.read(&mut buffer) {
        stream.write_all(&buffer[..n]).expect("sent back");
    }
}

/// Runs a function while a capture runs on the other processor. Returns its result, and the bytes that were captured and lost.
fn captured(options: &CaptureOptions, run: impl FnOnce() -> f64) -> (f64, u64, u64) {
    let done = AtomicBool::new(false);
    let (ready, wait) = mpsc::channel();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            pin(1);
            let mut capture = Capture::open(options).expect("a capture (run as root)");
            ready.send(()).expect("a waiting thread");
            let mut bytes = 0;
            let mut sink = |captured: Captured<'_>| {
                if let What::Data { data, .. } = captured.what {
                    bytes += data.len() as u64;
                }
            };
            while !done.load(Ordering::Relaxed) {
                let polled = capture.poll(Duration::from_millis(20), &mut sink);
                polled.expect("the ring is read");
            }
            (bytes, capture.losses().expect("losses").bytes)
        });
        wait.recv().expect("the capture starts");
        let result = run();
        done.store(true, Ordering::Relaxed);
        let (bytes, lost) = reader.join().expect("the reader");
        (result, bytes, lost)
    })
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// Prints the cost of a capture to what `run` does, which returns ns.
fn row(name: &str, source: Source, target: &Target, mut run: impl FnMut() -> f64) {
    let options = CaptureOptions {
        targets: vec![target.clone()],
        source,
        ..CaptureOptions::default()
    };
    let (mut without, mut with, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let (mut bytes, mut lost) = (0, 0);
    run();
    for pair in 0..PAIRS {
        let mut captured_run = |run: &mut dyn FnMut() -> f64| {
            let (ns, captured, missing) = captured(&options, run);
            bytes += captured;
            lost += missing;
            ns
        };
        let (base, cost) = if pair % 2 == 0 {
            let base = run();
            (base, captured_run(&mut run))
        } else {
            let cost = captured_run(&mut run);
            (run(), cost)
        };
        without.push(base);
        with.push(cost);
        ratios.push(cost / base);
    }
    let (base, cost, ratio) = (median(&mut without), median(&mut with), median(&mut ratios));
    let quartile = |at: usize| {
        ratios
            .get(ratios.len() * at / 4)
            .copied()
            .unwrap_or_default()
    };
    println!(
        "{name:42} {base:9.0} ns → {cost:9.0} ns  {ratio:5.3} ({:5.3} to {:5.3})  {bytes} bytes captured, {lost} lost",
        quartile(1),
        quartile(3),
    );
}

fn getppid() -> f64 {
    const CALLS: u32 = 300_000;
    let began = run_time("thread-self");
    for _ in 0..CALLS {
        std::hint::black_box(nix::unistd::getppid());
    }
    (run_time("thread-self") - began) as f64 / f64::from(CALLS)
}

fn main() {
    let args: Vec<_> = std::env::args().collect();
    if let [_, role, address] = &args[..]
        && role == "echo"
    {
        return echo(address);
    }
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("load before: {}", load.trim());
    pin(0);
    let mut node = Node::start("node");
    let mut other = Node::start("other");
    let target = Target::Cgroup(node.group.clone());
    let process = Target::Process(node.child.id());
    row("node, 250 bytes", Source::Sockets, &target, || {
        node.exchange(250)
    });
    row("node, 16 KiB", Source::Sockets, &target, || {
        node.exchange(16 << 10)
    });
    row("bystander, 250 bytes", Source::Sockets, &target, || {
        other.exchange(250)
    });
    row("bystander, 16 KiB", Source::Sockets, &target, || {
        other.exchange(16 << 10)
    });
    row("bystander, system call", Source::Sockets, &target, getppid);
    row("node, 250 bytes, by calls", Source::Calls, &process, || {
        node.exchange(250)
    });
    row("node, 16 KiB, by calls", Source::Calls, &process, || {
        node.exchange(16 << 10)
    });
    row(
        "bystander, 250 bytes, by calls",
        Source::Calls,
        &process,
        || other.exchange(250),
    );
    row(
        "bystander, system call, by calls",
        Source::Calls,
        &process,
        getppid,
    );
}
