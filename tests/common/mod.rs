//! A server on a free port, and a client that sends arbitrary bytes; the real `memprof`, the programs
//! that it profiles, and the trees that it returns.

#![allow(dead_code, reason = "each test binary uses its own part")]

pub mod cgroup;
pub mod files;
pub mod machine;
pub mod memprof;
pub mod postgres;
pub mod process;
pub mod reclaim;
pub mod skip;
pub mod terminal;
pub mod tree;
pub mod workload;

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::SystemTime;

use ::memprof::api::{Api, ApiOptions, BoxFuture, Provider, ProviderError, Report};
use ::memprof::event::{Outcome, Pid};
use ::memprof::measure::RESIDENCY;
use ::memprof::profile::*;
use ::memprof::server::{ServerOptions, bind, serve};
use ::memprof::symbol::{Function, Language, Symbol, Symbols};
use tokio::sync::oneshot;

/// A provider that always returns the same result.
pub struct Fixed(pub Result<Arc<Report>, ProviderError>);

impl Provider for Fixed {
    fn profile(&self) -> BoxFuture<'_, Result<Arc<Report>, ProviderError>> {
        Box::pin(async { self.0.clone() })
    }

    fn pid(&self) -> Option<Pid> {
        self.0.as_ref().ok().map(|r| r.profile.target.pid)
    }
}

pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(process::LIMIT)).unwrap();
    stream
}

/// Sends raw bytes and reads until the server closes the connection.
pub fn exchange(address: SocketAddr, request: &[u8]) -> Vec<u8> {
    let mut stream = connect(address);
    // The server may close the connection before everything is sent.
    let _ = stream.write_all(request);
    let mut out = Vec::new();
    let _ = stream.read_to_end(&mut out);
    out
}

/// A running server.
pub struct Server {
    pub address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub fn start(provider: impl Provider, options: ServerOptions) -> Server {
        Server::start_at(Ipv4Addr::LOCALHOST.into(), provider, options)
    }

    pub fn start_at(ip: IpAddr, provider: impl Provider, options: ServerOptions) -> Server {
        let listener = bind(SocketAddr::from((ip, 0))).unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            let shutdown = async {
                let _ = stopped.await;
            };
            let api = Api::new(Arc::new(provider), ApiOptions::default());
            let serving = serve(vec![listener], api, options, shutdown);
            runtime.block_on(serving).unwrap();
        });
        Server {
            address,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    pub fn begin_stop(&mut self) {
        let _ = self.stop.take().map(|stop| stop.send(()));
    }

    /// Stops, and fails the test if the server panicked.
    pub fn stop(mut self) {
        self.begin_stop();
        self.thread.take().unwrap().join().unwrap();
    }

    pub fn connect(&self) -> TcpStream {
        connect(self.address)
    }

    /// Sends raw bytes and reads until the server closes the connection.
    pub fn raw(&self, request: &[u8]) -> Vec<u8> {
        exchange(self.address, request)
    }

    /// Sends a request with additional headers on a new connection.
    pub fn request(&self, method: &str, target: &str, headers: &[(&str, &str)]) -> Reply {
        let mut text = format!("{method} {target} HTTP/1.1\r\nConnection: close\r\n");
        if !headers.iter().any(|(name, _)| *name == "Host") {
            text += &format!("Host: {}\r\n", self.address);
        }
        for (name, value) in headers {
            text += &format!("{name}: {value}\r\n");
        }
        Reply::parse(&self.raw((text + "\r\n").as_bytes()))
    }

    pub fn get(&self, target: &str) -> Reply {
        self.request("GET", target, &[])
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.begin_stop();
    }
}

/// A parsed response.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn parse(bytes: &[u8]) -> Reply {
        let end = bytes.windows(4).position(|w| w == b"\r\n\r\n");
        let end =
            end.unwrap_or_else(|| panic!("no header in {:?}", String::from_utf8_lossy(bytes)));
        let head = std::str::from_utf8(&bytes[..end]).unwrap();
        let mut lines = head.split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap();
        let header = |line: &str| {
            let (name, value) = line.split_once(':').unwrap();
            (name.to_ascii_lowercase(), value.trim().to_owned())
        };
        Reply {
            status: status.parse().unwrap(),
            headers: lines.map(header).collect(),
            body: bytes[end + 4..].to_vec(),
        }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.iter().filter(|(n, _)| n == name);
        let value = values.next().map(|(_, v)| v.as_str());
        assert!(values.next().is_none(), "{name} stands there twice");
        value
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

pub fn at(module: u16, offset: u64) -> Frame {
    Frame::code(ModuleId(module), offset)
}

/// `anon`, `shmem` and page cache in KiB.
pub fn kib(anon: u64, shmem: u64, cache: u64) -> Usage {
    Usage {
        anon: anon << 10,
        shmem: shmem << 10,
        cache: cache << 10,
        ..Usage::default()
    }
}

/// A report with these stacks (innermost frame first) and this memory without a stack. Module 0 is the
/// program's own executable, module 1 a library.
pub fn report(
    samples: &[(Vec<Frame>, Usage)],
    not_observed: &[Usage],
    names: &[(Frame, &str, Language)],
) -> Arc<Report> {
    let mut total = Usage::default();
    samples.iter().for_each(|(_, usage)| total += *usage);
    not_observed.iter().for_each(|usage| total += *usage);
    let module = |name: &str, own_executable| {
        Arc::new(Module {
            path: format!("/opt/{name}").into(),
            name: name.to_owned(),
            dev_ino: (1, 1),
            file: None,
            own_executable,
        })
    };
    let kernel = KernelFigures {
        rss_anon: total.anon,
        rss_shmem: total.shmem,
        ..KernelFigures::default()
    };
    let sample = |(frames, usage): &(Vec<Frame>, Usage)| Sample {
        stack: Arc::new(Stack {
            frames: frames.clone().into(),
            outcome: Outcome::Complete,
        }),
        amounts: (*usage).into(),
    };
    let lost = |usage: &Usage| NotObserved {
        mapping: "[anon]".to_owned(),
        reason: Unobserved::BeforeAttach,
        amounts: (*usage).into(),
    };
    let symbol = |(frame, name, language): &(Frame, &str, Language)| {
        let function = Function {
            name: (*name).to_owned(),
            language: *language,
            offset_in_function: 0,
            inlined: Vec::new(),
            location: None,
        };
        (*frame, Arc::new(Symbol::Known(function)))
    };
    let profile = Profile {
        taken: SystemTime::now(),
        target: TargetInfo {
            pid: Pid(4711),
            comm: "node".to_owned(),
            pids: vec![Pid(4711)],
            alive: true,
        },
        samples: samples.iter().map(sample).collect(),
        not_observed: not_observed.iter().map(lost).collect(),
        total: total.into(),
        kernel_before: kernel,
        kernel_after: kernel,
        losses: Losses::default(),
        modules: Arc::new([module("node", true), module("libc-2.31.so", false)]),
        processes: Vec::new(),
        hold: FreezeOutcome::Ran,
        measures: vec![&RESIDENCY],
        places: Arc::default(),
    };
    Arc::new(Report {
        profile: Arc::new(profile),
        symbols: Arc::new(names.iter().map(symbol).collect::<Symbols>()),
        sequence: 1,
    })
}
