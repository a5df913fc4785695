//! Counts chunks in use by type, once the search from the roots has found them or has finished without finding them.
//!
//! C++ classes are recognized by their vtables, Rust types behind trait objects by theirs (`vtables`), and text,
//! zeroes and addresses by their contents (`contents`). Blocks that Python owns have Python's types. All other chunks are classed by size.

use std::collections::HashMap;

use schemars::JsonSchema;
use serde::Serialize;

use super::all_heaps::AllHeaps;
use super::by_stack::Heads;
use super::classify::{Look, Looks};
use super::declared::{self, DebugInfo, Declared};
use super::mapped_files::Files;
use super::memory::Memory;
use super::names::{self, Raw};
use super::python::PythonBlocks;
use super::roots::{Retained, Retainer, Roots};
use super::shapes::{LostShape, Shapes};
use super::sizes;
use super::snapshot::Snapshot;
use super::source::Source;
use super::vtables::{
    MAX_TABLES, METHODS, Table, Tables, class_name, class_symbol, type_of_function,
};

/// Maximum number of types to list.
const MAX_ROWS: usize = 1000;
/// Maximum number of trait objects to remember.
const MAX_TRAIT_OBJECTS: usize = 1 << 20;
/// Number of entries in the cache in front of the table of types.
const RECENT: usize = 256;
/// Number of roots to list per type.
const RETAINERS: usize = 3;

/// How a type is recognized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "HeapTypeKind")]
pub enum TypeKind {
    /// C++ class, recognized by the first word of its objects.
    Class,
    /// Rust type, recognized by the vtable of its trait objects.
    TraitObject,
    /// Python type: an object, or memory of such objects.
    Python,
    /// Type that debug information declares for the pointers to the object.
    Declared,
    /// Readable text.
    Text,
    /// Mostly addresses.
    Pointers,
    /// Only zeroes.
    Zeroes,
    /// Unknown type; classed by size.
    Unknown,
}

impl TypeKind {
    /// Name of the kind in tables.
    pub fn name(self) -> &'static str {
        match self {
            TypeKind::Class => "C++",
            TypeKind::TraitObject => "Rust",
            TypeKind::Python => "Python",
            TypeKind::Declared => "declared",
            TypeKind::Text => "text",
            TypeKind::Pointers => "addresses",
            TypeKind::Zeroes => "zeroes",
            TypeKind::Unknown => "unknown",
        }
    }
}

/// The objects of a type.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[schemars(rename = "HeapTypeRow")]
pub struct TypeRow {
    /// How the type is recognized.
    pub kind: TypeKind,
    /// Name of the type, or the size range of objects of unknown type.
    pub name: String,
    /// Number of objects.
    pub count: u64,
    /// Bytes of their contents.
    pub bytes: u64,
    /// Address of one of the objects; an unreachable one, if there is any.
    pub example: u64,
    /// Number of unreachable objects.
    pub unreachable: u64,
    /// Bytes of the contents of unreachable objects.
    pub unreachable_bytes: u64,
    /// The roots that lead to the most bytes of the reachable objects.
    pub retained_by: Vec<Retainer>,
}

/// Objects by type.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
#[schemars(rename = "HeapTypes")]
pub struct Types {
    /// The types, in descending order of bytes.
    pub rows: Vec<TypeRow>,
    /// Number of types that are not listed.
    pub left_out: u64,
    /// Bytes of all objects.
    pub bytes: u64,
    /// Bytes of objects whose type has a name.
    pub named: u64,
    /// Bytes of text, addresses and zeroes.
    pub recognized: u64,
    /// Debug information that was used; `None` if no mapped file has any.
    pub debug_info: Option<DebugInfo>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Key {
    Class(Table),
    Trait(u64),
    Python(u32),
    Declared(u32),
    Look(TypeKind),
    Size(u64, u64),
}

impl Key {
    /// Index in the cache of recent lookups.
    fn place(self) -> usize {
        let number = match self {
            Key::Class(Table::Class(at) | Table::Nameless(at)) | Key::Trait(at) => at / 8,
            Key::Python(number) | Key::Declared(number) => u64::from(number),
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
    /// Address of the vtable of each trait object, by the address of its data.
    traits: HashMap<u64, u64>,
    ids: HashMap<Key, u32>,
    /// Cache of recent lookups in `ids`.
    recent: [Option<(Key, u32)>; RECENT],
    sums: Vec<(Key, Sum)>,
    /// The roots that lead to the objects.
    pub roots: Roots,
    /// Python's memory: its blocks on malloc's heap have its types.
    pub python: PythonBlocks<'a>,
    /// The types that debug information declares.
    declared: Declared,
    /// The heads of unreachable chunks with samples.
    pub heads: Heads,
    /// The shapes of groups of unreachable chunks.
    pub shapes: Shapes,
    /// Whether to count objects at all.
    counts: bool,
}

impl<'a> Census<'a> {
    /// A census that counts nothing, for measuring the search alone.
    pub(super) fn of_nothing(snapshot: &'a Snapshot) -> Census<'a> {
        Census {
            counts: false,
            ..Census::new(Source::Nothing, snapshot, 0)
        }
    }

    /// Starts empty. `source` finds the files of the process. Records the roots of the `top` largest
    /// objects.
    pub(super) fn new(source: Source<'_>, snapshot: &'a Snapshot, top: usize) -> Census<'a> {
        Census {
            memory: &snapshot.memory,
            tables: Tables::new(Files::new(source, &snapshot.memory, &snapshot.vmas)),
            looks: Looks::new(&snapshot.vmas),
            traits: HashMap::new(),
            ids: HashMap::new(),
            recent: [None; RECENT],
            sums: Vec::new(),
            roots: Roots::new(top),
            python: PythonBlocks::default(),
            declared: Declared::default(),
            heads: Heads::default(),
            shapes: Shapes::default(),
            counts: true,
        }
    }

    /// Finds the types that debug information declares.
    pub(super) fn declare(&mut self, source: Source<'_>, snapshot: &Snapshot, heaps: &AllHeaps) {
        self.declared = declared::find(source, snapshot, heaps, &mut self.tables);
    }

    /// Whether an address belongs to a mapped file.
    pub(super) fn is_of_file(&self, addr: u64) -> bool {
        self.counts && self.tables.files.contain(addr)
    }

    /// If the address belongs to a mapped file: the end of the file's part of the mapping.
    pub(super) fn end_of_file(&self, addr: u64) -> Option<u64> {
        self.tables.files.end_of(addr)
    }

    /// Checks the word after the address of an object: if the pair is a trait object, records its vtable. `room` is
    /// the size of the object's chunk contents, in bytes.
    pub(super) fn pair(&mut self, object: u64, room: u64, word: u64) {
        if self.traits.len() < MAX_TRAIT_OBJECTS && self.tables.is_trait_object(word, room) {
            self.traits.insert(object, word);
        }
    }

    /// Counts an object: its contents, and the root that leads to it, which is `None` if it is unreachable. Returns the id and
    /// the kind of its type.
    pub(super) fn add(
        &mut self,
        (start, end): (u64, u64),
        root: Option<u32>,
    ) -> Option<(u32, TypeKind)> {
        if !self.counts {
            return None;
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
        Some((id, kind(key)))
    }

    fn id(&mut self, key: Key) -> u32 {
        // Most objects have one of a few types.
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
        if let Some(number) = self.python.type_at(start) {
            return Key::Python(number);
        }
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
        if let Some(number) = self.declared.type_at(start) {
            return Key::Declared(number);
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

    /// Returns the table of types, the table of roots, and the shapes of groups of unreachable chunks with the number of those that
    /// are left out.
    pub(super) fn finish(mut self) -> (Types, Retained, (Vec<LostShape>, u64)) {
        let shapes = std::mem::take(&mut self.shapes);
        let names = names::all(self.raw_names());
        let named = |id: u32| {
            let (key, _) = self.sums[id as usize];
            (kind(key), names[id as usize].clone())
        };
        let shapes = shapes.finish(named);
        let (retained, retainers) = self.roots.finish(&self.tables.files);
        // A type with several vtables, for example in several libraries, is one row.
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
            named: of(&[
                TypeKind::Class,
                TypeKind::TraitObject,
                TypeKind::Python,
                TypeKind::Declared,
            ]),
            recognized: of(&[TypeKind::Text, TypeKind::Pointers, TypeKind::Zeroes]),
            rows: Vec::new(),
            debug_info: self.declared.info.clone(),
        };
        rows.truncate(MAX_ROWS);
        let with_roots = |(mut row, ids): (TypeRow, Vec<u32>)| {
            row.retained_by = retainers.largest(&ids, RETAINERS);
            row
        };
        let rows = rows.into_iter().map(with_roots).collect();
        (Types { rows, ..types }, retained, shapes)
    }

    /// The inputs for the names of all types.
    fn raw_names(&self) -> Vec<Raw> {
        let files = &self.tables.files;
        let keys = || self.sums.iter().map(|(key, _)| *key);
        let nameless = keys().filter_map(|key| match key {
            Key::Class(Table::Nameless(table)) => Some(table),
            _ => None,
        });
        let tables = files.variables(nameless);
        // The drop function and the first method of a trait's vtable.
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
                // With virtual bases, their offsets come first in the vtable.
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
            Key::Python(number) => Raw::known(self.python.name(number).to_owned()),
            Key::Declared(number) => Raw::known(self.declared.name(number).to_owned()),
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
        Key::Python(_) => TypeKind::Python,
        Key::Declared(_) => TypeKind::Declared,
        Key::Look(kind) => kind,
        Key::Size(..) => TypeKind::Unknown,
    }
}
