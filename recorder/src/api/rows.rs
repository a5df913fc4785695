//! Lists: rows of the store as JSON, up to a number of rows and of bytes.

use std::time::{Duration, Instant};

use serde::Serialize;

use super::failure::Failure;
use super::filters::without_position;
use super::query::seconds;
use super::reply::internal;
use crate::store::{
    ConnectionEntry, ConnectionId, ConnectionQuery, Direction, Found, LogQuery, LogRow,
    MessageQuery, MessageRow, Position, Reader, StoreResult,
};

/// Rows that are asked at once, so that few are in memory.
const BATCH: u64 = 256;

/// Time after which a list ends where the store's last search ended.
const PATIENCE: Duration = Duration::from_secs(10);

/// Maximum size of a list, in bytes, but for the last of its rows. A longer one ends before its limit.
pub(super) const MAX_LIST: usize = 16 << 20;

/// A question whose answer is rows in the order of their ids.
pub(super) trait Question {
    type Row;

    fn limit(&mut self) -> &mut u64;

    fn direction(&self) -> Direction;

    /// Lets the answer begin at this id.
    fn begin_at(&mut self, id: u64);

    fn ask(&self, reader: &Reader) -> StoreResult<Found<Self::Row>>;

    fn id(row: &Self::Row) -> u64;

    /// An id as text.
    fn text(id: u64) -> String {
        id.to_string()
    }

    /// The JSON of an id, which continues a list.
    fn cursor(id: Option<u64>) -> String {
        id.map_or_else(|| "null".to_owned(), |id| id.to_string())
    }
}

macro_rules! by_position {
    ($query:ty, $row:ty, $ask:ident) => {
        impl Question for $query {
            type Row = $row;

            fn limit(&mut self) -> &mut u64 {
                &mut self.limit
            }

            fn direction(&self) -> Direction {
                self.direction
            }

            fn begin_at(&mut self, id: u64) {
                (self.from, self.to) =
                    without_position(self.direction, self.position, self.from, self.to);
                self.position = Position::Id(id);
            }

            fn ask(&self, reader: &Reader) -> StoreResult<Found<$row>> {
                reader.$ask(self)
            }

            fn id(row: &$row) -> u64 {
                row.id
            }
        }
    };
}

by_position!(MessageQuery, MessageRow, find_messages);
by_position!(LogQuery, LogRow, find_logs);

impl Question for ConnectionQuery {
    type Row = ConnectionEntry;

    fn limit(&mut self) -> &mut u64 {
        &mut self.limit
    }

    fn direction(&self) -> Direction {
        self.direction
    }

    fn begin_at(&mut self, id: u64) {
        self.cursor = Some(ConnectionId(id));
    }

    fn ask(&self, reader: &Reader) -> StoreResult<Found<ConnectionEntry>> {
        let rows = reader.connections(self)?;
        Ok(Found { rows, cut: None })
    }

    fn id(row: &ConnectionEntry) -> u64 {
        row.id.0
    }

    /// As the original has it.
    fn text(id: u64) -> String {
        seconds(ConnectionId(id))
    }

    /// Beyond what numbers of JavaScript hold.
    fn cursor(id: Option<u64>) -> String {
        id.map_or_else(|| "null".to_owned(), |id| format!("\"{id}\""))
    }
}

/// A JSON array that is being written.
pub(super) struct Array {
    body: Vec<u8>,
}

impl Array {
    /// An array behind some other text.
    pub(super) fn new(before: &str) -> Self {
        Self {
            body: [before.as_bytes(), b"["].concat(),
        }
    }

    pub(super) fn push(&mut self, item: &impl Serialize) -> Result<(), Failure> {
        if self.body.last() != Some(&b'[') {
            self.body.push(b',');
        }
        serde_json::to_writer(&mut self.body, item).map_err(internal)
    }

    pub(super) fn is_full(&self) -> bool {
        self.body.len() >= MAX_LIST
    }

    /// The array with some other text behind it.
    pub(super) fn end(mut self, behind: &str) -> Vec<u8> {
        self.body.push(b']');
        self.body.extend_from_slice(behind.as_bytes());
        self.body
    }
}

/// Writes the rows that answer a question. Returns the id at which the next rows begin, if there may be more.
pub(super) fn write<Q: Question>(
    reader: &Reader,
    question: Q,
    array: &mut Array,
    mut item: impl FnMut(Q::Row, &mut Array) -> Result<(), Failure>,
) -> Result<Option<u64>, Failure> {
    each(reader, question, |row| {
        if array.is_full() {
            return Ok(false);
        }
        item(row, array).map(|()| true)
    })
}

/// Takes the rows that answer a question, up to its limit, and until `take` returns false for one that it does not take. Returns the
/// id at which the next rows begin, if there may be more: also if the search for them takes too long.
pub(super) fn each<Q: Question>(
    reader: &Reader,
    mut question: Q,
    mut take: impl FnMut(Q::Row) -> Result<bool, Failure>,
) -> Result<Option<u64>, Failure> {
    let (began, direction) = (Instant::now(), question.direction());
    let mut left = *question.limit();
    let mut first = None;
    if left == 0 {
        return Ok(None);
    }
    loop {
        // One more than needed, whose id is the next one.
        let asked = (left + 1).min(BATCH);
        *question.limit() = asked;
        let Found { rows, cut } = question.ask(reader)?;
        let (got, mut last) = (rows.len() as u64, 0);
        for row in rows {
            last = Q::id(&row);
            // Behind the newest row, the newest is meant.
            if direction == Direction::Forward && first.is_some_and(|first| last < first) {
                return Ok(None);
            }
            if left == 0 || !take(row)? {
                return Ok(Some(last));
            }
            left -= 1;
        }
        first = match (cut, direction) {
            (Some(cut), _) if left == 0 || began.elapsed() > PATIENCE => return Ok(Some(cut)),
            (Some(cut), _) => Some(cut),
            (None, _) if got < asked => None,
            (None, Direction::Backward) => last.checked_sub(1),
            (None, Direction::Forward) => last.checked_add(1),
        };
        match first {
            Some(first) => question.begin_at(first),
            None => return Ok(None),
        }
    }
}
