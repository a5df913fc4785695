//! Scans all entries of debug information once: for variables with fixed addresses, definitions of types by name, and the types
//! that others begin with.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use gimli::{Attribute, AttributeValue, DwTag, Dwarf, Unit, UnitOffset};

use super::super::sections::Slice;
use super::{Entry, File, Variable, start};

/// Maximum number of variables, of definitions, and of types that others begin with.
const MAX_FOUND: usize = 1 << 19;
/// Maximum nesting of entries.
const MAX_DEPTH: isize = 256;
/// Number of entries between two looks at the clock.
const OFTEN: u32 = 1 << 14;
/// Why a scan ended early.
pub(super) const LATE: &str = "reading it takes too long";
const TOO_MANY: &str = "it declares too many variables or types";
const DAMAGED: &str = "a part of it is damaged";
const SPLIT: &str =
    "a part of it is in files of its own (split DWARF), which are not read for types";

/// A definition: its entry and its size in bytes; `None` if definitions of different sizes have its name.
type Definition = Option<(Entry, u64)>;

/// The result of a scan.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub variables: Vec<Variable>,
    /// The variables that are vtables of Rust's trait objects, by file and address.
    pub vtables: HashMap<(u16, u64), Entry>,
    /// Entries of the wanted classes, by index.
    pub classes: HashMap<usize, Entry>,
    /// By the hash of the name with namespaces.
    definitions: HashMap<u64, Definition>,
    /// Hashes of the names, without namespaces, of types that other types begin with.
    pub extended: HashSet<u64>,
}

impl Found {
    pub(super) fn definition(&self, name: &str) -> Option<Entry> {
        let found = self.definitions.get(&hash(name.as_bytes()))?;
        found.map(|(entry, _)| entry)
    }

    fn is_full(&self) -> bool {
        let most = self.variables.len().max(self.definitions.len());
        let most = most.max(self.vtables.len());
        most.max(self.extended.len()) >= MAX_FOUND
    }

    fn define(&mut self, name: u64, entry: Entry, size: u64) {
        let known = self.definitions.entry(name).or_insert(Some((entry, size)));
        if known.is_some_and(|(_, known)| known != size) {
            *known = None;
        }
    }
}

/// FNV-1a, which can be continued: the hash of a name is that of its namespace, continued.
pub(super) fn hash(bytes: &[u8]) -> u64 {
    continued(0xcbf2_9ce4_8422_2325, bytes)
}

fn continued(hash: u64, bytes: &[u8]) -> u64 {
    let add = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    bytes.iter().fold(hash, add)
}

/// A namespace or a type whose children are being scanned.
#[derive(Debug)]
struct Scope {
    /// Depth of its children.
    depth: isize,
    /// Hash of its name with namespaces; `None` at the outermost level.
    name: Option<u64>,
    /// Entry of the type that is defined there; `None` if the scope is no type.
    entry: Option<Entry>,
    /// Whether the type that it begins with is not known yet.
    is_at_start: bool,
    /// Indexes of the wanted classes that it may be.
    wanted: Vec<usize>,
}

/// A scan of several files.
pub(super) struct Scan<'w> {
    classes: &'w [(Vec<u8>, String)],
    /// Indexes in `classes` by plain name.
    by_name: HashMap<&'w [u8], Vec<usize>>,
    end: Instant,
    found: Found,
    stopped: Option<&'static str>,
}

impl<'w> Scan<'w> {
    pub(super) fn new(classes: &'w [(Vec<u8>, String)], end: Instant) -> Scan<'w> {
        let mut by_name: HashMap<&[u8], Vec<usize>> = HashMap::new();
        for (index, (_, name)) in classes.iter().enumerate() {
            by_name.entry(name.as_bytes()).or_default().push(index);
        }
        Scan {
            classes,
            by_name,
            end,
            found: Found::default(),
            stopped: None,
        }
    }

    /// The result, and why the scan ended early.
    pub(super) fn finish(self) -> (Found, Option<String>) {
        (self.found, self.stopped.map(str::to_owned))
    }

    /// Scans all units of a file.
    pub(super) fn file(&mut self, index: u16, shared: bool, file: &File) {
        let dwarf = match shared {
            true => file.dwarf.sup(),
            false => Some(&file.dwarf),
        };
        let Some(dwarf) = dwarf else { return };
        for header in &file.units[usize::from(shared)] {
            if self.stopped == Some(LATE) || self.stopped == Some(TOO_MANY) {
                return;
            }
            let base = Entry {
                file: index,
                shared,
                at: start(header),
            };
            let unit = dwarf.unit(*header).ok();
            if unit.as_ref().is_some_and(|unit| unit.dwo_id.is_some()) {
                self.stopped.get_or_insert(SPLIT);
            }
            if unit
                .and_then(|unit| self.unit(dwarf, &unit, base))
                .is_none()
            {
                self.stopped.get_or_insert(DAMAGED);
            }
        }
    }

    /// Scans a unit; `None` if it is damaged.
    fn unit(&mut self, dwarf: &Dwarf<Slice>, unit: &Unit<Slice>, base: Entry) -> Option<()> {
        let mut entries = unit.entries_raw(None).ok()?;
        let mut scopes: Vec<Scope> = Vec::new();
        let mut attributes = Vec::new();
        let mut count = 0_u32;
        while !entries.is_empty() {
            count = count.wrapping_add(1);
            if count.is_multiple_of(OFTEN) && Instant::now() >= self.end {
                self.stopped = Some(LATE);
                return Some(());
            }
            if self.found.is_full() {
                self.stopped = Some(TOO_MANY);
                return Some(());
            }
            let (offset, depth) = (entries.next_offset(), entries.next_depth());
            let Some(kind) = entries.read_abbreviation().ok()? else {
                continue;
            };
            while scopes.last().is_some_and(|scope| depth < scope.depth) {
                scopes.pop();
            }
            let parent = scopes.last_mut().filter(|scope| scope.depth == depth);
            if !is_wanted(kind.tag(), parent.as_deref()) {
                entries.skip_attributes(kind.attributes()).ok()?;
                continue;
            }
            entries
                .read_attributes(kind.attributes(), &mut attributes)
                .ok()?;
            let reader = Reader {
                dwarf,
                unit,
                attributes: &attributes,
            };
            let entry = Entry {
                at: base.at.checked_add(offset.0)?,
                ..base
            };
            match kind.tag() {
                gimli::DW_TAG_variable => self.variable(&reader, entry),
                gimli::DW_TAG_member | gimli::DW_TAG_inheritance => {
                    if let Some(parent) = parent {
                        parent.is_at_start = false;
                        self.found.extended.extend(reader.first_type());
                    }
                }
                gimli::DW_TAG_subprogram => {
                    if let Some(parent) = parent {
                        self.function(&reader, parent);
                    }
                }
                tag if kind.has_children() && depth < MAX_DEPTH => {
                    scopes.push(self.scope(&reader, tag, entry, depth, &scopes));
                }
                tag => {
                    self.scope(&reader, tag, entry, depth, &scopes);
                }
            }
        }
        Some(())
    }

    /// Enters a namespace or a type.
    fn scope(
        &mut self,
        reader: &Reader<'_>,
        tag: DwTag,
        entry: Entry,
        depth: isize,
        scopes: &[Scope],
    ) -> Scope {
        let outer = scopes.last().and_then(|scope| scope.name);
        let own = reader.text(gimli::DW_AT_name);
        let name = match (outer, own) {
            (Some(outer), Some(own)) => Some(continued(continued(outer, b"::"), own)),
            (None, Some(own)) => Some(hash(own)),
            (outer, None) => outer,
        };
        let is_type = tag != gimli::DW_TAG_namespace && !reader.has(gimli::DW_AT_declaration);
        let size = reader.number(gimli::DW_AT_byte_size);
        let mut wanted = Vec::new();
        if let (true, Some(name), Some(own), Some(size)) = (is_type, name, own, size) {
            self.found.define(name, entry, size);
            let plain = own.split(|byte| *byte == b'<').next().unwrap_or_default();
            wanted = self.by_name.get(plain).cloned().unwrap_or_default();
        }
        Scope {
            depth: depth + 1,
            name,
            entry: is_type.then_some(entry),
            is_at_start: is_type,
            wanted,
        }
    }

    fn variable(&mut self, reader: &Reader<'_>, entry: Entry) {
        let Some(address) = reader.address() else {
            return;
        };
        let name = reader.text(gimli::DW_AT_name).unwrap_or_default();
        if name.ends_with(b"::{vtable}") {
            self.found.vtables.insert((entry.file, address), entry);
            return;
        }
        self.found.variables.push(Variable {
            file: usize::from(entry.file),
            address,
            entry,
        });
    }

    /// A function's mangled name has that of its class, which tells which class it is.
    fn function(&mut self, reader: &Reader<'_>, class: &mut Scope) {
        let Some(name) = reader.text(gimli::DW_AT_linkage_name) else {
            return;
        };
        let found = class
            .wanted
            .iter()
            .position(|index| is_method_of(name, &self.classes[*index].0));
        if let (Some(at), Some(entry)) = (found, class.entry) {
            self.found.classes.entry(class.wanted[at]).or_insert(entry);
            class.wanted.clear();
        }
    }
}

/// Whether the attributes of an entry are of interest. `parent` is the scope directly around it.
fn is_wanted(tag: DwTag, parent: Option<&Scope>) -> bool {
    match tag {
        gimli::DW_TAG_variable
        | gimli::DW_TAG_namespace
        | gimli::DW_TAG_structure_type
        | gimli::DW_TAG_class_type
        | gimli::DW_TAG_union_type => true,
        gimli::DW_TAG_member | gimli::DW_TAG_inheritance => {
            parent.is_some_and(|parent| parent.is_at_start)
        }
        gimli::DW_TAG_subprogram => parent.is_some_and(|parent| !parent.wanted.is_empty()),
        _ => false,
    }
}

/// Whether a function with this mangled name belongs to the class with that mangled name.
fn is_method_of(function: &[u8], class: &[u8]) -> bool {
    let nested = class.strip_prefix(b"N").and_then(|c| c.strip_suffix(b"E"));
    let class = nested.unwrap_or(class);
    let Some(name) = function.strip_prefix(b"_ZN") else {
        return false;
    };
    let unqualified = name.iter().position(|byte| !b"VKRO".contains(byte));
    let rest = name.get(unqualified.unwrap_or(0)..).unwrap_or_default();
    let next = rest.strip_prefix(class).and_then(|rest| rest.first());
    // `I` would begin the arguments of a template.
    next.is_some_and(|next| matches!(next, b'0'..=b'9' | b'C' | b'D' | b'a'..=b'z'))
}

/// The attributes of an entry.
struct Reader<'a> {
    dwarf: &'a Dwarf<Slice>,
    unit: &'a Unit<Slice>,
    attributes: &'a [Attribute<Slice>],
}

impl Reader<'_> {
    fn value(&self, name: gimli::DwAt) -> Option<AttributeValue<Slice>> {
        let found = self.attributes.iter().find(|a| a.name() == name);
        found.map(Attribute::value)
    }

    fn has(&self, name: gimli::DwAt) -> bool {
        self.value(name).is_some()
    }

    fn text(&self, name: gimli::DwAt) -> Option<&'static [u8]> {
        let text = self.dwarf.attr_string(self.unit, self.value(name)?);
        text.ok().map(|text| text.slice())
    }

    fn number(&self, name: gimli::DwAt) -> Option<u64> {
        self.value(name)?.udata_value()
    }

    /// The address of a variable, if it is fixed.
    fn address(&self) -> Option<u64> {
        let location = self.value(gimli::DW_AT_location)?.exprloc_value()?;
        let mut operations = location.operations(self.unit.encoding());
        let first = operations.next().ok()??;
        if operations.next().ok()?.is_some() {
            return None;
        }
        match first {
            gimli::Operation::Address { address } => Some(address),
            gimli::Operation::AddressIndex { index } => self.dwarf.address(self.unit, index).ok(),
            _ => None,
        }
    }

    /// The hash of the name of the class of a member, if it lies at the beginning.
    fn first_type(&self) -> Option<u64> {
        if self.number(gimli::DW_AT_data_member_location).unwrap_or(0) != 0
            || self.has(gimli::DW_AT_declaration)
        {
            return None;
        }
        let mut of = self.value(gimli::DW_AT_type)?;
        for _ in 0..8 {
            let AttributeValue::UnitRef(UnitOffset(at)) = of else {
                return None;
            };
            let entry = self.unit.entry(UnitOffset(at)).ok()?;
            match entry.tag() {
                gimli::DW_TAG_structure_type | gimli::DW_TAG_class_type => {
                    let name = entry.attr_value(gimli::DW_AT_name)?;
                    let name = self.dwarf.attr_string(self.unit, name).ok()?;
                    return Some(hash(name.slice()));
                }
                gimli::DW_TAG_typedef | gimli::DW_TAG_const_type => {
                    of = entry.attr_value(gimli::DW_AT_type)?;
                }
                _ => return None,
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_name_their_classes() {
        for (function, class, is) in [
            ("_ZN4demo3FooD4Ev", "N4demo3FooE", true),
            ("_ZNK3Foo4nameEv", "3Foo", true),
            ("_ZN3FooIiE4nameEv", "3Foo", false),
            ("_ZN3FooIiE4nameEv", "3FooIiE", true),
            ("_ZNSt4pairIiiEC4Ev", "St4pairIiiE", true),
            ("_ZN4demo3BarD4Ev", "N4demo3FooE", false),
            ("main", "3Foo", false),
            ("_ZN", "3Foo", false),
        ] {
            let found = is_method_of(function.as_bytes(), class.as_bytes());
            assert_eq!(found, is, "{function} {class}");
        }
    }

    #[test]
    fn a_name_s_hash_continues_that_of_its_namespace() {
        assert_eq!(continued(hash(b"std"), b"::pair"), hash(b"std::pair"));
        assert_ne!(hash(b"std::pair"), hash(b"pair"));
    }
}
