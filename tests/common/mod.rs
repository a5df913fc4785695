//! A server on a free port, and a client that sends arbitrary bytes; the real `memprof`, the programs
//! that it profiles, and the trees that it returns.

#![allow(dead_code, reason = "each test binary uses its own part")]

pub mod allocators;
pub mod binary;
pub mod browser;
pub mod cgroup;
pub mod container;
pub mod contents;
pub mod debuginfod_server;
pub mod document;
pub mod effort;
pub mod files;
pub mod interpreted;
pub mod invalid_requests;
pub mod listening;
pub mod machine;
pub mod memprof;
pub mod postgres;
pub mod process;
pub mod programs;
pub mod pythons;
pub mod random;
pub mod reclaim;
pub mod redis;
pub mod report;
pub mod rubies;
pub mod sentinel;
pub mod skip;
pub mod store;
pub mod terminal;
pub mod tree;
pub mod workload;

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::sync::oneshot;

use ::memprof::collect::ProviderError;
use ::memprof::http::api::{Api, ApiOptions, BoxFuture, Provider};
use ::memprof::http::server::{Listen, ServerOptions, bind, serve};
use memprof_profile::Report;
use memprof_sys::ids::Pid;

#[allow(unused_imports, reason = "each test binary uses its own part")]
pub use report::{at, kib, report};

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

    /// Starts a server whose default options `change` changes.
    pub fn start_with(provider: impl Provider, change: impl FnOnce(&mut ServerOptions)) -> Server {
        let mut options = ServerOptions::default();
        change(&mut options);
        Server::start(provider, options)
    }

    pub fn start_at(ip: IpAddr, provider: impl Provider, options: ServerOptions) -> Server {
        let listener = bind(&SocketAddr::from((ip, 0)).into()).unwrap();
        let Some(Listen::Tcp(address)) = listener.address() else {
            panic!("{listener:?} has no port");
        };
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
        assert!(values.next().is_none(), "the header {name} is repeated");
        value
    }

    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        let body = serde_json::from_slice(&self.body);
        body.unwrap_or_else(|e| panic!("{e}: {} {:?}", self.status, self.text()))
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}
