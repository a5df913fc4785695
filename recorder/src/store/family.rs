//! Writing segments: a new one when the last is full, and none kept beyond the limits.

use std::sync::Arc;

use rusqlite::Connection;

use super::entry::{ConnectionId, Entry};
use super::error::StoreError;
use super::insert::Active;
use super::schema;
use super::segment::{self, Family, Segment};
use super::settings::Keep;
use super::shared::{Catalog, Shared};
use super::summary;
use super::values::int;

/// The segments of a family, as the writer has them.
pub(super) struct Segments {
    family: Family,
    keep: Keep,
    shared: Arc<Shared>,
    active: Option<Active>,
    /// The id that the next row has.
    pub(super) next: u64,
    next_chunk: u64,
    /// The number that the next segment has.
    pub(super) number: u64,
    /// Connections that have rows in a segment for the first time.
    connections: Vec<(ConnectionId, u64)>,
}

impl Segments {
    /// Goes on where the last run ended. `next` is the next id as the file of connections knows it.
    pub(super) fn open(shared: &Arc<Shared>, family: Family, catalog: &Catalog, next: u64) -> Self {
        let known = catalog.of(family);
        let last = known.last();
        let keep = match family {
            Family::Messages => shared.settings.messages,
            Family::Logs => shared.settings.logs,
        };
        Self {
            family,
            keep,
            shared: shared.clone(),
            active: None,
            next: last.map_or(0, |last| last.next).max(next),
            next_chunk: known.iter().map(|s| s.next_chunk).max().unwrap_or(0),
            number: last.map_or(0, |last| last.number + 1),
            connections: Vec::new(),
        }
    }

    /// Writes entries; what cannot be written is counted.
    pub(super) fn write(&mut self, catalog: &mut Catalog, entries: &[Entry], now: u64) {
        let mut rest = entries;
        let mut abandoned = false;
        while !rest.is_empty() {
            match self.write_some(catalog, rest, now) {
                Ok(written) => rest = &rest[written..],
                Err(error) => {
                    self.shared.note(&error);
                    let damage = error.is_damage() && !abandoned;
                    if !damage {
                        // It is opened again for the next entries.
                        self.active = None;
                        self.shared.note_failed(rest.len());
                        return;
                    }
                    abandoned = true;
                    self.abandon(catalog);
                }
            }
        }
    }

    fn write_some(
        &mut self,
        catalog: &mut Catalog,
        entries: &[Entry],
        now: u64,
    ) -> Result<usize, StoreError> {
        let full = Self::full(self.keep);
        let ended = |segment: &Segment| full(segment, 0) || self.is_old(segment, now);
        if self
            .active
            .as_ref()
            .is_some_and(|active| ended(&active.segment))
        {
            self.seal(catalog);
        }
        let active = match &mut self.active {
            Some(active) => active,
            None => {
                let active = self.begin(catalog, now)?;
                self.active.insert(active)
            }
        };
        let path = active.segment.path.clone();
        let written = active
            .write(entries, now, full)
            .map_err(StoreError::of("write", &path))?;
        active.segment.bytes = segment::bytes(&path);
        let connections = active.take_connections().into_iter();
        self.connections
            .extend(connections.map(|connection| (connection, active.segment.number)));
        self.next = active.segment.next;
        self.next_chunk = active.segment.next_chunk;
        let known = catalog.of_mut(self.family);
        match known.last_mut() {
            Some(last) if last.number == active.segment.number => *last = active.segment.clone(),
            _ => known.push(active.segment.clone()),
        }
        Ok(written)
    }

    /// Whether a segment with some bytes more is full.
    fn full(keep: Keep) -> impl Fn(&Segment, u64) -> bool {
        let (rows, bytes) = (keep.segment_rows(), keep.segment_bytes());
        move |segment, more| segment.rows() >= rows || segment.bytes + more >= bytes
    }

    fn is_old(&self, segment: &Segment, now: u64) -> bool {
        let age = self.keep.segment_age().as_nanos();
        u128::from(now.saturating_sub(segment.created)) >= age
    }

    /// Opens the last segment if there is room in it, else a new one.
    fn begin(&mut self, catalog: &mut Catalog, now: u64) -> Result<Active, StoreError> {
        let (raw, search) = (self.shared.settings.raw, self.shared.settings.search);
        if let Some(last) = catalog.of_mut(self.family).last_mut() {
            let reopened = match self.goes_on(last, now) {
                true => self.reopen(last),
                false => self.finish_late(last).map(|()| None),
            };
            match reopened {
                Ok(Some((db, segment))) => {
                    self.limit_log(&db);
                    return Ok(Active::new(db, segment, raw, search));
                }
                Ok(None) => {}
                Err(error) => self.shared.note(&error),
            }
        }
        let ids = (self.next, self.next_chunk);
        let segment = Segment::new(&self.shared.dir, self.family, self.number, ids, now);
        let created = segment.create(self.family, search);
        if created.is_err() {
            // A half-made file would be in the way of the next attempt.
            let _ = segment::delete(&segment.path);
        }
        let db = created?;
        self.limit_log(&db);
        self.number += 1;
        Ok(Active::new(db, segment, raw, search))
    }

    /// Limits the write-ahead log to a quarter of a segment. Pages that often change are written seldom if it is large.
    fn limit_log(&self, db: &Connection) {
        let pages = self.keep.segment_bytes() / 4 / 4096;
        let _ = db.pragma_update(None, "wal_autocheckpoint", int(pages));
    }

    /// Opens a segment to go on writing; nothing if its tables are not those of today's settings, or rows are missing.
    fn reopen(&self, last: &Segment) -> Result<Option<(Connection, Segment)>, StoreError> {
        let db = schema::open(&last.path, true)?;
        // After an error it may have more than was believed.
        let mut segment = last.clone();
        let read = segment.read_from(&db, self.family).and_then(|()| {
            let sql = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'log_text')";
            db.query_row(sql, [], |row| row.get(0))
        });
        let indexed: bool = read.map_err(StoreError::of("read", &last.path))?;
        let fits = self.family == Family::Messages || indexed == self.shared.settings.search;
        let whole = segment.next >= self.next && segment.next_chunk >= self.next_chunk;
        segment.summary = None;
        Ok((fits && whole).then_some((db, segment)))
    }

    fn goes_on(&self, last: &Segment, now: u64) -> bool {
        let full = Self::full(self.keep);
        !last.damaged && last.next == self.next && !full(last, 0) && !self.is_old(last, now)
    }

    /// Ends the segment: it is only read from now on.
    fn seal(&mut self, catalog: &mut Catalog) {
        let Some(mut active) = self.active.take() else {
            return;
        };
        self.shared.pool.forget(&active.segment.path);
        if let Err(error) = active.segment.finish(active.db, self.family) {
            self.shared.note(&error);
        }
        let known = catalog.of_mut(self.family);
        if let Some(last) = known
            .last_mut()
            .filter(|s| s.number == active.segment.number)
        {
            *last = active.segment;
        }
        let mut room = summary::ROOM;
        known
            .iter_mut()
            .rev()
            .for_each(|segment| segment.fit(&mut room));
    }

    /// Finishes a segment after a crash that prevented it.
    fn finish_late(&self, last: &mut Segment) -> Result<(), StoreError> {
        if last.damaged || last.is_finished() || self.family == Family::Logs {
            return Ok(());
        }
        self.shared.pool.forget(&last.path);
        last.finish(schema::open(&last.path, true)?, self.family)
    }

    /// Leaves a damaged segment as it is.
    fn abandon(&mut self, catalog: &mut Catalog) {
        let last = match self.active.take() {
            Some(active) => Some(active.segment.path),
            None => catalog.of(self.family).last().map(|last| last.path.clone()),
        };
        let known = catalog.of_mut(self.family).iter_mut();
        for segment in known.filter(|segment| Some(&segment.path) == last.as_ref()) {
            segment.damaged = true;
            self.shared.note_damaged(&segment.path);
        }
    }

    /// Deletes segments beyond the limits; returns the number of the oldest that is kept, if some were deleted.
    pub(super) fn retain(&mut self, catalog: &mut Catalog, now: u64) -> Option<u64> {
        let mut deleted = false;
        while let Some(oldest) = self.surplus(catalog, now) {
            if self
                .active
                .as_ref()
                .is_some_and(|active| active.segment.number == oldest.number)
            {
                self.seal(catalog);
            }
            catalog.of_mut(self.family).remove(0);
            // Readers stop to use it before it is gone.
            self.shared.publish(catalog);
            self.shared.forget(&oldest.path);
            if let Err(error) = segment::delete(&oldest.path) {
                self.shared.note(&error);
            }
            deleted = true;
        }
        let oldest = || {
            catalog
                .of(self.family)
                .first()
                .map_or(self.number, |s| s.number)
        };
        deleted.then(oldest)
    }

    /// The oldest segment, if it is beyond a limit.
    fn surplus(&self, catalog: &Catalog, now: u64) -> Option<Segment> {
        let known = catalog.of(self.family);
        let oldest = known.first()?;
        let rows = self.next.saturating_sub(oldest.next);
        let main = if self.family == Family::Messages {
            catalog.main_bytes
        } else {
            0
        };
        let others: u64 = known.iter().skip(1).map(|segment| segment.bytes).sum();
        // The last one will grow up to its full size.
        let growth = known.last().map_or(0, |last| {
            self.keep.segment_bytes().saturating_sub(last.bytes)
        });
        let bytes = oldest.bytes + others + main + growth;
        let age = u128::from(now.saturating_sub(oldest.written));
        let surplus = self.keep.rows.is_some_and(|limit| rows >= limit)
            || known.len() > 1 && self.keep.bytes.is_some_and(|limit| bytes > limit)
            || self.keep.age.is_some_and(|limit| age > limit.as_nanos());
        surplus.then(|| oldest.clone())
    }

    /// Connections with new rows, and the numbers of their segments.
    pub(super) fn take_connections(&mut self) -> Vec<(ConnectionId, u64)> {
        std::mem::take(&mut self.connections)
    }

    /// Ends writing.
    pub(super) fn close(&mut self) {
        if let Some(active) = self.active.take() {
            let _ = active.db.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)");
        }
    }
}
