//! Rows of a segment that is written.

use std::collections::{HashMap, HashSet};

use rusqlite::{Connection, params};

use super::entry::{ChunkEntry, ConnectionId, Entry, LogEntry, MessageEntry};
use super::schema;
use super::segment::Segment;
use super::values::{int, ip, side};
use crate::side::Side;
use crate::time::Timestamp;

/// Number of rows that have a common range of times.
pub(super) const BLOCK: u64 = 256;
/// Number of connections that are remembered; of others the segment is asked.
const KNOWN: usize = 10_000;

/// The segment that is written.
pub(super) struct Active {
    pub(super) db: Connection,
    pub(super) segment: Segment,
    pub(super) raw: bool,
    pub(super) search: bool,
    links: HashMap<Link, i64>,
    /// Connections with rows in it, and those of them that the writer was not told yet.
    connections: HashSet<ConnectionId>,
    fresh: Vec<ConnectionId>,
}

/// The values that all messages of a connection share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Link {
    pub(super) connection: ConnectionId,
    pub(super) ip: [u8; 16],
    pub(super) port: u16,
    pub(super) initiator: Option<Side>,
}

/// Times of a block's rows.
type Blocks = HashMap<u64, (u64, u64)>;

impl Active {
    pub(super) fn new(db: Connection, segment: Segment, raw: bool, search: bool) -> Self {
        Self {
            db,
            segment,
            raw,
            search,
            links: HashMap::new(),
            connections: HashSet::new(),
            fresh: Vec::new(),
        }
    }

    /// Writes some of the entries, and commits; the segment and the returned number tell how far it came. Nothing is written if
    /// there is an error.
    pub(super) fn write(
        &mut self,
        entries: &[Entry],
        now: u64,
        full: impl Fn(&Segment, u64) -> bool,
    ) -> rusqlite::Result<usize> {
        self.db.execute_batch("BEGIN IMMEDIATE")?;
        let mut segment = self.segment.clone();
        let written = self.insert(&mut segment, entries, now, full);
        let written = written.and_then(|n| self.db.execute_batch("COMMIT").map(|()| n));
        match written {
            Ok(_) => self.segment = segment,
            Err(_) => {
                // Ids of links that were rolled back are not known any more. SQLite may have rolled back itself.
                self.links.clear();
                let _ = self.db.execute_batch("ROLLBACK");
            }
        }
        written
    }

    fn insert(
        &mut self,
        segment: &mut Segment,
        entries: &[Entry],
        now: u64,
        full: impl Fn(&Segment, u64) -> bool,
    ) -> rusqlite::Result<usize> {
        let mut blocks = Blocks::new();
        let (mut written, mut bytes) = (0, 0);
        for entry in entries {
            if written > 0 && full(segment, bytes) {
                break;
            }
            match entry {
                Entry::Message(message) => self.message(segment, message, &mut blocks)?,
                Entry::Chunk(chunk) => self.chunk(segment, chunk)?,
                Entry::Log(log) => self.log(segment, log, &mut blocks)?,
                Entry::Connection(_) => {}
            }
            written += 1;
            bytes += super::queue::size(entry) as u64;
        }
        segment.written = segment.written.max(now);
        self.blocks(&blocks)?;
        segment.write(&self.db)?;
        Ok(written)
    }

    fn message(
        &mut self,
        segment: &mut Segment,
        message: &MessageEntry,
        blocks: &mut Blocks,
    ) -> rusqlite::Result<()> {
        let link = self.link(&Link {
            connection: message.connection,
            ip: ip(message.address.ip()),
            port: message.address.port(),
            initiator: message.initiator,
        })?;
        let mut insert = self
            .db
            .prepare_cached("INSERT INTO message VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")?;
        insert.execute(params![
            int(segment.next),
            int(message.time.0),
            link,
            schema::code(message.kind),
            side(message.sender),
            int(message.size),
            int(message.chunks.0),
            int(message.chunks.1),
            int(message.start),
            message.preview,
            message.hash,
            message.error,
        ])?;
        note(segment, message.time, blocks);
        Ok(())
    }

    fn chunk(&mut self, segment: &mut Segment, chunk: &ChunkEntry) -> rusqlite::Result<()> {
        self.note_connection(chunk.connection);
        let raw = if self.raw { &chunk.raw[..] } else { &[] };
        let mut insert = self
            .db
            .prepare_cached("INSERT INTO chunk VALUES (?, ?, ?, ?, ?, ?, ?, ?)")?;
        insert.execute(params![
            int(segment.next_chunk),
            int(chunk.connection.0),
            side(chunk.sender),
            chunk.number.map(int),
            int(chunk.offset),
            int(chunk.time.0),
            raw,
            chunk.plain,
        ])?;
        segment.next_chunk += 1;
        segment.note_time(chunk.time);
        Ok(())
    }

    fn log(
        &mut self,
        segment: &mut Segment,
        log: &LogEntry,
        blocks: &mut Blocks,
    ) -> rusqlite::Result<()> {
        let id = int(segment.next);
        let mut insert = self
            .db
            .prepare_cached("INSERT INTO log VALUES (?, ?, ?, ?, ?)")?;
        insert.execute(params![
            id,
            int(log.time.0),
            log.level as i64,
            log.section,
            log.message
        ])?;
        if self.search {
            let sql = "INSERT INTO log_text(rowid, section, message) VALUES (?, ?, ?)";
            let mut insert = self.db.prepare_cached(sql)?;
            insert.execute(params![id, log.section, log.message])?;
        }
        note(segment, log.time, blocks);
        Ok(())
    }

    /// The id of a link, which is made if it is new.
    fn link(&mut self, link: &Link) -> rusqlite::Result<i64> {
        if let Some(id) = self.links.get(link) {
            return Ok(*id);
        }
        self.note_connection(link.connection);
        let initiator = link.initiator.map(side);
        let values = params![int(link.connection.0), link.ip, link.port, initiator];
        let find =
            "SELECT id FROM link WHERE connection = ? AND ip = ? AND port = ? AND initiator IS ?";
        let mut find = self.db.prepare_cached(find)?;
        let known = find
            .query_map(values, |row| row.get(0))?
            .next()
            .transpose()?;
        let id = match known {
            Some(id) => id,
            None => {
                let insert =
                    "INSERT INTO link(connection, ip, port, initiator) VALUES (?, ?, ?, ?)";
                self.db.prepare_cached(insert)?.insert(values)?
            }
        };
        if self.links.len() >= KNOWN {
            self.links.clear();
        }
        self.links.insert(*link, id);
        Ok(id)
    }

    /// Connections that have rows in it since the last call.
    pub(super) fn take_connections(&mut self) -> Vec<ConnectionId> {
        std::mem::take(&mut self.fresh)
    }

    fn note_connection(&mut self, connection: ConnectionId) {
        if self.connections.len() >= KNOWN {
            self.connections.clear();
        }
        if self.connections.insert(connection) {
            self.fresh.push(connection);
        }
    }

    fn blocks(&self, blocks: &Blocks) -> rusqlite::Result<()> {
        let mut write = self.db.prepare_cached(
            "INSERT INTO block VALUES (?1, ?2, ?3) ON CONFLICT DO UPDATE
             SET min_time = min(min_time, ?2), max_time = max(max_time, ?3)",
        )?;
        for (id, (min, max)) in blocks {
            write.execute([*id, *min, *max].map(int))?;
        }
        Ok(())
    }
}

/// Counts a row, and notes its time.
fn note(segment: &mut Segment, time: Timestamp, blocks: &mut Blocks) {
    let (min, max) = blocks
        .entry(segment.next / BLOCK)
        .or_insert((time.0, time.0));
    (*min, *max) = ((*min).min(time.0), (*max).max(time.0));
    segment.note_time(time);
    segment.next += 1;
}
