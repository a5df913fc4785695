//! Types that debug information declares: a chunk has the type of the pointers that lead to it.
//!
//! The search begins with variables and with objects of C++ classes that are known by their vtables, and follows the members that
//! are pointers, breadth first. Buffers of containers (`containers`) are named after the container and the type that it is a part of.
//! A type is given only to a chunk that its size fits.

mod containers;
mod context;
mod fit;
mod labels;
mod pointers;
mod rust;
mod walk;

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::Serialize;

use super::all_heaps::AllHeaps;
use super::headroom::left;
use super::names::{self, Raw};
use super::snapshot::Snapshot;
use super::source::Source;
use super::vtables::{Table, Tables, class_name, class_symbol};
use memprof_code::symbolize::types::{DebugTypes, last_name};
use walk::Walk;

/// Maximum time for the scan of debug information, and for all of the search.
const MAX_SCAN: Duration = Duration::from_secs(5);
const MAX_TIME: Duration = Duration::from_secs(10);
/// Maximum size of debug information that is decompressed, in bytes. Of the memory that is left, it takes at most an eighth.
const MAX_UNPACKED: u64 = 256 << 20;
/// Maximum number of files whose debug information is read.
const MAX_FILES: usize = 64;
/// Maximum number of C++ classes to look for.
const MAX_CLASSES: usize = 1 << 14;
/// Maximum number of objects of such classes from which to search.
const MAX_OBJECTS: usize = 1 << 20;

/// The debug information that was used for the types of objects.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
#[schemars(rename = "HeapDebugInfo")]
pub struct DebugInfo {
    /// Number of mapped files with debug information.
    pub files: u64,
    /// Number of variables from which the search for types began.
    pub variables: u64,
    /// Why not all of it was used; `None` if all was.
    pub incomplete: Option<String>,
}

/// The declared types of chunks.
#[derive(Debug, Default)]
pub(super) struct Declared {
    /// Index of the name, by the address of a chunk's contents.
    types: HashMap<u64, u32>,
    names: Vec<String>,
    /// `None` if no mapped file has debug information.
    pub info: Option<DebugInfo>,
}

impl Declared {
    /// Number of the type of the chunk with these contents.
    pub(super) fn type_at(&self, start: u64) -> Option<u32> {
        self.types.get(&start).copied()
    }

    /// Name of a type by its number.
    pub(super) fn name(&self, number: u32) -> &str {
        self.names.get(number as usize).map_or("", String::as_str)
    }
}

/// Finds the declared types of all chunks in use that are found.
pub(super) fn find(
    source: Source<'_>,
    snapshot: &Snapshot,
    heaps: &AllHeaps,
    tables: &mut Tables<'_>,
) -> Declared {
    // Damaged debug information might make its reader panic. Then only the declared types are lost.
    // (`tables` has only caches, each entry of which is complete.)
    let found = catch_unwind(AssertUnwindSafe(|| {
        search(source, snapshot, heaps, tables).unwrap_or_default()
    }));
    found.unwrap_or_else(|_| Declared::refused("the debug information of a file is damaged"))
}

impl Declared {
    fn refused(why: &str) -> Declared {
        Declared {
            info: Some(DebugInfo {
                incomplete: Some(why.to_owned()),
                ..DebugInfo::default()
            }),
            ..Declared::default()
        }
    }
}

fn search(
    source: Source<'_>,
    snapshot: &Snapshot,
    heaps: &AllHeaps,
    tables: &mut Tables<'_>,
) -> Option<Declared> {
    let begun = Instant::now();
    let mut types = DebugTypes::new(begun + MAX_TIME, MAX_UNPACKED.min(left() / 8));
    let tree = source.file_tree();
    // The load bias of each file with debug information.
    let mut biases = Vec::new();
    for (file, path, bias) in tables.files.opened().take(MAX_FILES) {
        let added = types.add(file, Path::new(path), tree.clone());
        biases.extend(added.map(|_| bias));
    }
    if biases.is_empty() {
        return types.incomplete().map(Declared::refused);
    }
    let classes = Classes::find(heaps, snapshot, tables);
    types.scan(&classes.wanted, begun + MAX_SCAN);
    let files = biases.len() as u64;
    let mut walk = Walk::new(snapshot, heaps, &tables.files, (types, biases));
    let variables = walk.search_variables();
    walk.search_objects(&classes.objects);
    let Some((types, names, incomplete)) = walk.finish() else {
        return Some(Declared::refused("a file was truncated while it was read"));
    };
    Some(Declared {
        types,
        names,
        info: Some(DebugInfo {
            files,
            variables,
            incomplete,
        }),
    })
}

/// The C++ classes of the objects in the heap.
#[derive(Debug, Default)]
struct Classes {
    /// Mangled name of each class, and its name without namespaces and arguments.
    wanted: Vec<(Vec<u8>, String)>,
    /// The objects: first address, end, index of the class.
    objects: Vec<(u64, u64, usize)>,
}

impl Classes {
    fn find(heaps: &AllHeaps, snapshot: &Snapshot, tables: &mut Tables<'_>) -> Classes {
        let mut known: HashMap<Table, usize> = HashMap::new();
        let mut objects = Vec::new();
        for (start, end) in heaps.live() {
            let table = snapshot
                .memory
                .word(start)
                .and_then(|word| tables.class(word));
            let Some(table @ Table::Class(_)) = table else {
                continue;
            };
            let index = known.len();
            if (index < MAX_CLASSES || known.contains_key(&table)) && objects.len() < MAX_OBJECTS {
                let index = *known.entry(table).or_insert(index);
                objects.push((start, end, index));
            }
        }
        let mut wanted = vec![Vec::new(); known.len()];
        for (table, index) in known {
            if let Table::Class(name) = table {
                wanted[index] = tables.files.text(name).unwrap_or_default();
            }
        }
        let raw = |name: &Vec<u8>| Raw {
            symbols: vec![class_symbol(name)],
            choose: plain_name,
            otherwise: String::new(),
        };
        let plain = names::all(wanted.iter().map(raw).collect());
        Classes {
            wanted: wanted.into_iter().zip(plain).collect(),
            objects,
        }
    }
}

/// The name of a class without namespaces and arguments, from the demangled symbol of its name.
fn plain_name(demangled: &str) -> Option<&str> {
    last_name(class_name(demangled)?).split('<').next()
}
