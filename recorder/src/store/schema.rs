//! Tables of the files of a store.

use std::path::Path;
use std::time::Duration;

use nix::unistd::{AccessFlags, access};
use rusqlite::{Connection, MAIN_DB, OpenFlags, ffi};

use super::error::StoreError;
use crate::p2p::message::Kind;

/// The version of all files' format, in their `user_version`.
const VERSION: i64 = 1;
/// The version is also in the `application_id`, from this number on. If they differ, the file is damaged rather than newer.
const APPLICATION: i64 = 0x545a_0000;

/// How long to wait for a lock of another connection: of a checkpoint, in practice.
const BUSY: Duration = Duration::from_secs(5);

/// Connections, and the ids that come next.
pub(super) const MAIN: &str = "
CREATE TABLE counter(name TEXT PRIMARY KEY, next INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE connection(
    id INTEGER PRIMARY KEY, -- nanoseconds since 1970
    ip BLOB NOT NULL, -- 16 bytes
    port INTEGER NOT NULL,
    initiator INTEGER, -- 0: the node, 1: the peer
    peer_id TEXT,
    last INTEGER NOT NULL, -- nanoseconds since 1970
    ended INTEGER, -- the same, or -1: the end was not seen
    ignored TEXT,
    details TEXT NOT NULL, -- JSON
    segment INTEGER NOT NULL, -- number of the last file with messages that has some of it
    run INTEGER NOT NULL -- number of the recorder's run that wrote it
);
CREATE INDEX connection_ip ON connection(ip);
CREATE INDEX connection_peer ON connection(peer_id);
CREATE INDEX connection_segment ON connection(segment);
";

/// What is summed up of connections; made when the file is opened without it.
pub(super) const TOTALS: &str = "
ALTER TABLE connection ADD COLUMN state TEXT NOT NULL DEFAULT 'handshake';
ALTER TABLE connection ADD COLUMN lost INTEGER NOT NULL DEFAULT 0; -- bytes that were not captured
ALTER TABLE connection ADD COLUMN gaps INTEGER NOT NULL DEFAULT 0;
CREATE INDEX connection_totals ON connection(peer_id, state, lost, gaps);
";

/// Tables of every segment.
const COMMON: &str = "
CREATE TABLE segment(
    first INTEGER NOT NULL, -- ids of its first row and of its first chunk
    first_chunk INTEGER NOT NULL,
    created INTEGER NOT NULL, -- nanoseconds since 1970
    written INTEGER NOT NULL,
    min_time INTEGER NOT NULL,
    max_time INTEGER NOT NULL
);
-- Times of each 256 rows, so that a time is found although rows are not in the order of time.
CREATE TABLE block(id INTEGER PRIMARY KEY, min_time INTEGER NOT NULL, max_time INTEGER NOT NULL);
";

/// Messages and chunks.
const MESSAGES: &str = "
CREATE TABLE kind(id INTEGER PRIMARY KEY, name TEXT NOT NULL);
-- The values that all messages of a connection share.
CREATE TABLE link(
    id INTEGER PRIMARY KEY,
    connection INTEGER NOT NULL,
    ip BLOB NOT NULL, -- 16 bytes
    port INTEGER NOT NULL,
    initiator INTEGER -- 0: the node, 1: the peer
);
CREATE INDEX link_connection ON link(connection);
CREATE INDEX link_ip ON link(ip);
CREATE TABLE message(
    id INTEGER PRIMARY KEY,
    time INTEGER NOT NULL, -- nanoseconds since 1970
    link INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    sender INTEGER NOT NULL, -- 0: the node, 1: the peer
    size INTEGER NOT NULL, -- bytes
    first_chunk INTEGER NOT NULL, -- numbers in the direction
    last_chunk INTEGER NOT NULL,
    start INTEGER NOT NULL, -- byte of the first chunk's plain text
    preview TEXT,
    hash TEXT,
    error TEXT
);
CREATE INDEX message_link ON message(link);
CREATE INDEX message_kind ON message(kind);
CREATE INDEX message_error ON message(id) WHERE error IS NOT NULL;
CREATE TABLE chunk(
    id INTEGER PRIMARY KEY, -- in the order of writing
    connection INTEGER NOT NULL,
    sender INTEGER NOT NULL,
    number INTEGER, -- NULL: bytes outside of chunks
    offset INTEGER NOT NULL, -- bytes
    time INTEGER NOT NULL, -- nanoseconds since 1970
    raw BLOB NOT NULL,
    plain BLOB
);
CREATE INDEX chunk_number ON chunk(connection, sender, number);
";

/// The index of hashes, which is made when a segment is full: to insert hashes one by one, which are in no order, took a third of
/// the time of writing.
pub(super) const HASHES: &str =
    "CREATE INDEX IF NOT EXISTS message_hash ON message(hash) WHERE hash IS NOT NULL;";

/// The filter of hashes, which is made at the same time, and the id that follows the last of its messages.
pub(super) const HASH_FILTER: &str =
    "CREATE TABLE IF NOT EXISTS hash_filter(next INTEGER NOT NULL, bits BLOB NOT NULL);";

/// Lines of the log.
const LOGS: &str = "
CREATE TABLE log(
    id INTEGER PRIMARY KEY,
    time INTEGER NOT NULL, -- nanoseconds since 1970
    level INTEGER NOT NULL, -- 0: trace, 1: debug, 2: info, 3: notice, 4: warning, 5: error, 6: fatal
    section TEXT NOT NULL,
    message TEXT NOT NULL
);
CREATE INDEX log_level ON log(level);
";

/// The index of the words of the log.
const SEARCH: &str = "
CREATE VIRTUAL TABLE log_text USING fts5(section, message, content='log', content_rowid='id', columnsize=0);
";

/// Opens a file that exists. Nothing is written unless it is for `writing`.
pub(super) fn open(path: &Path, writing: bool) -> Result<Connection, StoreError> {
    // A reader, too, may have to recover or remove the write-ahead log, which SQLite refuses to read-only connections.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let error = || StoreError::of("open", path);
    let db = Connection::open_with_flags(path, flags).map_err(error())?;
    db.busy_timeout(BUSY).map_err(error())?;
    let version = version(&db).map_err(error())?;
    if version > VERSION {
        let path = path.to_path_buf();
        return Err(StoreError::Newer {
            path,
            found: version,
            known: VERSION,
        });
    }
    if writing {
        check_writable(&db, path).map_err(error())?;
    }
    let set = match writing {
        // Commits are in the order of the log, whose end may be lost if the power fails.
        true => {
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA cache_size = -8192;"
        }
        false => "PRAGMA query_only = ON; PRAGMA cache_size = -128; PRAGMA temp_store = MEMORY;",
    };
    db.execute_batch(set).map_err(error())?;
    db.set_prepared_statement_cache_capacity(64);
    Ok(db)
}

/// Refuses a damaged header, with which SQLite takes the file for one of a later version that it can only read.
fn check_writable(db: &Connection, path: &Path) -> rusqlite::Result<()> {
    let permitted = access(path, AccessFlags::W_OK).is_ok();
    if permitted && db.is_readonly(MAIN_DB)? {
        let error = ffi::Error::new(ffi::SQLITE_CORRUPT);
        let text = "the version of the format for writing is unknown";
        return Err(rusqlite::Error::SqliteFailure(error, Some(text.into())));
    }
    Ok(())
}

/// The version of a file; 0 if its creation was not finished.
pub(super) fn version(db: &Connection) -> rusqlite::Result<i64> {
    let number = |name| db.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let (version, application) = (number("user_version")?, number("application_id")?);
    match (version, application) {
        (0, 0) => Ok(0),
        (1.., _) if application == APPLICATION + version => Ok(version),
        _ => Err(rusqlite::Error::IntegralValueOutOfRange(0, version)),
    }
}

/// Creates the tables of an empty file and what `fill` writes into them, at once.
pub(super) fn create(
    db: &Connection,
    tables: &str,
    fill: impl FnOnce(&Connection) -> rusqlite::Result<()>,
) -> rusqlite::Result<()> {
    let transaction = db.unchecked_transaction()?;
    transaction.execute_batch(tables)?;
    fill(&transaction)?;
    transaction.pragma_update(None, "user_version", VERSION)?;
    transaction.pragma_update(None, "application_id", APPLICATION + VERSION)?;
    transaction.commit()
}

/// Tables of a segment with messages.
pub(super) fn messages() -> String {
    [COMMON, MESSAGES, &kinds()].concat()
}

/// Tables of a segment with lines of the log.
pub(super) fn logs(search: bool) -> String {
    [COMMON, LOGS, if search { SEARCH } else { "" }].concat()
}

/// The names of the kinds, which have other numbers in other versions.
fn kinds() -> String {
    let rows = Kind::ALL
        .iter()
        .map(|kind| format!("({}, '{}')", code(*kind), kind.name()));
    format!(
        "INSERT INTO kind VALUES {}",
        rows.collect::<Vec<_>>().join(", ")
    )
}

/// The number of a kind in segments that this version writes.
pub(super) fn code(kind: Kind) -> i64 {
    kind as i64
}
