//! Questions for connections and chunks.

use rusqlite::types::Value;
use rusqlite::{OptionalExtension, Row, params, params_from_iter};

use super::connections::UNSEEN;
use super::details::Details;
use super::entry::{ChunkEntry, ConnectionEntry, ConnectionId, ConnectionStatus};
use super::error::StoreResult;
use super::pool::File;
use super::query::{ChunkQuery, ConnectionQuery, Direction};
use super::reader::Reader;
use super::segment::Segment;
use super::values::{address, int, ip, side, side_of, uint};
use crate::side::{Both, Side};
use crate::time::Timestamp;

/// Size of the chunks after which a list of them ends, in bytes.
const CHUNK_BYTES: usize = 64 << 20;
/// Size of the chunks after which those read at once end, in bytes.
const PART_BYTES: usize = 1 << 20;
/// Size of the connections after which a list of them ends, in bytes.
const CONNECTION_BYTES: usize = 32 << 20;

const CONNECTION: &str =
    "SELECT id, ip, port, initiator, peer_id, last, ended, ignored, details FROM connection";
const CHUNK: &str = "SELECT connection, sender, number, offset, time, raw, plain FROM chunk";

/// Sums over the connections that are stored: of open ones, as they were at most two seconds ago.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Number of peers whose id is known.
    pub peers: u64,
    /// Bytes that were not captured, without those of ignored connections; number of gaps; number of connections that miss some.
    pub lost_bytes: u64,
    #[allow(missing_docs)]
    pub gaps: u64,
    #[allow(missing_docs)]
    pub lossy: u64,
    /// Number of connections of the node that could not be recorded.
    pub unrecorded: u64,
    /// Number of connections of which nothing was decrypted, and of those of which not everything was.
    pub undecryptable: u64,
    #[allow(missing_docs)]
    pub partly_decrypted: u64,
}

const TOTALS: &str = "SELECT count(DISTINCT peer_id), total(lost) FILTER (WHERE state <> 'ignored'),
        total(gaps), count(*) FILTER (WHERE lost > 0 AND state <> 'ignored'),
        count(*) FILTER (WHERE state = 'unrecorded'), count(*) FILTER (WHERE state = 'undecryptable'),
        count(*) FILTER (WHERE state = 'partly_decrypted')
    FROM connection INDEXED BY connection_totals";

impl Reader {
    /// Sums over all connections.
    ///
    /// # Errors
    ///
    /// If the file with connections cannot be read.
    pub fn totals(&self) -> StoreResult<Totals> {
        self.0.pool.with(&self.0.main(), |db| {
            db.prepare_cached(TOTALS)?.query_row([], |row| {
                Ok(Totals {
                    peers: uint(row.get(0)?),
                    lost_bytes: row.get::<_, f64>(1)? as u64,
                    gaps: row.get::<_, f64>(2)? as u64,
                    lossy: uint(row.get(3)?),
                    unrecorded: uint(row.get(4)?),
                    undecryptable: uint(row.get(5)?),
                    partly_decrypted: uint(row.get(6)?),
                })
            })
        })
    }

    /// Connections, by their ids; at most [`MAX_ROWS`](Self::MAX_ROWS), and not many after 32 MiB.
    ///
    /// # Errors
    ///
    /// If the file with connections cannot be read.
    pub fn connections(&self, query: &ConnectionQuery) -> StoreResult<Vec<ConnectionEntry>> {
        let mut conditions = String::from("true");
        let mut values: Vec<Value> = Vec::new();
        if let Some(cursor) = query.cursor {
            let operator = if query.direction == Direction::Backward {
                "<="
            } else {
                ">="
            };
            conditions += &format!(" AND id {operator} ?");
            values.push(int(cursor.0).into());
        }
        if let Some(peer) = &query.peer_id {
            conditions += " AND peer_id = ?";
            values.push(peer.clone().into());
        }
        if let Some(host) = query.host {
            conditions += " AND ip = ?";
            values.push(ip(host).to_vec().into());
        }
        let (order, limit) = (query.direction.sql(), query.limit.min(Self::MAX_ROWS));
        let sql = format!("{CONNECTION} WHERE {conditions} ORDER BY id {order} LIMIT {limit}");
        self.0.pool.with(&self.0.main(), |db| {
            let (mut found, mut bytes) = (Vec::new(), 0);
            let mut rows = db.prepare(&sql)?;
            let mut rows = rows.query(params_from_iter(values))?;
            while let Some(row) = rows.next()?.filter(|_| bytes < CONNECTION_BYTES) {
                let details = row.get_ref(8)?.as_str()?;
                bytes += details.len();
                found.push(connection(row)?);
            }
            Ok(found)
        })
    }

    /// A connection.
    ///
    /// # Errors
    ///
    /// If the file with connections cannot be read.
    pub fn connection(&self, id: ConnectionId) -> StoreResult<Option<ConnectionEntry>> {
        self.0.pool.with(&self.0.main(), |db| {
            let sql = format!("{CONNECTION} WHERE id = ?");
            db.query_row(&sql, [int(id.0)], connection).optional()
        })
    }

    /// Chunks; not many after 64 MiB.
    ///
    /// # Errors
    ///
    /// None so far.
    pub fn chunks(&self, query: &ChunkQuery) -> StoreResult<Vec<ChunkEntry>> {
        let (mut chunks, mut bytes) = (Vec::new(), 0);
        let limit = query.limit.min(Self::MAX_ROWS) as usize;
        self.each_chunk(query, &mut |chunk| {
            if chunks.len() < limit {
                bytes += size(&chunk);
                chunks.push(chunk);
            }
            chunks.len() < limit && bytes < CHUNK_BYTES
        })?;
        Ok(chunks)
    }

    /// Takes chunks one by one, whatever the limit of the question, until `take` returns false.
    ///
    /// # Errors
    ///
    /// None so far.
    pub fn each_chunk(
        &self,
        query: &ChunkQuery,
        take: &mut dyn FnMut(ChunkEntry) -> bool,
    ) -> StoreResult<()> {
        let (from, to) = (
            query.from.map_or(0, |t| t.0),
            query.to.map_or(u64::MAX, |t| t.0),
        );
        for segment in self.0.catalog().messages.iter() {
            let wanted = segment.min_time <= to && segment.max_time >= from;
            if !wanted || segment.first_chunk == segment.next_chunk {
                continue;
            }
            let times = [from, to].map(int);
            if !self.chunks_of(segment, query, times, take) {
                break;
            }
        }
        Ok(())
    }

    /// Takes the chunks of a segment, some at a time; whether to go on.
    fn chunks_of(
        &self,
        segment: &Segment,
        query: &ChunkQuery,
        times: [i64; 2],
        take: &mut dyn FnMut(ChunkEntry) -> bool,
    ) -> bool {
        let ids = self.ask(segment, |file| chunk_ids(file, query, times));
        let ids = ids.unwrap_or_default();
        let mut rest = &ids[..];
        while !rest.is_empty() {
            // The segment is not kept open while the chunks are taken, which may last.
            let Some(part) = self.ask(segment, |file| part(file, query, rest)) else {
                break;
            };
            rest = &rest[part.len()..];
            if !part.into_iter().all(&mut *take) {
                return false;
            }
        }
        true
    }

    /// A chunk by its number in its direction.
    ///
    /// # Errors
    ///
    /// None so far.
    pub fn chunk(
        &self,
        connection: ConnectionId,
        sender: Side,
        number: u64,
    ) -> StoreResult<Option<ChunkEntry>> {
        let sql = format!("{CHUNK} WHERE connection = ? AND sender = ? AND number = ?");
        let values = params![int(connection.0), side(sender), int(number)];
        let segments = self.0.catalog().messages;
        let mut found = segments.iter().rev().filter_map(|segment| {
            let found = self.ask(segment, |file| {
                let mut find = file.prepare_cached(&sql)?;
                find.query_row(values, |row| chunk(row, usize::MAX))
                    .optional()
            });
            found.flatten()
        });
        Ok(found.next())
    }
}

/// Ids of the wanted chunks of a segment.
fn chunk_ids(file: &File, query: &ChunkQuery, times: [i64; 2]) -> rusqlite::Result<Vec<i64>> {
    let connection = query.connection.map(|connection| int(connection.0));
    let own = match connection {
        Some(_) => "INDEXED BY chunk_number WHERE connection = ?3",
        None => "NOT INDEXED WHERE ?3 IS NULL",
    };
    let sql = format!("SELECT id FROM chunk {own} AND time BETWEEN ?1 AND ?2 ORDER BY id");
    let mut ids = file.prepare_cached(&sql)?;
    let values = params![times[0], times[1], connection];
    ids.query_map(values, |row| row.get(0))?.collect()
}

/// The first ones of some chunks.
fn part(file: &File, query: &ChunkQuery, ids: &[i64]) -> rusqlite::Result<Vec<ChunkEntry>> {
    let max = query
        .max_bytes
        .map(|max| usize::try_from(max).unwrap_or(usize::MAX));
    let mut find = file.prepare_cached(&format!("{CHUNK} WHERE id = ?"))?;
    let (mut chunks, mut bytes) = (Vec::new(), 0);
    for id in ids {
        let chunk = find.query_row([id], |row| chunk(row, max.unwrap_or(usize::MAX)))?;
        bytes += size(&chunk);
        chunks.push(chunk);
        if bytes > PART_BYTES {
            break;
        }
    }
    Ok(chunks)
}

/// Size of a chunk's bytes.
fn size(chunk: &ChunkEntry) -> usize {
    chunk.raw.len() + chunk.plain.as_ref().map_or(0, Vec::len)
}

/// A chunk with at most `max` of its bytes.
fn chunk(row: &Row<'_>, max: usize) -> rusqlite::Result<ChunkEntry> {
    let number: Option<i64> = row.get(2)?;
    let cut = |bytes: &[u8]| bytes[..bytes.len().min(max)].to_vec();
    Ok(ChunkEntry {
        connection: ConnectionId(uint(row.get(0)?)),
        sender: side_of(row.get(1)?),
        number: number.map(uint),
        offset: uint(row.get(3)?),
        time: Timestamp(uint(row.get(4)?)),
        raw: cut(row.get_ref(5)?.as_blob()?),
        plain: row.get_ref(6)?.as_blob_or_null()?.map(cut),
    })
}

fn connection(row: &Row<'_>) -> rusqlite::Result<ConnectionEntry> {
    let (initiator, ended): (Option<i64>, Option<i64>) = (row.get(3)?, row.get(6)?);
    let mut entry = ConnectionEntry {
        id: ConnectionId(uint(row.get(0)?)),
        address: address(row.get(1)?, row.get(2)?),
        initiator: initiator.map(side_of),
        peer_id: row.get(4)?,
        connection_messages: Both::default(),
        metadata: Both::default(),
        acks: Both::default(),
        last: Timestamp(uint(row.get(5)?)),
        ended: ended
            .filter(|time| *time != UNSEEN)
            .map(|time| Timestamp(uint(time))),
        status: ConnectionStatus {
            end_unseen: ended == Some(UNSEEN),
            ..ConnectionStatus::default()
        },
        traffic: Both::default(),
        chunks: Both::default(),
        ignored: row.get(7)?,
        remarks: Vec::new(),
    };
    Details::of_json(row.get_ref(8)?.as_str()?).fill(&mut entry);
    Ok(entry)
}
