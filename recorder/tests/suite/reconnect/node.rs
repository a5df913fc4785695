//! A node's RPC, as far as peers are concerned.

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

use serde_json::{Value, json};

/// The node's own peer id.
pub const OWN: &str = "idOWNOWNOWNOWNOWNOWNOWNOWNOWNO";

/// What is answered to `METHOD PATH` instead of the usual reply.
pub type Instead = Arc<dyn Fn(&str) -> Option<Vec<u8>> + Send + Sync>;

#[derive(Default)]
struct State {
    peers: Vec<(String, SocketAddr)>,
    requests: Vec<String>,
    dropped: Vec<(String, Instant)>,
}

/// A node that serves its RPC until it is dropped.
pub struct FakeNode {
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// A peer's id.
pub fn id(number: u64) -> String {
    format!("id{number:028}")
}

/// A response in one piece.
pub fn reply(status: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}")
        .into()
}

/// An element of `/network/connections`.
pub fn peer(id: &str, address: SocketAddr) -> Value {
    let addr = match address.ip() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    json!({
        "incoming": true,
        "peer_id": id,
        "id_point": {"addr": addr, "port": 19732},
        "remote_socket_port": address.port(),
    })
}

impl FakeNode {
    pub fn start() -> Self {
        Self::with(Arc::new(|_| None))
    }

    pub fn with(instead: Instead) -> Self {
        Self::at(SocketAddr::from(([127, 0, 0, 1], 0)), instead)
    }

    pub fn at(address: SocketAddr, instead: Instead) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let (state, stop) = (Arc::<Mutex<State>>::default(), Arc::<AtomicBool>::default());
        let address = listener.local_addr().unwrap();
        let (own, stopped) = (state.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                // The client may have gone.
                let _ = answer(&stream.unwrap(), &own, &instead);
            }
        });
        Self {
            address,
            state,
            stop,
            thread: Some(thread),
        }
    }

    /// Connects a peer.
    pub fn add(&self, number: u64, address: &str) {
        let peer = (id(number), address.parse().unwrap());
        self.state.lock().unwrap().peers.push(peer);
    }

    pub fn requests(&self) -> Vec<String> {
        self.state.lock().unwrap().requests.clone()
    }

    /// The peers that were dropped, and when.
    pub fn dropped(&self) -> Vec<(String, Instant)> {
        self.state.lock().unwrap().dropped.clone()
    }
}

impl Drop for FakeNode {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
        self.thread.take().unwrap().join().unwrap();
    }
}

fn answer(mut stream: &TcpStream, state: &Mutex<State>, instead: &Instead) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    for line in lines {
        if line?.is_empty() {
            break;
        }
    }
    let request = first.trim_end_matches(" HTTP/1.1").to_owned();
    let mut state = state.lock().unwrap();
    state.requests.push(request.clone());
    let usual = || reply("200 OK", &state.answer(&request).to_string());
    stream.write_all(&instead(&request).unwrap_or_else(usual))
}

impl State {
    fn answer(&mut self, request: &str) -> Value {
        match request {
            "GET /network/self" => json!(OWN),
            "GET /network/connections" => {
                let peers = self.peers.iter();
                peers.map(|(id, address)| peer(id, *address)).collect()
            }
            request => {
                let id = request.strip_prefix("DELETE /network/connections/");
                let id = id.unwrap_or_else(|| panic!("{request}"));
                self.peers.retain(|(peer, _)| peer != id);
                self.dropped.push((id.to_owned(), Instant::now()));
                json!({})
            }
        }
    }
}
