//! The command line.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use tezos_recorder::p2p::message::Layer;

use crate::forms::{
    ChunkForm, CloseForm, HandshakeForm, Kinds, ReceiveForm, SendForm, Sizes, Writes,
};

/// Plays Tezos nodes: real encryption over real TCP, for tests and measurements of the network recorder.
#[derive(Parser)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Make an identity.json
    Identity {
        /// File to write
        #[arg(long)]
        out: PathBuf,
        /// Difficulty of the proof of work, in bits; mainnet has 26, which takes minutes
        #[arg(long, default_value_t = 8.0)]
        difficulty: f64,
        /// Make the same identity each time
        #[arg(long)]
        seed: Option<u64>,
    },
    /// Accept connections
    Listen {
        /// Address to listen on
        #[arg(long, default_value = "127.0.0.1")]
        address: IpAddr,
        #[command(flatten)]
        options: Options,
    },
    /// Open connections
    Connect {
        /// Address and port of the other node [with --preset handshake: 127.0.0.1:29733]
        #[arg(required_unless_present = "preset")]
        address: Option<SocketAddr>,
        /// Open this many connections, one after the other, on each of --connections threads
        #[arg(long, default_value_t = 1)]
        rounds: u32,
        /// Port from which to connect; later rounds use it again
        #[arg(long, conflicts_with = "connections")]
        local_port: Option<u16>,
        /// Do not block in connect
        #[arg(long)]
        nonblocking_connect: bool,
        /// First connect the same socket to a port where nobody listens
        #[arg(long)]
        refused_first: bool,
        #[command(flatten)]
        options: Options,
    },
}

/// Options of both roles.
#[derive(Args, Clone)]
pub struct Options {
    /// The node's identity.json
    #[arg(long)]
    pub identity: PathBuf,
    /// Write one line of JSON per message to this file
    #[arg(long)]
    pub log: Option<PathBuf>,
    /// Seed of everything that is random
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// P2P port: 0 is any free port. A node that connects listens, too, if it is given, but accepts nothing
    #[arg(long)]
    pub port: Option<u16>,
    /// Number of connections: opened at the same time, or accepted before the node ends
    #[arg(long, default_value_t = 1)]
    pub connections: u32,
    /// Serve HTTP on this port, too: traffic that is not P2P, and Octez's RPC to list and to drop peers; 0 is any free port
    #[arg(long)]
    pub http: Option<u16>,
    /// Take commands from standard input: go, send N, connect, http ADDRESS, close, quit
    #[arg(long, conflicts_with = "fork")]
    pub control: bool,
    /// Open or accept nothing before the command `go`
    #[arg(long, requires = "control")]
    pub pause: bool,
    /// Use the options of a known conversation
    #[arg(long)]
    pub preset: Option<Preset>,
    #[command(flatten)]
    pub handshake: Handshake,
    #[command(flatten)]
    pub messages: Messages,
    #[command(flatten)]
    pub io: Io,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Preset {
    /// Ports 29732 (connects) and 29733 (listens): handshake, then one operation
    Handshake,
}

/// How a connection begins.
#[derive(Args, Clone)]
pub struct Handshake {
    /// Form of the handshake
    #[arg(long, default_value = "normal")]
    pub handshake: HandshakeForm,
    /// Reason of a nack
    #[arg(long, default_value_t = 1, allow_negative_numbers = true)]
    pub motive: i16,
    /// Send each part of the handshake only after the other node's
    #[arg(long)]
    pub late: bool,
    /// End the connection after this many bytes are sent
    #[arg(long)]
    pub cut: Option<u64>,
    /// Chain name; DAL_… is a node of the data-availability layer
    #[arg(long, default_value = "TEZOS_MAINNET")]
    pub chain: String,
    /// Version of the peer messages
    #[arg(long, default_value_t = 2)]
    pub db_version: u16,
    /// Version of the handshake
    #[arg(long, default_value_t = 1)]
    pub p2p_version: u16,
    /// Say in the metadata that no operations are wanted
    #[arg(long)]
    pub disable_mempool: bool,
    /// Say in the metadata that the node is private
    #[arg(long)]
    pub private_node: bool,
}

impl Handshake {
    /// The layer of the chain.
    pub fn layer(&self) -> Layer {
        if self.chain.starts_with("DAL_") {
            Layer::Dal
        } else {
            Layer::Node
        }
    }
}

/// Contents and pace.
#[derive(Args, Clone)]
pub struct Messages {
    /// Messages to send on each connection [default: 10; without limit with --duration; none with --control]
    #[arg(long)]
    pub messages: Option<u64>,
    /// Seconds after which to end
    #[arg(long)]
    pub duration: Option<f64>,
    /// Messages per second on each connection
    #[arg(long)]
    pub rate: Option<f64>,
    /// Kinds of messages: all, or names, each with a weight if you like (operation=9,advertise)
    #[arg(long, default_value = "all")]
    pub kinds: Kinds,
    /// Size of messages with length and tag, in bytes: N or MIN..MAX, as far as their kind permits. Small ones are likelier
    #[arg(long, default_value = "0..2000")]
    pub size: Sizes,
    /// Percentage of messages that break the grammar
    #[arg(long, default_value_t = 0)]
    pub invalid: u8,
    /// Messages that are made at once [default: 1 or 8, by the form of chunks]
    #[arg(long)]
    pub batch: Option<usize>,
    /// Form of chunks
    #[arg(long, default_value = "message")]
    pub chunks: ChunkForm,
}

/// How bytes are sent and received.
#[derive(Args, Clone)]
pub struct Io {
    /// System call for sending
    #[arg(long, default_value = "write")]
    pub send: SendForm,
    /// System call for receiving
    #[arg(long, default_value = "read")]
    pub receive: ReceiveForm,
    /// Bytes of one call for sending
    #[arg(long, default_value = "chunk")]
    pub writes: Writes,
    /// Parts of one call with vectors
    #[arg(long, default_value_t = 5)]
    pub parts: usize,
    /// Bytes of one call for receiving
    #[arg(long, default_value_t = 16 << 10)]
    pub read_size: usize,
    /// Leave sockets non-blocking
    #[arg(long)]
    pub nonblocking: bool,
    /// Duplicate the descriptor and close the first one, again and again
    #[arg(long)]
    pub dup: bool,
    /// A child process goes on after the handshake
    #[arg(long)]
    pub fork: bool,
    /// Threads that take turns in sending, and as many in receiving
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
    /// How a connection ends
    #[arg(long, default_value = "first")]
    pub close: CloseForm,
}
