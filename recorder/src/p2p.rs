//! The wire format of Tezos nodes: from the bytes of one direction to messages and their JSON. Nothing here does I/O.
//!
//! A direction is a sequence of chunks ([`chunk`]). The first is the connection message in clear ([`handshake`]), from which both
//! sides derive the nonces of all others ([`cipher`]). Chunk 1 has the sender's metadata, chunk 2 says whether it accepts the
//! connection, and the plain text of all later ones is one stream of messages ([`messages`], [`message`]). After lost bytes,
//! [`resync`] finds the next chunk.

pub mod base58;
pub mod chunk;
pub mod cipher;
pub mod handshake;
pub mod identity;
pub mod json;
pub mod message;
pub mod messages;
pub mod pow;
pub mod read;
pub mod resync;
