//! A TCP proxy that keeps the bytes that pass: a tap without BPF.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use tezos_recorder::time::Timestamp;

/// A connection that has passed.
#[derive(Debug, Default)]
pub struct Tapped {
    /// The address of the node that connected, as the proxy saw it.
    pub connector: Option<SocketAddr>,
    /// The proxy's own address towards the node that listens.
    pub towards_listener: Option<SocketAddr>,
    /// True if the node that connected ended the connection by a reset.
    pub reset: bool,
    /// Bytes in the order in which they passed.
    pub pieces: Vec<TappedPiece>,
}

/// Bytes that passed at once.
#[derive(Debug)]
pub struct TappedPiece {
    /// True if the node that connected sent them.
    pub by_connector: bool,
    pub time: Timestamp,
    pub bytes: Vec<u8>,
}

impl Tapped {
    /// All bytes of one node.
    pub fn sent(&self, by_connector: bool) -> Vec<u8> {
        let of_node = |piece: &&TappedPiece| piece.by_connector == by_connector;
        let pieces = self.pieces.iter().filter(of_node);
        pieces.flat_map(|piece| &piece.bytes).copied().collect()
    }
}

type Shared = Arc<Mutex<Tapped>>;

/// A proxy to one address. Its threads end with the connections, that which accepts with the test program.
pub struct Proxy {
    address: SocketAddr,
    taps: Arc<Mutex<Vec<Shared>>>,
}

impl Proxy {
    pub fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind((target.ip(), 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let taps = Arc::new(Mutex::new(Vec::new()));
        let all = taps.clone();
        std::thread::spawn(move || {
            for from in listener.incoming().map_while(Result::ok) {
                let tap = Shared::default();
                all.lock().unwrap().push(tap.clone());
                pass(from, target, &tap);
            }
        });
        Self { address, taps }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The connections so far, in the order in which they were opened.
    pub fn taps(&self) -> Vec<Tapped> {
        let taps = std::mem::take(&mut *self.taps.lock().unwrap());
        let take = |tap: Shared| std::mem::take(&mut *tap.lock().unwrap());
        taps.into_iter().map(take).collect()
    }
}

fn pass(from: TcpStream, target: SocketAddr, tap: &Shared) {
    let to = TcpStream::connect(target).unwrap();
    let mut entry = tap.lock().unwrap();
    entry.connector = from.peer_addr().ok();
    entry.towards_listener = to.local_addr().ok();
    drop(entry);
    let ends = [
        (true, from.try_clone().unwrap(), to.try_clone().unwrap()),
        (false, to, from),
    ];
    for (by_connector, from, to) in ends {
        let _ = to.set_nodelay(true);
        let tap = tap.clone();
        std::thread::spawn(move || forward(from, to, by_connector, &tap));
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream, by_connector: bool, tap: &Mutex<Tapped>) {
    let mut room = vec![0; 64 << 10];
    loop {
        let count = match from.read(&mut room) {
            Ok(count @ 1..) => count,
            ended => {
                let reset = ended.is_err_and(|e| e.kind() == ErrorKind::ConnectionReset);
                tap.lock().unwrap().reset |= by_connector && reset;
                break;
            }
        };
        // First, so that an answer to these bytes comes after them.
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap();
        let piece = TappedPiece {
            by_connector,
            time: Timestamp(now.as_nanos() as u64),
            bytes: room[..count].to_vec(),
        };
        tap.lock().unwrap().pieces.push(piece);
        if to.write_all(&room[..count]).is_err() {
            let _ = from.shutdown(Shutdown::Read);
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}
