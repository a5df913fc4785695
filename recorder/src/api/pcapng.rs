//! The pcapng export: packets rebuilt from stored chunks for Wireshark and tcpdump, and plain messages beside them.
//!
//! Interface 0 has IP packets with the captured bytes, as far as they can be rebuilt: each byte at its offset in the TCP stream, and
//! lost bytes missing. Interface 1 has the plain bytes of messages, so that no dissector has to decrypt anything. Comments say what
//! a packet contains.

mod block;
mod packet;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use self::block::{Blocks, MAX_CAPTURED, Packet};
use self::packet::{ACK, MAX_PAYLOAD, PSH, SYN, Segment};
use crate::side::{Both, Side};
use crate::store::{ChunkEntry, ConnectionEntry, ConnectionId, MessageRow};
use crate::time::Timestamp;

/// `LINKTYPE_RAW`: packets begin with the IPv4 or IPv6 header.
const RAW_IP: u16 = 101;
/// `LINKTYPE_USER0`: the application defines the content.
const USER0: u16 = 147;

/// Indexes of the interfaces, in the order in which they are described.
const TCP: u32 = 0;
const MESSAGES: u32 = 1;

/// Addresses reserved for documentation (RFC 5737, RFC 3849), which stand for the node's own.
const NODE_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const NODE_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
/// First of the ports for outgoing connections (RFC 6335: dynamic ports), of which there are [`DYNAMIC_PORTS`].
const FIRST_PORT: u16 = 0xc000;
const DYNAMIC_PORTS: usize = 0x4000;

/// Sequence number of each SYN, so that the byte at offset 0 has the next one.
const SYN_SEQUENCE: u32 = 0;

/// Writes a pcapng stream. Keeps about a hundred bytes for each connection.
#[derive(Debug)]
pub struct Export<W> {
    blocks: Blocks<W>,
    p2p_port: u16,
    flows: HashMap<ConnectionId, Flow>,
}

/// A connection whose chunks were written.
#[derive(Clone, Copy, Debug)]
struct Flow {
    addresses: Both<SocketAddr>,
    /// The sequence number after the last byte that each side has sent.
    next: Both<u32>,
}

impl<W: Write> Export<W> {
    /// Begins a stream: the section and both interfaces. `p2p_port` is the node's port for incoming connections.
    ///
    /// # Errors
    ///
    /// `out` cannot be written; likewise for the methods below.
    pub fn new(out: W, node: &str, p2p_port: u16) -> io::Result<Self> {
        let comment = format!(
            "Recorded from the Tezos node \"{node}\". IP and TCP headers are rebuilt: the node's own address is not recorded, \
             {NODE_V4} and {NODE_V6} stand for it; ports from {FIRST_PORT} on stand for those from which it opened connections. \
             Sequence numbers are offsets in the stream plus 1. Packets hold whole chunks, not the segments as sent. \
             Bytes that were not captured are missing."
        );
        let mut blocks = Blocks::new(out);
        blocks.section(&comment)?;
        let tcp = "TCP connections with peers, rebuilt from captured bytes; encrypted from the second chunk on";
        blocks.interface(RAW_IP, "p2p", tcp)?;
        let messages = "plain bytes of messages; peer messages with length and tag, others without";
        blocks.interface(USER0, "messages", messages)?;
        Ok(Self {
            blocks,
            p2p_port,
            flows: HashMap::new(),
        })
    }

    /// Writes a chunk, or bytes outside of chunks, as packets of interface 0. The comment names `messages`: those that have bytes in
    /// the chunk. If the connection's first chunk comes first, a handshake precedes it.
    pub fn chunk(
        &mut self,
        connection: &ConnectionEntry,
        chunk: &ChunkEntry,
        messages: &[MessageRow],
    ) -> io::Result<()> {
        if chunk.raw.is_empty() {
            return Ok(());
        }
        if !self.flows.contains_key(&connection.id) {
            self.begin(connection, chunk)?;
        }
        let Some(flow) = self.flows.get_mut(&connection.id) else {
            return Ok(());
        };
        let comment = describe_chunk(chunk, messages);
        let mut sequence = sequence_at(chunk.offset);
        for payload in chunk.raw.chunks(MAX_PAYLOAD) {
            let segment = flow.segment(chunk.sender, sequence, ACK | PSH, payload);
            write_segment(&mut self.blocks, chunk, &segment, &comment)?;
            // At most MAX_PAYLOAD, which is below 2^16.
            sequence = sequence.wrapping_add(payload.len() as u32);
        }
        *flow.next.of_mut(chunk.sender) = sequence;
        Ok(())
    }

    /// Adds the connection; writes its handshake if its beginning is known.
    fn begin(&mut self, connection: &ConnectionEntry, first: &ChunkEntry) -> io::Result<()> {
        let local_port = match connection.initiator {
            Some(Side::Remote) => self.p2p_port,
            _ => FIRST_PORT + (self.flows.len() % DYNAMIC_PORTS) as u16,
        };
        let remote = canonical(connection.address);
        let node = match remote {
            SocketAddr::V4(_) => IpAddr::V4(NODE_V4),
            SocketAddr::V6(_) => IpAddr::V6(NODE_V6),
        };
        let flow = Flow {
            addresses: Both {
                local: SocketAddr::new(node, local_port),
                remote,
            },
            next: Both {
                local: sequence_at(0),
                remote: sequence_at(0),
            },
        };
        self.flows.insert(connection.id, flow);
        let Some(initiator) = connection.initiator.filter(|_| first.offset == 0) else {
            return Ok(());
        };
        // The id is the time at which the connection was opened or first seen.
        let time = Timestamp(connection.id.0).min(first.time);
        let syn = Segment {
            acknowledgement: 0,
            ..flow.segment(initiator, SYN_SEQUENCE, SYN, &[])
        };
        let syn_ack = flow.segment(initiator.other(), SYN_SEQUENCE, SYN | ACK, &[]);
        let ack = flow.segment(initiator, sequence_at(0), ACK, &[]);
        for (segment, sender) in [
            (syn, initiator),
            (syn_ack, initiator.other()),
            (ack, initiator),
        ] {
            self.blocks.packet(&Packet {
                interface: TCP,
                time,
                sender,
                size: None,
                data: &segment.to_packet(),
                comment: "rebuilt handshake",
            })?;
        }
        Ok(())
    }

    /// Writes the plain bytes of a message, or the first ones of them, as a packet of interface 1. Wireshark opens no file with a larger
    /// packet than 256 KiB, so what is beyond that is left out.
    pub fn message(&mut self, row: &MessageRow, plain: &[u8]) -> io::Result<()> {
        let mut comment = describe(row);
        let _ = write!(
            comment,
            "\nmessage {}, {}, peer {}, connection {}",
            row.id,
            row.sender.direction(),
            canonical(row.address),
            row.connection.0
        );
        if let Some(error) = &row.error {
            let _ = write!(comment, "\nerror: {error}");
        }
        self.blocks.packet(&Packet {
            interface: MESSAGES,
            time: row.time,
            sender: row.sender,
            size: Some(row.size),
            data: plain.get(..MAX_CAPTURED).unwrap_or(plain),
            comment: &comment,
        })
    }

    /// Ends the stream.
    pub fn finish(self) -> io::Result<W> {
        self.blocks.finish()
    }
}

impl Flow {
    fn segment<'a>(
        &self,
        sender: Side,
        sequence: u32,
        flags: u8,
        payload: &'a [u8],
    ) -> Segment<'a> {
        Segment {
            from: *self.addresses.of(sender),
            to: *self.addresses.of(sender.other()),
            sequence,
            acknowledgement: *self.next.of(sender.other()),
            flags,
            payload,
        }
    }
}

fn write_segment<W: Write>(
    blocks: &mut Blocks<W>,
    chunk: &ChunkEntry,
    segment: &Segment<'_>,
    comment: &str,
) -> io::Result<()> {
    blocks.packet(&Packet {
        interface: TCP,
        time: chunk.time,
        sender: chunk.sender,
        size: None,
        data: &segment.to_packet(),
        comment,
    })
}

/// The sequence number of the byte at an offset; TCP's numbers wrap after 4 GiB.
fn sequence_at(offset: u64) -> u32 {
    SYN_SEQUENCE.wrapping_add(1).wrapping_add(offset as u32)
}

/// Without the mapping of IPv4 addresses into IPv6, which the packets did not have either.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn describe_chunk(chunk: &ChunkEntry, messages: &[MessageRow]) -> String {
    let mut text = String::new();
    for row in messages {
        // The comment is cut there anyway.
        if text.len() > block::MAX_COMMENT {
            break;
        }
        text.push_str(&describe(row));
        text.push('\n');
    }
    let direction = chunk.sender.direction();
    let _ = match chunk.number {
        Some(number) if chunk.plain.is_some() => write!(text, "{direction} chunk {number}"),
        Some(number) => write!(text, "{direction} chunk {number}, not decrypted"),
        None => write!(text, "{direction} bytes outside of known chunks"),
    };
    text
}

/// Kind, hash and the beginning of the JSON.
fn describe(row: &MessageRow) -> String {
    let texts = [
        Some(row.kind.name()),
        row.hash.as_deref(),
        row.preview.as_deref(),
    ];
    texts.into_iter().flatten().collect::<Vec<_>>().join(" ")
}
