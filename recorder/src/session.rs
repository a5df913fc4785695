//! A run of the recorder: its threads, what they share, and its end.
//!
//! ```text
//!   capture ── queues ── decoders ── store of each node ── HTTP
//!   identities ─────────────┘           │
//!   logs ───────────────────────────────┘
//! ```

mod capture;
mod identities;
mod listen;
mod shared;

use std::collections::HashMap;
use std::num::NonZero;
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
use self::shared::Shared;
use crate::api::{Api, ApiNode, ApiOptions, LogHealth, NodeState};
use crate::budget::Budget;
use crate::config::{self, Config};
use crate::connection::Nodes;
use crate::logs;
use crate::privileges;
use crate::recording::{ConnectionIds, Settings};
use crate::store::{Entry, Store, Writer};
use crate::workers::{Sink, Workers};

/// Limit of what all connections hold, in bytes.
const BUDGET: usize = 32 << 20;
/// Size of the queues to the decoders, in bytes.
const QUEUE: usize = 16 << 20;
/// Maximum number of connections that a decoder follows.
const MAX_CONNECTIONS: usize = 8192;

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
}

/// A source of logs that is followed.
struct Followed {
    /// Number of the node.
    node: usize,
    source: logs::Source,
    running: logs::Running,
}

impl Followed {
    fn health(&self) -> LogHealth {
        LogHealth {
            source: self.source.to_string(),
            counts: self.running.counts(),
            error: self.running.error(),
        }
    }
}

impl Session {
    fn start(config: &Config, stores: &[Arc<Store>]) -> Result<Self> {
        let shared = Arc::new(Shared::new(config));
        let mut session = Self {
            shared: shared.clone(),
            capture: None,
            identities: None,
            logs: Arc::new(follow_logs(config, stores)?),
        };
        if let Some(options) = config.capture_options() {
            let workers = Arc::new(start_workers(config, stores)?);
            // Its first look is over before anything is captured.
            let identities = IdentityThread::start(config, &shared, &workers)?;
            session.identities = Some(identities);
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
        let of = |(number, (node, store)): (usize, (&config::Node, &Arc<Store>))| {
            let (shared, logs) = (self.shared.clone(), self.logs.clone());
            let state = move || NodeState {
                logs: logs
                    .iter()
                    .filter(|log| log.node == number)
                    .map(Followed::health)
                    .collect(),
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
            .map(of)
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

fn start_workers(config: &Config, stores: &[Arc<Store>]) -> Result<Workers> {
    let ports = config.nodes.iter().filter_map(|node| {
        let port = node.p2p.as_ref()?.port?;
        Some((node.name.clone(), port))
    });
    let settings = Settings {
        ports: ports.collect(),
        budget: Budget::new(BUDGET),
        max_connections: MAX_CONNECTIONS,
        ids: ConnectionIds::default(),
    };
    let names = config.nodes.iter().map(|node| node.name.clone());
    let writers: HashMap<String, Writer> = names
        .zip(stores.iter().map(|store| store.writer()))
        .collect();
    let sink: Sink = Arc::new(move |node: &str, entry: Entry| {
        // What does not fit is counted by the store.
        let _ = writers.get(node).is_some_and(|writer| writer.put(entry));
    });
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    let number = processors.div_ceil(2);
    let nodes = Arc::new(Nodes {
        known: Vec::new(),
        awaited: true,
    });
    let prepare = || privileges::reduce(&[]);
    Workers::start(number, QUEUE, &settings, &nodes, &sink, prepare)
        .context("cannot start the threads that decode")
}

fn follow_logs(config: &Config, stores: &[Arc<Store>]) -> Result<Vec<Followed>> {
    let mut running = Vec::new();
    for (number, (node, store)) in config.nodes.iter().zip(stores).enumerate() {
        for source in node.log.iter().flat_map(|log| &log.sources) {
            let writer = store.writer();
            let sink = move |line| writer.put(Entry::Log(line));
            let followed = logs::start(source, &node.db, sink)?;
            say(&format!("{}: following logs: {source}", node.name));
            running.push(Followed {
                node: number,
                source: source.clone(),
                running: followed,
            });
        }
    }
    Ok(running)
}
