//! Adds up mappings by category and by name. Mappings arrive in address order.

use std::collections::BTreeMap;

use super::names::Names;
use super::regions::{CategoryChoice, Regions};
use super::{NameRow, RegionRow, Show, Sums};
use crate::residency::Category;
use crate::residency::category::{Categories, named_as_library, settled};
use crate::residency::smaps::Region;

/// Sums while mappings are being added.
#[derive(Debug)]
pub(super) struct Accounts<'a> {
    from: Categories<'a>,
    /// The previous mapping and its preliminary category: it may prove to be the guard of the next mapping.
    latest: Option<(Region, Category)>,
    categories: BTreeMap<Category, Sums>,
    names: Names,
    regions: Regions,
    stacks_found: usize,
}

/// The finished sums.
#[derive(Debug)]
pub(super) struct Totals {
    pub(super) categories: BTreeMap<Category, Sums>,
    pub(super) names: Vec<NameRow>,
    pub(super) names_refused: u64,
    pub(super) regions: Vec<RegionRow>,
    pub(super) stacks_found: usize,
}

impl<'a> Accounts<'a> {
    pub(super) fn new(from: Categories<'a>, show: Show) -> Self {
        Accounts {
            from,
            latest: None,
            categories: BTreeMap::new(),
            names: Names::default(),
            regions: Regions::new(show),
            stacks_found: 0,
        }
    }

    pub(super) fn add(&mut self, region: Region) {
        let below = self.latest.as_ref().map(|(below, c)| (&below.vma, *c));
        let guarded = region.guarded || region.grows_down;
        let found = self.from.find(below, &region.vma, || guarded);
        if let Some((_, below)) = self.latest.as_mut().filter(|_| found.guard_below) {
            *below = Category::StackGuard;
        }
        self.stacks_found += found.threads;
        let category = found.category;
        let before = self.latest.replace((region, category));
        self.enter(before);
    }

    fn enter(&mut self, mapping: Option<(Region, Category)>) {
        let Some((region, category)) = mapping else {
            return;
        };
        let key = match category.has_names() {
            true => self.names.add(&region, category),
            false => None,
        };
        let place = match key {
            // The category of a name is known only at the end.
            Some(key) => CategoryChoice::Named(key),
            None => {
                let code = region.vma.perms.exec || named_as_library(&region.vma.name);
                let category = settled(category, code);
                let sums = self.categories.entry(category).or_default();
                sums.add(region.vma.len(), region.figures);
                CategoryChoice::Known(category)
            }
        };
        self.regions.add(&region, place);
    }

    pub(super) fn close(mut self) -> Totals {
        let latest = self.latest.take();
        self.enter(latest);
        let regions = self.regions.close(|key| self.names.category(key));
        let (names, names_refused) = self.names.close();
        let mut categories = self.categories;
        for row in &names {
            let sums = categories.entry(row.category).or_default();
            sums.merge(row.sums);
        }
        Totals {
            categories,
            names,
            names_refused,
            regions,
            stacks_found: self.stacks_found,
        }
    }
}
