//! The tables and views of a recording.

use rusqlite::Connection;

use crate::RecordingError;

/// Identifies a recording among SQLite files (`PRAGMA application_id`): `MPRK`.
pub(crate) const APPLICATION: i32 = 0x4d50_524b;
/// Version of the tables (`PRAGMA user_version`); the only one that this memprof reads and appends to.
pub(crate) const VERSION: i32 = 1;

/// Bytes of a page of the file. A report changes a few rows of each table, and whole pages are written: small ones cost least.
pub(crate) const PAGE: i64 = 1024;

/// A table whose rows are written when they change. Its primary key is the moment and the key columns: the rows of a report
/// are beside one another, at the end of the table.
#[derive(Debug)]
pub(crate) struct Table {
    pub name: &'static str,
    pub keys: &'static [&'static str],
    /// The first column is NULL if the thing no longer exists.
    pub values: &'static [&'static str],
    /// The number of leading columns of `values` whose change makes a row.
    pub compared: usize,
}

impl Table {
    const fn new(
        name: &'static str,
        keys: &'static [&'static str],
        values: &'static [&'static str],
    ) -> Table {
        Table {
            name,
            keys,
            values,
            compared: values.len(),
        }
    }
}

/// Figures by stack. The standard error is the one at the time when the figure changed; the exact parts of all errors are
/// in [`ERROR_PART`].
pub(crate) const VALUE: Table = Table {
    compared: 1,
    ..Table::new("value", &["series"], &["bytes", "error"])
};
pub(crate) const MAPPING_STATE: Table = Table::new(
    "mapping_state",
    &["mapping"],
    &[
        "end",
        "anon",
        "shmem",
        "cache",
        "file",
        "swap",
        "hugetlb",
        "unattributed_anon",
        "unattributed_shmem",
        "unattributed_cache",
        "unattributed_file",
        "unattributed_swap",
        "unattributed_hugetlb",
        "huge",
    ],
);
pub(crate) const PROCESS_STATE: Table = Table::new(
    "process_state",
    &["process"],
    &[
        "freeze",
        "anonymous_before",
        "rss_anon_before",
        "rss_shmem_before",
        "rss_file_before",
        "swap_before",
        "page_tables_before",
        "anonymous_after",
        "rss_anon_after",
        "rss_shmem_after",
        "rss_file_after",
        "swap_after",
        "page_tables_after",
        "peak_rss",
        "high_water",
        "peak_processes",
        "peak_after_ms",
        "peak_is_shown",
    ],
);
pub(crate) const FILE_STATE: Table = Table::new("file_state", &["file"], &["lost", "seen"]);
pub(crate) const ERROR_PART: Table = Table::new(
    "error_part",
    &["process", "error", "part"],
    &["stack", "share", "variance", "single"],
);
pub(crate) const FACT: Table = Table::new("fact", &["name"], &["value"]);

pub(crate) const TABLES: [&Table; 6] = [
    &VALUE,
    &MAPPING_STATE,
    &PROCESS_STATE,
    &FILE_STATE,
    &ERROR_PART,
    &FACT,
];

/// All tables and indices. The text is compared with that of a file before anything is read from it.
const OBJECTS: &[(&str, &str)] = &[
    (
        "recording",
        "CREATE TABLE recording (name TEXT PRIMARY KEY, value) WITHOUT ROWID",
    ),
    (
        "run",
        "CREATE TABLE run (id INTEGER PRIMARY KEY, began_unix_ms INTEGER, memprof TEXT, host TEXT, boot TEXT, target TEXT)",
    ),
    (
        "moment",
        "CREATE TABLE moment (id INTEGER PRIMARY KEY, run INTEGER, report INTEGER, unix_ns INTEGER, monotonic_ns INTEGER, \
         elapsed_ms INTEGER, followed_ms INTEGER, tier INTEGER, \"full\" INTEGER, total INTEGER, anon INTEGER, shmem INTEGER, \
         cache INTEGER, file INTEGER, swap INTEGER, hugetlb INTEGER, kernel_before INTEGER, kernel_after INTEGER, \
         verdict TEXT, lost INTEGER, faults INTEGER, unwalked INTEGER)",
    ),
    (
        "moment_full",
        "CREATE INDEX moment_full ON moment (id) WHERE \"full\" = 1",
    ),
    (
        "process",
        "CREATE TABLE process (id INTEGER PRIMARY KEY, pid INTEGER, comm TEXT, container TEXT)",
    ),
    (
        "module",
        "CREATE TABLE module (id INTEGER PRIMARY KEY, name TEXT, path TEXT, own_executable INTEGER, interpreted TEXT, \
         jit TEXT, layout TEXT, run INTEGER, number INTEGER)",
    ),
    (
        "function",
        "CREATE TABLE function (id INTEGER PRIMARY KEY, name TEXT, language TEXT, first_line INTEGER, file TEXT, \
         named INTEGER)",
    ),
    (
        "frame",
        "CREATE TABLE frame (id INTEGER PRIMARY KEY, module INTEGER, offset INTEGER, function INTEGER, \
         offset_in_function INTEGER, line INTEGER, inlined TEXT, no_name TEXT)",
    ),
    (
        "stack",
        "CREATE TABLE stack (id INTEGER PRIMARY KEY, outcome TEXT, mapping TEXT, reason TEXT, frames INTEGER, \
         number INTEGER)",
    ),
    (
        "stack_frame",
        "CREATE TABLE stack_frame (stack INTEGER, depth INTEGER, frame INTEGER, PRIMARY KEY (stack, depth)) WITHOUT ROWID",
    ),
    (
        "mapping",
        "CREATE TABLE mapping (id INTEGER PRIMARY KEY, pid INTEGER, start INTEGER, permissions TEXT, name TEXT, \
         category TEXT)",
    ),
    (
        "file",
        "CREATE TABLE file (id INTEGER PRIMARY KEY, major INTEGER, minor INTEGER, inode INTEGER, path TEXT, \
         deleted INTEGER, source TEXT)",
    ),
    (
        "kind",
        "CREATE TABLE kind (id INTEGER PRIMARY KEY, name TEXT UNIQUE, unit TEXT)",
    ),
    (
        "series",
        "CREATE TABLE series (id INTEGER PRIMARY KEY, process INTEGER, file INTEGER, stack INTEGER, kind INTEGER, \
         UNIQUE (process, file, stack, kind))",
    ),
    (
        "item",
        "CREATE TABLE item (id INTEGER PRIMARY KEY, json TEXT UNIQUE)",
    ),
    (
        "name",
        "CREATE TABLE name (id INTEGER PRIMARY KEY, name TEXT UNIQUE)",
    ),
    (
        "list",
        "CREATE TABLE list (moment INTEGER, name INTEGER, edits TEXT, PRIMARY KEY (moment, name)) WITHOUT ROWID",
    ),
];

/// For people who ask in SQL; memprof itself reads none of them. What a view selects for a moment goes through JSON, so that SQLite
/// computes it for the moments that the query selects, and for no other one: it would not look into a view that groups.
const VIEWS: &str = "
CREATE VIEW frame_name AS
SELECT f.id AS frame, coalesce(u.name, '[' || f.no_name || ']', '[unknown]') AS function, u.language, u.file, f.line,
       m.name AS module
FROM frame f LEFT JOIN function u ON u.id = f.function LEFT JOIN module m ON m.id = f.module;
CREATE VIEW stack_name AS
SELECT s.id AS stack,
       coalesce('[' || s.reason || '] ' || s.mapping,
                (SELECT group_concat(function, ';') FROM
                    (SELECT n.function FROM stack_frame t JOIN frame_name n ON n.frame = t.frame
                     WHERE t.stack = s.id ORDER BY t.depth DESC))) AS names,
       (SELECT n.function FROM stack_frame t JOIN frame_name n ON n.frame = t.frame
        WHERE t.stack = s.id AND t.depth = 0) AS function
FROM stack s;
CREATE VIEW timeline AS
SELECT id AS moment, run, unix_ns / 1e9 AS unix, datetime(unix_ns / 1000000000, 'unixepoch') AS utc, total, anon, shmem,
       cache, swap, kernel_before, kernel_after, verdict
FROM moment;
CREATE VIEW state_at AS
SELECT m.id AS moment, s.process, s.stack, k.name AS kind, j.value AS bytes
FROM moment m CROSS JOIN json_each(
         (SELECT json_group_object(series, bytes) FROM
             (SELECT v.series, v.bytes, max(v.moment) FROM value v
              WHERE v.moment BETWEEN
                  (SELECT f.id FROM moment f WHERE f.\"full\" = 1 AND f.id <= m.id ORDER BY f.id DESC LIMIT 1) AND m.id
              GROUP BY v.series))) j
     JOIN series s ON s.id = CAST(j.key AS INTEGER) JOIN kind k ON k.id = s.kind
WHERE s.file = 0;
CREATE VIEW function_at AS
SELECT m.id AS moment, json_extract(j.value, '$[0]') AS kind, json_extract(j.value, '$[1]') AS function,
       json_extract(j.value, '$[2]') AS bytes
FROM moment m CROSS JOIN json_each(
         (SELECT json_group_array(json_array(kind, function, bytes)) FROM
             (SELECT a.kind, n.function, sum(a.bytes) AS bytes FROM state_at a JOIN stack_name n ON n.stack = a.stack
              WHERE a.moment = m.id AND a.process = 0 AND a.bytes > 0
              GROUP BY a.kind, n.function))) j;
CREATE VIEW function_series AS
SELECT n.function, k.name AS kind, s.stack, v.moment, m.unix_ns / 1e9 AS unix, v.bytes
FROM series s JOIN kind k ON k.id = s.kind JOIN stack_name n ON n.stack = s.stack
JOIN value v ON v.series = s.id JOIN moment m ON m.id = v.moment
WHERE s.process = 0 AND s.file = 0;
";

/// The name of a table of figures, and the statement that creates it.
fn create(table: &Table) -> (String, String) {
    let Table {
        name, keys, values, ..
    } = table;
    let (values, key) = (values.join(", "), keys.join(", "));
    // Without a type, SQLite would not look a number up in the primary key.
    let keys = keys.join(" INTEGER, ");
    let sql = format!(
        "CREATE TABLE {name} (moment INTEGER, {keys} INTEGER, {values}, PRIMARY KEY (moment, {key})) WITHOUT ROWID"
    );
    ((*name).to_owned(), sql)
}

/// Every table and index with its statement.
fn objects() -> impl Iterator<Item = (String, String)> {
    let fixed = OBJECTS
        .iter()
        .map(|(name, sql)| ((*name).to_owned(), (*sql).to_owned()));
    fixed.chain(TABLES.into_iter().map(create))
}

/// Creates the tables and views of a new recording, in one transaction.
pub(crate) fn make(db: &Connection) -> rusqlite::Result<()> {
    db.pragma_update(None, "page_size", PAGE)?;
    db.execute_batch("BEGIN IMMEDIATE")?;
    for (_, sql) in objects() {
        db.execute_batch(&sql)?;
    }
    db.execute_batch(VIEWS)?;
    db.pragma_update(None, "application_id", APPLICATION)?;
    db.pragma_update(None, "user_version", VERSION)?;
    db.execute_batch("COMMIT")
}

/// Checks that a database is a recording, and that its tables are those of [`make`]: triggers, generated columns and
/// views in their place would run code of the file's author.
///
/// # Errors
/// The database is something else.
pub(crate) fn check(db: &Connection) -> Result<(), RecordingError> {
    let number = |pragma| db.pragma_query_value(None, pragma, |row| row.get::<_, i32>(0));
    if number("application_id")? != APPLICATION {
        return Err(RecordingError::Foreign);
    }
    match number("user_version")? {
        VERSION => {}
        other => return Err(RecordingError::Version(other)),
    }
    let mut there = db.prepare("SELECT name, sql FROM sqlite_schema WHERE type IN ('table', 'index', 'trigger') AND sql IS NOT NULL")?;
    let rows = there.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let mut there: Vec<(String, String)> = rows.collect::<Result<_, _>>()?;
    let mut ours: Vec<_> = objects().collect();
    there.sort();
    ours.sort();
    // Statistics of `ANALYZE` and the like, which somebody may have added, change no answer.
    there.retain(|(name, _)| !name.starts_with("sqlite_"));
    match there == ours {
        true => Ok(()),
        false => Err(RecordingError::Damaged(
            "its tables are not those of a recording".to_owned(),
        )),
    }
}
