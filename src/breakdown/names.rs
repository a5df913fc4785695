//! Sums by name: files, named anonymous regions. A file is a library when any of its mappings is
//! code, so what it is shows only at the end.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::category::{Category, named_as_library};
use super::{NameRow, Sums};
use crate::residency::smaps::Region;

/// Names that sums are kept for; 16,384 of them at their longest take 10 MiB.
const MOST_NAMES: usize = 16_384;
/// Characters of a name that are kept.
const LONGEST_NAME: usize = 256;

/// Which name: the file behind it tells two files of one path apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    category: Category,
    file: ((u32, u32), u64),
    /// Empty where the file says it all.
    name: String,
}

impl Key {
    pub(super) fn of(region: &Region, category: Category) -> Key {
        let vma = &region.vma;
        let file = match category {
            // Each inode of these is one mapping's own; they are told apart by what they are called.
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

/// The first characters of a name.
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
    /// Mappings that there was no room for.
    refused: u64,
}

impl Names {
    /// Adds a mapping to its name; the key where there was room for it.
    pub(super) fn add(&mut self, region: &Region, category: Category) -> Option<Key> {
        let key = Key::of(region, category);
        let full = self.all.len() >= MOST_NAMES;
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

    /// What a name's mappings are, now that all of them are known.
    pub(super) fn category(&self, key: &Key) -> Category {
        match self.all.get(key) {
            Some(named) => settled(key.category, named.code),
            None => key.category,
        }
    }

    /// The sums of the names that are files, by what they turned out to be; names by resident memory,
    /// largest first; how many mappings there was no room for.
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

/// A file with code in it is a library.
pub(super) fn settled(category: Category, code: bool) -> Category {
    match category {
        Category::OtherFile if code => Category::Library,
        _ => category,
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
