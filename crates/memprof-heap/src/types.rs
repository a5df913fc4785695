//! Objects by type: each chunk in use is looked at once, when the search from the roots has found it or has not. C++
//! classes by their tables of virtual functions, Rust types behind trait objects by theirs (`vtables`), text, zeroes and
//! addresses by their look (`contents`); the rest by size.

use std::collections::HashMap;

use serde::Serialize;

use super::by_stack::Heads;
use super::contents::{Look, Looks};
use super::files::Files;
use super::memory::Memory;
use super::names::{self, Raw};
use super::retained::{Retained, Retainer, Roots};
use super::sizes;
use super::snapshot::Snapshot;
use super::vtables::{
    MAX_TABLES, METHODS, Table, Tables, class_name, class_symbol, type_of_function,
};
use memprof_sys::ids::Pid;

/// Maximum number of types that are listed.
const MAX_ROWS: usize = 1000;
/// Maximum number of trait objects of which is remembered that they are some.
const MAX_TRAIT_OBJECTS: usize = 1 << 20;
/// Number of types that are found without the table of all.
const RECENT: usize = 256;
/// Number of roots that are listed of each type.
const RETAINERS: usize = 3;

/// What a type is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TypeKind {
    /// A C++ class, by the first word of its objects.
    Class,
    /// A Rust type, by the functions of its trait objects.
    TraitObject,
    /// Readable text.
    Text,
    /// Mostly addresses.
    Pointers,
    /// Only zeroes.
    Zeroes,
    /// Not known, by size.
    Unknown,
}

impl TypeKind {
    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            TypeKind::Class => "C++",
            TypeKind::TraitObject => "Rust",
            TypeKind::Text => "text",
            TypeKind::Pointers => "addresses",
            TypeKind::Zeroes => "zeroes",
            TypeKind::Unknown => "unknown",
        }
    }
}

/// The objects of a type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TypeRow {
    /// What it is known by.
    pub kind: TypeKind,
    /// Its name, or the sizes of objects whose type is unknown.
    pub name: String,
    /// Number of objects.
    pub count: u64,
    /// Bytes of their contents.
    pub bytes: u64,
    /// Address of one of them: an unreachable one, if there is any.
    pub example: u64,
    /// Number of those that are unreachable.
    pub unreachable: u64,
    /// Bytes of their contents.
    pub unreachable_bytes: u64,
    /// What leads to the others first: the roots with the most bytes.
    pub retained_by: Vec<Retainer>,
}

/// Objects by type.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Types {
    /// The types, those with the most bytes first.
    pub rows: Vec<TypeRow>,
    /// Number of types that are not listed.
    pub left_out: u64,
    /// Bytes of all objects.
    pub bytes: u64,
    /// Bytes of those whose type has a name.
    pub named: u64,
    /// Bytes of text, addresses and zeroes.
    pub recognized: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Key {
    Class(Table),
    Trait(u64),
    Look(TypeKind),
    Size(u64, u64),
}

impl Key {
    /// Its place among those that were looked up last.
    fn place(self) -> usize {
        let number = match self {
            Key::Class(Table::Class(at) | Table::Nameless(at)) | Key::Trait(at) => at / 8,
            Key::Look(kind) => kind as u64,
            Key::Size(_, to) => to / 16 + 8,
        };
        (number % RECENT as u64) as usize
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    count: u64,
    bytes: u64,
    example: u64,
    unreachable: u64,
    unreachable_bytes: u64,
}

/// Counts the objects while they are found.
#[derive(Debug)]
pub(super) struct Census<'a> {
    memory: &'a Memory,
    tables: Tables<'a>,
    looks: Looks,
    /// The tables of trait objects, by the address of the object.
    traits: HashMap<u64, u64>,
    ids: HashMap<Key, u32>,
    /// Those that were looked up last.
    recent: [Option<(Key, u32)>; RECENT],
    sums: Vec<(Key, Sum)>,
    /// What leads to them.
    pub roots: Roots,
    /// What leads to unreachable chunks with samples.
    pub heads: Heads,
    /// Whether objects are counted at all.
    counts: bool,
}

impl<'a> Census<'a> {
    /// One that counts nothing: the search for what can be reached, alone, is measured with it.
    pub(super) fn of_nothing(snapshot: &'a Snapshot) -> Census<'a> {
        Census {
            counts: false,
            ..Census::new(None, snapshot, 0)
        }
    }

    /// None yet. Without a process, its files are not read. The roots of the `top` largest objects are kept.
    pub(super) fn new(pid: Option<Pid>, snapshot: &'a Snapshot, top: usize) -> Census<'a> {
        Census {
            memory: &snapshot.memory,
            tables: Tables::new(Files::new(pid, &snapshot.memory, &snapshot.vmas)),
            looks: Looks::new(&snapshot.vmas),
            traits: HashMap::new(),
            ids: HashMap::new(),
            recent: [None; RECENT],
            sums: Vec::new(),
            roots: Roots::new(top),
            heads: Heads::default(),
            counts: true,
        }
    }

    /// Whether an address lies among a file's data.
    pub(super) fn is_of_file(&self, addr: u64) -> bool {
        self.counts && self.tables.files.contain(addr)
    }

    /// Where a file's data end, if the address lies among them.
    pub(super) fn end_of_file(&self, addr: u64) -> Option<u64> {
        self.tables.files.end_of(addr)
    }

    /// Notes the word behind one that is the address of an object, of `room` bytes.
    pub(super) fn pair(&mut self, object: u64, room: u64, word: u64) {
        if self.traits.len() < MAX_TRAIT_OBJECTS && self.tables.is_trait_object(word, room) {
            self.traits.insert(object, word);
        }
    }

    /// Counts an object: its contents, and the root that leads to it; `None` if it is unreachable.
    pub(super) fn add(&mut self, (start, end): (u64, u64), root: Option<u32>) {
        if !self.counts {
            return;
        }
        let bytes = end.saturating_sub(start);
        let key = self.key(start, end);
        let id = self.id(key);
        let sum = &mut self.sums[id as usize].1;
        sum.count += 1;
        sum.bytes += bytes;
        if sum.count == 1 || (root.is_none() && sum.unreachable == 0) {
            sum.example = start;
        }
        match root {
            Some(root) => self.roots.add(root, id, start, bytes),
            None => {
                sum.unreachable += 1;
                sum.unreachable_bytes += bytes;
            }
        }
    }

    fn id(&mut self, key: Key) -> u32 {
        // Few types are most objects'.
        let recent = &self.recent[key.place()];
        if let Some((_, id)) = recent.filter(|(known, _)| *known == key) {
            return id;
        }
        let id = match self.ids.get(&key) {
            Some(id) => *id,
            None => {
                let id = self.sums.len() as u32;
                self.ids.insert(key, id);
                self.sums.push((key, Sum::default()));
                id
            }
        };
        self.recent[key.place()] = Some((key, id));
        id
    }

    fn key(&mut self, start: u64, end: u64) -> Key {
        let first = self.memory.word(start);
        if let Some(table) = first.and_then(|word| self.tables.class(word)) {
            let key = Key::Class(table);
            if self.ids.len() < MAX_TABLES || self.ids.contains_key(&key) {
                return key;
            }
        }
        if !self.traits.is_empty()
            && let Some(table) = self.traits.get(&start)
        {
            let key = Key::Trait(*table);
            if self.ids.len() < MAX_TABLES || self.ids.contains_key(&key) {
                return key;
            }
        }
        match self.looks.look(self.memory, start, end) {
            Look::Text => Key::Look(TypeKind::Text),
            Look::Pointers => Key::Look(TypeKind::Pointers),
            Look::Zeroes => Key::Look(TypeKind::Zeroes),
            Look::Other => {
                let (from, to) = sizes::class(end.saturating_sub(start));
                Key::Size(from, to)
            }
        }
    }

    /// The table of types, and what leads to them.
    pub(super) fn finish(self) -> (Types, Retained) {
        let names = names::all(self.raw_names());
        let (retained, retainers) = self.roots.finish(&self.tables.files);
        // Types with several tables, as in several libraries, are one.
        let mut rows: HashMap<(TypeKind, &str), (TypeRow, Vec<u32>)> = HashMap::new();
        for (id, (name, (key, sum))) in names.iter().zip(&self.sums).enumerate() {
            let kind = kind(*key);
            let (row, ids) = rows.entry((kind, name)).or_insert_with(|| {
                let row = TypeRow {
                    kind,
                    name: name.clone(),
                    count: 0,
                    bytes: 0,
                    example: sum.example,
                    unreachable: 0,
                    unreachable_bytes: 0,
                    retained_by: Vec::new(),
                };
                (row, Vec::new())
            });
            if row.unreachable == 0 {
                row.example = sum.example;
            }
            row.count += sum.count;
            row.bytes += sum.bytes;
            row.unreachable += sum.unreachable;
            row.unreachable_bytes += sum.unreachable_bytes;
            ids.push(id as u32);
        }
        let mut rows: Vec<(TypeRow, Vec<u32>)> = rows.into_values().collect();
        rows.sort_by(|(a, _), (b, _)| (b.bytes, a.kind, &a.name).cmp(&(a.bytes, b.kind, &b.name)));
        let of = |kinds: &[TypeKind]| {
            let rows = rows.iter().filter(|(row, _)| kinds.contains(&row.kind));
            rows.map(|(row, _)| row.bytes).sum()
        };
        let types = Types {
            left_out: rows.len().saturating_sub(MAX_ROWS) as u64,
            bytes: rows.iter().map(|(row, _)| row.bytes).sum(),
            named: of(&[TypeKind::Class, TypeKind::TraitObject]),
            recognized: of(&[TypeKind::Text, TypeKind::Pointers, TypeKind::Zeroes]),
            rows: Vec::new(),
        };
        rows.truncate(MAX_ROWS);
        let with_roots = |(mut row, ids): (TypeRow, Vec<u32>)| {
            row.retained_by = retainers.of(&ids, RETAINERS);
            row
        };
        let rows = rows.into_iter().map(with_roots).collect();
        (Types { rows, ..types }, retained)
    }

    /// What the names of all types are made from.
    fn raw_names(&self) -> Vec<Raw> {
        let files = &self.tables.files;
        let keys = || self.sums.iter().map(|(key, _)| *key);
        let nameless = keys().filter_map(|key| match key {
            Key::Class(Table::Nameless(table)) => Some(table),
            _ => None,
        });
        let tables = files.variables(nameless);
        // What drops the objects, and the first method.
        let of_trait = |table: u64| [0, METHODS].map(|at| files.word(table.saturating_add(at)));
        let functions = keys().flat_map(|key| match key {
            Key::Trait(table) => of_trait(table),
            _ => [None; 2],
        });
        let functions = files.functions(functions.flatten());
        let unnamed = |what: &str, table: u64| {
            let place = files
                .in_file(table)
                .unwrap_or_else(|| format!("{table:#x}"));
            format!("[{what} at {place}]")
        };
        let raw = |key| match key {
            Key::Class(Table::Class(name)) => {
                let name = files.text(name).unwrap_or_default();
                Raw {
                    symbols: vec![class_symbol(&name)],
                    choose: class_name,
                    otherwise: String::from_utf8_lossy(&name).into_owned(),
                }
            }
            Key::Class(Table::Nameless(table)) => {
                let symbol = tables.get(&table);
                // (With virtual bases, their offsets come first.)
                let symbol = symbol.filter(|(start, _)| *start <= table.wrapping_sub(16));
                Raw {
                    symbols: symbol
                        .map(|(_, symbol)| symbol.clone())
                        .into_iter()
                        .collect(),
                    choose: class_name,
                    otherwise: unnamed("virtual functions", table),
                }
            }
            Key::Trait(table) => {
                let symbols = of_trait(table).into_iter().flatten();
                let symbols = symbols.filter_map(|function| functions.get(&function).cloned());
                Raw {
                    symbols: symbols.collect(),
                    choose: type_of_function,
                    otherwise: unnamed("table of a trait", table),
                }
            }
            Key::Look(_) => Raw::known(String::new()),
            Key::Size(from, to) if to - from < 16 => Raw::known(format!("{to} bytes")),
            Key::Size(from, to) => Raw::known(format!("{from} to {to} bytes")),
        };
        keys().map(raw).collect()
    }
}

fn kind(key: Key) -> TypeKind {
    match key {
        Key::Class(_) => TypeKind::Class,
        Key::Trait(_) => TypeKind::TraitObject,
        Key::Look(kind) => kind,
        Key::Size(..) => TypeKind::Unknown,
    }
}
