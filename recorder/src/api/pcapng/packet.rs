//! IP packets with TCP segments.

use std::net::{IpAddr, SocketAddr};

pub(super) const SYN: u8 = 0x02;
pub(super) const PSH: u8 = 0x08;
pub(super) const ACK: u8 = 0x10;

const TCP: u8 = 6;
const HOPS: u8 = 64;
const IPV4_HEADER: usize = 20;
const TCP_HEADER: usize = 20;
/// Offset of the checksum in the IPv4 header, and in that of TCP.
const IPV4_CHECKSUM: usize = 10;
const TCP_CHECKSUM: usize = 16;

/// Maximum size of a payload, in bytes: the total length of an IPv4 packet has 16 bits.
pub(super) const MAX_PAYLOAD: usize = 0xffff - IPV4_HEADER - TCP_HEADER;

/// A TCP segment. Both addresses are of one family.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment<'a> {
    pub from: SocketAddr,
    pub to: SocketAddr,
    pub sequence: u32,
    pub acknowledgement: u32,
    pub flags: u8,
    /// At most [`MAX_PAYLOAD`] bytes.
    pub payload: &'a [u8],
}

impl Segment<'_> {
    /// The packet, from the IP header on.
    pub fn to_packet(self) -> Vec<u8> {
        let segment = self.to_segment();
        let addresses = [octets(self.from.ip()), octets(self.to.ip())].concat();
        // MAX_PAYLOAD keeps lengths within 16 bits.
        let mut packet = if self.from.is_ipv4() {
            let total = (IPV4_HEADER + segment.len()) as u16;
            let [high, low] = total.to_be_bytes();
            // Version and header length; no fragment.
            let header = [0x45, 0, high, low, 0, 0, 0x40, 0, HOPS, TCP, 0, 0];
            let mut packet = [&header[..], &addresses].concat();
            let sum = checksum([&packet[..]]);
            put_checksum(&mut packet, IPV4_CHECKSUM, sum);
            packet
        } else {
            let [high, low] = (segment.len() as u16).to_be_bytes();
            [&[0x60, 0, 0, 0, high, low, TCP, HOPS], &addresses[..]].concat()
        };
        let at = packet.len() + TCP_CHECKSUM;
        // The pseudo-header. IPv6 has wider fields, but the same sum.
        let [high, low] = (segment.len() as u16).to_be_bytes();
        let sum = checksum([&addresses, &[0, TCP, high, low], &segment]);
        packet.extend(segment);
        put_checksum(&mut packet, at, sum);
        packet
    }

    /// The TCP header without its checksum, and the payload.
    fn to_segment(self) -> Vec<u8> {
        let mut segment = Vec::with_capacity(TCP_HEADER + self.payload.len());
        segment.extend(self.from.port().to_be_bytes());
        segment.extend(self.to.port().to_be_bytes());
        segment.extend(self.sequence.to_be_bytes());
        segment.extend(self.acknowledgement.to_be_bytes());
        // Length of the header in words, flags, window, checksum, urgent pointer.
        segment.extend([0x50, self.flags, 0xff, 0xff, 0, 0, 0, 0]);
        segment.extend(self.payload);
        segment
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// The checksum of the Internet (RFC 1071) over parts, of which only the last may have an odd length.
fn checksum<const N: usize>(parts: [&[u8]; N]) -> u16 {
    let mut sum = 0_u32;
    for word in parts.into_iter().flat_map(|part| part.chunks(2)) {
        let value = match *word {
            [high, low] => u16::from_be_bytes([high, low]),
            [high] => u16::from_be_bytes([high, 0]),
            _ => 0,
        };
        // 64 KiB of words do not exceed 32 bits.
        sum += u32::from(value);
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

fn put_checksum(packet: &mut [u8], at: usize, sum: u16) {
    if let Some(field) = packet.get_mut(at..at + 2) {
        field.copy_from_slice(&sum.to_be_bytes());
    }
}
