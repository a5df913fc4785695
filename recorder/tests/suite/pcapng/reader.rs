//! Reads pcapng, IP and TCP as their specifications say; shares nothing with the code that writes them.

use std::net::{IpAddr, SocketAddr};

pub const PACKET: u32 = 6;
pub const SYN: u8 = 2;
pub const PSH: u8 = 8;
pub const ACK: u8 = 16;

#[derive(Debug, Default)]
pub struct Block {
    pub kind: u32,
    pub link: Option<u16>,
    pub interface: u32,
    /// In nanoseconds.
    pub time: u64,
    /// Size of the packet before it was cut.
    pub size: u32,
    pub flags: u32,
    pub comment: String,
    pub data: Vec<u8>,
}

#[derive(Debug)]
pub struct Segment {
    pub from: SocketAddr,
    pub to: SocketAddr,
    pub sequence: u32,
    pub acknowledgement: u32,
    pub flags: u8,
    pub payload: Vec<u8>,
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// All blocks of a stream; panics if it breaks the grammar.
pub fn blocks(mut file: &[u8]) -> Vec<Block> {
    let mut all = Vec::new();
    while !file.is_empty() {
        let length = u32_at(file, 4) as usize;
        assert!(length.is_multiple_of(4) && length >= 12);
        assert_eq!(u32_at(file, length - 4) as usize, length);
        all.push(block(u32_at(file, 0), &file[8..length - 4]));
        file = &file[length..];
    }
    all
}

fn block(kind: u32, body: &[u8]) -> Block {
    let mut block = Block {
        kind,
        ..Block::default()
    };
    let at = match kind {
        0x0a0d_0d0a => {
            assert_eq!(u32_at(body, 0), 0x1a2b_3c4d);
            assert_eq!((u16_at(body, 4), u16_at(body, 6)), (1, 0));
            16
        }
        1 => {
            block.link = Some(u16_at(body, 0));
            8
        }
        PACKET => {
            block.interface = u32_at(body, 0);
            block.time = u64::from(u32_at(body, 4)) << 32 | u64::from(u32_at(body, 8));
            let captured = u32_at(body, 12) as usize;
            block.size = u32_at(body, 16);
            assert!(captured <= block.size as usize && captured <= 262_144);
            block.data = body[20..20 + captured].to_vec();
            20 + captured.next_multiple_of(4)
        }
        _ => panic!("block {kind}"),
    };
    read_options(&mut block, &body[at..]);
    block
}

fn read_options(block: &mut Block, mut rest: &[u8]) {
    loop {
        let (code, length) = (u16_at(rest, 0), u16_at(rest, 2) as usize);
        let value = &rest[4..4 + length];
        rest = &rest[4 + length.next_multiple_of(4)..];
        match (block.kind, code) {
            (_, 0) => break assert!(rest.is_empty() && length == 0),
            (_, 1) => block.comment = String::from_utf8(value.to_vec()).unwrap(),
            (1, 9) => assert_eq!(value, [9]),
            (PACKET, 2) => block.flags = u32_at(value, 0),
            _ => assert!(std::str::from_utf8(value).is_ok()),
        }
    }
}

/// The sum that a receiver makes, checksum included: all ones if that is right.
fn sum(bytes: &[u8]) -> u32 {
    let words = bytes.chunks(2);
    let add = |word: &[u8]| u32::from(word[0]) * 256 + word.get(1).map_or(0, |b| u32::from(*b));
    let sum: u32 = words.map(add).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    (sum & 0xffff) + (sum >> 16)
}

/// The segment of an IP packet, whose lengths and checksums must be right.
pub fn segment(packet: &[u8]) -> Segment {
    let length = |at: usize| usize::from(u16::from_be_bytes([packet[at], packet[at + 1]]));
    let (from, to, tcp) = if packet[0] >> 4 == 4 {
        assert_eq!((packet[0], packet[9], length(2)), (0x45, 6, packet.len()));
        assert_eq!(sum(&packet[..20]), 0xffff);
        let address = |at| IpAddr::from(<[u8; 4]>::try_from(&packet[at..at + 4]).unwrap());
        (address(12), address(16), 20)
    } else {
        assert_eq!(
            (packet[0] >> 4, packet[6], length(4)),
            (6, 6, packet.len() - 40)
        );
        let address = |at| IpAddr::from(<[u8; 16]>::try_from(&packet[at..at + 16]).unwrap());
        (address(8), address(24), 40)
    };
    let addresses = if tcp == 20 { 12 } else { 8 };
    let tcp = &packet[tcp..];
    let mut pseudo = packet[addresses..packet.len() - tcp.len()].to_vec();
    pseudo.extend((tcp.len() as u32).to_be_bytes());
    pseudo.extend(6_u32.to_be_bytes());
    pseudo.extend(tcp);
    assert_eq!(sum(&pseudo), 0xffff);
    assert_eq!(tcp[12], 0x50);
    let port = |at| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
    let word = |at| u32::from_be_bytes(tcp[at..at + 4].try_into().unwrap());
    Segment {
        from: SocketAddr::new(from, port(0)),
        to: SocketAddr::new(to, port(2)),
        sequence: word(4),
        acknowledgement: word(8),
        flags: tcp[13],
        payload: tcp[20..].to_vec(),
    }
}
