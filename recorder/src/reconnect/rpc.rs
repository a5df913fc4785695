//! The RPC of an Octez node, as far as it is about peers.
//!
//! Plain HTTP to an IP address: no name is looked up, no redirect followed, no proxy used, and nothing secret is sent. Replies are
//! limited in size and time.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use ureq::http::Response;
use ureq::{Agent, Body};

/// The address at which Octez serves its RPC by default.
pub const DEFAULT_RPC: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8732);

/// Timeout of a request.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of a reply in bytes; a connection takes about 400.
const MAX_REPLY: u64 = 4 << 20;

/// Why a node cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum RpcError {
    /// The recorder does not know the node yet.
    #[error("the node's identity is not known yet")]
    IdentityAwaited,
    /// The RPC is another node's.
    #[error(
        "{url} is the RPC of node {found}, not of {expected}; set `reconnect` to the address of this node's RPC"
    )]
    OtherNode {
        /// The request.
        url: String,
        /// The node that answers.
        found: String,
        /// The node with the configured identity.
        expected: String,
    },
    /// A request failed.
    #[error(
        "{method} {url}: {reason}; set `reconnect` to the address of the node's RPC (octez-node run --rpc-addr)"
    )]
    Failed {
        /// The HTTP method.
        method: &'static str,
        /// The requested URL.
        url: String,
        /// The reason.
        reason: String,
    },
    /// The node refuses a request.
    #[error(
        "{method} {url}: status {status}; the node's RPC must allow this path (octez-node run --allow-all-rpc)"
    )]
    Refused {
        /// The HTTP method.
        method: &'static str,
        /// The requested URL.
        url: String,
        /// The status of the reply.
        status: u16,
    },
}

/// A peer that is connected to the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The peer id, `id…`.
    pub id: String,
    /// The address of its end of the connection.
    pub address: SocketAddr,
}

/// An element of `/network/connections`. The port of `id_point` is the one on which the peer listens, not that of the connection.
#[derive(Deserialize)]
struct Connection {
    peer_id: String,
    id_point: Point,
    remote_socket_port: u16,
}

#[derive(Deserialize)]
struct Point {
    addr: IpAddr,
}

/// A client of a node's RPC.
#[derive(Debug)]
pub struct Rpc {
    address: SocketAddr,
    agent: Agent,
}

impl Rpc {
    /// A client of the RPC at an address.
    pub fn new(address: SocketAddr) -> Self {
        let config = Agent::config_builder()
            .timeout_global(Some(TIMEOUT))
            .max_redirects(0)
            .max_redirects_will_error(false)
            .max_idle_connections(0)
            .http_status_as_error(false)
            .proxy(None)
            .user_agent(concat!("tezos-recorder/", env!("CARGO_PKG_VERSION")));
        Self {
            address,
            agent: Agent::new_with_config(config.build()),
        }
    }

    /// Verifies that the node has this peer id.
    ///
    /// # Errors
    /// It has another one, or cannot be asked.
    pub fn expect(&self, peer_id: &str) -> Result<(), RpcError> {
        let found: String = self.get("/network/self")?;
        if found == peer_id {
            return Ok(());
        }
        Err(RpcError::OtherNode {
            url: self.url("/network/self"),
            found: found.chars().take(64).collect(),
            expected: peer_id.to_owned(),
        })
    }

    /// The peers to which the node is connected.
    ///
    /// # Errors
    /// The node cannot be asked.
    pub fn peers(&self) -> Result<Vec<Peer>, RpcError> {
        let connections: Vec<Connection> = self.get("/network/connections")?;
        let peer = |c: Connection| Peer {
            id: c.peer_id,
            address: SocketAddr::new(c.id_point.addr.to_canonical(), c.remote_socket_port),
        };
        // An id becomes a part of a path.
        let is_id =
            |peer: &Peer| peer.id.len() == 30 && peer.id.bytes().all(|c| c.is_ascii_alphanumeric());
        Ok(connections.into_iter().map(peer).filter(is_id).collect())
    }

    /// Makes the node end its connection to a peer. It does not wait until what it still wants to send is sent (`?wait`).
    ///
    /// # Errors
    /// The node cannot be asked, or refuses.
    pub fn drop_peer(&self, id: &str) -> Result<(), RpcError> {
        let url = self.url(&format!("/network/connections/{id}"));
        let response = self.agent.delete(&url).call();
        reply("DELETE", &url, response).map(drop)
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, RpcError> {
        let url = self.url(path);
        let mut response = reply("GET", &url, self.agent.get(&url).call())?;
        let body = response.body_mut().with_config().limit(MAX_REPLY);
        let body = body.read_to_vec().map_err(|e| e.to_string());
        body.and_then(|body| {
            serde_json::from_slice(&body)
                .map_err(|e| format!("not the reply of an Octez node: {e}"))
        })
        .map_err(|reason| RpcError::Failed {
            method: "GET",
            url,
            reason,
        })
    }
}

fn reply(
    method: &'static str,
    url: &str,
    response: Result<Response<Body>, ureq::Error>,
) -> Result<Response<Body>, RpcError> {
    let url = url.to_owned();
    match response {
        Ok(response) if response.status().is_success() => Ok(response),
        Ok(response) => Err(RpcError::Refused {
            method,
            url,
            status: response.status().as_u16(),
        }),
        Err(error) => Err(RpcError::Failed {
            method,
            url,
            reason: error.to_string(),
        }),
    }
}
