//! Chunks as the original API has them.

use serde::Serialize;

use super::failure::Failure;
use super::filters;
use super::nodes::{ApiNode, Nodes};
use super::old::{side, to_json};
use super::query::{Query, connection_id, seconds};
use super::rows::Array;
use crate::p2p::json::Hex;
use crate::side::Side;
use crate::store::{ChunkEntry, ChunkQuery, ConnectionId, Reader};

/// Bytes of a chunk in a list, of the captured ones and of the plain ones.
const MAX_BYTES: usize = 1 << 16;

/// A chunk.
#[derive(Serialize)]
struct OldChunk {
    /// Always true: not taken from calls for files.
    net: bool,
    /// In seconds since 1970.
    timestamp: u64,
    bytes: String,
    plain: String,
}

/// The chunks of a connection, or of all, and the id of the first that is missing because the list is too long.
pub(super) async fn chunks_of(
    nodes: &Nodes,
    node: &ApiNode,
    query: &Query,
) -> Result<(Vec<u8>, Option<String>), Failure> {
    let question = ChunkQuery {
        limit: filters::limit(query)?,
        connection: filters::connection(query)?,
        ..ChunkQuery::default()
    };
    let ask = move |reader: &Reader| {
        let (mut array, mut left, mut failed) = (Array::new(""), question.limit, None);
        let mut cut = None;
        reader.each_chunk(&question, &mut |chunk| {
            if array.is_full() {
                cut = Some(id(&chunk));
            }
            if left == 0 || cut.is_some() {
                return false;
            }
            left -= 1;
            failed = array
                .push(&(id(&chunk), old_chunk(&chunk, MAX_BYTES)))
                .err();
            left > 0 && failed.is_none()
        })?;
        match failed {
            Some(failure) => Err(failure),
            None => Ok((array.end(""), cut)),
        }
    };
    nodes.ask(node, ask).await
}

/// A chunk, or `null`.
pub(super) async fn chunk_of(nodes: &Nodes, node: &ApiNode, id: &str) -> Result<Vec<u8>, Failure> {
    let wrong = || Failure::Value(format!("{id:?} is not the id of a chunk"));
    let (connection, sender, number) = parse(id).ok_or_else(wrong)?;
    let ask = move |reader: &Reader| {
        let chunk = reader.chunk(connection, sender, number)?;
        to_json(&chunk.map(|chunk| old_chunk(&chunk, usize::MAX)))
    };
    nodes.ask(node, ask).await
}

/// `connection-local-number`; bytes outside of chunks have their offset instead of a number.
fn id(chunk: &ChunkEntry) -> String {
    let (connection, sender) = (seconds(chunk.connection), side(chunk.sender));
    match chunk.number {
        Some(number) => format!("{connection}-{sender}-{number}"),
        None => format!("{connection}-{sender}-offset:{}", chunk.offset),
    }
}

fn parse(id: &str) -> Option<(ConnectionId, Side, u64)> {
    let mut parts = id.split('-');
    let connection = connection_id(parts.next()?)?;
    let sender = match parts.next()? {
        "local" => Side::Local,
        "remote" => Side::Remote,
        _ => return None,
    };
    let number = parts.next()?.parse().ok()?;
    parts
        .next()
        .is_none()
        .then_some((connection, sender, number))
}

fn old_chunk(chunk: &ChunkEntry, max_bytes: usize) -> OldChunk {
    OldChunk {
        net: true,
        timestamp: chunk.time.0 / 1_000_000_000,
        bytes: hex(&chunk.raw, max_bytes),
        plain: hex(chunk.plain.as_deref().unwrap_or_default(), max_bytes),
    }
}

/// Hexadecimal digits of the first bytes, and how many others there are.
fn hex(bytes: &[u8], max_bytes: usize) -> String {
    match bytes.split_at_checked(max_bytes) {
        Some((first, rest)) if !rest.is_empty() => {
            format!("{}...truncated {} bytes", Hex(first), rest.len())
        }
        _ => Hex(bytes).to_string(),
    }
}
