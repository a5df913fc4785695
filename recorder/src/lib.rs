//! The network recorder for Tezos nodes: the messages that a node exchanges with its peers, and the node's logs.
//!
//! The recorder sees the bytes of the node's TCP connections from outside of the node, decrypts them with the node's own
//! identity, keeps the messages, and serves them over HTTP.
//!
//! ```text
//!   capture      BPF: records of captured bytes, with their offsets
//!      │ queue, workers
//!   recording ── connection ── stream    one direction in order; gaps of exact size
//!      │             └──────── p2p       the wire format: chunks, handshake, decryption, messages, JSON
//!   store ────── logs          SQLite; lines of the node's log
//!      │
//!   api          HTTP and the page
//! ```
//!
//! [`session::run`] starts all of it. [`connection::Connection`] does no I/O, reads no clock, starts no thread, and its memory is
//! bounded whatever peers send: a source of captured bytes gives it records, and [`recording::Recording`] makes entries of a store of
//! its events.

pub mod api;
pub mod budget;
pub mod capture;
pub mod captured;
pub mod cgroups;
pub mod cli;
pub mod config;
pub mod connection;
pub mod doctor;
pub mod export;
pub mod identities;
pub mod logs;
pub mod p2p;
pub mod privileges;
pub mod queue;
pub mod reconnect;
pub mod recording;
pub mod session;
pub mod side;
pub mod sockets;
pub mod store;
pub mod stream;
pub mod time;
mod wire;
pub mod workers;
