//! Summaries of segments that are not written any more: segments without the wanted messages are not asked.

use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, params};

use super::entry::ConnectionId;
use super::error::StoreError;
use super::insert::Link;
use super::query::MessageQuery;
use super::schema;
use super::segment::{self, Family, Segment};
use super::values::{int, ip, side_of, uint};
use crate::p2p::message::Kind;

/// Maximum size of all summaries, in bytes: those of about 200 segments. Of older ones only kinds are known.
pub(super) const ROOM: usize = 16 << 20;
/// Maximum number of links that are known of a segment.
const LINKS: usize = 1024;
/// Length of a hash of a block or an operation, in base58.
const HASH: usize = 51;
/// Bits per hash, and how many of them are set: one in fifty other hashes seems to be there.
const BITS: (u64, u64) = (8, 5);
/// A larger filter is damage, in bytes.
const MAX_FILTER: i64 = 16 << 20;

// `Summary::kinds` has a bit for each.
const _: () = assert!(Kind::ALL.len() <= 64);

/// The messages of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Summary {
    /// A bit for each kind.
    kinds: u64,
    /// Whether some have an error.
    errors: bool,
    /// Unknown if there are too many.
    links: Option<Vec<Link>>,
    hashes: Option<Filter>,
}

/// A Bloom filter of hashes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Filter(Vec<u8>);

impl Summary {
    /// Reads it from the tables of a segment whose next id is known.
    pub(super) fn read(db: &Connection, next: u64) -> rusqlite::Result<Self> {
        let kinds = "SELECT name FROM kind WHERE EXISTS (SELECT 1 FROM message WHERE message.kind = kind.id)";
        let mut bits = 0;
        for name in db
            .prepare(kinds)?
            .query_map([], |row| row.get::<_, String>(0))?
        {
            bits |= bit(Kind::of_name(&name?).unwrap_or(Kind::Unknown));
        }
        let errors = "SELECT EXISTS (SELECT 1 FROM message WHERE error IS NOT NULL)";
        Ok(Self {
            kinds: bits,
            errors: db.query_row(errors, [], |row| row.get(0))?,
            links: links(db)?,
            hashes: Filter::read(db, next)?,
        })
    }

    /// Whether all of it is known, as of a segment that was finished.
    fn is_whole(&self) -> bool {
        self.hashes.is_some()
    }

    /// Whether the segment may have such messages. `peers` are the connections of the peer, in order.
    pub(super) fn may_have(&self, query: &MessageQuery, peers: Option<&[i64]>) -> bool {
        let is_wanted = |link: &Link| is_wanted(link, query, peers);
        let is_there = |kind: &Kind| self.kinds & bit(*kind) != 0;
        let whole = query.hash.as_deref().filter(|hash| hash.len() >= HASH);
        (query.kinds.is_empty() || query.kinds.iter().any(is_there))
            && (query.error != Some(true) || self.errors)
            && self
                .links
                .as_ref()
                .is_none_or(|links| links.iter().any(is_wanted))
            && whole
                .zip(self.hashes.as_ref())
                .is_none_or(|(hash, filter)| filter.has(hash))
    }

    fn bytes(&self) -> usize {
        let links = self
            .links
            .as_ref()
            .map_or(0, |links| size_of_val(&links[..]));
        links + self.hashes.as_ref().map_or(0, |Filter(bits)| bits.len())
    }
}

impl Segment {
    /// Whether its index and its summary are there.
    pub(super) fn is_finished(&self) -> bool {
        self.summary
            .as_ref()
            .is_some_and(|summary| summary.is_whole())
    }

    /// Prepares it for being only read: makes its index of hashes and its summary.
    pub(super) fn finish(&mut self, db: Connection, family: Family) -> Result<(), StoreError> {
        // Readers need fewer files and calls without a write-ahead log. They may prevent it now; then it stays.
        let _ = db.busy_timeout(Duration::ZERO);
        let summary = match family {
            Family::Messages => index(&db, self.next).map(|summary| Some(Arc::new(summary))),
            Family::Logs => Ok(None),
        };
        let _ = db.execute_batch("PRAGMA wal_checkpoint(TRUNCATE); PRAGMA journal_mode = DELETE;");
        drop(db);
        self.bytes = segment::bytes(&self.path);
        self.summary = summary.map_err(StoreError::of("index", &self.path))?;
        Ok(())
    }

    /// Forgets most of the summary if there is no room for it, and takes its part of the room.
    pub(super) fn fit(&mut self, room: &mut usize) {
        let Some(summary) = &mut self.summary else {
            return;
        };
        if summary.bytes() > *room {
            let summary = Arc::make_mut(summary);
            (summary.links, summary.hashes) = (None, None);
        }
        *room -= summary.bytes();
    }
}

/// Makes the index of hashes and the summary.
fn index(db: &Connection, next: u64) -> rusqlite::Result<Summary> {
    db.execute_batch(schema::HASHES)?;
    let mut hashes = db.prepare("SELECT hash FROM message WHERE hash IS NOT NULL")?;
    let hashes = hashes.query_map([], |row| {
        let hash = row.get_ref(0)?.as_str()?;
        Ok((hash.len() <= HASH).then(|| scatter(hash)))
    })?;
    // A longer hash than there are would not be found by its beginning.
    if let Some(hashes) = hashes.collect::<rusqlite::Result<Option<Vec<_>>>>()? {
        Filter::from_hashes(&hashes).write(db, next)?;
    }
    Summary::read(db, next)
}

fn bit(kind: Kind) -> u64 {
    1 << kind as u64
}

/// The links of a segment, unless there are too many.
fn links(db: &Connection) -> rusqlite::Result<Option<Vec<Link>>> {
    let sql = format!(
        "SELECT connection, ip, port, initiator FROM link LIMIT {}",
        LINKS + 1
    );
    let mut links = db.prepare(&sql)?;
    let links = links.query_map([], |row| {
        let initiator: Option<i64> = row.get(3)?;
        Ok(Link {
            connection: ConnectionId(uint(row.get(0)?)),
            ip: row.get(1)?,
            port: row.get(2)?,
            initiator: initiator.map(side_of),
        })
    })?;
    let links: Vec<_> = links.collect::<Result<_, _>>()?;
    Ok((links.len() <= LINKS).then_some(links))
}

fn is_wanted(link: &Link, query: &MessageQuery, peers: Option<&[i64]>) -> bool {
    let is_host = |wanted| ip(wanted) == link.ip;
    query
        .connection
        .is_none_or(|connection| connection == link.connection)
        && query.host.is_none_or(is_host)
        && query
            .address
            .is_none_or(|address| is_host(address.ip()) && address.port() == link.port)
        && query
            .initiator
            .is_none_or(|initiator| Some(initiator) == link.initiator)
        && peers.is_none_or(|peers| peers.binary_search(&int(link.connection.0)).is_ok())
}

impl Filter {
    fn from_hashes(hashes: &[u64]) -> Self {
        let bytes = (hashes.len() as u64 * BITS.0).div_ceil(8).max(8);
        let mut filter = Self(vec![0; usize::try_from(bytes).unwrap_or_default()]);
        for hash in hashes {
            for at in filter.places(*hash) {
                filter.0[at / 8] |= 1 << (at % 8);
            }
        }
        filter
    }

    /// Whether a hash may be there.
    fn has(&self, hash: &str) -> bool {
        self.places(scatter(hash))
            .iter()
            .all(|at| self.0[at / 8] & (1 << (at % 8)) != 0)
    }

    /// The bits of a hash.
    fn places(&self, hash: u64) -> [usize; BITS.1 as usize] {
        let (step, bits) = (hash.rotate_left(32) | 1, self.0.len() as u64 * 8);
        std::array::from_fn(|n| (hash.wrapping_add(step.wrapping_mul(n as u64)) % bits) as usize)
    }

    /// Writes it with the id up to which it has hashes.
    fn write(&self, db: &Connection, next: u64) -> rusqlite::Result<()> {
        db.execute_batch(schema::HASH_FILTER)?;
        let sql = "REPLACE INTO hash_filter(rowid, next, bits) VALUES (1, ?, ?)";
        db.execute(sql, params![int(next), self.0]).map(drop)
    }

    /// Reads it, unless there is none or it is older than the last message.
    fn read(db: &Connection, next: u64) -> rusqlite::Result<Option<Self>> {
        let exists = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'hash_filter')";
        if !db.query_row(exists, [], |row| row.get::<_, bool>(0))? {
            return Ok(None);
        }
        let sql = "SELECT bits FROM hash_filter WHERE next = ? AND length(bits) BETWEEN 1 AND ?";
        let bits = db.query_row(sql, params![int(next), MAX_FILTER], |row| row.get(0));
        Ok(bits.optional()?.map(Self))
    }
}

/// A number of all bits of a hash: FNV-1a, with the bits mixed once more.
fn scatter(hash: &str) -> u64 {
    let add = |sum: u64, byte| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    let sum = hash.bytes().fold(0xcbf2_9ce4_8422_2325, add);
    let mixed = (sum ^ (sum >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    mixed ^ (mixed >> 33)
}
