//! A run of the recorder: its threads, what they share, and its end.
//!
//! ```text
//!   capture ── queues ── decoders ── store of each node ── HTTP
//!   identities ─────────────┘           │
//!   logs ───────────────────────────────┘
//! ```

mod capture;
mod decoders;
mod identities;
mod listen;
mod logs;
mod reconnect;
mod shared;

use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;

use anyhow::{Context, Result};
use caps::Capability;
use memprof_server::{Listener, ServerOptions, Token};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;

use self::capture::CaptureThread;
use self::identities::IdentityThread;
use self::logs::Followed;
use self::reconnect::Reconnects;
use self::shared::Shared;
use crate::api::{Api, ApiNode, ApiOptions, NodeState};
use crate::config::{self, Config};
use crate::privileges;
use crate::store::Store;

/// Prints a message.
fn say(text: &str) {
    eprintln!("tezos-recorder: {text}");
}

/// Records until SIGINT or SIGTERM.
///
/// # Errors
/// A port or a database cannot be opened, or nothing can be captured although a node wants that.
pub fn run(config: &Config) -> Result<()> {
    privileges::hide_memory();
    let listeners = listen::bind(config)?;
    let stores = thread::scope(|scope| {
        // The threads of the stores inherit what is left to this one.
        let opened = scope.spawn(|| {
            privileges::reduce(for_stores(config));
            open_stores(config)
        });
        opened.join().unwrap_or_else(|panic| resume_unwind(panic))
    })?;
    let mut session = Session::start(config, &stores)?;
    privileges::reduce(for_stores(config));
    let served = session.serve(config, &stores, listeners);
    session.stop();
    for (node, store) in config.nodes.iter().zip(&stores) {
        store.writer().flush();
        say(&summary(&node.name, store));
    }
    served
}

/// The capabilities that the databases need.
fn for_stores(config: &Config) -> &'static [Capability] {
    privileges::for_directories(config.nodes.iter().map(|node| node.db.as_path()))
}

/// The stores of the nodes, in their order.
fn open_stores(config: &Config) -> Result<Vec<Arc<Store>>> {
    let open = |node: &config::Node| {
        let store = Store::open(&node.db, node.store_settings());
        let store = store.with_context(|| format!("cannot record node {}", node.name))?;
        Ok(Arc::new(store))
    };
    config.nodes.iter().map(open).collect()
}

fn summary(node: &str, store: &Store) -> String {
    let heads = *store.subscribe().borrow();
    let health = store.health();
    let mut text = format!(
        "{node}: {} messages and {} lines of logs recorded since the database was made",
        heads.messages, heads.logs
    );
    if health.queue.dropped + health.failed > 0 {
        text += &format!(
            ", {} entries lost because the disk was too slow, {} because writing failed",
            health.queue.dropped, health.failed
        );
    }
    text
}

/// The threads of a run, but for the stores' own.
struct Session {
    shared: Arc<Shared>,
    capture: Option<CaptureThread>,
    identities: Option<IdentityThread>,
    logs: Arc<Vec<Followed>>,
    reconnects: Reconnects,
}

impl Session {
    fn start(config: &Config, stores: &[Arc<Store>]) -> Result<Self> {
        let shared = Arc::new(Shared::new(config));
        let mut session = Self {
            shared: shared.clone(),
            capture: None,
            identities: None,
            logs: Arc::new(logs::follow(config, stores)?),
            reconnects: Reconnects::default(),
        };
        if let Some(options) = config.capture_options() {
            let (reports, prepared) = reconnect::prepare(config);
            let workers = Arc::new(decoders::start(config, stores, reports)?);
            // Its first look is over before anything is captured.
            let identities = IdentityThread::start(config, &shared, &workers)?;
            session.identities = Some(identities);
            session.reconnects = prepared.start(&shared, &workers)?;
            let capture = CaptureThread::start(options, shared, workers)?;
            session.capture = Some(capture);
        }
        Ok(session)
    }

    /// Serves until a signal ends the run.
    fn serve(
        &self,
        config: &Config,
        stores: &[Arc<Store>],
        listeners: Vec<(Option<usize>, Listener)>,
    ) -> Result<()> {
        let api = Api::new(
            self.api_nodes(config, stores),
            ApiOptions {
                version: env!("CARGO_PKG_VERSION").into(),
                commit: env!("TEZOS_RECORDER_COMMIT").into(),
                capture: Some({
                    let shared = self.shared.clone();
                    Arc::new(move || shared.health())
                }),
            },
        );
        let token = config.token_file.as_deref().map(Token::read).transpose()?;
        let options = ServerOptions {
            cors_origins: config.cors_origins.clone(),
            token: token.map(Arc::new),
            warn: Some(Arc::new(|text| say(&format!("warning: {text}")))),
            ..ServerOptions::default()
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start the server")?;
        runtime.block_on(async {
            let (stop, stopped) = watch::channel(false);
            let mut servers = JoinSet::new();
            for (node, listener) in listeners {
                let api = node.map_or_else(|| api.clone(), |node| api.of_node(node));
                let mut stopped = stopped.clone();
                let shutdown = async move {
                    // An error: the sender is gone, which is an end, too.
                    let _ = stopped.wait_for(|stopped| *stopped).await;
                };
                servers.spawn(memprof_server::serve(
                    vec![listener],
                    api,
                    options.clone(),
                    shutdown,
                ));
            }
            ended(&self.shared).await?;
            stop.send_replace(true);
            while let Some(served) = servers.join_next().await {
                served.context("the server ended early")??;
            }
            Ok(())
        })
    }

    fn api_nodes(&self, config: &Config, stores: &[Arc<Store>]) -> Vec<ApiNode> {
        let api_node = |(number, (node, store)): (usize, (&config::Node, &Arc<Store>))| {
            let (shared, logs) = (self.shared.clone(), self.logs.clone());
            let reconnects = self.reconnects.clone();
            let state = move || NodeState {
                logs: logs
                    .iter()
                    .filter(|log| log.node == number)
                    .map(Followed::health)
                    .collect(),
                reconnect: reconnects.health(number),
                ..shared.node(number)
            };
            ApiNode {
                name: node.name.clone(),
                p2p_port: node.p2p.as_ref().and_then(|p2p| p2p.port).unwrap_or(0),
                store: store.clone(),
                state: Some(Arc::new(state)),
            }
        };
        config
            .nodes
            .iter()
            .zip(stores)
            .enumerate()
            .map(api_node)
            .collect()
    }

    /// Ends the threads: everything that was captured is decoded and given to the stores, which write it when they are closed.
    fn stop(&mut self) {
        // The last reference: the server has ended.
        self.logs = Arc::default();
        if let Some(identities) = self.identities.take() {
            identities.stop();
        }
        if let Some(capture) = self.capture.take() {
            capture.stop();
        }
    }
}

/// Completes at SIGINT or SIGTERM, or when nothing is captured any more.
async fn ended(shared: &Shared) -> Result<()> {
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    tokio::select! {
        _ = interrupt.recv() => Ok(()),
        _ = terminate.recv() => Ok(()),
        failure = shared.failed() => Err(failure),
    }
}
