//! Keeps a recording within its bounds: old moments are thinned, and the oldest ones go.

use rusqlite::{Connection, OptionalExtension, params};

use crate::RecordingError;
use crate::cell::Cell;
use crate::ids::AllIds;
use crate::lists;
use crate::recorder::{Recorder, RunCache};
use crate::schema::TABLES;
use crate::symbols::SymbolStore;

const HOUR: i64 = 3_600_000;
/// Moments older than the first number are thinned to intervals of the second one; both in milliseconds. The first moment of
/// each tier's intervals with the highest and with the lowest total stay.
const TIERS: [(i64, i64); 3] = [
    (HOUR, 10_000),
    (24 * HOUR, 60_000),
    (30 * 24 * HOUR, 600_000),
];
/// How often a recording is thinned.
const PAUSE_MS: i64 = 60_000;
/// How often ids that nothing refers to are removed.
const SWEEP_MS: i64 = HOUR;
/// Maximum number of moments that one transaction removes, so that the next report does not wait for long.
const BATCH: i64 = 600;
/// A file at its limit is reduced by this share: otherwise each report would remove moments.
const SHRINK: u64 = 10;

/// A moment to be thinned or not.
struct Candidate {
    id: i64,
    elapsed_ms: i64,
    total: i64,
    /// Whether it is the first or last moment of its run.
    stays: bool,
}

impl Recorder {
    /// Thins old moments, and removes the oldest ones where the recording exceeds its bounds.
    pub(crate) fn maintain(&mut self) -> Result<(), RecordingError> {
        let now = self.last.elapsed_ms;
        if now - self.thinned_ms >= PAUSE_MS {
            let mut rest = false;
            for (tier, (age, interval)) in (1..).zip(TIERS) {
                rest |= self.thin(tier, now - age, interval)?;
            }
            let keep = i64::try_from(self.options.keep.as_millis()).unwrap_or(i64::MAX);
            rest |= self.remove_before(now.saturating_sub(keep))?;
            if !rest {
                self.thinned_ms = now;
            }
            if now - self.swept_ms >= SWEEP_MS {
                self.swept_ms = now;
                self.sweep()?;
            }
        }
        self.bound()
    }

    /// Thins the moments before a time to one or two in each interval. Returns whether there are more of them.
    fn thin(&self, tier: i64, before: i64, interval: i64) -> Result<bool, RecordingError> {
        let before = before.div_euclid(interval) * interval;
        // Before anything is thinned, the query would look at every moment.
        if self.first_ms()?.is_none_or(|first| first >= before) {
            return Ok(false);
        }
        // Elapsed time never goes back, so everything up to the last thinned moment is thinned.
        let mut rows = self.db.prepare_cached(
            "SELECT m.id, m.elapsed_ms, m.total,
                    m.run IS NOT (SELECT b.run FROM moment b WHERE b.id < m.id ORDER BY b.id DESC LIMIT 1)
                    OR m.run IS NOT (SELECT a.run FROM moment a WHERE a.id > m.id ORDER BY a.id LIMIT 1)
             FROM moment m
             WHERE m.id > coalesce((SELECT id FROM moment WHERE tier >= ?1 ORDER BY id DESC LIMIT 1), 0)
             ORDER BY m.id LIMIT ?2",
        )?;
        let candidates = rows.query_map([tier, BATCH], |row| {
            Ok(Candidate {
                id: row.get(0)?,
                elapsed_ms: row.get(1)?,
                total: row.get(2)?,
                stays: row.get(3)?,
            })
        })?;
        let mut candidates: Vec<Candidate> = candidates.collect::<Result<_, _>>()?;
        candidates.truncate(candidates.partition_point(|candidate| candidate.elapsed_ms < before));
        let more = candidates.len() as i64 == BATCH;
        let number = |candidate: &Candidate| candidate.elapsed_ms / interval;
        // The last interval may have moments beyond the limit; if it is the only one, it is thinned in parts.
        if let (true, Some(last)) = (more, candidates.last().map(number)) {
            let whole = candidates.partition_point(|candidate| number(candidate) < last);
            if whole > 0 {
                candidates.truncate(whole);
            }
        }
        let Some(last) = candidates.last() else {
            return Ok(false);
        };
        let last = last.id;
        let mut dropped = Vec::new();
        for group in candidates.chunk_by(|a, b| number(a) == number(b)) {
            let highest = group.iter().rev().max_by_key(|candidate| candidate.total);
            let lowest = group.iter().min_by_key(|candidate| candidate.total);
            let extremes = [highest, lowest].map(|candidate| candidate.map(|c| c.id));
            let drops = group
                .iter()
                .filter(|candidate| !candidate.stays && !extremes.contains(&Some(candidate.id)));
            dropped.extend(drops.map(|candidate| candidate.id));
        }
        self.transaction(|db| {
            remove(db, &dropped)?;
            let mut done =
                db.prepare_cached("UPDATE moment SET tier = ?1 WHERE id <= ?2 AND tier < ?1")?;
            done.execute([tier, last]).map(drop)
        })?;
        Ok(more)
    }

    /// Elapsed time of the first moment.
    fn first_ms(&self) -> rusqlite::Result<Option<i64>> {
        let sql = "SELECT elapsed_ms FROM moment ORDER BY id LIMIT 1";
        let mut first = self.db.prepare_cached(sql)?;
        first.query_row([], |row| row.get(0)).optional()
    }

    /// Removes the moments before a time, but never the last one. Returns whether there are more of them.
    fn remove_before(&mut self, before: i64) -> Result<bool, RecordingError> {
        let mut rows = self.db.prepare_cached(
            "SELECT id, elapsed_ms FROM moment WHERE id < ?1 ORDER BY id LIMIT ?2",
        )?;
        let rows = rows.query_map([self.last.id, BATCH], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let mut oldest: Vec<(i64, i64)> = rows.collect::<Result<_, _>>()?;
        oldest.truncate(oldest.partition_point(|(_, elapsed_ms)| *elapsed_ms < before));
        let oldest: Vec<i64> = oldest.into_iter().map(|(id, _)| id).collect();
        self.remove_oldest(&oldest)?;
        Ok(oldest.len() as i64 == BATCH)
    }

    /// The first moments of the file.
    fn oldest(&self, number: i64) -> rusqlite::Result<Vec<i64>> {
        let sql = "SELECT id FROM moment ORDER BY id LIMIT ?1";
        let mut rows = self.db.prepare_cached(sql)?;
        let rows = rows.query_map([number], |row| row.get(0))?;
        rows.collect()
    }

    /// Removes the first moments of the file.
    fn remove_oldest(&self, oldest: &[i64]) -> Result<(), RecordingError> {
        let Some(last) = oldest.last() else {
            return Ok(());
        };
        self.transaction(|db| {
            remove(db, oldest)?;
            // All figures from before are in the first moment now, and nothing needs to be said of what no longer existed.
            let first = "SELECT min(id) FROM moment WHERE id > ?1";
            let first: i64 = db.query_row(first, [last], |row| row.get(0))?;
            db.execute("UPDATE moment SET \"full\" = 1 WHERE id = ?1", [first])?;
            for table in TABLES {
                let sql = format!(
                    "DELETE FROM {} WHERE moment = ?1 AND {} IS NULL",
                    table.name, table.values[0]
                );
                db.prepare_cached(&sql)?.execute([first])?;
            }
            Ok(())
        })
    }

    /// Keeps the file below its limit.
    fn bound(&mut self) -> Result<(), RecordingError> {
        let limit = self.options.size;
        // Room for the next report.
        let limit = limit - limit / 16;
        if self.used()? <= limit {
            return Ok(());
        }
        let goal = limit - limit / SHRINK;
        while self.used()? > goal {
            let sql = "SELECT count(*) FROM moment";
            let moments: i64 = self.db.query_row(sql, [], |row| row.get(0))?;
            if moments <= 1 {
                return Err(RecordingError::TooSmall(self.options.size));
            }
            let share = (moments / SHRINK as i64).clamp(1, BATCH);
            let oldest = self.oldest(share)?;
            self.remove_oldest(&oldest)?;
            self.sweep()?;
        }
        Ok(())
    }

    /// The used part of the file in bytes.
    fn used(&self) -> rusqlite::Result<u64> {
        let pages = self.pragma("page_count")? - self.pragma("freelist_count")?;
        Ok((pages * self.pragma("page_size")?).cast_unsigned())
    }

    /// Removes everything that nothing refers to, and reads the ids again.
    fn sweep(&mut self) -> Result<(), RecordingError> {
        self.transaction(|db| {
            SWEEP.iter().try_for_each(|sql| db.execute_batch(sql))?;
            let runs = "DELETE FROM run WHERE id <> ?1 AND id NOT IN (SELECT run FROM moment)";
            db.execute(runs, [self.run]).map(drop)
        })?;
        // First what there was: both together would take twice the memory.
        (self.ids, self.symbols) = Default::default();
        self.cache = RunCache::default();
        self.ids = AllIds::load(&self.db)?;
        self.symbols = SymbolStore::load(&self.db)?;
        Ok(())
    }

    /// Removes some moments.
    #[cfg(test)]
    pub(crate) fn remove_for_test(&self, moments: &[i64]) {
        self.transaction(|db| remove(db, moments)).unwrap();
    }

    fn transaction(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<()>,
    ) -> Result<(), RecordingError> {
        self.db.execute_batch("BEGIN IMMEDIATE")?;
        let done = work(&self.db).and_then(|()| self.db.execute_batch("COMMIT"));
        if let Err(e) = done {
            let _ = self.db.execute_batch("ROLLBACK");
            return Err(e.into());
        }
        Ok(())
    }
}

/// The modules, and the items, that a list contains at some moment.
macro_rules! listed {
    ($names:literal) => {
        concat!(
            "SELECT j.value FROM name n JOIN list l ON l.name = n.id, json_each(l.edits) e, json_each(e.value, '$[2]') j WHERE ",
            $names
        )
    };
}

/// In an order in which nothing that goes is referred to any longer.
const SWEEP: [&str; 10] = [
    "DELETE FROM series WHERE id NOT IN (SELECT series FROM value)",
    "DELETE FROM stack WHERE id NOT IN
        (SELECT stack FROM series UNION SELECT stack FROM error_part WHERE stack IS NOT NULL)",
    "DELETE FROM stack_frame WHERE stack NOT IN (SELECT id FROM stack)",
    "DELETE FROM frame WHERE id NOT IN (SELECT frame FROM stack_frame)",
    "DELETE FROM function WHERE id NOT IN (SELECT function FROM frame WHERE function IS NOT NULL)",
    "DELETE FROM mapping WHERE id NOT IN (SELECT mapping FROM mapping_state);
     DELETE FROM file WHERE id NOT IN (SELECT file FROM file_state)",
    "DELETE FROM process WHERE id NOT IN (SELECT process FROM process_state)",
    concat!(
        "DELETE FROM module WHERE id NOT IN (",
        listed!("n.name = 'modules'"),
        ")"
    ),
    concat!(
        "DELETE FROM item WHERE id NOT IN (SELECT freeze FROM process_state WHERE freeze IS NOT NULL UNION ",
        listed!("n.name IN ('pids', 'ended', 'oom_kills') OR n.name LIKE 'errors/%'"),
        ")"
    ),
    "DELETE FROM name WHERE id NOT IN (SELECT name FROM fact UNION SELECT name FROM list)",
];

/// Removes moments: their rows move on to the next moment that stays, unless that one has newer rows. The last moment of the
/// file must not be among them.
fn remove(db: &Connection, moments: &[i64]) -> rusqlite::Result<()> {
    let next = "SELECT id, \"full\" FROM moment WHERE id > ?1 ORDER BY id LIMIT 1";
    let mut next = db.prepare_cached(next)?;
    let mut delete = db.prepare_cached("DELETE FROM moment WHERE id = ?1 RETURNING \"full\"")?;
    let mut whole = db.prepare_cached("UPDATE moment SET \"full\" = 1 WHERE id = ?1")?;
    // From the last to the first: what has moved already is newer.
    for moment in moments.iter().rev() {
        let (to, full): (i64, bool) =
            next.query_row([moment], |row| Ok((row.get(0)?, row.get(1)?)))?;
        for table in TABLES {
            move_rows(db, table.name, *moment, to)?;
        }
        // A full moment has every list that is not empty: edits from before would not fit.
        if !full {
            move_lists(db, *moment, to)?;
        }
        db.prepare_cached("DELETE FROM list WHERE moment = ?1")?
            .execute([moment])?;
        if delete.query_row([moment], |row| row.get(0))? {
            whole.execute([to])?;
        }
    }
    Ok(())
}

fn move_rows(db: &Connection, table: &str, from: i64, to: i64) -> rusqlite::Result<()> {
    let sql = format!("UPDATE OR IGNORE {table} SET moment = ?2 WHERE moment = ?1");
    db.prepare_cached(&sql)?.execute([from, to])?;
    let sql = format!("DELETE FROM {table} WHERE moment = ?1");
    db.prepare_cached(&sql)?.execute([from]).map(drop)
}

fn move_lists(db: &Connection, from: i64, to: i64) -> rusqlite::Result<()> {
    let sql = "SELECT a.name, a.edits, b.edits FROM list a LEFT JOIN list b ON b.name = a.name AND b.moment = ?2
               WHERE a.moment = ?1";
    let mut rows = db.prepare_cached(sql)?;
    let rows = rows.query_map([from, to], |row| {
        Ok((row.get(0)?, row.get(1)?, row.get(2)?))
    })?;
    let lists: Vec<(i64, String, Option<String>)> = rows.collect::<Result<_, _>>()?;
    let mut insert =
        db.prepare_cached("INSERT OR REPLACE INTO list (name, moment, edits) VALUES (?1, ?2, ?3)")?;
    for (name, earlier, later) in lists {
        let edits = match later {
            Some(later) => lists::merged(&earlier, &later),
            None => earlier,
        };
        insert.execute(params![name, to, Cell::Text(edits)])?;
    }
    Ok(())
}
