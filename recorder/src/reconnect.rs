//! Asks nodes to drop peers whose connections are older than the recorder, so that it sees their next handshake.
//!
//! Off by default, because the node loses each of these peers for a moment. A thread per node asks the node's RPC: one peer after the
//! other, each at most once. The node's own list says which connections are those of peers; clients of its RPC are left alone.

mod rpc;

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

pub use rpc::{DEFAULT_RPC, Peer, Rpc, RpcError};

use crate::captured::Socket;
use crate::privileges;

/// Pause between two requests to drop a peer, long enough for the node to connect to another one.
pub const PAUSE: Duration = Duration::from_secs(5);

/// Maximum number of connections of a node that wait, and of peers that it is asked to drop.
const MAX_PEERS: usize = 8192;
/// Interval at which a thread without work looks up.
const IDLE: Duration = Duration::from_secs(3600);

/// A report about a connection that was opened before the recorder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// It exists.
    Found {
        /// The node's socket.
        socket: Socket,
        /// Address of the peer's end.
        remote: SocketAddr,
    },
    /// It has ended.
    Ended(Socket),
}

/// The senders of reports, one for each node that may be asked, with its name. Sending never waits.
#[derive(Clone, Debug, Default)]
pub struct Reports(Vec<(String, SyncSender<Report>)>);

impl Reports {
    /// Adds a node.
    pub fn add(&mut self, node: &str) -> Receiver<Report> {
        let (sender, receiver) = sync_channel(MAX_PEERS);
        self.0.push((node.to_owned(), sender));
        receiver
    }

    /// Sends a report to a node's thread; without a name, because the ports do not tell the node, to all of them.
    pub fn send(&self, node: Option<&str>, report: Report) {
        let wanted = |name: &str| node.is_none_or(|node| node == name);
        for (_, sender) in self.0.iter().filter(|(name, _)| wanted(name)) {
            // A report that does not fit is one of more connections than a node has.
            let _ = sender.try_send(report);
        }
    }
}

/// A note on a connection that was opened before the recorder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The node's socket.
    pub socket: Socket,
    /// Name of the node.
    pub node: Arc<str>,
    /// The peer.
    pub peer_id: String,
    /// The remark.
    pub text: String,
}

/// Number of connections that were opened before the recorder, by what became of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReconnectHealth {
    /// Connections about which the node is still to be asked.
    pub waiting: u64,
    /// Peers that the node was asked to drop, with success.
    pub asked: u64,
    /// Connections about which the node was not asked: it does not have that peer (any more), or was asked to drop it before.
    pub skipped: u64,
    /// Peers that the node was asked to drop, without success.
    pub failed: u64,
    /// Why the node cannot be asked at present.
    pub error: Option<String>,
}

impl ReconnectHealth {
    pub(crate) fn is_whole(&self) -> bool {
        self.failed == 0 && self.error.is_none()
    }
}

/// The surroundings of the thread of a node.
pub struct Node {
    /// The node's name.
    pub name: Arc<str>,
    /// The address of its RPC.
    pub rpc: SocketAddr,
    /// Pause between two peers.
    pub pause: Duration,
    /// The node's own peer id, once it is known: a node with another one is not asked.
    pub peer_id: Box<dyn Fn() -> Option<String> + Send>,
    /// A receiver of notes on connections.
    pub note: Box<dyn Fn(Note) + Send>,
    /// A receiver of messages for the user.
    pub say: fn(&str),
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node")
            .field("name", &self.name)
            .field("rpc", &self.rpc)
            .finish_non_exhaustive()
    }
}

/// The thread of a node. It ends after the last sender of reports is dropped; nobody waits for it, since a node may not answer.
#[derive(Clone, Debug)]
pub struct Reconnect {
    health: Arc<Mutex<ReconnectHealth>>,
}

impl Reconnect {
    /// Starts the thread.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(node: Node, reports: Receiver<Report>) -> io::Result<Self> {
        let health = Arc::default();
        let asking = Asking {
            rpc: Rpc::new(node.rpc),
            node,
            reports,
            waiting: VecDeque::new(),
            asked: HashSet::new(),
            most: 0,
            next: Instant::now(),
            health: Arc::clone(&health),
        };
        thread::Builder::new()
            .name("reconnect".into())
            .spawn(move || {
                privileges::reduce(&[]);
                asking.run();
            })?;
        Ok(Self { health })
    }

    /// The numbers at this time.
    pub fn health(&self) -> ReconnectHealth {
        lock(&self.health).clone()
    }
}

fn lock(health: &Mutex<ReconnectHealth>) -> MutexGuard<'_, ReconnectHealth> {
    health.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The state of the thread.
struct Asking {
    node: Node,
    rpc: Rpc,
    reports: Receiver<Report>,
    waiting: VecDeque<(Socket, SocketAddr)>,
    /// Peers that the node was asked to drop.
    asked: HashSet<String>,
    /// Maximum number of peers that the node had.
    most: usize,
    /// Time of the next request.
    next: Instant,
    health: Arc<Mutex<ReconnectHealth>>,
}

impl Asking {
    fn run(mut self) {
        while self.wait_for_work() {
            let result = self.ask();
            self.next = Instant::now() + self.node.pause;
            self.set_error(result.err().map(|error| error.to_string()));
        }
    }

    /// Takes reports until there is a connection to ask about, and the pause is over. Returns false at the end.
    fn wait_for_work(&mut self) -> bool {
        loop {
            let mut wait = IDLE;
            if !self.waiting.is_empty() {
                wait = self.next.saturating_duration_since(Instant::now());
            }
            match self.reports.recv_timeout(wait) {
                Ok(report) => self.take(report),
                Err(RecvTimeoutError::Timeout) if self.waiting.is_empty() => {}
                Err(RecvTimeoutError::Timeout) => return true,
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
    }

    fn take(&mut self, report: Report) {
        match report {
            Report::Found { socket, remote } if self.waiting.len() < MAX_PEERS => {
                self.waiting.push_back((socket, remote));
            }
            Report::Found { .. } => lock(&self.health).skipped += 1,
            Report::Ended(ended) => {
                let before = self.waiting.len();
                self.waiting.retain(|(socket, _)| *socket != ended);
                lock(&self.health).skipped += (before - self.waiting.len()) as u64;
            }
        }
        self.count_waiting();
    }

    fn count_waiting(&self) {
        lock(&self.health).waiting = self.waiting.len() as u64;
    }

    /// Asks the node to drop the first peer that waits, if it has more than half of the peers that it had at most.
    fn ask(&mut self) -> Result<(), RpcError> {
        let own = (self.node.peer_id)().ok_or(RpcError::IdentityAwaited)?;
        self.rpc.expect(&own)?;
        let peers = self.rpc.peers()?;
        self.most = self.most.max(peers.len());
        let (waiting, asked) = (&mut self.waiting, &self.asked);
        let mut found = None;
        while let (None, Some((socket, remote))) = (&found, waiting.front()) {
            let is_new = |peer: &Peer| asked.len() < MAX_PEERS && !asked.contains(&peer.id);
            let has = |peer: &&Peer| peer.address == *remote && is_new(peer);
            found = peers.iter().find(has).map(|peer| (*socket, peer));
            if found.is_none() {
                waiting.pop_front();
                lock(&self.health).skipped += 1;
            }
        }
        let result = match found {
            Some((socket, peer)) if peers.len() * 2 > self.most => {
                self.waiting.pop_front();
                self.drop_peer(socket, peer)
            }
            _ => Ok(()),
        };
        self.count_waiting();
        result
    }

    fn drop_peer(&mut self, socket: Socket, peer: &Peer) -> Result<(), RpcError> {
        self.asked.insert(peer.id.clone());
        let name = &self.node.name;
        let note = |text: String| {
            (self.node.note)(Note {
                socket,
                node: name.clone(),
                peer_id: peer.id.clone(),
                text,
            });
        };
        // The note comes first: the connection is gone when the node has answered.
        note("the node is asked to drop this peer, so that its next handshake is seen".into());
        let result = self.rpc.drop_peer(&peer.id);
        match &result {
            Ok(()) => {
                lock(&self.health).asked += 1;
                let Peer { id, address } = peer;
                (self.node.say)(&format!(
                    "{name}: the node drops {id} at {address}, whose connection is older than the recorder"
                ));
            }
            Err(error) => {
                lock(&self.health).failed += 1;
                note(format!("the node does not drop this peer: {error}"));
            }
        }
        result
    }

    fn set_error(&self, error: Option<String>) {
        let mut health = lock(&self.health);
        if let Some(error) = error.as_ref().filter(|_| health.error != error) {
            (self.node.say)(&format!("{}: --reconnect: {error}", self.node.name));
        }
        // Without anything to ask, nothing is wrong.
        health.error = error.filter(|_| !self.waiting.is_empty());
    }
}
