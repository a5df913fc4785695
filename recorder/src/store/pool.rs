//! Connections for reading, which are kept open for the next question.

use std::collections::VecDeque;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rusqlite::Connection;

use super::error::StoreError;
use super::schema;
use crate::p2p::message::Kind;

/// Maximum number of connections that wait for a question. Each has a descriptor, three if its file is written, and about 100 KiB.
/// To open one takes 0.2 ms, which matters to questions that ask every segment: 147 of them had 10 million messages.
const IDLE: usize = 200;

/// Connections that wait for a question, the last used ones last.
#[derive(Debug, Default)]
pub(super) struct Pool(Mutex<VecDeque<(PathBuf, File)>>);

/// An open file.
#[derive(Debug)]
pub(super) struct File {
    db: Connection,
    /// Kinds by their numbers in this file.
    kinds: Vec<Kind>,
    /// Whether there is an index of words.
    pub(super) search: bool,
    /// Whether there is an index of hashes.
    pub(super) hashes: bool,
}

impl File {
    fn open(path: &Path) -> Result<Self, StoreError> {
        let db = schema::open(path, false)?;
        Self::read(db).map_err(StoreError::of("read", path))
    }

    fn read(db: Connection) -> rusqlite::Result<Self> {
        let exists = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = ?)";
        let exists = |name: &str| db.query_row(exists, [name], |row| row.get(0));
        let (search, hashes) = (exists("log_text")?, exists("message_hash")?);
        let mut kinds = Vec::new();
        if exists("kind")? {
            let mut names = db.prepare("SELECT name FROM kind ORDER BY id")?;
            for name in names.query_map([], |row| row.get::<_, String>(0))? {
                kinds.push(Kind::of_name(&name?).unwrap_or(Kind::Unknown));
            }
        }
        Ok(Self {
            db,
            kinds,
            search,
            hashes,
        })
    }

    /// The kind with a number.
    pub(super) fn kind(&self, code: i64) -> Kind {
        let kind = usize::try_from(code).ok().and_then(|at| self.kinds.get(at));
        kind.copied().unwrap_or(Kind::Unknown)
    }

    /// The numbers of some kinds.
    pub(super) fn codes(&self, kinds: &[Kind]) -> Vec<i64> {
        let codes = (0..)
            .zip(&self.kinds)
            .filter(|(_, kind)| kinds.contains(kind));
        codes.map(|(code, _)| code).collect()
    }
}

impl Deref for File {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.db
    }
}

impl Pool {
    fn idle(&self) -> MutexGuard<'_, VecDeque<(PathBuf, File)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks a file something.
    pub(super) fn with<T>(
        &self,
        path: &Path,
        ask: impl FnOnce(&File) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        let mut idle = self.idle();
        let at = idle.iter().rposition(|(known, _)| known == path);
        let known = at.and_then(|at| idle.remove(at));
        drop(idle);
        let file = match known {
            Some((_, file)) => file,
            None => File::open(path)?,
        };
        let answer = ask(&file).map_err(StoreError::of("read", path))?;
        if !path.exists() {
            // It was deleted meanwhile. An open connection would keep the room on disk.
            return Ok(answer);
        }
        let mut idle = self.idle();
        idle.push_back((path.to_path_buf(), file));
        let surplus = if idle.len() > IDLE {
            idle.pop_front()
        } else {
            None
        };
        drop(idle);
        drop(surplus);
        Ok(answer)
    }

    /// Closes all connections.
    pub(super) fn clear(&self) {
        let closed = std::mem::take(&mut *self.idle());
        drop(closed);
    }

    /// Closes the connections of a file.
    pub(super) fn forget(&self, path: &Path) {
        let mut idle = self.idle();
        let (forgotten, kept) = idle.drain(..).partition(|(known, _)| known == path);
        *idle = kept;
        drop(idle);
        let _: VecDeque<_> = forgotten;
    }
}
