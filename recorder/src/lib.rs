//! The network recorder for Tezos nodes: the messages that a node exchanges with its peers, and the node's logs.
//!
//! The recorder sees the bytes of the node's TCP connections from outside of the node, decrypts them with the node's own
//! identity, and keeps the messages. What is here so far takes bytes and gives events. It does no I/O, reads no clock, starts no
//! thread, and its memory is bounded whatever the peers send.
//!
//! ```text
//!   records of captured bytes ── connection ── events: chunks, messages, gaps, remarks
//!                                     │
//!                 stream       one direction in order; gaps of exact size
//!                 p2p          the wire format: chunks, handshake, decryption, messages, JSON
//! ```
//!
//! [`connection::Connection`] is where to begin: a source of captured bytes gives it records, and a store takes its events.
//! [`p2p::message::decode`] reads one message, and [`p2p::identity::Identity`] the keys of a node.

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
pub mod recording;
pub mod session;
pub mod side;
pub mod sockets;
pub mod store;
pub mod stream;
pub mod time;
mod wire;
pub mod workers;
