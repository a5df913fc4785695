//! Pseudo nodes: they speak the protocol of Tezos nodes with real encryption over real TCP, and write down what they sent and
//! received. Two of them are the known truth for tests and measurements of the network recorder.
//!
//! ```text
//! pseudo_node identity --out a.json; pseudo_node identity --out b.json
//! pseudo_node listen --identity a.json --port 9732 --log a.log &
//! pseudo_node connect 127.0.0.1:9732 --identity b.json --log b.log --messages 1000 --send sendmsg --chunks straddle
//! ```
//!
//! Standard output has a line per event: `listening ADDRESS`, `http ADDRESS`, `opened LOCAL REMOTE`, `closed LOCAL REMOTE`,
//! `failed REASON`, and with `--control` also `paused`, and `sent N LOCAL REMOTE` when a connection waits for the next command.

mod arguments;
mod channel;
mod chunks;
mod connection;
mod content;
mod forms;
mod gate;
mod handshake;
mod http;
mod identity;
mod log;
mod node;
mod open;
mod receive;
mod ring;
mod rpc;
mod send;
mod sender;
mod turns;
mod wait;

use std::net::SocketAddr;
use std::process::ExitCode;

use clap::Parser;

use arguments::{Arguments, Command};
use open::Dial;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Identity {
            out,
            difficulty,
            seed,
        } => identity::make(&out, difficulty, seed),
        Command::Listen { address, options } => node::listen(address, options),
        Command::Connect {
            address,
            rounds,
            local_port,
            nonblocking_connect,
            refused_first,
            options,
        } => {
            let dial = Dial {
                address: address.unwrap_or(SocketAddr::from(([127, 0, 0, 1], 29733))),
                local_port,
                nonblocking: nonblocking_connect,
                refused_first,
            };
            node::connect(dial, options, rounds)
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("pseudo_node: {e}");
            ExitCode::FAILURE
        }
    }
}
