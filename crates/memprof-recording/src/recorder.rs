//! Appends reports to a recording.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::fcntl::{Flock, FlockArg};
use rusqlite::{Connection, OpenFlags, OptionalExtension, params};
use rustc_hash::FxHashMap;

use crate::RecordingError;
use crate::figures::{self, Figures};
use crate::ids::AllIds;
use crate::lists::{self, Lists};
use crate::schema::{self, ERROR_PART, FACT, FILE_STATE, MAPPING_STATE, PROCESS_STATE, VALUE};
use crate::symbols::SymbolStore;
use memprof_profile::symbol::Symbols;
use memprof_profile::{CodeLayout, Frame, Kind, Module, Profile, Report, Stack, saved};

/// Permissions of a recording: it contains addresses, which would tell an attacker where code is mapped.
const PRIVATE: u32 = 0o600;
/// A full moment comes after this many rows, or after twice the rows of a full moment if that is more: reading a moment takes
/// bounded work, and full moments take at most a third of the file.
const ROWS_TO_FULL: usize = 2000;
/// Size of the write-ahead log before SQLite copies it into the file, in bytes.
const LOG: i64 = 1 << 20;
/// How long to wait for another program that writes to the file. Then the report is left out.
const BUSY: Duration = Duration::from_millis(500);

/// Looks up the code layout of a file, which a saved profile contains.
pub(crate) type Layout = fn(&Module) -> Option<std::borrow::Cow<'_, CodeLayout>>;

/// The bounds of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Maximum size of the file, in bytes. The write-ahead log beside it takes up to some MiB more.
    pub size: u64,
    /// Maximum age of moments.
    pub keep: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            size: 256 << 20,
            keep: Duration::from_secs(30 * 86_400),
        }
    }
}

/// Where a recording is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In this file.
    File(PathBuf),
    /// In the memory of this process, while its recorder exists, under a name.
    Memory(String),
}

impl Place {
    /// A place in memory that nobody uses yet.
    fn in_memory() -> Place {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // SQLite shares databases in memory whose names begin like this.
        Place::Memory(format!("/{}", NEXT.fetch_add(1, Ordering::Relaxed)))
    }

    /// What SQLite opens, and flags for it.
    pub(crate) fn open(&self, flags: OpenFlags) -> rusqlite::Result<Connection> {
        match self {
            Place::File(path) => Connection::open_with_flags(path, flags),
            Place::Memory(name) => {
                let uri = format!("file:{name}?vfs=memdb");
                Connection::open_with_flags(uri, flags | OpenFlags::SQLITE_OPEN_URI)
            }
        }
    }
}

/// What a run of memprof records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunInfo {
    /// The version of memprof.
    pub memprof: String,
    /// The name of the machine.
    pub host: String,
    /// The id of its boot, within which monotonic times are comparable.
    pub boot: String,
    /// What is followed, as on the command line.
    pub target: String,
}

/// The last recorded moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Last {
    pub id: i64,
    pub run: i64,
    pub report: u64,
    pub unix_ns: i64,
    pub monotonic_ns: i64,
    pub elapsed_ms: i64,
}

/// The modules of a report, and their ids.
type Modules = (Arc<[Arc<Module>]>, Vec<i64>);

/// Ids of this run's objects, which are valid as long as the modules are the same.
#[derive(Default)]
pub(crate) struct RunCache {
    pub modules: Option<Modules>,
    pub frames: FxHashMap<Frame, i64>,
    /// The content of each stack of the last report, by the stack's address. The stack is kept, so that no other one gets
    /// this address.
    pub stacks: FxHashMap<usize, (Arc<Stack>, usize)>,
    /// The last report whose mappings were all different, and their ids.
    pub mappings: Option<(Arc<Profile>, Vec<i64>)>,
    /// The symbols of the last report, and the number of frames that had ids by then.
    pub symbols: Option<(Arc<Symbols>, usize)>,
}

/// The state of the tables at the last moment.
pub(crate) struct State {
    pub values: Figures,
    pub mappings: Figures,
    pub processes: Figures,
    pub files: Figures,
    pub errors: Figures,
    pub facts: Figures,
    pub lists: Lists,
}

impl State {
    fn new() -> State {
        State {
            values: Figures::new(&VALUE),
            mappings: Figures::new(&MAPPING_STATE),
            processes: Figures::new(&PROCESS_STATE),
            files: Figures::new(&FILE_STATE),
            errors: Figures::new(&ERROR_PART),
            facts: Figures::new(&FACT),
            lists: Lists::default(),
        }
    }

    fn figures(&mut self) -> [&mut Figures; 6] {
        [
            &mut self.values,
            &mut self.mappings,
            &mut self.processes,
            &mut self.files,
            &mut self.errors,
            &mut self.facts,
        ]
    }

    /// The rows of a full moment.
    fn len(&mut self) -> usize {
        let rows: usize = self
            .figures()
            .map(|figures| figures.len())
            .into_iter()
            .sum();
        rows + self.lists.len() / 8
    }
}

/// A recording that is being written.
pub struct Recorder {
    pub(crate) db: Connection,
    pub(crate) options: Options,
    pub(crate) run: i64,
    pub(crate) last: Last,
    pub(crate) ids: AllIds,
    pub(crate) symbols: SymbolStore,
    pub(crate) cache: RunCache,
    pub(crate) state: State,
    layout: Layout,
    rows_since_full: usize,
    /// Makes the next moment a full one.
    #[cfg(test)]
    pub(crate) full_next: bool,
    /// The number of moments that this run has recorded.
    recorded: u64,
    /// Elapsed time of the last thinning.
    pub(crate) thinned_ms: i64,
    /// Elapsed time of the last removal of ids that nothing refers to.
    pub(crate) swept_ms: i64,
    place: Place,
    /// Keeps other recorders of a file away. Declared last, so that it is closed after the database: closing any descriptor of the
    /// file would release SQLite's locks.
    _lock: Option<Flock<File>>,
}

impl Recorder {
    /// Opens a recording to append to it, and creates it if there is no file or an empty one. `layout` looks up the code
    /// layout of a file.
    ///
    /// # Errors
    /// The file cannot be created or opened, or is something else than a recording.
    pub fn open(
        path: &Path,
        options: Options,
        run: &RunInfo,
        layout: Layout,
    ) -> Result<Recorder, RecordingError> {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(PRIVATE)
            .open(path)?;
        if !file.metadata()?.is_file() {
            return Err(RecordingError::Foreign);
        }
        let mut magic = [0; crate::read::MAGIC.len()];
        let read = file.read(&mut magic)?;
        if read > 0 && magic != *crate::read::MAGIC {
            return Err(RecordingError::Foreign);
        }
        let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock)
            .map_err(|_| RecordingError::InUse)?;
        let place = Place::File(path.to_owned());
        Recorder::continue_at(place, read == 0, Some(lock), (options, run, layout))
    }

    /// A recording in memory. `options` bound it as they bound a file.
    ///
    /// # Errors
    /// There is no memory.
    pub fn in_memory(
        options: Options,
        run: &RunInfo,
        layout: Layout,
    ) -> Result<Recorder, RecordingError> {
        Recorder::continue_at(Place::in_memory(), true, None, (options, run, layout))
    }

    fn continue_at(
        place: Place,
        is_new: bool,
        lock: Option<Flock<File>>,
        (options, run, layout): (Options, &RunInfo, Layout),
    ) -> Result<Recorder, RecordingError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let db = match place {
            Place::File(_) => place.open(flags)?,
            Place::Memory(_) => place.open(flags | OpenFlags::SQLITE_OPEN_CREATE)?,
        };
        prepare(&db)?;
        if is_new {
            schema::make(&db)?;
        }
        schema::check(&db)?;
        db.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
        let mut recorder = Recorder {
            ids: AllIds::load(&db)?,
            symbols: SymbolStore::load(&db)?,
            last: last(&db)?.unwrap_or_default(),
            db,
            options,
            run: 0,
            cache: RunCache::default(),
            state: State::new(),
            layout,
            rows_since_full: usize::MAX,
            #[cfg(test)]
            full_next: false,
            recorded: 0,
            thinned_ms: 0,
            swept_ms: 0,
            place,
            _lock: lock,
        };
        recorder.continue_state()?;
        recorder.begin_run(run)?;
        Ok(recorder)
    }

    /// Reads the state at the last moment: what no longer exists gets a row that says so.
    fn continue_state(&mut self) -> Result<(), RecordingError> {
        self.thinned_ms = self.last.elapsed_ms;
        self.swept_ms = self.last.elapsed_ms;
        if self.last.id == 0 {
            return Ok(());
        }
        let full = full_before(&self.db, self.last.id)?;
        for figures in self.state.figures() {
            let state = figures::state(&self.db, figures.table(), full, self.last.id)?;
            figures.continue_from(state);
        }
        let lists = lists::state(&self.db, full, self.last.id)?;
        self.state.lists.continue_from(lists);
        Ok(())
    }

    fn begin_run(&mut self, run: &RunInfo) -> rusqlite::Result<()> {
        let now = saved::unix_ms(SystemTime::now()).cast_signed();
        let mut insert = self.db.prepare(
            "INSERT INTO run (began_unix_ms, memprof, host, boot, target) VALUES (?1, ?2, ?3, ?4, ?5)",
        )?;
        let RunInfo {
            memprof,
            host,
            boot,
            target,
        } = run;
        self.run = insert.insert(params![now, memprof, host, boot, target])?;
        Ok(())
    }

    /// Where the recording is.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// The number of moments that this run has recorded.
    pub fn recorded(&self) -> u64 {
        self.recorded
    }

    /// Records a report, in one transaction, unless it was the last one already. Returns whether it was recorded: another
    /// program may be writing to the file at this time.
    ///
    /// # Errors
    /// The file cannot be written. The recorder is then of no further use, and the file has all moments before.
    pub fn record(&mut self, report: &Report) -> Result<bool, RecordingError> {
        if self.last.run == self.run && self.last.report == report.sequence {
            return Ok(false);
        }
        match self.run_sql("BEGIN IMMEDIATE") {
            Err(e) if is_busy(&e) => return Ok(false),
            begun => begun?,
        }
        let moment = self.next(report);
        let written = self.write(report, moment);
        if let Err(e) = written.and_then(|()| self.run_sql("COMMIT")) {
            let _ = self.db.execute_batch("ROLLBACK");
            return Err(e.into());
        }
        self.last = moment;
        self.recorded += 1;
        self.maintain()?;
        Ok(true)
    }

    /// Runs a statement. Each report needs it: it is compiled once.
    fn run_sql(&self, sql: &str) -> rusqlite::Result<()> {
        self.db.prepare_cached(sql)?.execute([]).map(drop)
    }

    /// The moment of a report. Elapsed time never goes back, however the clock is set.
    fn next(&self, report: &Report) -> Last {
        let profile = &report.profile;
        let since = profile.taken.duration_since(UNIX_EPOCH).unwrap_or_default();
        let unix_ns = i64::try_from(since.as_nanos()).unwrap_or(i64::MAX);
        let monotonic_ns = profile.taken_ns.cast_signed();
        let last = &self.last;
        let passed = match last.run == self.run && monotonic_ns > 0 {
            true => monotonic_ns.saturating_sub(last.monotonic_ns),
            false if last.id == 0 => 0,
            false => unix_ns.saturating_sub(last.unix_ns),
        };
        Last {
            id: last.id + 1,
            run: self.run,
            report: report.sequence,
            unix_ns,
            monotonic_ns,
            elapsed_ms: last.elapsed_ms.saturating_add(passed.max(0) / 1_000_000),
        }
    }

    fn write(&mut self, report: &Report, moment: Last) -> rusqlite::Result<()> {
        for figures in self.state.figures() {
            figures.begin();
        }
        crate::report::collect(self, report)?;
        let full =
            self.rows_since_full >= ROWS_TO_FULL.max(2 * self.state.len()) || self.recorded == 0;
        #[cfg(test)]
        let full = full || self.full_next;
        let mut rows = 0;
        for figures in self.state.figures() {
            rows += figures.write(&self.db, moment.id, full)?;
        }
        rows += self.state.lists.write(&self.db, moment.id, full)?;
        self.rows_since_full = match full {
            true => 0,
            false => self.rows_since_full + rows,
        };
        self.write_moment(&report.profile, moment, full)
    }

    fn write_moment(&self, profile: &Profile, moment: Last, full: bool) -> rusqlite::Result<()> {
        let figure = |kind: Kind| kind.figure(&profile.total).cast_signed();
        let lost = profile.losses.lost_events().cast_signed();
        let verdict = format!("{:?}", profile.agreement().verdict()).to_lowercase();
        let observed = i64::try_from(profile.observed.as_millis()).unwrap_or(i64::MAX);
        let mut insert = self.db.prepare_cached(
            "INSERT INTO moment VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 0, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, \
             ?19, ?20, ?21)",
        )?;
        insert.execute(params![
            moment.id,
            moment.run,
            moment.report.cast_signed(),
            moment.unix_ns,
            moment.monotonic_ns,
            moment.elapsed_ms,
            observed,
            full,
            figure(Kind::All),
            figure(Kind::Anon),
            figure(Kind::Shmem),
            figure(Kind::Cache),
            figure(Kind::File),
            figure(Kind::Swap),
            figure(Kind::Hugetlb),
            profile.kernel_before.resident().cast_signed(),
            profile.kernel_after.resident().cast_signed(),
            verdict,
            lost,
            profile.faults.map(|faults| faults.all.cast_signed()),
            profile.faults.map(|faults| faults.unwalked.cast_signed()),
        ])?;
        Ok(())
    }

    /// The ids of a report's modules. Ids of frames and stacks that depend on them are forgotten if they have changed.
    pub(crate) fn modules(&mut self, profile: &Profile) -> rusqlite::Result<Vec<i64>> {
        let now = &profile.modules;
        if let Some((before, ids)) = &self.cache.modules {
            let same = |(a, b): (&Arc<Module>, &Arc<Module>)| Arc::ptr_eq(a, b);
            let kept = before.len() <= now.len() && before.iter().zip(now.iter()).all(same);
            if kept && before.len() == now.len() {
                return Ok(ids.clone());
            }
            if !kept {
                self.cache.frames.clear();
                self.cache.stacks.clear();
            }
        }
        let layout = self.layout;
        let text = |module: &Module| serde_json::to_string(&*layout(module)?).ok();
        let ids = self.ids.modules(&self.db, now, &text, self.run)?;
        self.cache.modules = Some((Arc::clone(now), ids.clone()));
        Ok(ids)
    }

    /// Ends the recording: copies the write-ahead log into the file, which is then whole without it. Returns the size of the
    /// file in bytes.
    ///
    /// # Errors
    /// The file cannot be written. It can be read nevertheless, together with the log beside it.
    pub fn finish(self) -> Result<u64, RecordingError> {
        // Fails if another program reads the file at present.
        let whole = self
            .db
            .query_row("PRAGMA journal_mode = DELETE", [], |_| Ok(()));
        match whole {
            Err(e) if is_busy(&e) => {}
            whole => whole?,
        }
        self.size().map_err(Into::into)
    }

    /// The size of the file in bytes.
    fn size(&self) -> rusqlite::Result<u64> {
        Ok((self.pragma("page_count")? * self.pragma("page_size")?).cast_unsigned())
    }

    /// A figure of the file. Each report needs some: the statement is compiled once.
    pub(crate) fn pragma(&self, name: &str) -> rusqlite::Result<i64> {
        let mut figure = self.db.prepare_cached(&format!("PRAGMA {name}"))?;
        figure.query_row([], |row| row.get(0))
    }
}

/// Settings of a connection that writes.
fn prepare(db: &Connection) -> rusqlite::Result<()> {
    db.busy_timeout(BUSY)?;
    db.execute_batch(&format!(
        "PRAGMA trusted_schema = OFF; PRAGMA synchronous = NORMAL; PRAGMA temp_store = MEMORY;
         PRAGMA cell_size_check = ON; PRAGMA wal_autocheckpoint = {}; PRAGMA journal_size_limit = {LOG}",
        LOG / schema::PAGE
    ))?;
    db.set_prepared_statement_cache_capacity(64);
    Ok(())
}

fn is_busy(e: &rusqlite::Error) -> bool {
    use rusqlite::ErrorCode::{DatabaseBusy, DatabaseLocked};
    matches!(e.sqlite_error_code(), Some(DatabaseBusy | DatabaseLocked))
}

fn last(db: &Connection) -> rusqlite::Result<Option<Last>> {
    let sql = "SELECT id, run, report, unix_ns, monotonic_ns, elapsed_ms FROM moment ORDER BY id DESC LIMIT 1";
    let last = db.query_row(sql, [], |row| {
        Ok(Last {
            id: row.get(0)?,
            run: row.get(1)?,
            report: row.get::<_, i64>(2)?.cast_unsigned(),
            unix_ns: row.get(3)?,
            monotonic_ns: row.get(4)?,
            elapsed_ms: row.get(5)?,
        })
    });
    last.optional()
}

/// The last full moment up to this one.
pub(crate) fn full_before(db: &Connection, moment: i64) -> Result<i64, RecordingError> {
    let sql = "SELECT id FROM moment WHERE \"full\" = 1 AND id <= ?1 ORDER BY id DESC LIMIT 1";
    let full = db.query_row(sql, [moment], |row| row.get(0)).optional()?;
    full.ok_or_else(|| RecordingError::Damaged("no full moment is before this one".to_owned()))
}
