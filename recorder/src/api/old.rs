//! The API of the original: `/v2` of all nodes, `/v3` of one node.

use memprof_server::Reply;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use super::chunks::{chunk_of, chunks_of};
use super::failure::Failure;
use super::filters::{self, Form, OLD_LOGS, OLD_MESSAGES};
use super::nodes::{ApiNode, Nodes};
use super::peers::Peers;
use super::query::{Query, Unknown, canonical, seconds};
use super::reply::{ReplyBudget, json_text};
use super::rows::{self, Array, MAX_LIST};
use crate::p2p::message::Category;
use crate::side::Side;
use crate::store::{ConnectionEntry, Direction, LogRow, MessageDetails, MessageRow};

/// Bytes of a message in its details, of the captured ones and of the plain ones. Each takes five of a reply, so that all of it, with
/// the JSON, is below [`MAX_LIST`].
pub(super) const MAX_BYTES: usize = 1 << 20;

/// The header of a list that ended before its limit, because it was searched for 10 s or is larger than 16 MiB: the id of the first row
/// that is missing.
const CUT: &str = "x-list-cut-at";

/// The requests of the original API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OldPath<'a> {
    Messages,
    Message(&'a str),
    Logs,
    Connections,
    Chunks,
    Chunk(&'a str),
}

/// A message in a list.
#[derive(Serialize)]
struct OldMessage<'a> {
    id: u64,
    timestamp: u64,
    remote_addr: std::net::SocketAddr,
    source_type: Option<&'static str>,
    incoming: bool,
    category: &'static str,
    kind: Option<&'static str>,
    message_preview: Option<&'a str>,
}

/// A message with its bytes.
#[derive(Serialize)]
struct OldDetails<'a> {
    id: u64,
    message: Option<&'a RawValue>,
    original_bytes: Bytes<'a>,
    decrypted_bytes: Bytes<'a>,
    error: Option<String>,
}

/// A line of the log.
#[derive(Serialize)]
struct OldLog<'a> {
    id: u64,
    level: &'static str,
    timestamp: u64,
    section: &'a str,
    message: &'a str,
}

/// A connection.
#[derive(Serialize)]
struct OldConnection<'a> {
    initiator: Option<&'static str>,
    remote_addr: std::net::SocketAddr,
    peer_id: &'a str,
    comments: Vec<&'a str>,
}

/// Bytes as an array of strings, each of two hexadecimal digits.
struct Bytes<'a>(&'a [u8]);

impl Serialize for Bytes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        struct Byte([u8; 2]);
        impl Serialize for Byte {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(str::from_utf8(&self.0).unwrap_or_default())
            }
        }
        let digit = |value: u8| DIGITS[usize::from(value & 15)];
        serializer.collect_seq(self.0.iter().map(|b| Byte([digit(b >> 4), digit(*b)])))
    }
}

/// Answers a request about a node.
pub(super) async fn answer(
    nodes: &Nodes,
    budget: &ReplyBudget,
    node: Option<&ApiNode>,
    path: OldPath<'_>,
    query: &str,
) -> Result<Reply, Failure> {
    let known = match path {
        OldPath::Messages => OLD_MESSAGES,
        OldPath::Logs => OLD_LOGS,
        OldPath::Chunks => &["node_name", "limit", "cn"],
        OldPath::Connections => &["node_name", "limit"],
        OldPath::Message(_) | OldPath::Chunk(_) => &["node_name"],
    };
    let query = Query::read(query, known, Unknown::Ignored)?;
    let node = match node {
        Some(node) => node,
        None => nodes.find(query.text(&["node_name"]))?,
    };
    let reservation = budget.take(MAX_LIST).await?;
    let (body, cut) = match path {
        OldPath::Messages => {
            let question = filters::messages(&query, Form::Old)?;
            let ask = move |reader: &_| {
                list(reader, question, |row, out, peers| {
                    out.push(&old_message(&row, peers))
                })
            };
            nodes.ask(node, ask).await
        }
        OldPath::Message(id) => {
            let id = id
                .parse()
                .map_err(|_| Failure::Value(format!("{id:?} is not the id of a message")))?;
            let ask = move |reader: &crate::store::Reader| {
                let details = reader.message(id, MAX_BYTES)?;
                Ok((to_json(&details.as_ref().map(old_details))?, None))
            };
            nodes.ask(node, ask).await
        }
        OldPath::Logs => {
            let question = filters::logs(&query, Form::Old)?;
            let ask =
                move |reader: &_| list(reader, question, |row, out, _| out.push(&old_log(&row)));
            nodes.ask(node, ask).await
        }
        OldPath::Connections => {
            let question = filters::connections(&query, Direction::Forward)?;
            let ask = move |reader: &_| {
                list(reader, question, |row, out, _| {
                    out.push(&(seconds(row.id), old_connection(&row)))
                })
            };
            nodes.ask(node, ask).await
        }
        OldPath::Chunks => chunks_of(nodes, node, &query).await,
        OldPath::Chunk(id) => chunk_of(nodes, node, id).await.map(|body| (body, None)),
    }?;
    let mut reply = json_text(reservation.bytes(body));
    reply.header = cut.map(|id| (CUT, id));
    Ok(reply)
}

/// An array of rows, and the id from which rows are missing, if it ended before its limit.
fn list<Q: rows::Question>(
    reader: &crate::store::Reader,
    mut question: Q,
    item: impl Fn(Q::Row, &mut Array, &mut Peers<'_>) -> Result<(), Failure>,
) -> Result<(Vec<u8>, Option<String>), Failure> {
    let (mut array, mut peers) = (Array::new(""), Peers::new(reader));
    let mut left = *question.limit();
    let next = rows::write(reader, question, &mut array, |row, array| {
        left -= 1;
        item(row, array, &mut peers)
    })?;
    let cut = next.filter(|_| left > 0).map(Q::text);
    Ok((array.end(""), cut))
}

pub(super) fn to_json(value: &impl Serialize) -> Result<Vec<u8>, Failure> {
    serde_json::to_vec(value).map_err(super::reply::internal)
}

fn old_message<'a>(row: &'a MessageRow, peers: &mut Peers<'_>) -> OldMessage<'a> {
    let initiator = row.initiator.or_else(|| peers.of(row.connection).initiator);
    let category = row.kind.category();
    OldMessage {
        id: row.id,
        timestamp: row.time.0,
        remote_addr: canonical(row.address),
        source_type: initiator.map(side),
        incoming: row.sender == Side::Remote,
        category: category.name(),
        kind: (category == Category::P2p).then(|| row.kind.name()),
        message_preview: row.preview.as_deref(),
    }
}

fn old_details(details: &MessageDetails) -> OldDetails<'_> {
    OldDetails {
        id: details.row.id,
        message: raw_json(details.message.as_deref()),
        original_bytes: Bytes(&details.raw),
        decrypted_bytes: Bytes(&details.plain),
        error: error(details),
    }
}

/// JSON that is written as it is.
pub(super) fn raw_json(text: Option<&str>) -> Option<&RawValue> {
    serde_json::from_str(text?).ok()
}

/// The error of a message, with remarks if something is missing in its details.
fn error(details: &MessageDetails) -> Option<String> {
    let bytes = match details.raw.len().max(details.plain.len()) >= MAX_BYTES {
        true => "bytes beyond 1 MiB are left out",
        false => "some of the chunks are not stored any more",
    };
    let parts = [
        details.row.error.as_deref(),
        details.cut.then_some(bytes),
        details
            .too_long
            .then_some("the JSON is left out: it is longer than 5 MiB"),
    ];
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

fn old_log(row: &LogRow) -> OldLog<'_> {
    OldLog {
        id: row.id,
        level: row.level.name(),
        timestamp: row.time.0,
        section: &row.section,
        message: &row.message,
    }
}

fn old_connection(row: &ConnectionEntry) -> OldConnection<'_> {
    let remarks = row.remarks.iter().map(|(_, text)| text.as_str());
    OldConnection {
        initiator: row.initiator.map(side),
        remote_addr: canonical(row.address),
        peer_id: row.peer_id.as_deref().unwrap_or("unknown"),
        comments: remarks.chain(row.ignored.as_deref()).collect(),
    }
}

/// `local` or `remote`.
pub(super) fn side(side: Side) -> &'static str {
    match side {
        Side::Local => "local",
        Side::Remote => "remote",
    }
}
