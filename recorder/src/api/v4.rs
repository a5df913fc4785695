//! `/v4`: lists of nodes, messages, connections and lines of the log, and one of each.

use memprof_server::Reply;
use serde::Serialize;

use super::Shared;
use super::failure::Failure;
use super::filters::{self, CONNECTIONS, Form, LOGS, MESSAGES};
use super::items::{ConnectionItem, DetailsItem, LogItem, MessageItem};
use super::nodes::ApiNode;
use super::old::{MAX_BYTES, to_json};
use super::peers::Peers;
use super::query::{Query, Unknown, connection_id};
use super::reply::json_text;
use super::rows::{self, Array, MAX_LIST, Question};
use crate::store::{Direction, LogQuery, MessageQuery, Reader, StoreError, Totals};
use crate::time::Timestamp;

/// Names of the parameter that chooses a node.
const NODE: &[&str] = &["node", "node_name"];

/// Requests for records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Path<'a> {
    Nodes,
    Messages,
    Message(&'a str),
    Connections,
    Connection(&'a str),
    Logs,
}

/// A node.
#[derive(Serialize)]
struct NodeItem<'a> {
    name: &'a str,
    p2p_port: u16,
    peer_id: Option<String>,
    identity: String,
    messages: u64,
    connections: u64,
    logs: u64,
    /// Peers with known ids, of the connections that are stored.
    peers: u64,
    losses: Losses,
    /// The time of the oldest message or line, in nanoseconds.
    first_time: Option<String>,
}

/// Losses of all stored connections.
#[derive(Serialize)]
struct Losses {
    bytes: u64,
    gaps: u64,
    connections: u64,
    unrecorded: u64,
    undecryptable: u64,
    partly_decrypted: u64,
}

impl From<Totals> for Losses {
    fn from(totals: Totals) -> Self {
        Self {
            bytes: totals.lost_bytes,
            gaps: totals.gaps,
            connections: totals.lossy,
            unrecorded: totals.unrecorded,
            undecryptable: totals.undecryptable,
            partly_decrypted: totals.partly_decrypted,
        }
    }
}

/// The node of a request.
pub(super) fn node<'a>(shared: &'a Shared, query: &Query) -> Result<&'a ApiNode, Failure> {
    shared.nodes.find(query.text(NODE))
}

/// Answers a request for records.
pub(super) async fn answer(shared: &Shared, path: Path<'_>, query: &str) -> Result<Reply, Failure> {
    let known = match path {
        Path::Nodes => &[],
        Path::Messages => MESSAGES,
        Path::Connections => CONNECTIONS,
        Path::Logs => LOGS,
        Path::Message(_) | Path::Connection(_) => NODE,
    };
    let query = Query::read(query, known, Unknown::Refused)?;
    let reservation = shared.budget.take(MAX_LIST).await?;
    let body = match path {
        Path::Nodes => nodes(shared).await,
        Path::Messages => {
            let question = filters::messages(&query, Form::New)?;
            list(shared, &query, question, |row, out, peers| {
                out.push(&MessageItem::new(row, peers))
            })
            .await
        }
        Path::Connections => {
            let question = filters::connections(&query, Direction::Backward)?;
            list(shared, &query, question, |row, out, _| {
                out.push(&ConnectionItem::from(row))
            })
            .await
        }
        Path::Logs => {
            let question = filters::logs(&query, Form::New)?;
            list(shared, &query, question, |row, out, _| {
                out.push(&LogItem::from(row))
            })
            .await
        }
        Path::Message(id) => message(shared, &query, id).await,
        Path::Connection(id) => connection(shared, &query, id).await,
    };
    Ok(json_text(reservation.bytes(body?)))
}

/// `{"items": […], "next": …}`, with the cursor of the next rows.
async fn list<Q: Question + Send + 'static>(
    shared: &Shared,
    query: &Query,
    question: Q,
    item: impl Fn(&Q::Row, &mut Array, &mut Peers<'_>) -> Result<(), Failure> + Send + 'static,
) -> Result<Vec<u8>, Failure> {
    let ask = move |reader: &Reader| {
        let (mut array, mut peers) = (Array::new("{\"items\":"), Peers::new(reader));
        let next = rows::write(reader, question, &mut array, |row, array| {
            item(&row, array, &mut peers)
        })?;
        Ok(array.end(&format!(",\"next\":{}}}", Q::cursor(next))))
    };
    shared.nodes.ask(node(shared, query)?, ask).await
}

async fn nodes(shared: &Shared) -> Result<Vec<u8>, Failure> {
    let mut array = Array::new("{\"items\":");
    for node in shared.nodes.all() {
        let ask = |reader: &Reader| Ok((reader.counts()?, reader.totals()?, first_time(reader)?));
        let (counts, totals, first_time) = shared.nodes.ask(node, ask).await?;
        let state = node.state();
        array.push(&NodeItem {
            name: &node.name,
            p2p_port: node.p2p_port,
            peer_id: state.peer_id,
            identity: state.identity,
            messages: stored(counts.messages),
            connections: counts.connections,
            logs: stored(counts.logs),
            peers: totals.peers,
            losses: totals.into(),
            first_time: first_time.map(|Timestamp(nanos)| nanos.to_string()),
        })?;
    }
    Ok(array.end(",\"next\":null}"))
}

/// The number of records, of the first id and the next one.
pub(super) fn stored((first, next): (u64, u64)) -> u64 {
    next.saturating_sub(first)
}

/// The time of the oldest message or line.
fn first_time(reader: &Reader) -> Result<Option<Timestamp>, StoreError> {
    let (limit, direction) = (1, Direction::Forward);
    let message = reader.messages(&MessageQuery {
        limit,
        direction,
        ..MessageQuery::default()
    })?;
    let line = reader.logs(&LogQuery {
        limit,
        direction,
        ..LogQuery::default()
    })?;
    let times = message.iter().map(|row| row.time);
    Ok(times.chain(line.iter().map(|row| row.time)).min())
}

async fn message(shared: &Shared, query: &Query, id: &str) -> Result<Vec<u8>, Failure> {
    let wrong = || Failure::Value(format!("{id:?} is not the id of a message"));
    let id: u64 = id.parse().map_err(|_| wrong())?;
    let ask = move |reader: &Reader| {
        let details = reader.message(id, MAX_BYTES)?;
        let absent = || Failure::Absent(format!("there is no message {id}"));
        let details = details.ok_or_else(absent)?;
        to_json(&DetailsItem::new(&details, &mut Peers::new(reader)))
    };
    shared.nodes.ask(node(shared, query)?, ask).await
}

async fn connection(shared: &Shared, query: &Query, id: &str) -> Result<Vec<u8>, Failure> {
    let wrong = || Failure::Value(format!("{id:?} is not the id of a connection"));
    let id = connection_id(id).ok_or_else(wrong)?;
    let ask = move |reader: &Reader| {
        let connection = reader.connection(id)?;
        let absent = || Failure::Absent(format!("there is no connection {}", id.0));
        to_json(&ConnectionItem::from(&connection.ok_or_else(absent)?))
    };
    shared.nodes.ask(node(shared, query)?, ask).await
}
