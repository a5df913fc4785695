//! Saved profiles, the format `profile` (`.memprof.json`): its schema, its reader and its writer. Types of the model whose
//! saved form is their own derive it.
//!
//! The files may come from anywhere. Whatever they contain, reading takes bounded memory: a few times the size of the file,
//! which is limited. The result satisfies the invariants that the rest of memprof relies on: indices are in range, stacks
//! are no deeper than memprof's own, rows add up to the total, and no sum of figures overflows. Unknown fields are ignored,
//! so a later memprof may add fields without a new version.

mod cgroup;
mod check;
mod figures;
mod forms;
mod frame;
mod parts;
pub mod schema;
mod write;

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path as FilePath;

use serde::Deserialize;

use crate::Profile;
use crate::symbol::Symbols;

pub use forms::unix_ms;
pub(crate) use forms::{bounded, hex_digits, nanos, slice};
pub use write::write;

/// Version of the format; the only one that [`read`] accepts.
pub const VERSION: u32 = 3;

/// The value of the field `format`.
const FORMAT: &str = "memprof profile";

/// Maximum size of a saved profile, in bytes. Reading takes up to eight times as much memory.
pub const LARGEST: u64 = 256 << 20;

/// A profile that was read from a file, with the symbols of its frames.
#[derive(Debug)]
pub struct Saved {
    /// The profile; its modules have no open files.
    pub profile: Profile,
    /// The symbols, with source lines and inlined functions if they were saved.
    pub symbols: Symbols,
    /// The number of the report at the time of saving.
    pub sequence: u64,
}

/// Why a saved profile cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SavedError {
    /// The file cannot be read.
    #[error("{0}; check its path and permissions")]
    Unreadable(io::Error),
    /// The file is larger than the limit, in bytes.
    #[error("it is larger than {} MiB, the limit of a saved profile", .0 >> 20)]
    TooLarge(u64),
    /// The file ends early.
    #[error(
        "it is incomplete ({0}): it was truncated while it was written or copied; save the profile again"
    )]
    Truncated(serde_json::Error),
    /// The file is not JSON.
    #[error(
        "it is not a saved profile, which is JSON ({0}); save one with --output FILE.memprof.json or \
         /v2/export/profile"
    )]
    NotJson(serde_json::Error),
    /// The file has another version of the format.
    #[error("{0}")]
    Version(String),
    /// The file is JSON, but not a profile or a damaged one.
    #[error(
        "it is not a valid saved profile ({0}); save one with --output FILE.memprof.json or /v2/export/profile"
    )]
    Invalid(String),
}

/// Opens a saved profile.
///
/// # Errors
/// If the file cannot be read, or is not a saved profile of this version.
pub fn open(path: &FilePath) -> Result<Saved, SavedError> {
    let file = File::open(path).map_err(SavedError::Unreadable)?;
    let size = file.metadata().map_err(SavedError::Unreadable)?.len();
    if size > LARGEST {
        return Err(SavedError::TooLarge(LARGEST));
    }
    read(file, LARGEST)
}

/// Reads a saved profile of at most `limit` bytes.
///
/// # Errors
/// See [`open`].
///
/// # Examples
///
/// ```
/// use memprof_profile::saved::{self, SavedError};
///
/// let error = saved::read(&b"{\"format\":\"memprof profile\""[..], 1 << 20).unwrap_err();
/// assert!(matches!(error, SavedError::Truncated(_)));
/// ```
pub fn read(input: impl Read, limit: u64) -> Result<Saved, SavedError> {
    // Reads one more byte, to distinguish a file that is too large from one of exactly the limit.
    let mut input = input.take(limit.saturating_add(1));
    let parsed = {
        let buffered = BufReader::with_capacity(64 << 10, &mut input);
        let mut json = serde_json::Deserializer::from_reader(buffered);
        schema::Whole::deserialize(&mut json).and_then(|whole| json.end().map(|()| whole))
    };
    match parsed {
        _ if input.limit() == 0 => Err(SavedError::TooLarge(limit)),
        Ok(whole) => check::build(whole).map_err(SavedError::Invalid),
        Err(e) => Err(explained(e)),
    }
}

fn explained(e: serde_json::Error) -> SavedError {
    use serde_json::error::Category;
    match e.classify() {
        Category::Io => SavedError::Unreadable(e.into()),
        Category::Eof => SavedError::Truncated(e),
        Category::Syntax => SavedError::NotJson(e),
        Category::Data => match e.to_string().split_once(schema::VERSION_MARK) {
            Some((message, _)) => SavedError::Version(message.to_owned()),
            None => SavedError::Invalid(e.to_string()),
        },
    }
}

impl From<Saved> for crate::Report {
    fn from(saved: Saved) -> crate::Report {
        crate::Report {
            profile: std::sync::Arc::new(saved.profile),
            symbols: std::sync::Arc::new(saved.symbols),
            sequence: saved.sequence,
        }
    }
}
