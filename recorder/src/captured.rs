//! What a source of captured bytes says of the sockets of the nodes.

use std::net::SocketAddr;

use crate::side::{Both, Side};
use crate::time::Timestamp;

/// The kernel's number of a socket (`SO_COOKIE`), unique as long as the machine runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Socket(pub u64);

/// Something that was captured.
#[derive(Clone, Copy, Debug)]
pub struct Captured<'a> {
    /// The node's socket. It can be connected again after [`What::Closed`].
    pub socket: Socket,
    /// When it happened.
    pub time: Timestamp,
    /// Address of the node's end; an IPv4 address in an IPv6 socket is one of IPv4.
    pub local: SocketAddr,
    /// Address of the peer's end.
    pub remote: SocketAddr,
    /// The event.
    pub what: What<'a>,
}

/// An event of a socket.
#[derive(Clone, Copy, Debug)]
pub enum What<'a> {
    /// A SYN was seen: the connection begins.
    Opened {
        /// Who opens it, if that is known.
        initiator: Option<Side>,
    },
    /// Bytes, perhaps out of order and more than once.
    Data {
        /// Who sent them.
        sender: Side,
        /// Offset of the first byte in the direction. One too high if the node opened the connection before the recorder began.
        offset: u64,
        /// See [`Record::in_order`](crate::stream::Record::in_order).
        in_order: u64,
        /// The bytes.
        data: &'a [u8],
        /// Who opened the connection, as the kernel's counters tell it.
        initiator: Option<Side>,
    },
    /// The connection has ended; of system calls, the process has closed the socket. No event of it follows.
    Closed {
        /// Number of bytes that each side sent, where it is known: those that left the node for the first time, and those that
        /// reached it in order.
        sent: Both<Option<u64>>,
    },
}
