//! Types and their members, as debug information has them.

/// Identifies a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TypeId(pub(super) u32);

/// A type.
#[derive(Debug, Default)]
pub struct Type {
    /// Name with namespaces, as the compiler wrote it.
    pub name: String,
    /// Size in bytes; 0 if it is not known.
    pub size: u64,
    /// The parts of its objects.
    pub layout: Layout,
}

impl Type {
    /// The name without the arguments of a template.
    pub fn head(&self) -> &str {
        // Names of Rust's tuples and trait implementations begin otherwise.
        self.name.split('<').next().unwrap_or_default()
    }

    /// The bytes that it takes, about.
    pub(super) fn bytes(&self) -> usize {
        let of = |members: &[Member]| -> usize {
            let names = members.iter().map(|member| member.name.len());
            names.map(|name| name + size_of::<Member>()).sum()
        };
        let layout = match &self.layout {
            Layout::Record(record) => {
                let variants = record.variants.iter().flat_map(|variants| &variants.all);
                let variants: usize = variants.map(|(_, members)| 64 + of(members)).sum();
                of(&record.members) + variants + 64 * record.arguments.len()
            }
            _ => 0,
        };
        size_of::<Type>() + self.name.len() + layout
    }
}

/// The parts of a type's objects.
#[derive(Debug, Default)]
pub enum Layout {
    /// No parts: a number, a function, or a type that could not be read.
    #[default]
    Scalar,
    /// The address of an object of a type, which may not be known.
    Pointer(Option<TypeId>),
    /// Elements of a type; `None` if their number is not known.
    Array(TypeId, Option<u64>),
    /// Members.
    Record(Record),
}

/// The members of a class, a structure or a union.
#[derive(Debug, Default)]
pub struct Record {
    /// Whether the members lie on top of each other.
    pub is_union: bool,
    /// The members and base classes.
    pub members: Vec<Member>,
    /// The types that are arguments of the template, by the names of its parameters.
    pub arguments: Vec<(String, TypeId)>,
    /// The variants of Rust's enumerations.
    pub variants: Option<Variants>,
}

impl Record {
    /// The member with a name.
    pub fn member(&self, name: &str) -> Option<&Member> {
        self.members.iter().find(|member| member.name == name)
    }

    /// The argument of the template's parameter with a name.
    pub fn argument(&self, name: &str) -> Option<TypeId> {
        let found = self.arguments.iter().find(|(known, _)| known == name);
        found.map(|(_, of)| *of)
    }
}

/// A member or a base class.
#[derive(Debug)]
pub struct Member {
    /// Name of the member; empty for base classes.
    pub name: String,
    /// Offset in bytes.
    pub offset: u64,
    /// Type of the member.
    pub of: TypeId,
}

/// The variants of an enumeration.
#[derive(Debug, Default)]
pub struct Variants {
    /// Offset and size in bytes of the number that says which variant it is.
    pub tag: Option<(u64, u64)>,
    /// The members of each variant, with its number; `None` for all other numbers.
    pub all: Vec<(Option<u64>, Vec<Member>)>,
}
