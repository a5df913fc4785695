//! Why the store cannot be opened, written or read.

use std::io;
use std::path::{Path, PathBuf};

/// Why the store cannot be opened, written or read.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The attempt: a verb.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// SQLite refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Database {
        /// The attempt: a verb.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The reason.
        source: rusqlite::Error,
    },
    /// The file is of a newer version of the recorder.
    #[error(
        "{} was written by a newer tezos-recorder (format {found}, this one reads {known}): \
         use that version, or another directory",
        path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// The version of its format.
        found: i64,
        /// The version that is read here.
        known: i64,
    },
    /// Another recorder has the directory.
    #[error("{} is used by another recorder (process {process}): stop it, or use another directory", path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
        /// The other recorder's process id, as far as it is known.
        process: String,
    },
    /// The directory holds files of somebody else.
    #[error("{} has files of other programs: use an empty directory, or a new one", path.display())]
    Foreign {
        /// The directory.
        path: PathBuf,
    },
}

/// The answer of a store.
pub type StoreResult<T> = Result<T, StoreError>;

impl StoreError {
    /// An error of SQLite on a file, for `map_err`.
    pub(super) fn of(action: &'static str, path: &Path) -> impl FnOnce(rusqlite::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Database {
            action,
            path,
            source,
        }
    }

    /// An error of the system on a file, for `map_err`.
    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io {
            action,
            path,
            source,
        }
    }

    /// Whether the file itself is damaged, so that trying again is useless.
    pub(super) fn is_damage(&self) -> bool {
        use rusqlite::ErrorCode as Code;
        match self {
            Self::Database { source, .. } => {
                match source {
                    rusqlite::Error::SqliteFailure(code, text) => {
                        matches!(code.code, Code::DatabaseCorrupt | Code::NotADatabase)
                            // SQLite has no code of its own for a damaged number of the format.
                            || text.as_deref() == Some("unsupported file format")
                    }
                    _ => true,
                }
            }
            _ => false,
        }
    }
}
