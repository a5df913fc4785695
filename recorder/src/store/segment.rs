//! Segments: the files that rows are spread over, so that the oldest are deleted as a whole.

use std::cmp::Reverse;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension};

use super::error::StoreError;
use super::schema;
use super::summary::{self, Summary};
use super::values::{int, uint};
use crate::time::Timestamp;

/// More rows than this are damage: a segment has 64 MiB.
const MAX_ROWS: u64 = 1 << 26;

/// The two kinds of segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Family {
    /// Messages and chunks.
    Messages,
    /// Lines of the log.
    Logs,
}

impl Family {
    /// The name: of the files, and of the counter.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Messages => "messages",
            Self::Logs => "logs",
        }
    }

    /// The table whose ids are counted.
    pub(super) fn table(self) -> &'static str {
        match self {
            Self::Messages => "message",
            Self::Logs => "log",
        }
    }
}

/// A segment, as far as it is known without reading it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) path: PathBuf,
    /// Segments of a family are numbered in the order of their ids.
    pub(super) number: u64,
    /// The first id, and the one after the last.
    pub(super) first: u64,
    pub(super) next: u64,
    pub(super) first_chunk: u64,
    pub(super) next_chunk: u64,
    /// Times of rows and chunks; the first is later than the last as long as there are none.
    pub(super) min_time: u64,
    pub(super) max_time: u64,
    /// When it was created and when it was written, in nanoseconds since 1970.
    pub(super) created: u64,
    pub(super) written: u64,
    /// Size on disk.
    pub(super) bytes: u64,
    /// It cannot be read.
    pub(super) damaged: bool,
    /// Its messages; unknown while it is written.
    pub(super) summary: Option<Arc<Summary>>,
}

impl Segment {
    /// A segment without rows.
    pub(super) fn new(dir: &Path, family: Family, number: u64, ids: (u64, u64), now: u64) -> Self {
        let (first, first_chunk) = ids;
        Self {
            path: dir.join(format!("{}-{number:08}-{first}.db", family.name())),
            number,
            first,
            next: first,
            first_chunk,
            next_chunk: first_chunk,
            min_time: u64::MAX,
            max_time: 0,
            created: now,
            written: now,
            bytes: 0,
            damaged: false,
            summary: None,
        }
    }

    /// The segment of a file, if the name is of one of the family, as far as its name says.
    fn named(path: &Path, family: Family) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        let name = name.strip_prefix(family.name())?.strip_prefix('-')?;
        let (number, first) = name.strip_suffix(".db")?.split_once('-')?;
        let (number, first) = (number.parse().ok()?, first.parse().ok()?);
        let mut segment = Self::new(Path::new(""), family, number, (first, 0), 0);
        segment.path = path.to_path_buf();
        Some(segment)
    }

    /// The same with what is in the file, as far as that is not damaged; nothing if its creation was not finished: it is deleted.
    fn find(self, family: Family) -> Result<Option<Self>, StoreError> {
        let mut segment = self.clone();
        match segment.read(family) {
            Ok(true) => {}
            Ok(false) => return delete(&self.path).map(|()| None),
            Err(error @ StoreError::Newer { .. }) => return Err(error),
            Err(_) => {
                segment = self;
                segment.damaged = true;
            }
        }
        segment.bytes = bytes(&segment.path);
        Ok(Some(segment))
    }

    /// Reads what is known of it; whether it was finished when it was created.
    fn read(&mut self, family: Family) -> Result<bool, StoreError> {
        let db = schema::open(&self.path, false)?;
        let version = schema::version(&db).map_err(StoreError::of("read", &self.path))?;
        if version > 0 {
            self.read_from(&db, family)
                .map_err(StoreError::of("read", &self.path))?;
        }
        Ok(version > 0)
    }

    /// Reads what is known of it from its tables.
    pub(super) fn read_from(&mut self, db: &Connection, family: Family) -> rusqlite::Result<()> {
        let columns = "first, first_chunk, created, written, min_time, max_time";
        let values: [u64; 6] =
            db.query_row(&format!("SELECT {columns} FROM segment"), [], |row| {
                let mut values = [0; 6];
                for (at, value) in values.iter_mut().enumerate() {
                    *value = uint(row.get(at)?);
                }
                Ok(values)
            })?;
        [
            self.first,
            self.first_chunk,
            self.created,
            self.written,
            self.min_time,
            self.max_time,
        ] = values;
        self.next = next(db, family.table())?.unwrap_or(self.first);
        if family == Family::Messages {
            self.next_chunk = next(db, "chunk")?.unwrap_or(self.first_chunk);
            self.summary = Summary::read(db, self.next).ok().map(Arc::new);
        }
        // Ids of a damaged file would be those of all later rows.
        let rows = self.next.checked_sub(self.first);
        match rows.filter(|rows| *rows <= MAX_ROWS && self.next_chunk >= self.first_chunk) {
            Some(_) => Ok(()),
            None => Err(rusqlite::Error::IntegralValueOutOfRange(0, int(self.next))),
        }
    }

    /// Creates the file, which must not exist, for its owner alone.
    pub(super) fn create(&self, family: Family, search: bool) -> Result<Connection, StoreError> {
        create_file(&self.path)?;
        let db = schema::open(&self.path, true)?;
        let tables = match family {
            Family::Messages => schema::messages(),
            Family::Logs => schema::logs(search),
        };
        let created = schema::create(&db, &tables, |db| self.write(db));
        created.map_err(StoreError::of("create", &self.path))?;
        Ok(db)
    }

    /// Writes what is known of it into it.
    pub(super) fn write(&self, db: &Connection) -> rusqlite::Result<()> {
        let values = [
            self.first,
            self.first_chunk,
            self.created,
            self.written,
            self.min_time,
            self.max_time,
        ];
        let mut write = db.prepare_cached(
            "REPLACE INTO segment(rowid, first, first_chunk, created, written, min_time, max_time)
             VALUES (1, ?, ?, ?, ?, ?, ?)",
        )?;
        write.execute(values.map(int)).map(drop)
    }

    /// Number of rows.
    pub(super) fn rows(&self) -> u64 {
        self.next.saturating_sub(self.first)
    }

    /// Takes a time into the range of times.
    pub(super) fn note_time(&mut self, time: Timestamp) {
        self.min_time = self.min_time.min(time.0);
        self.max_time = self.max_time.max(time.0);
    }
}

/// The id after the last of a table.
fn next(db: &Connection, table: &str) -> rusqlite::Result<Option<u64>> {
    let last = db.query_row(&format!("SELECT max(id) FROM {table}"), [], |row| {
        row.get(0)
    });
    let last: Option<Option<i64>> = last.optional()?;
    Ok(last.flatten().map(|last| uint(last) + 1))
}

/// All segments of a family in a directory, in order.
pub(super) fn list(dir: &Path, family: Family) -> Result<Vec<Segment>, StoreError> {
    let mut named = Vec::new();
    for entry in fs::read_dir(dir).map_err(StoreError::io("read", dir))? {
        let path = entry.map_err(StoreError::io("read", dir))?.path();
        named.extend(Segment::named(&path, family));
    }
    named.sort_by_key(|segment| Reverse(segment.number));
    let (mut segments, mut room) = (Vec::new(), summary::ROOM);
    for segment in named {
        if let Some(mut segment) = segment.find(family)? {
            segment.fit(&mut room);
            segments.push(segment);
        }
    }
    segments.reverse();
    Ok(segments)
}

/// Creates an empty file for its owner alone.
pub(super) fn create_file(path: &Path) -> Result<(), StoreError> {
    let mut options = OpenOptions::new();
    let created = options.write(true).create_new(true).mode(0o600).open(path);
    created.map(drop).map_err(StoreError::io("create", path))
}

/// The file and those that SQLite keeps beside it.
fn files(path: &Path) -> impl Iterator<Item = PathBuf> {
    ["", "-wal", "-shm", "-journal"].into_iter().map(|end| {
        let mut name = path.as_os_str().to_os_string();
        name.push(end);
        name.into()
    })
}

/// Size on disk of a file with those beside it; 0 if it cannot be read.
pub(super) fn bytes(path: &Path) -> u64 {
    files(path)
        .filter_map(|path| fs::metadata(path).ok())
        .map(|data| data.len())
        .sum()
}

/// Deletes a file with those beside it.
pub(super) fn delete(path: &Path) -> Result<(), StoreError> {
    for path in files(path) {
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(StoreError::io("delete", &path)(error));
            }
            _ => {}
        }
    }
    Ok(())
}
