//! Questions to a store.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use super::bounds::Bounds;
use super::error::{StoreError, StoreResult};
use super::filter::{self, Select};
use super::pool::File;
use super::query::{Direction, LogQuery, LogRow, MessageQuery, MessageRow, Position};
use super::rows::{self, ListRow};
use super::search::Terms;
use super::segment::{self, Family, Segment};
use super::settings::Settings;
use super::shared::{Catalog, Heads, Shared};
use super::values::uint;
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
    /// Size of the texts of rows after which an answer ends, in bytes.
    pub const MAX_BYTES: usize = 16 << 20;
    /// Maximum size of the JSON of a message in its details, in bytes. That of real messages is below 5 MiB, though one of 8 MiB is
    /// possible, as a header of nothing but digits of twice that size.
    pub const MAX_JSON: usize = 5 << 20;

    /// Reads what is in a directory now, whether or not a recorder writes there.
    ///
    /// # Errors
    ///
    /// If it has no store, files of a newer version, or cannot be read.
    pub fn open(dir: &Path) -> StoreResult<Self> {
        let shared = Shared::new(dir, Settings::default());
        let main = shared.main();
        fs::metadata(&main).map_err(StoreError::io("open", &main))?;
        let mut catalog = Catalog {
            messages: segment::list(dir, Family::Messages)?.into(),
            logs: segment::list(dir, Family::Logs)?.into(),
            ..Catalog::default()
        };
        let next = |segments: &[Segment]| segments.last().map_or(0, |last| last.next);
        catalog.heads = Heads {
            messages: next(&catalog.messages),
            logs: next(&catalog.logs),
        };
        shared.publish(&catalog);
        Ok(Self(Arc::new(shared)))
    }

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
        let peers = peers.as_deref();
        let may_have = |segment: &Segment| {
            let summary = segment.summary.as_ref();
            summary.is_none_or(|summary| summary.may_have(query, peers))
        };
        let times = (query.from, query.to);
        let question = (query.direction, query.position, times, query.limit);
        self.find(question, may_have, |file, bounds| {
            filter::messages(file, query, peers, bounds)
        })
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
        let question = (query.direction, query.position, times, query.limit);
        self.find(
            question,
            |_| true,
            |file, bounds| Ok(Some(filter::logs(file, query, &terms, bounds))),
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
    fn find<T: ListRow>(
        &self,
        (direction, position, times, limit): Question,
        may_have: impl Fn(&Segment) -> bool,
        select: impl Fn(&File, &Bounds) -> rusqlite::Result<Option<Select>>,
    ) -> StoreResult<Found<T>> {
        let began = Instant::now();
        let limit = limit.min(Self::MAX_ROWS);
        let mut found = Found {
            rows: Vec::new(),
            cut: None,
        };
        let mut bytes = 0;
        let segments = self.0.catalog().of(T::FAMILY).clone();
        let last = segments.iter().rev().find(|segment| segment.rows() > 0);
        let last = last.map_or(0, |segment| segment.next - 1);
        let bounds = Bounds::new(direction, position, times, last);
        let wanted = segments.iter().filter(|s| bounds.meet(s) && may_have(s));
        let mut wanted: Vec<_> = wanted.collect();
        if direction == Direction::Backward {
            wanted.reverse();
        }
        for (n, segment) in wanted.into_iter().enumerate() {
            let missing = limit - found.rows.len() as u64;
            if missing == 0 || found.cut.is_some() {
                break;
            }
            if n > 0 && began.elapsed() > self.0.settings.search_time {
                found.cut = Some(bounds.first_in(segment));
                break;
            }
            let part = self.ask(segment, |file| {
                let bounds = bounds.within(file, segment)?;
                match select(file, &bounds)?.filter(|_| !bounds.is_empty()) {
                    Some(select) => rows(file, &select, &bounds, missing, &mut bytes),
                    None => Ok((Vec::new(), None)),
                }
            });
            match part {
                Some((rows, cut)) => {
                    found.rows.extend(rows);
                    found.cut = cut;
                }
                // It was deleted meanwhile, and so were those before it: there is no hole in what is left.
                None if direction == Direction::Forward && !segment.path.exists() => {
                    found.rows.clear();
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

    /// Ids of a peer's newest connections, in order.
    fn connections_of_peer(&self, peer: &str) -> StoreResult<Vec<i64>> {
        self.0.pool.with(&self.0.main(), |db| {
            let sql = "SELECT id FROM connection WHERE peer_id = ? ORDER BY id DESC LIMIT 10000";
            let mut ids = db.prepare_cached(sql)?;
            let ids = ids.query_map([peer], |row| row.get(0))?;
            let mut ids: Vec<_> = ids.collect::<Result<_, _>>()?;
            ids.reverse();
            Ok(ids)
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

/// Rows of a selection, and the id of the first that does not fit. `bytes` is the size of all rows so far.
fn rows<T: ListRow>(
    file: &File,
    select: &Select,
    bounds: &Bounds,
    limit: u64,
    bytes: &mut usize,
) -> rusqlite::Result<(Vec<T>, Option<u64>)> {
    let mut rows = Vec::new();
    for id in rows::ids(file, T::FAMILY, select, bounds, limit)? {
        if *bytes > Reader::MAX_BYTES {
            return Ok((rows, Some(uint(id))));
        }
        let row = T::read(file, id)?;
        *bytes += row.size();
        rows.push(row);
    }
    Ok((rows, None))
}
