//! Reads single types.

use gimli::{
    AttributeValue, DebugInfoOffset, DebuggingInformationEntry, DwAt, Dwarf, Unit, UnitOffset,
};

use super::super::sections::Slice;
use super::{DebugTypes, Entry, Layout, Member, OpenUnit, Record, Type, TypeId, Variants};

/// Maximum number of types between a type and the one that it is another name for, and of namespaces around it.
const MAX_CHAIN: u32 = 32;
/// Maximum number of members of a type, and of its variants.
const MAX_MEMBERS: usize = 4096;
/// Maximum length of a name with namespaces, in bytes.
const MAX_NAME: usize = 4096;
/// Maximum number of namespaces and types of a unit whose names are remembered.
const MAX_SCOPES: usize = 1 << 20;

type Die = DebuggingInformationEntry<Slice>;

/// The namespaces and types of a unit, to find the namespaces around a type.
#[derive(Debug, Default)]
pub(super) struct ScopeNames(Vec<Scope>);

#[derive(Debug)]
struct Scope {
    at: UnitOffset,
    /// Index of the scope around it.
    outer: Option<u32>,
    name: &'static [u8],
}

impl ScopeNames {
    /// Number of scopes.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Reads the names of a unit, up to the first entry that is damaged.
    pub(super) fn read(dwarf: &Dwarf<Slice>, unit: &Unit<Slice>) -> ScopeNames {
        let mut names = ScopeNames::default();
        names.add_all(dwarf, unit);
        names
    }

    fn add_all(&mut self, dwarf: &Dwarf<Slice>, unit: &Unit<Slice>) -> Option<()> {
        let mut entries = unit.entries_raw(None).ok()?;
        let mut open: Vec<(isize, u32)> = Vec::new();
        while !entries.is_empty() && self.0.len() < MAX_SCOPES {
            let (at, depth) = (entries.next_offset(), entries.next_depth());
            let Some(kind) = entries.read_abbreviation().ok()? else {
                continue;
            };
            while open.last().is_some_and(|(inside, _)| depth < *inside) {
                open.pop();
            }
            if !is_scope(kind.tag()) {
                entries.skip_attributes(kind.attributes()).ok()?;
                continue;
            }
            let mut name = None;
            for attribute in kind.attributes() {
                let attribute = entries.read_attribute(*attribute).ok()?;
                if attribute.name() == gimli::DW_AT_name {
                    name = dwarf.attr_string(unit, attribute.value()).ok();
                }
            }
            let outer = open.last().map(|(_, index)| *index);
            if kind.has_children() {
                open.push((depth + 1, self.0.len() as u32));
            }
            let name = name.map_or(&b""[..], |name| name.slice());
            self.0.push(Scope { at, outer, name });
        }
        Some(())
    }

    /// The name of the type at an offset, with namespaces.
    fn name(&self, at: UnitOffset) -> Option<String> {
        let index = self.0.binary_search_by_key(&at, |scope| scope.at).ok()?;
        let first = self.0.get(index)?;
        if first.name.is_empty() {
            return Some(String::new());
        }
        let mut parts = vec![first.name];
        let mut outer = first.outer;
        while let Some(scope) = outer.and_then(|outer| self.0.get(outer as usize))
            && parts.len() < MAX_CHAIN as usize
        {
            parts.extend((!scope.name.is_empty()).then_some(scope.name));
            outer = scope.outer;
        }
        let parts = parts.into_iter().rev().map(String::from_utf8_lossy);
        Some(cut(parts.collect::<Vec<_>>().join("::")))
    }
}

fn is_scope(tag: gimli::DwTag) -> bool {
    matches!(
        tag,
        gimli::DW_TAG_namespace
            | gimli::DW_TAG_structure_type
            | gimli::DW_TAG_class_type
            | gimli::DW_TAG_union_type
            | gimli::DW_TAG_enumeration_type
    )
}

fn cut(mut name: String) -> String {
    let fits = |at: &usize| name.is_char_boundary(*at);
    if name.len() > MAX_NAME {
        let end = (0..=MAX_NAME).rev().find(fits);
        name.truncate(end.unwrap_or(0));
    }
    name
}

impl DebugTypes {
    /// The entry that an attribute of an entry refers to. A definition without the attribute has that of its declaration.
    pub(super) fn reference(&mut self, entry: Entry, name: DwAt, depth: u32) -> Option<Entry> {
        let (unit, at) = self.unit(entry)?;
        let die = unit.unit.entry(at).ok()?;
        if let Some(value) = die.attr_value(name) {
            return self.target(entry, &unit, &value);
        }
        let declared = die.attr_value(gimli::DW_AT_specification);
        let declared = declared.or_else(|| die.attr_value(gimli::DW_AT_abstract_origin))?;
        let declared = self.target(entry, &unit, &declared)?;
        (depth < MAX_CHAIN).then_some(())?;
        self.reference(declared, name, depth + 1)
    }

    /// The entry that an attribute's value refers to.
    fn target(&self, from: Entry, unit: &OpenUnit, value: &AttributeValue<Slice>) -> Option<Entry> {
        let base = unit.unit.header.debug_info_offset()?.0;
        match value {
            AttributeValue::UnitRef(at) => Some(Entry {
                at: base.checked_add(at.0)?,
                ..from
            }),
            AttributeValue::DebugInfoRef(DebugInfoOffset(at)) => Some(Entry { at: *at, ..from }),
            AttributeValue::DebugInfoRefSup(DebugInfoOffset(at)) => Some(Entry {
                at: *at,
                shared: true,
                ..from
            }),
            _ => None,
        }
    }

    /// Reads the type at an entry.
    pub(super) fn read(&mut self, entry: Entry) -> Option<Type> {
        self.read_chain(entry, MAX_CHAIN)
    }

    fn read_chain(&mut self, entry: Entry, left: u32) -> Option<Type> {
        let left = left.checked_sub(1)?;
        let (unit, at) = self.unit(entry)?;
        let die = unit.unit.entry(at).ok()?;
        let size = number(&die, gimli::DW_AT_byte_size);
        let scalar = |name| Type {
            name,
            size: size.unwrap_or(0),
            layout: Layout::Scalar,
        };
        Some(match die.tag() {
            gimli::DW_TAG_typedef => {
                let of = self.reference(entry, gimli::DW_AT_type, 0)?;
                let of = self.read_chain(of, left)?;
                // In C, a structure may have a name only this way.
                match of.name.is_empty() {
                    true => Type {
                        name: self.own_name(entry, &unit, &die).unwrap_or_default(),
                        ..of
                    },
                    false => of,
                }
            }
            gimli::DW_TAG_const_type
            | gimli::DW_TAG_volatile_type
            | gimli::DW_TAG_restrict_type
            | gimli::DW_TAG_atomic_type => {
                let of = self.reference(entry, gimli::DW_AT_type, 0)?;
                self.read_chain(of, left)?
            }
            gimli::DW_TAG_pointer_type
            | gimli::DW_TAG_reference_type
            | gimli::DW_TAG_rvalue_reference_type => {
                let of = self.reference(entry, gimli::DW_AT_type, 0);
                let named = self.own_name(entry, &unit, &die);
                let name = named.unwrap_or_else(|| {
                    let of = of.and_then(|of| self.name_of(of, left));
                    format!("{}*", of.as_deref().unwrap_or("void"))
                });
                let to = of.map(|of| self.id(of));
                Type {
                    name: cut(name),
                    size: 8,
                    layout: Layout::Pointer(to),
                }
            }
            gimli::DW_TAG_array_type => {
                let of = self.reference(entry, gimli::DW_AT_type, 0)?;
                let count = counts(&unit.unit, at);
                let id = self.id(of);
                let element = self.get_within(id, left)?;
                let name = count.map_or_else(String::new, |count| count.to_string());
                Type {
                    name: cut(format!("{}[{name}]", element.0)),
                    size: element.1.saturating_mul(count.unwrap_or(0)),
                    layout: Layout::Array(id, count),
                }
            }
            gimli::DW_TAG_structure_type | gimli::DW_TAG_class_type | gimli::DW_TAG_union_type => {
                let name = unit.names.name(at).unwrap_or_default();
                if die.attr_value(gimli::DW_AT_declaration).is_some() {
                    let defined = self.found.definition(&name);
                    return match defined.filter(|defined| *defined != entry) {
                        Some(defined) => self.read_chain(defined, left),
                        None => Some(scalar(name)),
                    };
                }
                let mut record = self.record(entry, &unit, at).unwrap_or_default();
                record.is_union = die.tag() == gimli::DW_TAG_union_type;
                Type {
                    name,
                    size: size.unwrap_or(0),
                    layout: Layout::Record(record),
                }
            }
            gimli::DW_TAG_enumeration_type => scalar(unit.names.name(at).unwrap_or_default()),
            _ => scalar(self.own_name(entry, &unit, &die).unwrap_or_default()),
        })
    }

    /// Name and size of an array's elements.
    fn get_within(&mut self, id: TypeId, left: u32) -> Option<(String, u64)> {
        let (entry, known) = self.entries.get(id.0 as usize)?;
        if let Some(known) = known {
            return Some((known.name.clone(), known.size));
        }
        let of = self.read_chain(*entry, left)?;
        Some((of.name, of.size))
    }

    fn own_name(&self, entry: Entry, unit: &OpenUnit, die: &Die) -> Option<String> {
        let name = die.attr_value(gimli::DW_AT_name)?;
        let name = self.dwarf(entry)?.attr_string(&unit.unit, name).ok()?;
        Some(cut(String::from_utf8_lossy(name.slice()).into_owned()))
    }

    /// The name of a type, without reading the type where that can be avoided.
    fn name_of(&mut self, entry: Entry, left: u32) -> Option<String> {
        let (unit, at) = self.unit(entry)?;
        match unit.names.name(at) {
            Some(name) => Some(name),
            None => self.read_chain(entry, left).map(|of| of.name),
        }
    }

    fn record(&mut self, entry: Entry, unit: &OpenUnit, at: UnitOffset) -> Option<Record> {
        let mut record = Record::default();
        let mut tree = unit.unit.entries_tree(Some(at)).ok()?;
        let mut children = tree.root().ok()?.children();
        while let Some(child) = children.next().ok()? {
            if record.members.len() >= MAX_MEMBERS || record.arguments.len() >= MAX_MEMBERS {
                break;
            }
            let die = child.entry();
            match die.tag() {
                gimli::DW_TAG_member | gimli::DW_TAG_inheritance => {
                    record.members.extend(self.member(entry, unit, die));
                }
                gimli::DW_TAG_template_type_parameter => {
                    let name = self.own_name(entry, unit, die).unwrap_or_default();
                    let of = die.attr_value(gimli::DW_AT_type);
                    let of = of.and_then(|of| self.target(entry, unit, &of));
                    if let Some(of) = of {
                        record.arguments.push((name, self.id(of)));
                    }
                }
                gimli::DW_TAG_variant_part => {
                    let tag = die.attr_value(gimli::DW_AT_discr);
                    record.variants = self.variants(entry, unit, tag, child.children());
                }
                _ => {}
            }
        }
        Some(record)
    }

    /// A member, if it has a fixed place: static ones and virtual base classes have none.
    fn member(&mut self, entry: Entry, unit: &OpenUnit, die: &Die) -> Option<Member> {
        let is_static = [gimli::DW_AT_external, gimli::DW_AT_declaration];
        if is_static.iter().any(|name| die.attr_value(*name).is_some()) {
            return None;
        }
        let offset = match die.attr_value(gimli::DW_AT_data_member_location) {
            Some(value) => value.udata_value()?,
            None => 0,
        };
        let of = self.target(entry, unit, &die.attr_value(gimli::DW_AT_type)?)?;
        Some(Member {
            name: self.own_name(entry, unit, die).unwrap_or_default(),
            offset,
            of: self.id(of),
        })
    }

    /// The variants of an enumeration; `None` if they cannot be told apart.
    fn variants(
        &mut self,
        entry: Entry,
        unit: &OpenUnit,
        tag: Option<AttributeValue<Slice>>,
        mut children: gimli::EntriesTreeIter<'_, '_, Slice>,
    ) -> Option<Variants> {
        let mut variants = Variants::default();
        let tag = tag.and_then(|tag| self.target(entry, unit, &tag));
        if let Some(tag) = tag {
            let (unit, at) = self.unit(tag)?;
            let die = unit.unit.entry(at).ok()?;
            let member = self.member(tag, &unit, &die)?;
            let size = self.get_within(member.of, MAX_CHAIN)?.1;
            variants.tag = Some((member.offset, size));
        }
        while let Some(child) = children.next().ok()? {
            let die = child.entry();
            if die.tag() != gimli::DW_TAG_variant {
                continue;
            }
            if die.attr_value(gimli::DW_AT_discr_list).is_some()
                || variants.all.len() >= MAX_MEMBERS
            {
                return None;
            }
            let number = match die.attr_value(gimli::DW_AT_discr_value) {
                // A signed number has fewer bytes in the program's memory, which are compared.
                Some(value) => Some(
                    value
                        .udata_value()
                        .or(value.sdata_value().map(i64::cast_unsigned))?,
                ),
                None => None,
            };
            let mut members = Vec::new();
            let mut inner = child.children();
            while let Some(member) = inner.next().ok()? {
                members.extend(self.member(entry, unit, member.entry()));
            }
            variants.all.push((number, members));
        }
        Some(variants)
    }
}

fn number(die: &Die, name: DwAt) -> Option<u64> {
    die.attr_value(name)?.udata_value()
}

/// The number of elements of an array with any number of dimensions; `None` if it is not known.
fn counts(unit: &Unit<Slice>, at: UnitOffset) -> Option<u64> {
    let mut tree = unit.entries_tree(Some(at)).ok()?;
    let mut children = tree.root().ok()?.children();
    let mut all = None;
    while let Some(child) = children.next().ok()? {
        let die = child.entry();
        if die.tag() == gimli::DW_TAG_subrange_type {
            let bound = number(die, gimli::DW_AT_upper_bound);
            let bound = bound.and_then(|bound| bound.checked_add(1));
            let count = number(die, gimli::DW_AT_count).or(bound)?;
            all = Some(all.unwrap_or(1_u64).checked_mul(count)?);
        }
    }
    all
}
