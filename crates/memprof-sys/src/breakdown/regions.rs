//! Selects the mappings to show individually.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::names::{Key, cut};
use super::{RegionRow, Show};
use crate::residency::smaps::{Region, SmapsFigures};
use crate::residency::{Category, Perms};

/// Maximum number of mappings to show, at most 1 KiB each.
pub const MAX_REGIONS: usize = 131_072;

/// The category in which a mapping is counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CategoryChoice {
    /// This category.
    Known(Category),
    /// The category of this name, which is known only at the end.
    Named(Key),
}

/// A mapping to be shown, ordered by its rank.
#[derive(Debug)]
struct RankedRegion {
    /// Resident bytes (0 if all mappings are shown), then size, then address; lower addresses rank higher.
    rank: (u64, u64, Reverse<u64>),
    end: u64,
    perms: Perms,
    name: String,
    figures: SmapsFigures,
    place: CategoryChoice,
}

impl PartialEq for RankedRegion {
    fn eq(&self, other: &RankedRegion) -> bool {
        self.rank == other.rank
    }
}

impl Eq for RankedRegion {}

impl PartialOrd for RankedRegion {
    fn partial_cmp(&self, other: &RankedRegion) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for RankedRegion {
    fn cmp(&self, other: &RankedRegion) -> std::cmp::Ordering {
        self.rank.cmp(&other.rank)
    }
}

/// The `most` highest-ranking mappings.
#[derive(Debug)]
pub(super) struct Regions {
    /// The lowest rank is on top.
    kept: BinaryHeap<Reverse<RankedRegion>>,
    most: usize,
    all: bool,
}

impl Regions {
    pub(super) fn new(show: Show) -> Regions {
        Regions {
            kept: BinaryHeap::new(),
            most: match show {
                Show::Top(n) => n.min(MAX_REGIONS),
                Show::All => MAX_REGIONS,
            },
            all: show == Show::All,
        }
    }

    pub(super) fn add(&mut self, region: &Region, place: CategoryChoice) {
        let vma = &region.vma;
        let rank = match self.all {
            true => (0, 0, Reverse(vma.start.0)),
            false => (region.figures.rss, vma.len(), Reverse(vma.start.0)),
        };
        let full = self.kept.len() >= self.most;
        if full
            && self
                .kept
                .peek()
                .is_none_or(|Reverse(worst)| rank <= worst.rank)
        {
            return;
        }
        self.kept.push(Reverse(RankedRegion {
            rank,
            end: vma.end.0,
            perms: vma.perms,
            name: cut(&vma.name),
            figures: region.figures,
            place,
        }));
        if full {
            self.kept.pop();
        }
    }

    /// The mappings, highest rank first.
    pub(super) fn close(self, category: impl Fn(&Key) -> Category) -> Vec<RegionRow> {
        let row = |Reverse(kept): Reverse<RankedRegion>| RegionRow {
            start: kept.rank.2.0,
            end: kept.end,
            permissions: kept.perms.to_string(),
            category: match &kept.place {
                CategoryChoice::Known(category) => *category,
                CategoryChoice::Named(key) => category(key),
            },
            name: kept.name,
            figures: kept.figures,
        };
        self.kept.into_sorted_vec().into_iter().map(row).collect()
    }
}
