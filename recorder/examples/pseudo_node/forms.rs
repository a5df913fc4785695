//! Values of options: forms of handshakes, chunks and system calls; kinds and sizes of messages.

use std::str::FromStr;

use clap::ValueEnum;
use tezos_recorder::p2p::message::Kind;

/// Forms of handshakes.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum HandshakeForm {
    Normal,
    /// Refuse, with a motive and points
    Nack,
    /// Refuse, without
    NackV0,
    /// Use another key than that of the identity
    WrongKey,
    /// Send a stamp that is no proof of work
    WrongStamp,
}

/// Forms of chunks.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ChunkForm {
    /// Each message begins a chunk, as Octez has it
    Message,
    /// As long as possible, with several messages
    Max,
    /// One byte each
    Byte,
    /// Like message, with empty chunks between
    Empty,
    /// Several whole messages in one
    Packed,
    /// Cut anywhere
    Straddle,
    /// Another form for each batch
    Any,
}

/// System calls for sending.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SendForm {
    Write,
    Send,
    Writev,
    Sendmsg,
    Sendfile,
    Splice,
    Uring,
    /// Another one for each call
    Any,
}

/// System calls for receiving.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ReceiveForm {
    Read,
    Recv,
    Readv,
    Recvmsg,
    /// MSG_PEEK before each read
    Peek,
    Splice,
    Uring,
    /// Another one for each call
    Any,
}

/// Bytes of one call for sending.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Writes {
    /// A chunk
    Chunk,
    /// All chunks of a batch
    Batch,
    /// 1 to 3,000 bytes, wherever chunks end
    Pieces,
}

/// Ends of connections.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CloseForm {
    /// Shut down as soon as all messages are sent
    First,
    /// After the other node has shut down
    Last,
    /// The same, with a reset
    Reset,
}

/// Kinds of messages, as often as their weights.
#[derive(Clone)]
pub struct Kinds(pub Vec<Kind>);

impl FromStr for Kinds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Self(Vec::new()));
        }
        let mut kinds = Vec::new();
        for item in text.split(',') {
            let (name, weight) = item.split_once('=').unwrap_or((item, "1"));
            let kind = Kind::of_name(name).ok_or_else(|| format!("no kind is called {name}"))?;
            let weight = weight
                .parse::<u16>()
                .map_err(|e| format!("{weight}: {e}"))?;
            kinds.extend(std::iter::repeat_n(kind, weight.into()));
        }
        Ok(Self(kinds))
    }
}

/// A range of sizes in bytes, both inclusive.
#[derive(Clone, Copy)]
pub struct Sizes {
    pub min: usize,
    pub max: usize,
}

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (min, max) = text.split_once("..").unwrap_or((text, text));
        let number = |text: &str| text.parse().map_err(|e| format!("{text}: {e}"));
        let (min, max) = (number(min)?, number(max)?);
        if min > max {
            return Err(format!("{min} is more than {max}"));
        }
        Ok(Self { min, max })
    }
}
