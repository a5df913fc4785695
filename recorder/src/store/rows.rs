//! Rows of lists.

use rusqlite::params_from_iter;

use super::bounds::Bounds;
use super::entry::{ConnectionId, Level};
use super::filter::Select;
use super::pool::File;
use super::query::{LogRow, MessageRow};
use super::segment::Family;
use super::values::{address, side_of, uint};
use crate::time::Timestamp;

/// A row of a list.
pub(super) trait ListRow: Sized {
    const FAMILY: Family;

    /// Reads the row with an id.
    fn read(file: &File, id: i64) -> rusqlite::Result<Self>;

    /// Size of its texts, in bytes.
    fn size(&self) -> usize;
}

/// Ids of a selection, in order.
pub(super) fn ids(
    file: &File,
    family: Family,
    select: &Select,
    bounds: &Bounds,
    limit: u64,
) -> rusqlite::Result<Vec<i64>> {
    let (sql, values) = select.sql(family.table(), bounds, limit);
    let mut ids = file.prepare(&sql)?;
    ids.query_map(params_from_iter(values), |row| row.get(0))?
        .collect()
}

impl ListRow for MessageRow {
    const FAMILY: Family = Family::Messages;

    fn read(file: &File, id: i64) -> rusqlite::Result<Self> {
        let mut row = file.prepare_cached(
            "SELECT time, sender, kind, size, preview, hash, error, connection, ip, port, initiator
             FROM message CROSS JOIN link ON link.id = message.link WHERE message.id = ?",
        )?;
        row.query_row([id], |row| {
            let initiator: Option<i64> = row.get(10)?;
            Ok(Self {
                id: uint(id),
                time: Timestamp(uint(row.get(0)?)),
                sender: side_of(row.get(1)?),
                kind: file.kind(row.get(2)?),
                size: uint(row.get(3)?),
                preview: row.get(4)?,
                hash: row.get(5)?,
                error: row.get(6)?,
                connection: ConnectionId(uint(row.get(7)?)),
                address: address(row.get(8)?, row.get(9)?),
                initiator: initiator.map(side_of),
            })
        })
    }

    fn size(&self) -> usize {
        let texts = [&self.preview, &self.hash, &self.error];
        texts.into_iter().flatten().map(String::len).sum()
    }
}

impl ListRow for LogRow {
    const FAMILY: Family = Family::Logs;

    fn read(file: &File, id: i64) -> rusqlite::Result<Self> {
        let sql = "SELECT time, level, section, message FROM log WHERE id = ?";
        file.prepare_cached(sql)?.query_row([id], |row| {
            let level = Level::ALL.get(usize::from(row.get::<_, u8>(1)?));
            Ok(Self {
                id: uint(id),
                time: Timestamp(uint(row.get(0)?)),
                level: level.copied().unwrap_or(Level::Fatal),
                section: row.get(2)?,
                message: row.get(3)?,
            })
        })
    }

    fn size(&self) -> usize {
        self.section.len() + self.message.len()
    }
}
