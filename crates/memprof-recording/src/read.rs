//! Opens a recording, and finds its moments.
//!
//! The file may come from anywhere, like a saved profile. Its tables are compared with those that memprof makes, its texts
//! have a budget, and the report that comes out of it is read once more by the reader of saved profiles, which checks it.

use std::borrow::Cow;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rusqlite::backup::{Backup, StepResult};
use rusqlite::limits::Limit;
use rusqlite::{Connection, OpenFlags};

use crate::recorder::Place;
use crate::state::Reader;
use crate::{RecordingError, schema};
use memprof_profile::saved::{self, Saved};
use memprof_profile::{CodeLayout, Module, Report};
use memprof_sys::usage::Usage;

/// The first bytes of an SQLite file.
pub(crate) const MAGIC: &[u8; 16] = b"SQLite format 3\0";
/// Maximum size of a single value in the file, in bytes.
const MAX_VALUE: i32 = 64 << 20;

pub(crate) type Checked<T> = Result<T, RecordingError>;

pub(crate) fn damaged<T>(what: impl Into<String>) -> Checked<T> {
    Err(RecordingError::Damaged(what.into()))
}

/// Whether a file begins like a recording: like any SQLite file.
///
/// # Errors
/// The file cannot be read.
pub fn is_recording(path: &Path) -> std::io::Result<bool> {
    let mut magic = Vec::with_capacity(MAGIC.len());
    let file = File::open(path)?;
    file.take(MAGIC.len() as u64).read_to_end(&mut magic)?;
    Ok(magic == MAGIC)
}

/// A recording that is read, as it was when it was opened.
pub struct Recording {
    pub(crate) db: Connection,
}

/// A moment of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MomentInfo {
    /// The id, which ascends.
    pub id: i64,
    /// The run of memprof that recorded it.
    pub run: i64,
    /// When its report was taken, by the clock of the machine.
    pub taken: SystemTime,
    /// Time since the first moment, however the clock was set.
    pub elapsed: Duration,
    /// Anonymous, shared and cached bytes together.
    pub total: u64,
}

/// The totals of a moment, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Totals {
    /// The run of memprof that recorded it.
    pub run: i64,
    /// When its report was taken, by the clock of the machine.
    pub taken: SystemTime,
    /// The totals of the resident kinds of memory.
    pub usage: Usage,
    /// Number of events that the run had lost so far.
    pub lost: u64,
}

impl Recording {
    /// Opens a recording. A memprof may still be writing to it.
    ///
    /// # Errors
    /// The file cannot be read, or is something else.
    pub fn open(path: &Path) -> Checked<Recording> {
        if !is_recording(path)? {
            return Err(RecordingError::Foreign);
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let opened = Connection::open_with_flags(path, flags).and_then(|db| {
            db.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
            Ok(db)
        });
        let db = match opened {
            Ok(db) => db,
            // In a directory that cannot be written to, SQLite cannot share the log; without a log, it need not.
            Err(_) if !has_log(path) => {
                let flags = flags | OpenFlags::SQLITE_OPEN_URI;
                Connection::open_with_flags(immutable(path), flags)?
            }
            Err(e) => return Err(e.into()),
        };
        Recording::from_connection(db)
    }

    /// Opens the recording at a place, as it is now. Of one in memory, this is a copy: there is no log, so that a reader would
    /// lock out the recorder.
    ///
    /// # Errors
    /// As for [`Recording::open`].
    pub fn at(place: &Place) -> Checked<Recording> {
        match place {
            Place::File(path) => Recording::open(path),
            Place::Memory(_) => Recording::from_connection(copy_of(place)?),
        }
    }

    fn from_connection(db: Connection) -> Checked<Recording> {
        db.execute_batch(
            "PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON; PRAGMA query_only = ON",
        )?;
        db.set_limit(Limit::SQLITE_LIMIT_LENGTH, MAX_VALUE)?;
        // One state of the file for everything that follows: a memprof that records thins moments.
        db.execute_batch("BEGIN")?;
        schema::check(&db)?;
        Ok(Recording { db })
    }

    /// Every moment, in the order in which they were recorded.
    ///
    /// # Errors
    /// The file cannot be read or is damaged.
    pub fn moments(&self) -> Checked<Vec<MomentInfo>> {
        self.select("ORDER BY id", [])
    }

    /// The totals of the moments in a span of time, given in ms since 1970, in the order in which they were recorded. Of more
    /// than `most` moments, only those with the highest and the lowest total of each of `most` / 2 groups.
    ///
    /// # Errors
    /// The file cannot be read or is damaged.
    pub fn totals(&self, [since, until]: [u64; 2], most: usize) -> Checked<Vec<Totals>> {
        let ns = |ms: u64| {
            i64::try_from(ms)
                .unwrap_or(i64::MAX)
                .saturating_mul(1_000_000)
        };
        let mut rows = self.db.prepare_cached(
            "SELECT unix_ns, anon, shmem, cache, file, swap, hugetlb, run, lost FROM moment WHERE unix_ns BETWEEN ?1 AND ?2 ORDER BY id",
        )?;
        let rows = rows.query_map([ns(since), ns(until)], |row| {
            let figure = |at| row.get::<_, i64>(at).map(i64::cast_unsigned);
            let since = Duration::from_nanos(row.get::<_, i64>(0)?.max(0).cast_unsigned());
            Ok(Totals {
                run: row.get(7)?,
                taken: UNIX_EPOCH + since,
                usage: Usage {
                    anon: figure(1)?,
                    shmem: figure(2)?,
                    cache: figure(3)?,
                    file: figure(4)?,
                    swap: figure(5)?,
                    hugetlb: figure(6)?,
                },
                lost: figure(8)?,
            })
        })?;
        let all: Vec<Totals> = rows.collect::<Result<_, _>>()?;
        if all.len() <= most {
            return Ok(all);
        }
        let size = all.len().div_ceil((most / 2).max(1));
        let extremes = all.chunks(size).flat_map(|group| {
            let by_total = |(_, totals): &(usize, &Totals)| totals.usage.value();
            let ends = [
                group.iter().enumerate().min_by_key(by_total),
                group.iter().enumerate().max_by_key(by_total),
            ];
            let mut ends: Vec<usize> = ends.into_iter().flatten().map(|(at, _)| at).collect();
            ends.sort_unstable();
            ends.dedup();
            ends.into_iter().map(|at| group[at])
        });
        Ok(extremes.collect())
    }

    pub(crate) fn select(
        &self,
        condition: &str,
        values: impl rusqlite::Params,
    ) -> Checked<Vec<MomentInfo>> {
        let sql = format!("SELECT id, run, unix_ns, elapsed_ms, total FROM moment {condition}");
        let mut rows = self.db.prepare_cached(&sql)?;
        let rows = rows.query_map(values, |row| {
            let since = |number: i64| number.max(0).cast_unsigned();
            Ok(MomentInfo {
                id: row.get(0)?,
                run: row.get(1)?,
                taken: UNIX_EPOCH + Duration::from_nanos(since(row.get(2)?)),
                elapsed: Duration::from_millis(since(row.get(3)?)),
                total: row.get::<_, i64>(4)?.cast_unsigned(),
            })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// The state at a moment, by its id: the report that was recorded.
    ///
    /// # Errors
    /// The file cannot be read or is damaged.
    pub fn state(&self, moment: i64) -> Checked<Saved> {
        checked(&Reader::new(&self.db, moment)?.report_and_owners()?.0)
    }
}

/// A copy of a recording in memory.
fn copy_of(place: &Place) -> Checked<Connection> {
    let from = place.open(OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    let is_empty = from.query_row("SELECT count(*) = 0 FROM sqlite_schema", [], |row| {
        row.get(0)
    })?;
    if is_empty {
        // The recorder has ended, and the database with it.
        return Err(RecordingError::Ended);
    }
    let mut copy = Connection::open_in_memory()?;
    let copied = Backup::new(&from, &mut copy)?.step(-1)?;
    match copied {
        StepResult::Done => Ok(copy),
        _ => Err(RecordingError::InUse),
    }
}

/// A report as the reader of saved profiles, which checks it, reads it.
pub(crate) fn checked(report: &Report) -> Checked<Saved> {
    let mut bytes = Vec::new();
    saved::write(report, layout_of, &mut bytes)?;
    let saved = saved::read(&bytes[..], saved::LARGEST);
    saved.or_else(|e| damaged(e.to_string()))
}

fn layout_of(module: &Module) -> Option<Cow<'_, CodeLayout>> {
    module.layout.as_ref().map(Cow::Borrowed)
}

fn has_log(path: &Path) -> bool {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    std::fs::metadata(log).is_ok_and(|log| log.len() > 0)
}

/// The address of a file that nobody changes.
fn immutable(path: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    let mut address = String::from("file:");
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'_' | b'-' => {
                address.push(*byte as char);
            }
            other => address.push_str(&format!("%{other:02x}")),
        }
    }
    address + "?immutable=1"
}
