//! Recognizes vtables: of C++ classes, and of Rust types behind trait objects.
//!
//! C++ (Itanium ABI): the first word of an object points just past two words of the vtable: the offset of the subobject
//! that has this pointer, and the address of the class's `std::type_info`, which contains its name. This needs no
//! symbols. With `-fno-rtti` the address is 0, and only a symbol (`vtable for X`) gives the name.
//!
//! Rust: a trait object is a pair of words outside the object: the address of the object, and that of its vtable. The
//! vtable begins with the object's drop function (or 0), its size, its alignment, and the methods. It contains no
//! name, but the symbols of its functions contain the name of the type.

use std::collections::HashMap;

use super::mapped_files::Files;

/// Maximum number of cached addresses, per cache.
const MAX_KNOWN: usize = 1 << 18;
/// Maximum number of different vtables.
pub(super) const MAX_TABLES: usize = 1 << 16;
/// Maximum size and alignment of a Rust object, in bytes.
const MAX_SIZE: u64 = 1 << 40;
const MAX_ALIGN: u64 = 1 << 29;
/// Offsets in a Rust vtable.
const SIZE: u64 = 8;
const ALIGN: u64 = 16;
pub(super) const METHODS: u64 = 24;
/// The C++ runtime classes (in namespace `__cxxabiv1`) whose objects are the type_info of classes.
const DESCRIPTIONS: [&[u8]; 3] = [
    b"N10__cxxabiv117__class_type_infoE",
    b"N10__cxxabiv120__si_class_type_infoE",
    b"N10__cxxabiv121__vmi_class_type_infoE",
];

/// The vtable of a C++ class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Table {
    /// With type_info; contains the address of the class's name.
    Class(u64),
    /// Without type_info; contains the address of the virtual functions.
    Nameless(u64),
}

/// The vtable of a Rust trait object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TraitTable {
    /// Size of the object, in bytes.
    size: u64,
    /// Alignment of the object, in bytes.
    align: u64,
}

/// Lookup of vtables, with a cache.
#[derive(Debug)]
pub(super) struct Tables<'a> {
    pub(super) files: Files<'a>,
    classes: HashMap<u64, Option<Table>>,
    traits: HashMap<u64, Option<TraitTable>>,
    descriptions: HashMap<u64, bool>,
}

impl<'a> Tables<'a> {
    pub(super) fn new(files: Files<'a>) -> Tables<'a> {
        Tables {
            files,
            classes: HashMap::new(),
            traits: HashMap::new(),
            descriptions: HashMap::new(),
        }
    }

    /// The vtable that the first word of an object points to.
    pub(super) fn class(&mut self, word: u64) -> Option<Table> {
        if !word.is_multiple_of(8) || !self.files.contain(word) {
            return None;
        }
        if let Some(known) = self.classes.get(&word) {
            return *known;
        }
        let table = self.read_class(word);
        if self.classes.len() < MAX_KNOWN {
            self.classes.insert(word, table);
        }
        table
    }

    fn read_class(&mut self, word: u64) -> Option<Table> {
        let files = &self.files;
        // The primary vtable has offset 0.
        if files.word(word.checked_sub(16)?)? != 0 {
            return None;
        }
        match files.word(word - 8)? {
            0 => files
                .is_code(files.word(word)?)
                .then_some(Table::Nameless(word)),
            info => {
                let name = files.word(info.checked_add(8)?)?;
                let described = info.is_multiple_of(8) && self.describes_class(info);
                (described && is_name(&self.files.text(name)?)).then_some(Table::Class(name))
            }
        }
    }

    /// Whether a class's type_info is at this address: an object of a C++ runtime class, which has a type_info
    /// itself.
    fn describes_class(&mut self, info: u64) -> bool {
        let Some(table) = self.files.word(info) else {
            return false;
        };
        if let Some(known) = self.descriptions.get(&table) {
            return *known;
        }
        let name = || {
            let own = self.files.word(table.checked_sub(8)?)?;
            self.files.text(self.files.word(own.checked_add(8)?)?)
        };
        let describes = name().is_some_and(|name| DESCRIPTIONS.contains(&name.as_slice()));
        if self.descriptions.len() < MAX_KNOWN {
            self.descriptions.insert(table, describes);
        }
        describes
    }

    /// Whether a word that follows the address of an object with `room` bytes makes the pair a trait object.
    pub(super) fn is_trait_object(&mut self, word: u64, room: u64) -> bool {
        if !word.is_multiple_of(8) || !self.files.contain(word) {
            return false;
        }
        let table = match self.traits.get(&word) {
            Some(known) => *known,
            None => {
                let table = self.read_trait(word);
                if self.traits.len() < MAX_KNOWN {
                    self.traits.insert(word, table);
                }
                table
            }
        };
        table.is_some_and(|table| table.fits(room))
    }

    fn read_trait(&self, word: u64) -> Option<TraitTable> {
        let files = &self.files;
        let table = TraitTable {
            size: files.word(word.checked_add(SIZE)?)?,
            align: files.word(word.checked_add(ALIGN)?)?,
        };
        let drop = files.word(word)?;
        let likely = table.size <= MAX_SIZE
            && table.align.is_power_of_two()
            && table.align <= MAX_ALIGN
            && table.size.is_multiple_of(table.align);
        let method = || files.word(word.checked_add(METHODS)?);
        let functions = match drop {
            0 => files.is_code(method()?),
            drop => files.is_code(drop),
        };
        (likely && functions).then_some(table)
    }
}

impl TraitTable {
    /// Whether the object fills a chunk's contents of `room` bytes, alone or after the two counters of `Rc` and
    /// `Arc`.
    fn fits(self, room: u64) -> bool {
        // Contents have at least 24 bytes, and a multiple of 16 plus 8. A remainder that is too small for a chunk
        // stays in the chunk. Large chunks have whole pages.
        let fills = |size: u64| {
            let needed = match size {
                0..=24 => 24,
                _ => (size + 8).next_multiple_of(16) - 8,
            };
            let slack = match size {
                0..0x10000 => 16,
                _ => 0x2000,
            };
            size > 0 && needed <= room && room - needed <= slack
        };
        fills(self.size) || fills(16_u64.next_multiple_of(self.align) + self.size)
    }
}

/// Whether this is the mangled name of a type.
fn is_name(name: &[u8]) -> bool {
    // A leading star says that classes of this name may differ.
    let name = name.strip_prefix(b"*").unwrap_or(name);
    let first = name
        .first()
        .is_some_and(|b| b.is_ascii_digit() || b.is_ascii_uppercase());
    first && name.iter().all(u8::is_ascii_graphic)
}

/// A symbol with the mangled name of a class, for the demangler.
pub(super) fn class_symbol(name: &[u8]) -> Vec<u8> {
    let name = name.strip_prefix(b"*").unwrap_or(name);
    [b"_ZTS", name].concat()
}

/// Extracts the class from the demangled symbol of its vtable or of its type_info name.
pub(super) fn class_name(demangled: &str) -> Option<&str> {
    let names = ["vtable for ", "{vtable(", "typeinfo name for "];
    let rest = names.iter().find_map(|name| demangled.strip_prefix(name))?;
    Some(rest.strip_suffix(")}").unwrap_or(rest))
}

/// Extracts the type of an object from the demangled name of its drop function or of a method.
pub(super) fn type_of_function(demangled: &str) -> Option<&str> {
    let dropped = "core::ptr::drop_in_place<";
    if let Some(rest) = demangled.strip_prefix(dropped) {
        return rest.rfind('>').map(|end| &rest[..end]);
    }
    // `<T as Trait>::method`: find ` as ` at the outermost nesting level.
    let rest = demangled.strip_prefix('<')?;
    let mut depth = 0_u32;
    for (at, c) in rest.char_indices() {
        match c {
            '<' | '(' | '[' => depth += 1,
            '>' if rest[..at].ends_with('-') => {}
            '>' | ')' | ']' => depth = depth.checked_sub(1)?,
            ' ' if depth == 0 && rest[at..].starts_with(" as ") => return Some(&rest[..at]),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_of_functions() {
        for (function, of) in [
            ("core::ptr::drop_in_place<demo::Foo>", Some("demo::Foo")),
            (
                "core::ptr::drop_in_place<alloc::vec::Vec<u8>>::h0123456789abcdef",
                Some("alloc::vec::Vec<u8>"),
            ),
            ("<demo::Foo as demo::Bar>::baz", Some("demo::Foo")),
            (
                "<demo::Foo<(u8, fn(u8) -> u8)> as demo::Bar<i8 as X>>::baz",
                Some("demo::Foo<(u8, fn(u8) -> u8)>"),
            ),
            ("demo::Bar::baz", None),
            ("<demo::Foo>::baz", None),
            ("<>> as x", None),
        ] {
            assert_eq!(type_of_function(function), of, "{function}");
        }
    }

    #[test]
    fn objects_fill_their_chunks() {
        let table = |size, align| TraitTable { size, align };
        assert!(table(16, 8).fits(24) && table(25, 8).fits(40) && table(100, 4).fits(104));
        assert!(table(24, 8).fits(40), "in an Arc");
        assert!(!table(100, 4).fits(200) && !table(0, 1).fits(1000) && !table(48, 8).fits(40));
    }

    #[test]
    fn names() {
        assert_eq!(class_name("{vtable(demo::Foo)}"), Some("demo::Foo"));
        assert_eq!(class_name("vtable for Foo"), Some("Foo"));
        assert_eq!(class_name("foo"), None);
        assert!(is_name(b"3Foo") && is_name(b"*N1a1bE") && !is_name(b"foo") && !is_name(b"3 F"));
    }
}
