//! Blocks of a pcapng stream (draft-ietf-opsawg-pcapng), little-endian.

use std::io::{self, Write};

use crate::side::Side;
use crate::time::Timestamp;

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const ENHANCED_PACKET: u32 = 6;

const OPT_END: u16 = 0;
const OPT_COMMENT: u16 = 1;
const SHB_USERAPPL: u16 = 4;
const IF_NAME: u16 = 2;
const IF_DESCRIPTION: u16 = 3;
const IF_TSRESOL: u16 = 9;
const EPB_FLAGS: u16 = 2;

/// `if_tsresol`: the negative power of 10 that is the unit of times.
const NANOSECONDS: u8 = 9;

/// Maximum size of a packet, in bytes: a larger one makes Wireshark refuse the file.
pub(super) const MAX_CAPTURED: usize = 256 << 10;

/// Maximum size of a comment, in bytes.
pub(super) const MAX_COMMENT: usize = 4 << 10;

/// Writes blocks.
#[derive(Debug)]
pub(super) struct Blocks<W> {
    out: W,
    /// The block that is being made, without both lengths.
    body: Vec<u8>,
}

/// A packet of an interface.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet<'a> {
    pub interface: u32,
    pub time: Timestamp,
    pub sender: Side,
    /// Size in bytes before it was cut; `None` for that of `data`.
    pub size: Option<u64>,
    pub data: &'a [u8],
    pub comment: &'a str,
}

impl<W: Write> Blocks<W> {
    pub fn new(out: W) -> Self {
        let body = Vec::new();
        Self { out, body }
    }

    pub fn section(&mut self, comment: &str) -> io::Result<()> {
        self.body.extend(0x1a2b_3c4d_u32.to_le_bytes());
        self.body.extend([1, 0, 0, 0]); // version 1.0
        self.body.extend([0xff; 8]); // of unknown length
        self.option(OPT_COMMENT, comment.as_bytes());
        let program = concat!("tezos-recorder ", env!("CARGO_PKG_VERSION"));
        self.option(SHB_USERAPPL, program.as_bytes());
        self.option(OPT_END, &[]);
        self.write(SECTION_HEADER)
    }

    pub fn interface(&mut self, link: u16, name: &str, description: &str) -> io::Result<()> {
        self.body.extend(link.to_le_bytes());
        self.body.extend([0; 2]);
        // Far below 4 GiB.
        self.body.extend((MAX_CAPTURED as u32).to_le_bytes());
        self.option(IF_NAME, name.as_bytes());
        self.option(IF_DESCRIPTION, description.as_bytes());
        self.option(IF_TSRESOL, &[NANOSECONDS]);
        self.option(OPT_END, &[]);
        self.write(INTERFACE_DESCRIPTION)
    }

    pub fn packet(&mut self, packet: &Packet<'_>) -> io::Result<()> {
        let captured = packet.data.len() as u32;
        let size = packet
            .size
            .map_or(captured, |size| size.try_into().unwrap_or(u32::MAX));
        let time = packet.time.0;
        for word in [
            packet.interface,
            (time >> 32) as u32,
            time as u32,
            captured,
            size.max(captured),
        ] {
            self.body.extend(word.to_le_bytes());
        }
        self.body.extend(packet.data);
        self.pad();
        self.option(OPT_COMMENT, cut(packet.comment).as_bytes());
        let direction = match packet.sender {
            Side::Remote => 1_u32, // inbound
            Side::Local => 2,
        };
        self.option(EPB_FLAGS, &direction.to_le_bytes());
        self.option(OPT_END, &[]);
        self.write(ENHANCED_PACKET)
    }

    pub fn finish(mut self) -> io::Result<W> {
        self.out.flush()?;
        Ok(self.out)
    }

    /// Adds an option with a value of at most 64 KiB.
    fn option(&mut self, code: u16, value: &[u8]) {
        let value = value.get(..u16::MAX.into()).unwrap_or(value);
        self.body.extend(code.to_le_bytes());
        self.body.extend((value.len() as u16).to_le_bytes());
        self.body.extend(value);
        self.pad();
    }

    /// Fills up to a multiple of 4 bytes.
    fn pad(&mut self) {
        self.body.resize(self.body.len().next_multiple_of(4), 0);
    }

    /// Writes the block with its length before and behind it.
    fn write(&mut self, kind: u32) -> io::Result<()> {
        let length = (self.body.len() as u32 + 12).to_le_bytes();
        self.out.write_all(&kind.to_le_bytes())?;
        self.out.write_all(&length)?;
        self.out.write_all(&self.body)?;
        self.out.write_all(&length)?;
        self.body.clear();
        Ok(())
    }
}

/// The beginning of a text that is not longer than a comment may be.
fn cut(text: &str) -> &str {
    let mut end = text.len().min(MAX_COMMENT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}
