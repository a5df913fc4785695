//! Questions to a store.

use std::sync::Arc;
use std::time::Instant;

use rusqlite::{Row, params_from_iter};

use super::entry::{ConnectionId, Level};
use super::error::StoreResult;
use super::filter::{self, Bounds, Select};
use super::pool::File;
use super::query::{Direction, LogQuery, LogRow, MessageQuery, MessageRow, Position};
use super::search::Terms;
use super::segment::{Family, Segment};
use super::shared::Shared;
use super::values::{address, side_of, uint};
use crate::time::Timestamp;

/// Asks a store. Clones ask the same one; several threads may ask at the same time.
///
/// Readers see what is committed. A file that turns out to be damaged is counted in [`Health`](super::Health), and the others are
/// still read.
#[derive(Clone, Debug)]
pub struct Reader(pub(super) Arc<Shared>);

/// Rows that were found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found<T> {
    /// The rows, in the order of their ids.
    pub rows: Vec<T>,
    /// The id from which rows were not searched any more, because it took too long or because they were too large: ask again from
    /// [`Position::Id`] of it to go on.
    pub cut: Option<u64>,
}

/// Numbers of what is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// First id of a message that is still stored, and the id that the next one will have.
    pub messages: (u64, u64),
    /// The same for lines of the log.
    pub logs: (u64, u64),
    /// Number of connections.
    pub connections: u64,
}

impl Reader {
    /// Maximum number of rows of an answer.
    pub const MAX_ROWS: u64 = 10_000;

    /// Messages; as many as were found in time.
    ///
    /// # Errors
    ///
    /// If the file with connections cannot be read.
    pub fn messages(&self, query: &MessageQuery) -> StoreResult<Vec<MessageRow>> {
        self.find_messages(query).map(|found| found.rows)
    }

    /// Messages, and whether the search was cut.
    ///
    /// # Errors
    ///
    /// If the file with connections cannot be read.
    pub fn find_messages(&self, query: &MessageQuery) -> StoreResult<Found<MessageRow>> {
        let peers = query
            .peer_id
            .as_deref()
            .map(|peer| self.connections_of_peer(peer))
            .transpose()?;
        let times = (query.from, query.to);
        self.find(
            Family::Messages,
            (query.direction, query.position, times, query.limit),
            |file, bounds, limit| {
                let peers = peers.as_deref();
                let Some(select) = filter::messages(file, query, peers, bounds)? else {
                    return Ok(Vec::new());
                };
                message_rows(file, &select, bounds, limit)
            },
        )
    }

    /// Lines of the log; as many as were found in time.
    ///
    /// # Errors
    ///
    /// None so far.
    pub fn logs(&self, query: &LogQuery) -> StoreResult<Vec<LogRow>> {
        self.find_logs(query).map(|found| found.rows)
    }

    /// Lines of the log, and whether the search was cut.
    ///
    /// # Errors
    ///
    /// None so far.
    pub fn find_logs(&self, query: &LogQuery) -> StoreResult<Found<LogRow>> {
        let terms = Terms::parse(query.text.as_deref().unwrap_or_default());
        let times = (query.from, query.to);
        self.find(
            Family::Logs,
            (query.direction, query.position, times, query.limit),
            |file, bounds, limit| {
                let select = filter::logs(file, query, &terms, bounds);
                log_rows(file, &select, bounds, limit)
            },
        )
    }

    /// A line of the log.
    ///
    /// # Errors
    ///
    /// None so far.
    pub fn log(&self, id: u64) -> StoreResult<Option<LogRow>> {
        let query = LogQuery {
            limit: 1,
            position: Position::Id(id),
            ..LogQuery::default()
        };
        Ok(self.logs(&query)?.into_iter().find(|row| row.id == id))
    }

    /// How much is stored.
    ///
    /// # Errors
    ///
    /// If the file with connections cannot be read.
    pub fn counts(&self) -> StoreResult<Counts> {
        let catalog = self.0.catalog();
        let first = |segments: &[Segment], next| segments.first().map_or(next, |s| s.first);
        let heads = catalog.heads;
        let count = "SELECT count(*) FROM connection";
        let count = self.0.pool.with(&self.0.main(), |db| {
            db.query_row(count, [], |row| row.get(0))
        })?;
        Ok(Counts {
            messages: (first(&catalog.messages, heads.messages), heads.messages),
            logs: (first(&catalog.logs, heads.logs), heads.logs),
            connections: uint(count),
        })
    }

    /// Asks one segment after the other, until there are enough rows or it takes too long.
    fn find<T>(
        &self,
        family: Family,
        (direction, position, times, limit): Question,
        mut ask: impl FnMut(&File, &Bounds, u64) -> rusqlite::Result<Vec<T>>,
    ) -> StoreResult<Found<T>> {
        let began = Instant::now();
        let mut found = Found {
            rows: Vec::new(),
            cut: None,
        };
        let limit = limit.min(Self::MAX_ROWS);
        let segments = self.0.catalog().of(family).clone();
        let last = segments.iter().rev().find(|segment| segment.rows() > 0);
        let Some(last) = last.map(|segment| segment.next - 1) else {
            return Ok(found);
        };
        let bounds = Bounds::new(direction, position, times, last);
        let mut wanted: Vec<_> = segments
            .iter()
            .filter(|segment| bounds.meet(segment))
            .collect();
        if direction == Direction::Backward {
            wanted.reverse();
        }
        for (n, segment) in wanted.into_iter().enumerate() {
            let missing = limit - found.rows.len() as u64;
            if missing == 0 {
                break;
            }
            if n > 0 && began.elapsed() > self.0.settings.search_time {
                let first = segment.first.max(bounds.ids.0);
                let last = (segment.next - 1).min(bounds.ids.1);
                found.cut = Some(if direction == Direction::Backward {
                    last
                } else {
                    first
                });
                break;
            }
            let rows = self.ask(segment, |file| {
                let bounds = bounds.within(file, segment)?;
                if bounds.is_empty() {
                    Ok(Vec::new())
                } else {
                    ask(file, &bounds, missing)
                }
            });
            match rows {
                Some(rows) => found.rows.extend(rows),
                // It was deleted meanwhile, and so were those before it: there is no hole in what is left.
                None if !segment.path.exists() => {
                    if direction == Direction::Forward {
                        found.rows.clear();
                    }
                }
                None => {}
            }
        }
        Ok(found)
    }

    /// Asks a segment; nothing if it was deleted meanwhile, or is damaged, which is counted.
    pub(super) fn ask<T>(
        &self,
        segment: &Segment,
        ask: impl FnOnce(&File) -> rusqlite::Result<T>,
    ) -> Option<T> {
        if segment.damaged {
            return None;
        }
        match self.0.pool.with(&segment.path, ask) {
            Ok(answer) => Some(answer),
            Err(error) => {
                let deleted = !segment.path.exists();
                if !deleted {
                    self.0.note(&error);
                    if error.is_damage() {
                        self.0.note_damaged(&segment.path);
                    }
                }
                None
            }
        }
    }

    /// Ids of a peer's connections.
    fn connections_of_peer(&self, peer: &str) -> StoreResult<Vec<i64>> {
        self.0.pool.with(&self.0.main(), |db| {
            let sql = "SELECT id FROM connection WHERE peer_id = ? ORDER BY id DESC LIMIT 10000";
            let mut ids = db.prepare_cached(sql)?;
            ids.query_map([peer], |row| row.get(0))?.collect()
        })
    }
}

/// Order, position, times and limit.
type Question = (
    Direction,
    Position,
    (Option<Timestamp>, Option<Timestamp>),
    u64,
);

/// Rows of the messages of a selection.
pub(super) fn message_rows(
    file: &File,
    select: &Select,
    bounds: &Bounds,
    limit: u64,
) -> rusqlite::Result<Vec<MessageRow>> {
    let (ids, values) = select.sql("message", bounds, limit);
    let order = order(bounds.direction);
    let sql = format!(
        "SELECT m.id, m.time, m.sender, m.kind, m.size, m.preview, m.hash, m.error, l.connection, l.ip, l.port, l.initiator
         FROM ({ids}) f CROSS JOIN message m ON m.id = f.id CROSS JOIN link l ON l.id = m.link ORDER BY m.id {order}"
    );
    let mut rows = file.prepare(&sql)?;
    let rows = rows.query_map(params_from_iter(values), |row| message_row(file, row))?;
    rows.collect()
}

fn message_row(file: &File, row: &Row<'_>) -> rusqlite::Result<MessageRow> {
    let initiator: Option<i64> = row.get(11)?;
    Ok(MessageRow {
        id: uint(row.get(0)?),
        time: Timestamp(uint(row.get(1)?)),
        sender: side_of(row.get(2)?),
        kind: file.kind(row.get(3)?),
        size: uint(row.get(4)?),
        preview: row.get(5)?,
        hash: row.get(6)?,
        error: row.get(7)?,
        connection: ConnectionId(uint(row.get(8)?)),
        address: address(row.get(9)?, row.get(10)?),
        initiator: initiator.map(side_of),
    })
}

fn log_rows(
    file: &File,
    select: &Select,
    bounds: &Bounds,
    limit: u64,
) -> rusqlite::Result<Vec<LogRow>> {
    let (ids, values) = select.sql("log", bounds, limit);
    let order = order(bounds.direction);
    let sql = format!(
        "SELECT id, time, level, section, message FROM ({ids}) CROSS JOIN log USING (id) ORDER BY id {order}"
    );
    let mut rows = file.prepare(&sql)?;
    let rows = rows.query_map(params_from_iter(values), |row| {
        let level: u8 = row.get(2)?;
        Ok(LogRow {
            id: uint(row.get(0)?),
            time: Timestamp(uint(row.get(1)?)),
            level: Level::ALL
                .get(usize::from(level))
                .copied()
                .unwrap_or(Level::Fatal),
            section: row.get(3)?,
            message: row.get(4)?,
        })
    })?;
    rows.collect()
}

/// The order of a direction in SQL.
pub(super) fn order(direction: Direction) -> &'static str {
    match direction {
        Direction::Backward => "DESC",
        Direction::Forward => "ASC",
    }
}
