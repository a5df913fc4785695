//! The part of Octez's RPC that is about peers: the node's id, its connections, and their end.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::sys::socket::{Shutdown, shutdown};
use serde_json::{Value, json};

/// A peer that is connected.
pub struct Peer {
    pub id: String,
    pub incoming: bool,
    pub remote: SocketAddr,
    /// The port on which it listens; 0: it does not.
    pub listens: u16,
    pub fd: Arc<OwnedFd>,
}

/// The node's connections.
pub struct Rpc {
    own: String,
    peers: Mutex<Vec<Peer>>,
}

/// A connection in the list, until it is dropped.
pub struct Listed<'a>(&'a Rpc, Arc<OwnedFd>);

impl Rpc {
    pub fn new(own: String) -> Arc<Self> {
        let peers = Mutex::default();
        Arc::new(Self { own, peers })
    }

    fn peers(&self) -> MutexGuard<'_, Vec<Peer>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lists a peer.
    pub fn list(&self, peer: Peer) -> Listed<'_> {
        let fd = peer.fd.clone();
        self.peers().push(peer);
        Listed(self, fd)
    }

    /// Answers a request, if it is one of these.
    pub fn answer(&self, method: &str, path: &str) -> Option<Value> {
        match (method, path.strip_prefix("/network/")?) {
            ("GET", "self") => Some(json!(self.own)),
            ("GET", "connections") => Some(self.peers().iter().map(connection).collect()),
            ("DELETE", path) => {
                let id = path.strip_prefix("connections/")?;
                for peer in self.peers().iter().filter(|peer| peer.id == id) {
                    // The threads of the connection notice, or it has ended.
                    let _ = shutdown(peer.fd.as_raw_fd(), Shutdown::Both);
                }
                Some(json!({}))
            }
            _ => None,
        }
    }
}

/// A connection as Octez describes it: addresses are IPv6, and the port of `id_point` is absent if the peer does not listen.
fn connection(peer: &Peer) -> Value {
    let addr = match peer.remote {
        SocketAddr::V4(v4) => v4.ip().to_ipv6_mapped(),
        SocketAddr::V6(v6) => *v6.ip(),
    };
    let mut point = json!({"addr": addr});
    if peer.listens > 0 {
        point["port"] = peer.listens.into();
    }
    let metadata = json!({"disable_mempool": false, "private_node": false});
    json!({
        "incoming": peer.incoming,
        "peer_id": peer.id,
        "id_point": point,
        "remote_socket_port": peer.remote.port(),
        "announced_version": {"chain_name": "TEZOS_MAINNET", "distributed_db_version": 2, "p2p_version": 1},
        "private": false,
        "local_metadata": metadata,
        "remote_metadata": metadata,
    })
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        self.0
            .peers()
            .retain(|peer| !Arc::ptr_eq(&peer.fd, &self.1));
    }
}
