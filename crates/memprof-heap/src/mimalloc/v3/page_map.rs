//! The map from slices to descriptions of pages.
//!
//! The size of the first level depends on the number of address bits. Its first entry leads to the table for the lowest
//! addresses, which lies directly behind the first level.

use super::{SLICE, pages};
use crate::jemalloc::is_mapped;
use crate::memory::Memory;
use crate::module_data::module_data;
use crate::spans::SpanMap;
use memprof_sys::residency::Vma;

/// Number of slices that a table of the second level covers, and its size in bytes.
const ENTRIES: u64 = 1 << 13;
const TABLE: u64 = 8 * ENTRIES;
/// Sizes that the first level can have, in bytes.
const SIZES: std::ops::RangeInclusive<u64> = 4096..=4 << 20;
/// Maximum number of addresses to examine that may be those of maps.
const CANDIDATES: usize = 64;
/// Maximum number of pages: 1 TiB of the smallest ones.
pub(super) const MAX_PAGES: usize = 1 << 24;
/// Maximum number of entries to examine for a description.
const TRIED: usize = 64;

/// Consecutive slices of one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Address of the first slice, and end of the last one.
    pub start: u64,
    pub end: u64,
    /// Address of the description.
    pub page: u64,
}

/// A map.
#[derive(Debug)]
pub(super) struct PageMap<'a> {
    /// Name of the file that contains mimalloc.
    pub module: &'a str,
    /// All entries, by address.
    pub entries: Vec<Entry>,
    /// Range of the first level.
    range: (u64, u64),
    /// Addresses of the tables, in ascending order.
    tables: Vec<u64>,
}

impl PageMap<'_> {
    /// Adds the memory of the map itself.
    pub(super) fn add_to(&self, map: &mut SpanMap) {
        map.add_own(self.range.0, self.range.1);
        for table in &self.tables {
            map.add_own(*table, table + TABLE);
        }
    }
}

/// Finds all maps.
pub(super) fn find<'a>(memory: &Memory, vmas: &'a [Vma]) -> Vec<PageMap<'a>> {
    let (mut found, mut tried) = (Vec::new(), Vec::new());
    for (start, end, module) in module_data(vmas) {
        for (_, at) in memory.words_in(start, end) {
            let Some(end) = end_of_map(memory, at).filter(|_| tried.len() < CANDIDATES) else {
                continue;
            };
            if !tried.contains(&at) {
                tried.push(at);
                found.extend(page_map(memory, vmas, module, (at, end)));
            }
        }
    }
    found
}

/// End of the first level that may begin at an address.
fn end_of_map(memory: &Memory, at: u64) -> Option<u64> {
    if at == 0 || !at.is_multiple_of(4096) {
        return None;
    }
    let end = memory.word(at)?;
    let size = end.checked_sub(at)?;
    (size.is_power_of_two() && SIZES.contains(&size)).then_some(end)
}

/// The map with this first level.
fn page_map<'a>(
    memory: &Memory,
    vmas: &[Vma],
    module: &'a str,
    (at, first): (u64, u64),
) -> Option<PageMap<'a>> {
    let all = memory.words_in(at, first).filter(|(_, table)| *table != 0);
    let all: Vec<(u64, u64)> = all.collect();
    let mut tables: Vec<u64> = all.iter().map(|(_, table)| *table).collect();
    tables.sort_unstable();
    // Nothing is read twice.
    let overlap = tables.windows(2).any(|pair| pair[1] - pair[0] < TABLE);
    let outside = |table: &u64| {
        let end = table.checked_add(TABLE);
        !end.is_some_and(|end| is_mapped(vmas, *table, end))
    };
    if overlap || tables.iter().any(outside) {
        return None;
    }
    let mut entries: Vec<Entry> = Vec::new();
    for (entry, table) in all {
        let base = (entry - at) / 8 * ENTRIES;
        for (entry, page) in memory.words_in(table, table + TABLE) {
            let start = (base + (entry - table) / 8) * SLICE;
            // The slice at 0 may have the description of an empty page.
            if page == 0 || start == 0 || entries.len() > MAX_PAGES {
                continue;
            }
            let end = start + SLICE;
            match entries.last_mut() {
                Some(last) if last.page == page && last.end == start => last.end = end,
                _ => entries.push(Entry { start, end, page }),
            }
        }
    }
    let tried = entries.iter().take(TRIED);
    let is_map = tried.clone().any(|entry| pages::is_page(memory, entry));
    is_map.then_some(PageMap {
        module,
        entries,
        range: (at, first),
        tables,
    })
}
