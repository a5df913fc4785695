//! The HTTP server: HTTP/1 over TCP, safe to leave running beside whatever it profiles.
//!
//! - Loopback only unless told otherwise; the `Host` header is checked against DNS rebinding, and
//!   other origins read only what [`ServerOptions`] allows.
//! - Every connection is bounded in number, size and time. When there are too many, those go that send
//!   no request (`registry.rs`); health and metrics are answered all the same.
//! - Errors are one line of plain text.

mod access;
mod connection;
mod forgery;
mod listen;
mod page;
mod registry;
mod respond;

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

pub use listen::{BindError, DEFAULT_LISTEN, bind};

/// How long accepting pauses after it failed for want of something (file descriptors, memory).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How often it is looked whether replies wait for room that slow clients have.
const LOOK: Duration = Duration::from_secs(1);

/// Something worth telling the user that stops nothing.
pub type Warn = Arc<dyn Fn(&str) + Send + Sync>;

/// How the server behaves.
#[derive(Clone)]
pub struct ServerOptions {
    /// Host names that clients may use besides loopback names and IP addresses (`--allow-host`).
    pub allow_hosts: Vec<String>,
    /// Origins that may read besides loopback ones (`--cors-origin`), as browsers spell them:
    /// `https://example.org`. `*` lets every origin read and opens the host check too.
    pub cors_origins: Vec<String>,
    /// How many connections are open at a time; an eighth of them answer health and metrics alone.
    pub max_connections: usize,
    /// How long a client may take to send a request's header, and to stay idle before it.
    pub header_timeout: Duration,
    /// How long a report may take.
    pub answer_timeout: Duration,
    /// How long a request may take from its header to its last byte, however slowly the client reads.
    pub exchange_timeout: Duration,
    /// How long a shutdown waits for requests under way.
    pub shutdown_grace: Duration,
    /// Longest path with query, in bytes.
    pub max_target: usize,
    /// Largest request header, in bytes; at least 8192.
    pub max_header: usize,
    /// Told about what goes wrong with accepting.
    pub warn: Option<Warn>,
}

impl Default for ServerOptions {
    /// Half of the file descriptors the process may have, at most 512, for connections.
    fn default() -> ServerOptions {
        let files = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
        ServerOptions {
            allow_hosts: Vec::new(),
            cors_origins: Vec::new(),
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

/// Serves until `shutdown` completes, then stops accepting and finishes the requests under way.
/// Needs a tokio runtime with IO and time.
///
/// # Errors
/// When a listener cannot be handed to the runtime. Nothing that happens later is an error.
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

/// Lets clients go that take long to read while others wait for the room of their replies.
async fn keep_room(api: Arc<Api>, registry: Arc<Registry>) {
    loop {
        sleep(LOOK).await;
        if api.is_short_of_room() {
            registry.let_slow_readers_go();
        }
    }
}

/// Accepts until stopped, then waits for its connections as long as the grace lasts.
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
                    connections.warn(&format!("cannot accept connections, trying on: {error}"));
                }
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    let finish = async { while tasks.join_next().await.is_some() {} };
    let _ = timeout(connections.options.shutdown_grace, finish).await;
}

/// Whether accepting failed because of the connection, so that the next one may well succeed.
fn only_this_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(
        error.kind(),
        ConnectionAborted | ConnectionReset | Interrupted
    )
}
