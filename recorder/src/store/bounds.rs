//! Where the wanted rows are: their ids and times.

use super::insert::BLOCK;
use super::pool::File;
use super::query::{Direction, Position};
use super::segment::Segment;
use super::values::{int, uint};
use crate::time::Timestamp;

/// Ids and times between which rows are wanted, inclusive.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) direction: Direction,
    pub(super) ids: (u64, u64),
    pub(super) times: (u64, u64),
}

impl Bounds {
    /// Bounds of a question, where `last` is the newest id.
    pub(super) fn new(
        direction: Direction,
        position: Position,
        (from, to): (Option<Timestamp>, Option<Timestamp>),
        last: u64,
    ) -> Self {
        let mut ids = (0, last);
        let mut times = (from.map_or(0, |t| t.0), to.map_or(u64::MAX, |t| t.0));
        match (position, direction) {
            (Position::Start, _) => {}
            (Position::Id(id), Direction::Backward) => ids.1 = ids.1.min(id),
            (Position::Id(id), Direction::Forward) => ids.0 = id.min(last),
            (Position::Time(time), Direction::Backward) => times.1 = times.1.min(time.0),
            (Position::Time(time), Direction::Forward) => match time.0.checked_add(1) {
                Some(later) => times.0 = times.0.max(later),
                None => ids = (1, 0),
            },
        }
        Self {
            direction,
            ids,
            times,
        }
    }

    /// Whether there are no ids within.
    pub(super) fn is_empty(&self) -> bool {
        self.ids.0 > self.ids.1
    }

    /// Whether a segment may have such rows.
    pub(super) fn meet(&self, segment: &Segment) -> bool {
        segment.first <= self.ids.1
            && segment.next > self.ids.0
            && segment.min_time <= self.times.1
            && segment.max_time >= self.times.0
    }

    /// The first id of a segment in the direction.
    pub(super) fn first_in(&self, segment: &Segment) -> u64 {
        match self.direction {
            Direction::Backward => (segment.next - 1).min(self.ids.1),
            Direction::Forward => segment.first.max(self.ids.0),
        }
    }

    /// The bounds within a segment.
    pub(super) fn within(&self, file: &File, segment: &Segment) -> rusqlite::Result<Self> {
        let mut bounds = *self;
        bounds.ids.0 = bounds.ids.0.max(segment.first);
        bounds.ids.1 = bounds.ids.1.min(segment.next - 1);
        let (from, to) = self.times;
        bounds.times.0 = if from <= segment.min_time { 0 } else { from };
        bounds.times.1 = if to >= segment.max_time { u64::MAX } else { to };
        if bounds.times != (0, u64::MAX) {
            let sql = "SELECT min(id), max(id) FROM block WHERE min_time <= ? AND max_time >= ?";
            let mut blocks = file.prepare_cached(sql)?;
            let blocks: (Option<i64>, Option<i64>) =
                blocks.query_row([to, from].map(int), |row| Ok((row.get(0)?, row.get(1)?)))?;
            let (Some(first), Some(last)) = blocks else {
                bounds.ids = (1, 0);
                return Ok(bounds);
            };
            let (first, last) = (uint(first), uint(last));
            bounds.ids.0 = bounds.ids.0.max(first.saturating_mul(BLOCK));
            bounds.ids.1 = bounds
                .ids
                .1
                .min(last.saturating_add(1).saturating_mul(BLOCK) - 1);
        }
        Ok(bounds)
    }
}

impl Direction {
    /// The order in SQL.
    pub(super) fn sql(self) -> &'static str {
        match self {
            Self::Backward => "DESC",
            Self::Forward => "ASC",
        }
    }
}
