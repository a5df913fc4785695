//! Counts objects by root: the search starts from the roots and finds the nearest chunks first, and each chunk counts
//! under the root that found it first. Roots are words of the program's variables, threads (registers, stacks,
//! thread-local variables) and other mappings.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};

use schemars::JsonSchema;
use serde::Serialize;

use super::mapped_files::Files;
use super::names::{self, Raw, without_hash};

/// Maximum number of roots to distinguish.
const MAX_ROOTS: usize = 1 << 18;
/// Maximum number of (root, type) sums.
const MAX_SUMS: usize = 1 << 19;
/// Maximum number of roots to list.
const MAX_ROWS: usize = 1000;
/// Index of the root for objects without a root of their own.
pub(super) const OTHER: u32 = 0;

/// The kind of a root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "HeapRootKind")]
pub enum RootKind {
    /// A variable of the program or of a library.
    Variable,
    /// A thread: its registers, its stack, its thread-local variables.
    Thread,
    /// Another mapping.
    Mapping,
    /// Memory that the snapshot lacks. It may lead to objects that nothing else leads to.
    Missing,
    /// Roots beyond the maximum.
    Other,
}

/// The objects that one root leads to.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[schemars(rename = "HeapRootRow")]
pub struct RootRow {
    /// Kind of the root.
    pub kind: RootKind,
    /// Name of the variable, or its file and address in the file; id of the thread; name of the mapping.
    pub name: String,
    /// Address of the root; 0 for a thread.
    pub address: u64,
    /// Number of objects.
    pub count: u64,
    /// Bytes of their contents.
    pub bytes: u64,
}

/// The objects of one type that one root leads to.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[schemars(rename = "HeapRetainer")]
pub struct Retainer {
    /// Kind of the root.
    pub kind: RootKind,
    /// Name of the root.
    pub root: String,
    /// Number of objects.
    pub count: u64,
    /// Bytes of their contents.
    pub bytes: u64,
}

/// The root that leads to one object.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[schemars(rename = "HeapObjectRoot")]
pub struct ObjectRoot {
    /// Address of the object's contents.
    pub address: u64,
    /// Kind of the root.
    pub kind: RootKind,
    /// Name of the root.
    pub root: String,
}

/// The reachable objects by root.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
#[schemars(rename = "HeapRetained")]
pub struct Retained {
    /// The roots, in descending order of bytes.
    pub roots: Vec<RootRow>,
    /// Number of roots that are not listed.
    pub left_out: u64,
    /// Bytes of objects whose type is not counted by root, because there were too many (root, type) pairs.
    pub not_by_type: u64,
    /// The roots of the largest objects.
    pub largest: Vec<ObjectRoot>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Root {
    Other,
    Word(u64),
    Thread(i32),
    Mapping(u64, String),
    Python(u64),
    Missing,
}

/// Number and bytes of objects, and the indexes of the summed roots.
type Summed = (u64, u64, Vec<u32>);

/// Sums while objects are found.
#[derive(Debug)]
pub(super) struct Roots {
    roots: Vec<(Root, u64, u64)>,
    /// Number and bytes of objects, by root and type.
    sums: HashMap<(u32, u32), (u64, u64)>,
    /// The root of the previous object. `pending` has its number and bytes by type, which are not in `sums` yet.
    last: u32,
    pending: Vec<(u64, u64)>,
    /// The types that have pending objects.
    types: Vec<u32>,
    not_by_type: u64,
    /// The largest objects: size, address, root. Ties go to the lowest addresses.
    largest: BinaryHeap<Reverse<(u64, Reverse<u64>, u32)>>,
    top: usize,
}

impl Roots {
    pub(super) fn new(top: usize) -> Roots {
        Roots {
            roots: vec![(Root::Other, 0, 0)],
            sums: HashMap::new(),
            last: OTHER,
            pending: Vec::new(),
            types: Vec::new(),
            not_by_type: 0,
            largest: BinaryHeap::new(),
            top,
        }
    }

    /// Adds a word of a program's variables as a root.
    pub(super) fn word(&mut self, addr: u64) -> u32 {
        self.push(Root::Word(addr))
    }

    /// Returns the root of a thread.
    pub(super) fn thread(&mut self, tid: i32) -> u32 {
        let known = self
            .roots
            .iter()
            .position(|(root, ..)| *root == Root::Thread(tid));
        known.map_or_else(|| self.push(Root::Thread(tid)), |index| index as u32)
    }

    /// Adds another mapping as a root: its first address, and its name.
    pub(super) fn mapping(&mut self, start: u64, name: &str) -> u32 {
        self.push(Root::Mapping(start, name.to_owned()))
    }

    /// Returns the root of Python's arenas, the first of which is at this address.
    pub(super) fn python(&mut self, first: u64) -> u32 {
        let known = self
            .roots
            .iter()
            .position(|(root, ..)| *root == Root::Python(first));
        known.map_or_else(|| self.push(Root::Python(first)), |index| index as u32)
    }

    /// Adds the root for memory that the snapshot lacks.
    pub(super) fn missing(&mut self) -> u32 {
        self.push(Root::Missing)
    }

    fn push(&mut self, root: Root) -> u32 {
        if self.roots.len() >= MAX_ROOTS {
            return OTHER;
        }
        self.roots.push((root, 0, 0));
        self.roots.len() as u32 - 1
    }

    /// Counts an object that a root leads to.
    pub(super) fn add(&mut self, root: u32, id: u32, address: u64, bytes: u64) {
        let (_, objects, sum) = &mut self.roots[root as usize];
        *objects += 1;
        *sum += bytes;
        // Consecutive objects usually have the same root.
        if self.last != root {
            self.store_pending();
            self.last = root;
        }
        if self.pending.len() <= id as usize {
            self.pending.resize(id as usize + 1, (0, 0));
        }
        let pending = &mut self.pending[id as usize];
        if pending.0 == 0 {
            self.types.push(id);
        }
        pending.0 += 1;
        pending.1 += bytes;
        let object = Reverse((bytes, Reverse(address), root));
        if self.largest.len() < self.top {
            self.largest.push(object);
        } else if self.largest.peek().is_some_and(|least| object < *least) {
            self.largest.pop();
            self.largest.push(object);
        }
    }

    fn store_pending(&mut self) {
        for id in self.types.drain(..) {
            let (count, bytes) = std::mem::take(&mut self.pending[id as usize]);
            let key = (self.last, id);
            if self.sums.len() >= MAX_SUMS && !self.sums.contains_key(&key) {
                self.not_by_type += bytes;
                continue;
            }
            let sum = self.sums.entry(key).or_default();
            sum.0 += count;
            sum.1 += bytes;
        }
    }

    /// Makes the table of roots, and the sums of each type by root.
    pub(super) fn finish(mut self, files: &Files) -> (Retained, Retainers) {
        self.store_pending();
        let words = self.roots.iter().filter_map(|(root, ..)| match root {
            Root::Word(addr) => Some(*addr),
            _ => None,
        });
        let mut variables = files.variables(words);
        let raw = self.roots.iter().map(|(root, ..)| match root {
            Root::Other => Raw::known("others".into()),
            Root::Python(_) => Raw::known("Python's arenas".into()),
            Root::Missing => Raw::known("memory that the snapshot lacks".into()),
            Root::Thread(tid) => Raw::known(format!("thread {tid}")),
            Root::Mapping(start, name) if name.is_empty() => {
                Raw::known(format!("anonymous memory at {start:#x}"))
            }
            Root::Mapping(start, name) => Raw::known(format!("{name} at {start:#x}")),
            Root::Word(addr) => Raw {
                symbols: variables
                    .get(addr)
                    .map(|(_, symbol)| symbol.clone())
                    .into_iter()
                    .collect(),
                choose: |name| Some(without_hash(name)),
                otherwise: files.in_file(*addr).unwrap_or_else(|| format!("{addr:#x}")),
            },
        });
        let raw = raw.collect();
        let names = names::all(raw);
        // All words of a variable are one root.
        let mut rows: BTreeMap<(RootKind, u64, &str), Summed> = BTreeMap::new();
        for (index, ((root, count, bytes), name)) in self.roots.iter().zip(&names).enumerate() {
            let (kind, address) = match root {
                Root::Other => (RootKind::Other, 0),
                Root::Missing => (RootKind::Missing, 0),
                Root::Thread(_) => (RootKind::Thread, 0),
                Root::Mapping(start, _) | Root::Python(start) => (RootKind::Mapping, *start),
                Root::Word(addr) => {
                    let start = variables.remove(addr).map_or(*addr, |(start, _)| start);
                    (RootKind::Variable, start)
                }
            };
            let row = rows.entry((kind, address, name)).or_default();
            row.0 += count;
            row.1 += bytes;
            row.2.push(index as u32);
        }
        let mut rows: Vec<(RootRow, Vec<u32>)> = rows
            .into_iter()
            .filter(|(_, (count, ..))| *count > 0)
            .map(|((kind, address, name), (count, bytes, indexes))| {
                let name = name.to_owned();
                let row = RootRow {
                    kind,
                    name,
                    address,
                    count,
                    bytes,
                };
                (row, indexes)
            })
            .collect();
        rows.sort_by_key(|(row, _)| Reverse(row.bytes));
        let mut row_of = vec![u32::MAX; self.roots.len()];
        for (index, (_, roots)) in rows.iter().enumerate() {
            roots
                .iter()
                .for_each(|root| row_of[*root as usize] = index as u32);
        }
        let all: Vec<(RootKind, String)> = rows
            .iter()
            .map(|(row, _)| (row.kind, row.name.clone()))
            .collect();
        let largest = std::mem::take(&mut self.largest).into_sorted_vec();
        let largest = largest
            .into_iter()
            .filter_map(|Reverse((_, Reverse(address), root))| {
                let (kind, root) = all.get(row_of[root as usize] as usize)?.clone();
                Some(ObjectRoot {
                    address,
                    kind,
                    root,
                })
            });
        let retained = Retained {
            largest: largest.collect(),
            left_out: rows.len().saturating_sub(MAX_ROWS) as u64,
            not_by_type: self.not_by_type,
            roots: rows
                .into_iter()
                .map(|(row, _)| row)
                .take(MAX_ROWS)
                .collect(),
        };
        let mut sums: Vec<(u32, u32, u64, u64)> = self
            .sums
            .into_iter()
            .map(|((root, id), (count, bytes))| (id, row_of[root as usize], count, bytes))
            .collect();
        sums.sort_unstable();
        (retained, Retainers { all, sums })
    }
}

/// The sums of each type by root.
#[derive(Debug)]
pub(super) struct Retainers {
    all: Vec<(RootKind, String)>,
    /// Type, root, number, bytes; sorted in this order.
    sums: Vec<(u32, u32, u64, u64)>,
}

impl Retainers {
    /// The `most` roots that lead to the most bytes of the types with these ids.
    pub(super) fn largest(&self, ids: &[u32], most: usize) -> Vec<Retainer> {
        let mut by_root: HashMap<u32, (u64, u64)> = HashMap::new();
        for id in ids {
            let first = self.sums.partition_point(|sum| sum.0 < *id);
            for (_, root, count, bytes) in self.sums[first..].iter().take_while(|sum| sum.0 == *id)
            {
                let sum = by_root.entry(*root).or_default();
                sum.0 += count;
                sum.1 += bytes;
            }
        }
        let mut sums: Vec<_> = by_root.into_iter().collect();
        sums.sort_by_key(|(root, (_, bytes))| (Reverse(*bytes), *root));
        let named = sums.into_iter().filter_map(|(root, (count, bytes))| {
            let (kind, root) = self.all.get(root as usize)?.clone();
            Some(Retainer {
                kind,
                root,
                count,
                bytes,
            })
        });
        named.take(most).collect()
    }
}
