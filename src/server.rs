//! The HTTP server: HTTP/1 over TCP, safe to leave running beside whatever it profiles.
//!
//! - Serves loopback only by default. Checks the `Host` header against DNS rebinding; other origins can read
//!   only what [`ServerOptions`] allows.
//! - With a token ([`Token`]), whatever concerns the target needs it; the page's own files do not.
//! - Connections are limited in number, size and time. When there are too many, the server closes those that
//!   send no request (`registry.rs`); health and metrics are always answered.
//! - Errors are one line of plain text.

mod access;
mod connection;
mod forgery;
mod listen;
mod page;
mod registry;
mod respond;
mod token;

use std::fmt;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::api::Api;
use access::Access;
use connection::Connections;
use registry::Registry;

pub use listen::{BindError, bind};
pub(crate) use listen::{DEFAULT_LISTEN, greeting};
pub use token::Token;

/// How long accepting pauses after it failed for lack of file descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How often the server checks whether replies wait for room that slow clients occupy.
const LOOK: Duration = Duration::from_secs(1);

/// Receives warnings about problems that do not stop the server.
pub(crate) type Warn = Arc<dyn Fn(&str) + Send + Sync>;

/// Settings of the server.
#[derive(Clone)]
pub struct ServerOptions {
    /// Host names that clients may use besides loopback names and IP addresses (`--allow-host`).
    pub allow_hosts: Vec<String>,
    /// Origins that may read besides loopback ones (`--cors-origin`), as browsers spell them:
    /// `https://example.org`. `*` allows every origin to read and disables the host check.
    pub cors_origins: Vec<String>,
    /// What requests must show to be answered; `None` if nothing.
    pub token: Option<Arc<Token>>,
    /// Maximum number of open connections; an eighth of them is reserved for health and metrics.
    pub max_connections: usize,
    /// How long a client may take to send a request's header, including the idle time before it.
    pub header_timeout: Duration,
    /// How long a report may take.
    pub answer_timeout: Duration,
    /// How long an exchange may take, from the request's header to the reply's last byte, even if the client
    /// reads slowly.
    pub exchange_timeout: Duration,
    /// How long a shutdown waits for requests in progress.
    pub shutdown_grace: Duration,
    /// Longest path with query, in bytes.
    pub max_target: usize,
    /// Largest request header, in bytes; at least 8192.
    pub max_header: usize,
    /// Receives warnings about failures to accept connections.
    pub warn: Option<Warn>,
}

impl Default for ServerOptions {
    /// Allows as many connections as half of the process's file descriptor limit, 8 to 512.
    fn default() -> ServerOptions {
        let files = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
        ServerOptions {
            allow_hosts: Vec::new(),
            cors_origins: Vec::new(),
            token: None,
            max_connections: (files / 2).clamp(8, 512) as usize,
            header_timeout: Duration::from_secs(30),
            answer_timeout: Duration::from_secs(60),
            exchange_timeout: Duration::from_secs(180),
            shutdown_grace: Duration::from_secs(5),
            max_target: 8 << 10,
            max_header: 32 << 10,
            warn: None,
        }
    }
}

impl fmt::Debug for ServerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerOptions")
            .field("allow_hosts", &self.allow_hosts)
            .field("cors_origins", &self.cors_origins)
            .field("max_connections", &self.max_connections)
            .finish_non_exhaustive()
    }
}

/// Serves until `shutdown` completes, then stops accepting and finishes the requests in progress. Needs a tokio
/// runtime with IO and time.
///
/// # Errors
/// A listener cannot be registered with the runtime. Later failures are not errors.
pub async fn serve(
    listeners: Vec<TcpListener>,
    api: Arc<Api>,
    options: ServerOptions,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let (stop, stopped) = watch::channel(false);
    let registry = Registry::new(options.max_connections);
    let access = Access::new(&options.allow_hosts, &options.cors_origins);
    let connections = Arc::new(Connections {
        api,
        access,
        options,
    });
    let mut loops = JoinSet::new();
    let mut background = JoinSet::new();
    if !listeners.is_empty() {
        background.spawn(Arc::clone(&connections.api).sample());
        background.spawn(keep_room(
            Arc::clone(&connections.api),
            Arc::clone(&registry),
        ));
    }
    for listener in listeners {
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let (connections, registry) = (Arc::clone(&connections), Arc::clone(&registry));
        loops.spawn(accept(listener, connections, registry, stopped.clone()));
    }
    shutdown.await;
    background.abort_all();
    connections.api.close();
    stop.send_replace(true);
    while loops.join_next().await.is_some() {}
    Ok(())
}

/// Closes the connections of slow readers while others wait for the room of their replies.
async fn keep_room(api: Arc<Api>, registry: Arc<Registry>) {
    loop {
        sleep(LOOK).await;
        if api.is_short_of_room() {
            registry.let_slow_readers_go();
        }
    }
}

/// Accepts until stopped, then waits up to the grace period for its connections.
async fn accept(
    listener: tokio::net::TcpListener,
    connections: Arc<Connections>,
    registry: Arc<Registry>,
    stopped: watch::Receiver<bool>,
) {
    let mut tasks = JoinSet::new();
    let mut stop = stopped.clone();
    let mut failing = false;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        while tasks.try_join_next().is_some() {}
        match accepted {
            Ok((stream, peer)) => {
                failing = false;
                let client = peer.ip().to_canonical();
                let connection = tokio::select! {
                    connection = registry.admit(client) => connection,
                    _ = stop.wait_for(|stop| *stop) => break,
                };
                let (connections, stopped) = (Arc::clone(&connections), stopped.clone());
                tasks.spawn(async move {
                    connections
                        .serve(stream, Arc::new(connection), stopped)
                        .await;
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
    drop(listener);
    let finish = async { while tasks.join_next().await.is_some() {} };
    let _ = timeout(connections.options.shutdown_grace, finish).await;
}

/// Whether accepting failed because of this connection, so that the next one may succeed.
fn only_this_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(
        error.kind(),
        ConnectionAborted | ConnectionReset | Interrupted
    )
}
