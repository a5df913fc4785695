//! The addresses at which HTTP is served: one port for all nodes, and one for each node that has one.

use std::net::{IpAddr, SocketAddr};

use anyhow::Result;
use memprof_server::{Listen, Listener};

use super::say;
use crate::config::Config;

/// Listens; `None` is the server of all nodes, a number that of a node.
///
/// # Errors
/// A port cannot be bound; the message says what to do.
pub(super) fn bind(config: &Config) -> Result<Vec<(Option<usize>, Listener)>> {
    let mut listeners = Vec::new();
    let of_nodes = config.nodes.iter().enumerate();
    let ports = of_nodes.filter_map(|(number, node)| Some((Some(number), node.port?)));
    for (node, port) in config
        .port
        .map(|port| (None, port))
        .into_iter()
        .chain(ports)
    {
        for address in &config.listen {
            let address = SocketAddr::new(*address, port);
            let listener = memprof_server::bind(&Listen::Tcp(address), "tezos-recorder")?;
            greet(config, node, address);
            listeners.push((node, listener));
        }
    }
    Ok(listeners)
}

fn greet(config: &Config, node: Option<usize>, address: SocketAddr) {
    match node {
        None => say(&format!("serving http://{address}/")),
        Some(number) => {
            let name = &config.nodes[number].name;
            say(&format!("serving http://{address}/v3/messages of {name}"));
        }
    }
    if is_open(config, address.ip()) {
        say(&format!(
            "warning: {} is not a loopback address, and there is no token: anybody who reaches it can read all messages and logs; set token_file",
            address.ip()
        ));
    }
}

fn is_open(config: &Config, ip: IpAddr) -> bool {
    !ip.is_loopback() && config.token_file.is_none()
}
