//! The HTTP server: HTTP/1 over TCP or a Unix socket, safe to keep running on production machines.
//!
//! - Serves loopback only by default. Checks the `Host` header against DNS rebinding; other origins can read
//!   only if [`ServerOptions`] allows them.
//! - With a token ([`Token`]), every request requires it, except those for the page's own files.
//! - Connections are limited in number, size and time. When there are too many, the server closes connections without a
//!   request (`registry.rs`); health and metrics are always answered.
//! - Errors are one line of plain text.
//!
//! A program implements [`Service`], which answers the requests, and calls [`serve`].

mod accept;
mod access;
mod connection;
mod forgery;
mod listen;
mod page;
mod registry;
mod respond;
mod service;
mod token;
mod unix_socket;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use accept::{Incoming, accept};
use access::Access;
use connection::Connections;
use registry::Registry;

pub use listen::{BindError, Listen, Listener, bind};
pub use service::{Asset, Body, Method, Refusal, Reply, Request, SMALL_BODY, Service};
pub use token::Token;

/// Interval at which the server checks whether replies wait for memory that slow clients occupy.
const LOOK: Duration = Duration::from_secs(1);

/// Receives warnings about problems that do not stop the server.
pub type Warn = Arc<dyn Fn(&str) + Send + Sync>;

/// Settings of the server.
#[derive(Clone)]
pub struct ServerOptions {
    /// Host names that clients may use besides loopback names and IP addresses (`--allow-host`).
    pub allow_hosts: Vec<String>,
    /// Origins that may read besides loopback ones (`--cors-origin`), as browsers spell them:
    /// `https://example.org`. `*` allows every origin to read and disables the host check.
    pub cors_origins: Vec<String>,
    /// The token that requests must carry; `None` if no token is required.
    pub token: Option<Arc<Token>>,
    /// Maximum number of open connections; an eighth of them is reserved for health and metrics.
    pub max_connections: usize,
    /// Maximum time for a client to send a request's header, including the idle time before it.
    pub header_timeout: Duration,
    /// Maximum time to answer a request, up to the reply's first byte.
    pub answer_timeout: Duration,
    /// Maximum time of an exchange, from the request's header to the reply's last byte, even if the client reads
    /// slowly.
    pub exchange_timeout: Duration,
    /// Maximum time that a shutdown waits for requests in progress.
    pub shutdown_grace: Duration,
    /// Maximum length of a path with query, in bytes.
    pub max_target: usize,
    /// Maximum size of a request header, in bytes; at least 8192.
    pub max_header: usize,
    /// Receives warnings about failures to accept connections.
    pub warn: Option<Warn>,
}

impl Default for ServerOptions {
    /// `max_connections` is half of the process's file descriptor limit, between 8 and 512.
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
pub async fn serve<S: Service>(
    listeners: Vec<Listener>,
    service: Arc<S>,
    options: ServerOptions,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let (stop, stopped) = watch::channel(false);
    let registry = Registry::new(options.max_connections);
    let access = Access::new(&options.allow_hosts, &options.cors_origins);
    let connections = Arc::new(Connections {
        service,
        access,
        options,
    });
    let mut loops = JoinSet::new();
    let mut background = JoinSet::new();
    if !listeners.is_empty() {
        background.spawn(Arc::clone(&connections.service).background());
        background.spawn(keep_room(
            Arc::clone(&connections.service),
            Arc::clone(&registry),
        ));
    }
    for listener in listeners {
        let incoming = Incoming::new(listener)?;
        let (connections, registry) = (Arc::clone(&connections), Arc::clone(&registry));
        loops.spawn(accept(incoming, connections, registry, stopped.clone()));
    }
    shutdown.await;
    background.abort_all();
    connections.service.close();
    stop.send_replace(true);
    while loops.join_next().await.is_some() {}
    Ok(())
}

/// Closes the connections of slow readers while replies wait for memory.
async fn keep_room<S: Service>(service: Arc<S>, registry: Arc<Registry>) {
    loop {
        sleep(LOOK).await;
        if service.is_short_of_room() {
            registry.let_slow_readers_go();
        }
    }
}
