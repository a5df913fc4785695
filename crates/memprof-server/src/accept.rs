//! Accepts connections.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::connection::Connections;
use super::listen::{Listener, Socket};
use super::registry::{Client, Registry};
use super::service::Service;
use super::unix_socket::SocketFile;

/// How long accepting pauses after it has failed for lack of file descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A listening socket registered with the runtime.
pub(super) enum Incoming {
    Tcp(TcpListener),
    Unix {
        /// Dropped first, as in [`UnixSocket`](super::unix_socket::UnixSocket).
        _file: SocketFile,
        listener: UnixListener,
    },
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// The client of a connection.
struct Peer {
    client: Client,
    /// Whether the client is on this machine.
    local: bool,
}

impl Incoming {
    /// Registers a listener with the runtime of this thread.
    ///
    /// # Errors
    /// The system's reason.
    pub(super) fn new(listener: Listener) -> io::Result<Incoming> {
        Ok(match listener.0 {
            Socket::Tcp(listener) => {
                listener.set_nonblocking(true)?;
                Incoming::Tcp(TcpListener::from_std(listener)?)
            }
            // Was created non-blocking.
            Socket::Unix(socket) => Incoming::Unix {
                _file: socket.file,
                listener: UnixListener::from_std(socket.listener)?,
            },
        })
    }

    async fn accept(&self) -> io::Result<(Stream, Peer)> {
        match self {
            Incoming::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                // Failure is harmless: the option only improves latency.
                let _ = stream.set_nodelay(true);
                let ip = address.ip().to_canonical();
                let peer = Peer {
                    client: Client::Address(ip),
                    local: ip.is_loopback(),
                };
                Ok((Stream::Tcp(stream), peer))
            }
            Incoming::Unix { listener, .. } => {
                let (stream, _) = listener.accept().await?;
                let peer = Peer {
                    client: client_of(&stream),
                    local: true,
                };
                Ok((Stream::Unix(stream), peer))
            }
        }
    }
}

/// The process that connected, as the kernel recorded it at that time.
fn client_of(stream: &UnixStream) -> Client {
    match stream.peer_cred() {
        Ok(peer) => Client::Process {
            uid: peer.uid(),
            pid: peer.pid().unwrap_or_default(),
        },
        Err(_) => Client::UNKNOWN,
    }
}

/// Accepts until stopped, then waits for open connections up to the grace period.
pub(super) async fn accept<S: Service>(
    incoming: Incoming,
    connections: Arc<Connections<S>>,
    registry: Arc<Registry>,
    stopped: watch::Receiver<bool>,
) {
    let mut tasks = JoinSet::new();
    let mut stop = stopped.clone();
    let mut failing = false;
    loop {
        let accepted = tokio::select! {
            accepted = incoming.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        while tasks.try_join_next().is_some() {}
        match accepted {
            Ok((stream, Peer { client, local })) => {
                failing = false;
                let connection = tokio::select! {
                    connection = registry.admit(client) => Arc::new(connection),
                    _ = stop.wait_for(|stop| *stop) => break,
                };
                let (connections, stopped) = (Arc::clone(&connections), stopped.clone());
                tasks.spawn(async move {
                    match stream {
                        Stream::Tcp(s) => connections.serve(s, local, connection, stopped).await,
                        Stream::Unix(s) => connections.serve(s, local, connection, stopped).await,
                    }
                });
            }
            Err(error) if only_this_connection(&error) => {}
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    connections.warn(&format!("cannot accept connections, retrying: {error}"));
                }
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(incoming);
    let finish = async { while tasks.join_next().await.is_some() {} };
    let _ = timeout(connections.options.shutdown_grace, finish).await;
}

/// Whether the failure concerns only this connection, so that the next one may succeed.
fn only_this_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(
        error.kind(),
        ConnectionAborted | ConnectionReset | Interrupted
    )
}
