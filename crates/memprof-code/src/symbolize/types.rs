//! Types and variables that debug information declares. All of it is scanned once for variables and for the definitions of types;
//! a type is read when it is needed.

mod model;
mod pretty;
mod read;
mod scan;

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::path::Path;
use std::rc::Rc;
use std::time::Instant;

use gimli::{
    AbbreviationsCacheStrategy, DebugInfoOffset, Dwarf, Unit, UnitHeader, UnitOffset,
    UnitSectionOffset,
};

use super::debugfile;
use super::debuginfod_cache::CacheDirs;
use super::sections::{SectionMemory, Slice};
use super::split::Split;
use crate::elf::Elf;
use memprof_profile::Module;
use memprof_sys::target_file::{FileTree, TargetFile};

pub use model::{Layout, Member, Record, Type, TypeId, Variants};
pub use pretty::pretty;

/// Maximum number of types to know, and of bytes that those that were read take.
const MAX_TYPES: usize = 1 << 18;
const MAX_BYTES: usize = 64 << 20;
/// Maximum number of units to hold open, and of names in them. All are closed when there are more.
const MAX_UNITS: usize = 512;
const MAX_NAMES: usize = 1 << 20;

/// Why types were not read.
const TOO_LARGE: &str = "the types in use are too many";

/// The place of an entry: file, whether it is in the debug information that the file shares with others, offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Entry {
    file: u16,
    shared: bool,
    at: usize,
}

/// A variable with a fixed address.
#[derive(Clone, Copy, Debug)]
pub struct Variable {
    /// Index of its file, in the order in which the files were added.
    pub file: usize,
    /// Address in the file.
    pub address: u64,
    entry: Entry,
}

struct File {
    dwarf: Dwarf<Slice>,
    /// The units, and those of the shared debug information.
    units: [Vec<UnitHeader<Slice>>; 2],
}

/// A unit that is open, with the names of its types.
struct OpenUnit {
    unit: Unit<Slice>,
    names: read::ScopeNames,
}

/// The debug information of several files.
pub struct DebugTypes {
    files: Vec<File>,
    units: HashMap<(u16, bool, usize), Rc<OpenUnit>>,
    /// Number of names in these units.
    names: usize,
    /// The memory that `files` and `units` refer to; dropped after them.
    memory: Vec<Split>,
    entries: Vec<(Entry, Option<Rc<Type>>)>,
    ids: HashMap<Entry, TypeId>,
    found: scan::Found,
    /// Number of bytes that may still be decompressed, and that types may still take.
    room: u64,
    bytes_left: usize,
    /// When to stop reading.
    end: Instant,
    /// Why not all was read.
    incomplete: Option<String>,
}

impl fmt::Debug for DebugTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DebugTypes").finish_non_exhaustive()
    }
}

impl DebugTypes {
    /// Starts without files. Nothing is read after `end`, and at most `room` bytes are decompressed.
    pub fn new(end: Instant, room: u64) -> DebugTypes {
        DebugTypes {
            files: Vec::new(),
            units: HashMap::new(),
            names: 0,
            room,
            bytes_left: MAX_BYTES,
            memory: Vec::new(),
            entries: Vec::new(),
            ids: HashMap::new(),
            found: scan::Found::default(),
            end,
            incomplete: None,
        }
    }

    /// Adds a program or a library with its path in `tree` (memprof's own file tree if `None`). Returns its index, or `None` if it
    /// has no debug information, neither in the file nor in a debug file that is installed.
    pub fn add(&mut self, file: &TargetFile, path: &Path, tree: Option<FileTree>) -> Option<usize> {
        let module = Module {
            path: path.to_owned(),
            tree,
            ..Module::jit()
        };
        let elf = Elf::read(file).ok()?;
        if elf.has_debug_info() {
            return self.add_debug_file(file, &elf, &module);
        }
        let debug = debugfile::find(&elf, &module, &CacheDirs::of_environment())?;
        let elf = Elf::read(&debug).ok().filter(Elf::has_debug_info)?;
        self.add_debug_file(&debug, &elf, &module)
    }

    fn add_debug_file(&mut self, file: &TargetFile, elf: &Elf, module: &Module) -> Option<usize> {
        let mut memory = SectionMemory::new(self.room);
        let read = memory.load(file, elf, false).and_then(|sections| {
            Dwarf::load(|id| Ok::<_, Infallible>(sections.get(Some(id.name())))).ok()
        });
        let Some(mut dwarf) = read else {
            let path = module.path.display();
            self.stopped(format!("that of {path} is damaged, or too large"));
            return None;
        };
        dwarf.populate_abbreviations_cache(AbbreviationsCacheStrategy::Duplicates);
        let mut split = Split::new(module, memory);
        if let Some(shared) = split.shared(elf) {
            dwarf.set_sup(shared);
        }
        self.room = split.kept.room();
        if let Some(missing) = split.missing() {
            self.stopped(missing);
        }
        let units = [units(&dwarf), dwarf.sup().map(units).unwrap_or_default()];
        self.memory.push(split);
        self.files.push(File { dwarf, units });
        Some(self.files.len() - 1)
    }

    /// Scans all files until `end`. `classes` are the C++ classes to find: mangled name and plain name, without namespaces and arguments.
    pub fn scan(&mut self, classes: &[(Vec<u8>, String)], end: Instant) {
        let mut scan = scan::Scan::new(classes, end);
        for (index, file) in self.files.iter().enumerate() {
            for shared in [false, true] {
                scan.file(index as u16, shared, file);
            }
        }
        let (found, stopped) = scan.finish();
        self.found = found;
        if let Some(why) = stopped {
            self.stopped(why);
        }
    }

    /// The variables with fixed addresses, in the order of their files.
    pub fn variables(&self) -> &[Variable] {
        &self.found.variables
    }

    /// The type of a variable.
    pub fn type_of(&mut self, variable: &Variable) -> Option<TypeId> {
        let of = self.reference(variable.entry, gimli::DW_AT_type, 0)?;
        Some(self.id(of))
    }

    /// The type of one of the classes that [`DebugTypes::scan`] looked for, by its index.
    pub fn class(&mut self, index: usize) -> Option<TypeId> {
        let entry = *self.found.classes.get(&index)?;
        Some(self.id(entry))
    }

    /// The type whose trait objects have a vtable at this address of a file.
    pub fn behind_vtable(&mut self, file: usize, address: u64) -> Option<TypeId> {
        let entry = *self.found.vtables.get(&(file as u16, address))?;
        let table = self.reference(entry, gimli::DW_AT_type, 0)?;
        let of = self.reference(table, gimli::DW_AT_containing_type, 0)?;
        Some(self.id(of))
    }

    /// The type that is defined by this name, with namespaces.
    pub fn named(&mut self, name: &str) -> Option<TypeId> {
        let entry = self.found.definition(name)?;
        Some(self.id(entry))
    }

    /// Whether objects of other types begin with an object of this type: a pointer to it may lead to something larger.
    pub fn is_extended(&self, of: &Type) -> bool {
        self.found
            .extended
            .contains(&scan::hash(last_name(&of.name).as_bytes()))
    }

    /// Reads a type. A type that cannot be read has no name.
    pub fn get(&mut self, id: TypeId) -> Rc<Type> {
        let Some((entry, known)) = self.entries.get(id.0 as usize) else {
            return Rc::default();
        };
        if let Some(known) = known {
            return known.clone();
        }
        let entry = *entry;
        if self.is_late() {
            self.stopped(scan::LATE.to_owned());
            return Rc::default();
        }
        let of = Rc::new(self.read(entry).unwrap_or_default());
        match self.bytes_left.checked_sub(of.bytes()) {
            Some(left) => self.bytes_left = left,
            None => {
                self.stopped(TOO_LARGE.to_owned());
                return Rc::default();
            }
        }
        self.entries[id.0 as usize].1 = Some(of.clone());
        of
    }

    /// Whether the time is over.
    pub fn is_late(&self) -> bool {
        Instant::now() >= self.end
    }

    /// Why not all debug information was used.
    pub fn incomplete(&self) -> Option<&str> {
        self.incomplete.as_deref()
    }

    /// Records why not all debug information is used, unless there is a reason already.
    pub fn stopped(&mut self, why: String) {
        self.incomplete.get_or_insert(why);
    }

    /// Whether no file was truncated while it was read.
    pub fn is_whole(&self) -> bool {
        self.memory.iter().all(|split| split.kept.is_whole())
    }

    fn id(&mut self, entry: Entry) -> TypeId {
        if let Some(id) = self.ids.get(&entry) {
            return *id;
        }
        let id = TypeId(self.entries.len() as u32);
        if self.entries.len() >= MAX_TYPES {
            self.stopped(TOO_LARGE.to_owned());
            return TypeId(u32::MAX);
        }
        self.entries.push((entry, None));
        self.ids.insert(entry, id);
        id
    }

    fn dwarf(&self, entry: Entry) -> Option<&Dwarf<Slice>> {
        let file = &self.files.get(usize::from(entry.file))?.dwarf;
        match entry.shared {
            true => file.sup(),
            false => Some(file),
        }
    }

    /// Opens the unit that contains an entry; returns it with the entry's offset in it.
    fn unit(&mut self, entry: Entry) -> Option<(Rc<OpenUnit>, UnitOffset)> {
        let file = self.files.get(usize::from(entry.file))?;
        let units = &file.units[usize::from(entry.shared)];
        let index = units.partition_point(|unit| start(unit) <= entry.at);
        let header = units.get(index.checked_sub(1)?)?;
        let offset = UnitSectionOffset(entry.at).to_unit_offset(header)?;
        let key = (entry.file, entry.shared, index);
        if let Some(open) = self.units.get(&key) {
            return Some((open.clone(), offset));
        }
        if self.is_late() {
            self.stopped(scan::LATE.to_owned());
            return None;
        }
        let unit = self.dwarf(entry)?.unit(*header).ok()?;
        let names = read::ScopeNames::read(self.dwarf(entry)?, &unit);
        if self.units.len() >= MAX_UNITS || self.names + names.len() > MAX_NAMES {
            self.units.clear();
            self.names = 0;
        }
        self.names += names.len();
        let open = Rc::new(OpenUnit { unit, names });
        self.units.insert(key, open.clone());
        Some((open, offset))
    }
}

/// The first byte of a unit, in its section.
fn start(unit: &UnitHeader<Slice>) -> usize {
    unit.debug_info_offset().map_or(0, |DebugInfoOffset(at)| at)
}

/// The units, up to the first that is damaged.
fn units(dwarf: &Dwarf<Slice>) -> Vec<UnitHeader<Slice>> {
    let mut headers = dwarf.units();
    let all = std::iter::from_fn(|| headers.next().ok().flatten());
    all.collect()
}

/// The last part of a name with namespaces.
pub fn last_name(name: &str) -> &str {
    let mut depth = 0_i32;
    let mut last = 0;
    for (at, c) in name.char_indices() {
        match c {
            '<' | '(' | '[' => depth += 1,
            '>' | ')' | ']' => depth -= 1,
            ':' if depth == 0 => last = at + 1,
            _ => {}
        }
    }
    &name[last..]
}
