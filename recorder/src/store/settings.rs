//! Settings of a store: how much it keeps, and the sizes of its parts.

use std::time::Duration;

/// Settings of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How many messages to keep, with their chunks and connections.
    pub messages: Keep,
    /// How many lines of the log to keep.
    pub logs: Keep,
    /// Keep the captured bytes beside the plain text, which doubles the size.
    pub raw: bool,
    /// Index the words of the log. Without the index a search reads every line.
    pub search: bool,
    /// Maximum number of entries that wait to be written.
    pub queue_entries: usize,
    /// Maximum size of the entries that wait to be written, in bytes.
    pub queue_bytes: usize,
    /// Time after which a list stops to search, and says so.
    pub search_time: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            messages: Keep::default(),
            logs: Keep::default(),
            raw: true,
            search: true,
            queue_entries: 50_000,
            queue_bytes: 32 << 20,
            search_time: Duration::from_secs(2),
        }
    }
}

/// How much to keep: the oldest are deleted beyond any of these limits.
///
/// Whole files are deleted, each of at most 1/16 of the limit, 64 MiB, or a day. Up to one file more than `rows` and `age` say is kept,
/// and up to one file less than `bytes`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keep {
    /// Number of messages or lines.
    pub rows: Option<u64>,
    /// Size on disk, in bytes.
    pub bytes: Option<u64>,
    /// Time since they were written.
    pub age: Option<Duration>,
}

impl Keep {
    /// Files per limit.
    const PARTS: u32 = 16;
    /// Minimum number of rows of a file.
    const MIN_ROWS: u64 = 64;
    /// Size at which a file is full, in bytes, and the least such size.
    const BYTES: (u64, u64) = (256 << 10, 64 << 20);
    /// Time after which a file is full.
    const AGE: Duration = Duration::from_secs(24 * 60 * 60);

    /// Number of rows of a full file.
    pub(super) fn segment_rows(&self) -> u64 {
        let part = |rows: u64| (rows / u64::from(Self::PARTS)).max(Self::MIN_ROWS);
        self.rows.map_or(u64::MAX, part)
    }

    /// Size of a full file, in bytes.
    pub(super) fn segment_bytes(&self) -> u64 {
        let part =
            |bytes: u64| (bytes / u64::from(Self::PARTS)).clamp(Self::BYTES.0, Self::BYTES.1);
        self.bytes.map_or(Self::BYTES.1, part)
    }

    /// Time after which a file is full.
    pub(super) fn segment_age(&self) -> Duration {
        self.age
            .map_or(Self::AGE, |age| (age / Self::PARTS).min(Self::AGE))
    }
}
