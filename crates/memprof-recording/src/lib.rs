//! Recordings: the reports of hours and weeks in one SQLite file.
//!
//! [`Recorder`] appends reports, and [`Recording`] reads any moment back as the report that it was. Figures are written only
//! when they change. At a full moment all of them are written, so that the state at a moment is found from the full moment
//! before it in bounded work. Old moments are thinned: the rows of a moment that goes move on to the next moment that stays,
//! unless that one has newer ones.
//!
//! The file has plain tables, with ids that last for the file, and views for people who ask in SQL.

mod at;
mod cell;
mod facts;
mod figures;
mod growth;
mod ids;
mod lists;
#[cfg(test)]
#[path = "../../../tests/common/random.rs"]
mod random;
mod read;
mod recorder;
mod report;
mod schema;
mod state;
mod symbols;
#[cfg(test)]
#[path = "../../memprof-profile/src/testing.rs"]
mod testing;
#[cfg(test)]
mod tests;
mod thin;
mod trend;

use std::io;

pub use at::{At, cut_off};
pub use growth::{Grown, Growth};
pub use read::{MomentInfo, Recording, Totals, is_recording};
pub use recorder::{Options, Place, Recorder, RunInfo};
pub use state::Owner;
pub use trend::{Shape, Trend};

/// Why a recording cannot be read or continued.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// The file cannot be opened.
    #[error("{0}; check its path and permissions")]
    Unreadable(#[from] io::Error),
    /// The file is something else.
    #[error("it is not a recording of memprof; name another file")]
    Foreign,
    /// The file has another version of the tables.
    #[error(
        "it is a recording of version {0}, and this memprof reads version {version}: use the memprof that made it",
        version = schema::VERSION
    )]
    Version(i32),
    /// It was in memory, and nobody records to it any more.
    #[error("it was in memory and has ended; name a file with --record")]
    Ended,
    /// Another memprof records to the file.
    #[error("another memprof records to it at present; name another file")]
    InUse,
    /// The file contains something that memprof never writes.
    #[error("it is damaged: {0}")]
    Damaged(String),
    /// SQLite's error: the disk is full, for example.
    #[error("{0}")]
    Sqlite(#[from] rusqlite::Error),
    /// A single moment needs more than the limit, in bytes.
    #[error("a single moment takes more than {} KiB, the limit of the recording; set a larger one with --record-size", .0 >> 10)]
    TooSmall(u64),
    /// The recording has no such moment.
    #[error("{0}")]
    NoMoment(String),
}
