//! Containers whose members do not say all: which types are containers, where their elements are, and which nodes they have.

use memprof_code::symbolize::types::{DebugTypes, Layout, Type, TypeId};

/// Types that are named as the owners of their memory.
const CONTAINERS: [&str; 30] = [
    "std::vector",
    "std::__cxx11::basic_string",
    "std::basic_string",
    "std::map",
    "std::multimap",
    "std::set",
    "std::multiset",
    "std::unordered_map",
    "std::unordered_multimap",
    "std::unordered_set",
    "std::unordered_multiset",
    "std::deque",
    "std::queue",
    "std::stack",
    "std::priority_queue",
    "std::__cxx11::list",
    "std::list",
    "std::forward_list",
    "alloc::vec::Vec",
    "alloc::string::String",
    "alloc::collections::vec_deque::VecDeque",
    "alloc::collections::binary_heap::BinaryHeap",
    "alloc::collections::btree::map::BTreeMap",
    "alloc::collections::btree::set::BTreeSet",
    "std::collections::hash::map::HashMap",
    "std::collections::hash::set::HashSet",
    "hashbrown::map::HashMap",
    "hashbrown::set::HashSet",
    "std::path::PathBuf",
    "std::ffi::os_str::OsString",
];
/// Namespaces of libraries: their types are not owners.
const LIBRARIES: [&str; 7] = [
    "std::",
    "__gnu_cxx::",
    "alloc::",
    "core::",
    "hashbrown::",
    "indexmap::",
    "(",
];
/// Members that are addresses behind the last element.
const PAST_END: [&str; 6] = [
    "_M_finish",
    "_M_end_of_storage",
    "_M_last",
    "__end_",
    "__end_cap_",
    "__cap_",
];
/// Containers of linked nodes: the container, the argument of its template that the nodes have, and the type of the nodes.
const LINKED: [(&str, usize, &str); 4] = [
    ("std::_Rb_tree", 1, "std::_Rb_tree_node"),
    ("std::_Hashtable", 1, "std::__detail::_Hash_node"),
    ("std::__cxx11::_List_base", 0, "std::_List_node"),
    ("std::_Fwd_list_base", 0, "std::_Fwd_list_node"),
];
/// The types that the nodes' pointers declare.
const NODE_BASES: [&str; 4] = [
    "std::_Rb_tree_node_base",
    "std::__detail::_Hash_node_base",
    "std::__detail::_List_node_base",
    "std::_Fwd_list_node_base",
];
/// Storage for an object of the type that is its argument.
const STORAGE: [&str; 2] = ["__gnu_cxx::__aligned_membuf", "__gnu_cxx::__aligned_buffer"];
/// Type of `std::optional`'s object, and whether it has one.
pub(super) const OPTIONAL: &str = "std::_Optional_payload_base";
/// Types that hold an object that may not exist yet. Without it they are zero.
const CELLS: [&str; 4] = [
    "std::sync::once_lock::OnceLock",
    "core::cell::once::OnceCell",
    "std::sync::lazy_lock::LazyLock",
    "core::cell::lazy::LazyCell",
];

pub(super) fn is_container(head: &str) -> bool {
    CONTAINERS.contains(&head)
}

pub(super) fn is_library(name: &str) -> bool {
    LIBRARIES.iter().any(|library| name.starts_with(library))
}

pub(super) fn is_past_end(member: &str) -> bool {
    PAST_END.contains(&member)
}

pub(super) fn is_storage(head: &str) -> bool {
    STORAGE.contains(&head)
}

pub(super) fn is_cell(head: &str) -> bool {
    CELLS.contains(&head)
}

pub(super) fn is_node_base(head: &str) -> bool {
    NODE_BASES.contains(&head)
}

/// The type of the nodes of a container.
pub(super) fn node_of(types: &mut DebugTypes, container: &Type) -> Option<TypeId> {
    let head = container.head();
    let (_, number, node) = LINKED.iter().find(|(known, ..)| *known == head)?;
    let arguments = arguments(&container.name)?;
    let element = *arguments.get(*number)?;
    // Some nodes have the hash of their key.
    let traits = "std::__detail::_Hashtable_traits<";
    let cached = arguments.iter().find_map(|text| text.strip_prefix(traits));
    let more = match cached {
        Some(traits) => format!(", {}", traits.split(',').next()?),
        None => String::new(),
    };
    // GCC writes a space between two brackets, other compilers do not.
    let space = ["", " "].map(|space| format!("{node}<{element}{more}{space}>"));
    space.iter().find_map(|name| types.named(name))
}

/// The arguments of a template, from the name of a type.
fn arguments(name: &str) -> Option<Vec<&str>> {
    let (_, rest) = name.split_once('<')?;
    let (mut depth, mut begin) = (0_u32, 0);
    let mut found = Vec::new();
    for (at, c) in rest.char_indices() {
        match c {
            '<' | '(' | '[' => depth += 1,
            ',' if depth == 0 => {
                found.push(rest[begin..at].trim());
                begin = at + 1;
            }
            '>' | ')' | ']' if depth == 0 => {
                found.push(rest[begin..at].trim());
                return Some(found);
            }
            '>' | ')' | ']' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// The type of the object in storage, in `MaybeUninit` and the like: the argument of the template.
pub(super) fn stored(of: &Type) -> Option<TypeId> {
    match &of.layout {
        Layout::Record(record) => record.argument("_Tp").or_else(|| record.argument("T")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_of_templates() {
        let tree = "std::_Rb_tree<int, std::pair<int const, A<B> >, C<(X)1>, D>";
        assert_eq!(
            arguments(tree).unwrap(),
            ["int", "std::pair<int const, A<B> >", "C<(X)1>", "D"]
        );
        assert_eq!(arguments("int"), None);
        assert_eq!(arguments("a<b<c>"), None);
    }
}
