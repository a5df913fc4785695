//! A node: connections that it opens or accepts.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use tezos_recorder::p2p::message::Kind;

use crate::arguments::{Options, Preset};
use crate::forms::Kinds;
use crate::gate::Gate;
use crate::identity::Keys;
use crate::log::Log;
use crate::open::{Dial, accept_one, prepare};
use crate::rpc::Rpc;
use crate::{Result, connection, http};

/// State that all connections of a node share.
pub struct Node {
    pub options: Options,
    pub keys: Keys,
    /// The port in connection messages; 0: it does not listen.
    pub port: u16,
    pub log: Log,
    pub gate: Arc<Gate>,
    pub rpc: Arc<Rpc>,
    /// A connection could not be opened.
    failed: AtomicBool,
}

impl Node {
    /// A node, and its listening socket if it has a port.
    fn new(options: Options, address: IpAddr) -> Result<(Self, Option<TcpListener>)> {
        let keys = Keys::read(&options.identity)?;
        let log = Log::create(options.log.as_deref(), options.control)?;
        let listener = options.port.map(|port| TcpListener::bind((address, port)));
        let listener = listener
            .transpose()
            .map_err(|e| format!("cannot listen: {e}"))?;
        let mut port = 0;
        if let Some(listener) = &listener {
            let address = listener.local_addr()?;
            port = address.port();
            println!("listening {address}");
        }
        let rpc = Rpc::new(keys.identity.peer_id().to_string());
        if let Some(port) = options.http {
            println!("http {}", http::serve(port, rpc.clone())?);
        }
        let node = Self {
            keys,
            port,
            log,
            gate: Gate::new(options.control, options.pause),
            failed: AtomicBool::new(false),
            rpc,
            options,
        };
        node.gate.wait_for_start();
        Ok((node, listener))
    }

    /// An error, too, if a connection could not be opened.
    fn result(&self, result: Result<()>) -> Result<()> {
        if self.failed.load(Ordering::Relaxed) {
            return Err("not all connections were opened".into());
        }
        result
    }

    fn run(&self, fd: std::io::Result<OwnedFd>, index: u64, initiator: bool) -> Option<Pid> {
        let nonblocking = self.options.io.nonblocking;
        let ready = fd.and_then(|fd| prepare(&fd, nonblocking).map(|()| fd));
        let result = ready
            .map_err(Into::into)
            .and_then(|fd| connection::run(self, fd, index, initiator));
        result.unwrap_or_else(|e| {
            eprintln!("pseudo_node: {e}");
            println!("failed {e}");
            self.failed.store(true, Ordering::Relaxed);
            None
        })
    }
}

/// Accepts connections until there were enough and all have ended.
pub fn listen(address: IpAddr, mut options: Options) -> Result<()> {
    if options.preset == Some(Preset::Handshake) {
        options = preset(options, 29733, 0);
        options.handshake.late = true;
    }
    options.port.get_or_insert(0);
    let (node, listener) = Node::new(options, address)?;
    let listener = listener.ok_or("no port to listen on")?;
    let options = &node.options;
    let enough = if options.control {
        u64::MAX
    } else {
        options.connections.into()
    };
    let mut children = Vec::new();
    std::thread::scope(|scope| -> Result<()> {
        let mut index = 0;
        while index < enough && !node.gate.is_closing() {
            let Some(fd) = accept_one(&listener, index)? else {
                continue;
            };
            if options.io.fork {
                children.extend(node.run(Ok(fd), index, false));
            } else {
                let node = &node;
                scope.spawn(move || node.run(Ok(fd), index, false));
            }
            index += 1;
        }
        Ok(())
    })?;
    node.result(wait_for(children))
}

/// Opens connections, until all have ended.
pub fn connect(mut dial: Dial, mut options: Options, rounds: u32) -> Result<()> {
    if options.preset == Some(Preset::Handshake) {
        options = preset(options, 29732, 1);
    }
    dial.nonblocking |= options.io.nonblocking;
    let address = match dial.address {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        SocketAddr::V6(_) => dial.address.ip(),
    };
    let (node, _listener) = Node::new(options, address)?;
    let (node, dial) = (&node, &dial);
    let connections = u64::from(node.options.connections);
    let one = |index: u64| node.run(dial.open(), index, true);
    if node.options.io.fork {
        for round in 0..u64::from(rounds) {
            let children = (0..connections).filter_map(|n| one(round * connections + n));
            wait_for(children.collect())?;
        }
        return node.result(Ok(()));
    }
    std::thread::scope(|scope| {
        for n in 0..connections {
            let rounds = 0..u64::from(rounds);
            scope.spawn(move || {
                for round in rounds {
                    one(round * connections + n);
                }
            });
        }
        let mut more = 0;
        while node.options.control && node.gate.wait_for_connect(more) {
            let index = u64::from(rounds) * connections + more;
            scope.spawn(move || one(index));
            more += 1;
        }
    });
    node.result(Ok(()))
}

/// The conversation of the original network recorder's own test.
fn preset(options: Options, port: u16, messages: u64) -> Options {
    let mut options = options;
    options.port.get_or_insert(port);
    (options.handshake.db_version, options.handshake.p2p_version) = (0, 1);
    options.messages.messages = Some(messages);
    options.messages.kinds = Kinds(vec![Kind::Operation]);
    options
}

fn wait_for(children: Vec<Pid>) -> Result<()> {
    for child in children {
        waitpid(child, None)?;
    }
    Ok(())
}
