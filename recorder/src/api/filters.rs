//! Parameters as questions for the store.

use std::net::IpAddr;

use super::failure::Failure;
use super::query::{Address, Moment, Query, connection_id};
use crate::p2p::message::Kind;
use crate::side::Side;
use crate::store::{
    ConnectionId, ConnectionQuery, Direction, Level, LogQuery, MessageQuery, Position,
};
use crate::time::Timestamp;

/// Maximum number of rows in a reply.
pub(super) const MAX_ROWS: u64 = 10_000;

/// Rows in a reply unless the request says how many.
const DEFAULT_ROWS: u64 = 100;

/// Parameters of both forms of the API that choose rows of messages and of logs by number and time.
macro_rules! parameters {
    ($($own:literal),*) => {
        &["limit", "cursor", "direction", "from", "to", "timestamp", $($own),*]
    };
}

/// The parameters of `/v2/p2p` and `/v3/messages`.
pub(super) const OLD_MESSAGES: &[&str] = parameters![
    "node_name",
    "cursor_id",
    "remote_addr",
    "source_type",
    "incoming",
    "types"
];
/// The parameters of `/v2/log` and `/v3/logs`.
pub(super) const OLD_LOGS: &[&str] = parameters![
    "node_name",
    "cursor_id",
    "log_level",
    "level",
    "query",
    "query_no_quotes"
];
/// The parameters of `/v4/messages` and `/v4/export.pcapng`. Names of the original are read as well.
pub(super) const MESSAGES: &[&str] = parameters![
    "node",
    "node_name",
    "kinds",
    "kind",
    "types",
    "incoming",
    "initiator",
    "source_type",
    "address",
    "remote_addr",
    "host",
    "peer",
    "connection",
    "hash",
    "error"
];
/// The parameters of `/v4/logs`.
pub(super) const LOGS: &[&str] =
    parameters!["node", "node_name", "levels", "level", "log_level", "query"];
/// The parameters of `/v4/connections`.
pub(super) const CONNECTIONS: &[&str] = &[
    "node",
    "node_name",
    "limit",
    "cursor",
    "direction",
    "peer",
    "host",
];
/// The parameters of `/v4/stream`: those of messages and logs without number and order, and which of both are sent.
pub(super) const STREAM: &[&str] = &[
    "node",
    "node_name",
    "messages",
    "logs",
    "kinds",
    "kind",
    "types",
    "incoming",
    "initiator",
    "source_type",
    "address",
    "remote_addr",
    "host",
    "peer",
    "connection",
    "hash",
    "error",
    "levels",
    "level",
    "log_level",
    "query",
    "from",
    "to",
];
/// The form of the API that reads the parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// `/v2` and `/v3`.
    Old,
    /// `/v4`.
    New,
}

/// Number, order, beginning and times of rows.
struct Rows {
    limit: u64,
    direction: Direction,
    position: Position,
    from: Option<Timestamp>,
    to: Option<Timestamp>,
}

impl Rows {
    fn read(query: &Query, form: Form) -> Result<Self, Failure> {
        let direction = match form {
            // Anything but `forward` is backward.
            Form::Old if query.text(&["direction"]) != Some("forward") => Direction::Backward,
            Form::Old => Direction::Forward,
            Form::New => query.direction()?.unwrap_or_default(),
        };
        let (mut from, to) = (query.moment("from")?, query.moment("to")?);
        let mut timestamp = query.moment("timestamp")?;
        // The Explorer jumps to a time so.
        let jump = |from: &Moment| form == Form::Old && from.in_nanos && to.is_none();
        if timestamp.is_none() && from.as_ref().is_some_and(jump) {
            timestamp = from.take();
        }
        let mut rows = Self {
            limit: limit(query)?,
            direction,
            position: Position::Start,
            from: from.map(|from| from.first),
            to: to.map(|to| to.last),
        };
        if let Some(moment) = timestamp {
            rows.position = Position::Time(moment.last);
        }
        if let Some(id) = query.number(&["cursor", "cursor_id"])? {
            (rows.from, rows.to) =
                without_position(rows.direction, rows.position, rows.from, rows.to);
            rows.position = Position::Id(id);
        }
        Ok(rows)
    }
}

/// First and last time of rows that begin at a position, so that the position may be replaced.
pub(super) fn without_position(
    direction: Direction,
    position: Position,
    from: Option<Timestamp>,
    to: Option<Timestamp>,
) -> (Option<Timestamp>, Option<Timestamp>) {
    match (position, direction) {
        (Position::Time(time), Direction::Backward) => {
            (from, Some(to.map_or(time, |to| to.min(time))))
        }
        (Position::Time(time), Direction::Forward) => {
            let later = Timestamp(time.0.saturating_add(1));
            (Some(from.map_or(later, |from| from.max(later))), to)
        }
        (Position::Start | Position::Id(_), _) => (from, to),
    }
}

/// The number of rows.
pub(super) fn limit(query: &Query) -> Result<u64, Failure> {
    Ok(query
        .number(&["limit"])?
        .unwrap_or(DEFAULT_ROWS)
        .min(MAX_ROWS))
}

/// The question for messages.
pub(super) fn messages(query: &Query, form: Form) -> Result<MessageQuery, Failure> {
    let rows = Rows::read(query, form)?;
    let (address, host) = match query.value(&["address", "remote_addr"])? {
        Some(Address::Socket(address)) => (Some(address), None),
        Some(Address::Host(host)) => (None, Some(host)),
        None => (None, None),
    };
    Ok(MessageQuery {
        limit: rows.limit,
        direction: rows.direction,
        position: rows.position,
        from: rows.from,
        to: rows.to,
        kinds: query.list(&["kinds", "kind", "types"], kind)?,
        sender: query.flag(&["incoming"])?.map(sender),
        initiator: query.side(&["initiator", "source_type"])?,
        address,
        host: self::host(query)?.or(host),
        connection: connection(query)?,
        peer_id: query.text(&["peer"]).map(str::to_owned),
        hash: query.text(&["hash"]).map(str::to_owned),
        error: query.flag(&["error"])?,
    })
}

/// The question for lines of the log.
pub(super) fn logs(query: &Query, form: Form) -> Result<LogQuery, Failure> {
    let rows = Rows::read(query, form)?;
    Ok(LogQuery {
        limit: rows.limit,
        direction: rows.direction,
        position: rows.position,
        from: rows.from,
        to: rows.to,
        levels: query.list(&["levels", "level", "log_level"], Level::of_name)?,
        text: query.text(&["query"]).map(str::to_owned),
    })
}

/// The question for connections.
pub(super) fn connections(query: &Query, usual: Direction) -> Result<ConnectionQuery, Failure> {
    let cursor = query.text(&["cursor"]).map(|text| {
        let wrong = || Failure::Value(format!("cursor: {text:?} is not the id of a connection"));
        connection_id(text).ok_or_else(wrong)
    });
    Ok(ConnectionQuery {
        limit: limit(query)?,
        direction: query.direction()?.unwrap_or(usual),
        cursor: cursor.transpose()?,
        peer_id: query.text(&["peer"]).map(str::to_owned),
        host: host(query)?,
    })
}

/// The value of `connection` or `cn`.
pub(super) fn connection(query: &Query) -> Result<Option<ConnectionId>, Failure> {
    let id = query.text(&["connection", "cn"]).map(|text| {
        let wrong = || Failure::Value(format!("{text:?} is not the id of a connection"));
        connection_id(text).ok_or_else(wrong)
    });
    id.transpose()
}

fn host(query: &Query) -> Result<Option<IpAddr>, Failure> {
    let host: Option<IpAddr> = query.value(&["host"])?;
    Ok(host.map(|host| host.to_canonical()))
}

fn sender(incoming: bool) -> Side {
    match incoming {
        true => Side::Remote,
        false => Side::Local,
    }
}

/// The kind with a name; one of them has another name in the original API.
fn kind(name: &str) -> Option<Kind> {
    match name {
        "operation_hashes_for_block" => Some(Kind::OperationHashesForBlocks),
        name => Kind::of_name(name),
    }
}
