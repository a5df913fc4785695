//! What a capture gives.

use std::net::SocketAddr;

use crate::side::{Both, Side};
use crate::time::Timestamp;

/// A captured event of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Captured<'a> {
    /// The socket. Unique until the host restarts, but a socket can be connected again after [`What::Closed`].
    pub socket: u64,
    /// When it happened.
    pub time: Timestamp,
    /// The node's address; an IPv4 address in an IPv6 socket is one of IPv4.
    pub local: SocketAddr,
    /// The peer's address.
    pub remote: SocketAddr,
    /// The event.
    pub what: What<'a>,
}

/// What happened to a connection.
#[derive(Clone, Copy, Debug)]
pub enum What<'a> {
    /// The connection was opened, and its bytes will follow from the first.
    Opened {
        /// The side that opened it.
        initiator: Option<Side>,
    },
    /// Bytes were sent. They may come out of order and more than once.
    Data {
        /// Who sent them.
        sender: Side,
        /// Offset of the first byte in the direction. One too high if the node opened the connection before the recorder began.
        offset: u64,
        /// Bytes of the direction that the kernel had in order: received, or acknowledged by the peer.
        in_order: u64,
        /// The bytes.
        data: &'a [u8],
        /// The side that opened the connection; `None` if that was before the recorder began.
        initiator: Option<Side>,
    },
    /// The connection ended.
    Closed {
        /// Bytes that each side sent: those that left the node for the first time, and those that reached it in order.
        sent: Both<Option<u64>>,
    },
}
