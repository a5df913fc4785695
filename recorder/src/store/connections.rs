//! The file with connections and the ids that come next, as the writer has it.

use std::fs;
use std::path::Path;

use rusqlite::{Connection, OptionalExtension, params};

use super::details::Details;
use super::entry::{ConnectionEntry, ConnectionId};
use super::error::StoreError;
use super::schema;
use super::segment::{Family, create_file};
use super::values::{int, ip, side, uint};
use crate::time::Timestamp;

/// Maximum number of connections: the oldest are dropped, though there may be messages of them.
const MAX: u64 = 100_000;

/// The time of an end that was not seen.
pub(super) const UNSEEN: i64 = -1;
/// The remark on a connection that was open when the recorder was killed.
const KILLED: &str =
    "not recorded any further: the recorder ended before the connection, whose end was not seen";

/// The file with connections.
pub(super) struct Connections {
    db: Connection,
    /// Number of this run.
    run: i64,
    count: u64,
}

impl Connections {
    /// Opens the file, which is created if there is none. A damaged one is set aside: its name is returned.
    pub(super) fn open(path: &Path) -> Result<(Self, Option<StoreError>), StoreError> {
        match Self::try_open(path) {
            Err(error) if error.is_damage() => Ok((Self::anew(path)?, Some(error))),
            opened => Ok((opened?, None)),
        }
    }

    /// Sets the file aside, and begins a new one.
    pub(super) fn anew(path: &Path) -> Result<Self, StoreError> {
        let aside = path.with_extension("damaged");
        fs::rename(path, &aside).map_err(StoreError::io("rename", path))?;
        super::segment::delete(path)?;
        Self::try_open(path)
    }

    fn try_open(path: &Path) -> Result<Self, StoreError> {
        if !path.exists() {
            create_file(path)?;
        }
        let db = schema::open(path, true)?;
        let error = || StoreError::of("open", path);
        if schema::version(&db).map_err(error())? == 0 {
            schema::create(&db, schema::MAIN, |_| Ok(())).map_err(error())?;
        }
        let mut opened = Self {
            db,
            run: 0,
            count: 0,
        };
        opened.begin().map_err(error())?;
        Ok(opened)
    }

    fn begin(&mut self) -> rusqlite::Result<()> {
        let known = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'connection_totals')";
        if !self.db.query_row(known, [], |row| row.get::<_, bool>(0))? {
            let transaction = self.db.unchecked_transaction()?;
            transaction.execute_batch(schema::TOTALS)?;
            transaction.commit()?;
        }
        self.end_unseen()?;
        self.run = int(self.next("run")? + 1);
        self.set_next("run", uint(self.run))?;
        let count = self
            .db
            .query_row("SELECT count(*) FROM connection", [], |row| row.get(0))?;
        self.count = uint(count);
        Ok(())
    }

    /// Ends the connections that were open when the last recorder was killed. When they ended is not known.
    fn end_unseen(&self) -> rusqlite::Result<()> {
        let transaction = self.db.unchecked_transaction()?;
        for id in open_connections(&transaction)? {
            let find = "SELECT last, details FROM connection WHERE id = ?";
            let (last, mut details) = transaction.query_row(find, [id], |row| {
                Ok((
                    uint(row.get(0)?),
                    Details::of_json(row.get_ref(1)?.as_str()?),
                ))
            })?;
            details.remark(Timestamp(last), KILLED);
            let end = "UPDATE connection SET ended = ?, details = ? WHERE id = ?";
            transaction.execute(end, params![UNSEEN, details.to_json(), id])?;
        }
        transaction.commit()
    }

    fn next(&self, name: &str) -> rusqlite::Result<u64> {
        let mut next = self
            .db
            .prepare_cached("SELECT next FROM counter WHERE name = ?")?;
        let next: Option<i64> = next.query_row([name], |row| row.get(0)).optional()?;
        Ok(next.map_or(0, uint))
    }

    fn set_next(&self, name: &str, next: u64) -> rusqlite::Result<()> {
        let mut set = self
            .db
            .prepare_cached("REPLACE INTO counter VALUES (?, ?)")?;
        set.execute(params![name, int(next)]).map(drop)
    }

    /// The id that the next row of a family has, as far as this file knows.
    pub(super) fn next_id(&self, family: Family) -> rusqlite::Result<u64> {
        self.next(family.name())
    }

    /// Begins to write. An earlier failed attempt is undone.
    pub(super) fn begin_write(&self) -> rusqlite::Result<()> {
        if !self.db.is_autocommit() {
            self.db.execute_batch("ROLLBACK")?;
        }
        self.db.execute_batch("BEGIN IMMEDIATE")
    }

    /// Ends writing.
    pub(super) fn commit(&mut self, next: [(Family, u64); 2]) -> rusqlite::Result<()> {
        for (family, next) in next {
            self.set_next(family.name(), next)?;
        }
        if self.count > MAX {
            let surplus = self.count - MAX;
            let delete = "DELETE FROM connection WHERE id IN (SELECT id FROM connection ORDER BY id LIMIT ?)";
            self.count -= self.db.prepare_cached(delete)?.execute([int(surplus)])? as u64;
        }
        self.db.execute_batch("COMMIT")
    }

    /// Writes a connection. `segment` is the number of the segment that is written.
    pub(super) fn put(&mut self, entry: &ConnectionEntry, segment: u64) -> rusqlite::Result<()> {
        let mut known = self
            .db
            .prepare_cached("SELECT EXISTS (SELECT 1 FROM connection WHERE id = ?)")?;
        let known: bool = known.query_row([int(entry.id.0)], |row| row.get(0))?;
        self.count += u64::from(!known);
        let sql = "REPLACE INTO connection VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
        let mut write = self.db.prepare_cached(sql)?;
        write.execute(params![
            int(entry.id.0),
            ip(entry.address.ip()),
            entry.address.port(),
            entry.initiator.map(side),
            entry.peer_id,
            int(entry.last.0),
            match entry.status.end_unseen {
                true => Some(UNSEEN),
                false => entry.ended.map(|time| int(time.0)),
            },
            entry.ignored,
            Details::of(entry).to_json(),
            int(segment),
            self.run,
            entry.status.state.name(),
            int(entry
                .traffic
                .local
                .lost
                .saturating_add(entry.traffic.remote.lost)),
            int(entry.status.gaps),
        ])?;
        Ok(())
    }

    /// Notes that a segment has rows of a connection.
    pub(super) fn note(&self, connection: ConnectionId, segment: u64) -> rusqlite::Result<()> {
        let sql = "UPDATE connection SET segment = ?2 WHERE id = ?1 AND segment < ?2";
        let mut note = self.db.prepare_cached(sql)?;
        note.execute([int(connection.0), int(segment)]).map(drop)
    }

    /// Drops the connections of which no segment from `oldest` on has rows, but for those that are still open.
    pub(super) fn retain(&mut self, oldest: u64) -> rusqlite::Result<()> {
        let sql = "DELETE FROM connection WHERE segment < ? AND (ended IS NOT NULL OR run < ?)";
        let deleted = self.db.execute(sql, [int(oldest), self.run])?;
        self.count = self.count.saturating_sub(deleted as u64);
        Ok(())
    }
}

/// Ids of the connections that have not ended.
fn open_connections(db: &Connection) -> rusqlite::Result<Vec<i64>> {
    let mut open = db.prepare("SELECT id FROM connection WHERE ended IS NULL")?;
    open.query_map([], |row| row.get(0))?.collect()
}
