//! Sums by name: files and named anonymous mappings. A file is a library if any of its mappings is code, so its category is known
//! only at the end.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::{NameRow, Sums};
use crate::residency::Category;
use crate::residency::category::{named_as_library, settled};
use crate::residency::smaps::Region;

/// Maximum number of names. With names of maximum length the table takes 10 MiB.
const MAX_NAMES: usize = 16_384;
/// Length, in characters, to which names are truncated.
const LONGEST_NAME: usize = 256;

/// Identity of a name. It includes the file, because two files can have the same path.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    category: Category,
    file: ((u32, u32), u64),
    /// Empty if `file` identifies the name.
    name: String,
}

impl Key {
    pub(super) fn for_region(region: &Region, category: Category) -> Key {
        let vma = &region.vma;
        let file = match category {
            // Each mapping of these categories has its own inode, so only the name identifies them.
            Category::NamedAnon | Category::NamedShared | Category::Memfd => ((0, 0), 0),
            _ => (vma.dev, vma.ino),
        };
        let name = match file.1 {
            0 => cut(&vma.name),
            _ => String::new(),
        };
        Key {
            category,
            file,
            name,
        }
    }
}

/// Truncates a name.
pub(super) fn cut(name: &str) -> String {
    match name.char_indices().nth(LONGEST_NAME) {
        Some((at, _)) => format!("{}…", &name[..at]),
        None => name.to_owned(),
    }
}

#[derive(Debug)]
struct Named {
    name: String,
    sums: Sums,
    code: bool,
}

/// Sums by name.
#[derive(Debug, Default)]
pub(super) struct Names {
    all: HashMap<Key, Named>,
    /// Number of mappings whose names did not fit.
    refused: u64,
}

impl Names {
    /// Adds a mapping to its name; returns the key, or `None` if the table is full.
    pub(super) fn add(&mut self, region: &Region, category: Category) -> Option<Key> {
        let key = Key::for_region(region, category);
        let full = self.all.len() >= MAX_NAMES;
        let named = match self.all.entry(key.clone()) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(_) if full => {
                self.refused += 1;
                return None;
            }
            Entry::Vacant(free) => free.insert(Named {
                name: cut(&region.vma.name),
                sums: Sums::default(),
                code: named_as_library(&region.vma.name),
            }),
        };
        named.code |= region.vma.perms.exec;
        named.sums.add(region.vma.len(), region.figures);
        Some(key)
    }

    /// The final category of a name, once all mappings were added.
    pub(super) fn category(&self, key: &Key) -> Category {
        match self.all.get(key) {
            Some(named) => settled(key.category, named.code),
            None => key.category,
        }
    }

    /// The names with their final category, by resident memory, largest first, and the number of mappings whose names did not fit.
    pub(super) fn close(self) -> (Vec<NameRow>, u64) {
        let mut rows: Vec<NameRow> = self
            .all
            .into_iter()
            .map(|(key, named)| NameRow {
                category: settled(key.category, named.code),
                name: named.name,
                sums: named.sums,
            })
            .collect();
        rows.sort_by(|a, b| order(a).cmp(&order(b)));
        (rows, self.refused)
    }
}

fn order(row: &NameRow) -> (Reverse<u64>, Reverse<u64>, Category, &str) {
    let sums = &row.sums;
    (
        Reverse(sums.figures.rss),
        Reverse(sums.size),
        row.category,
        &row.name,
    )
}
