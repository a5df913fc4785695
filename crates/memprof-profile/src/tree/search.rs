//! Finds functions and files by a substring of their name or by a pattern, or one function by its identity.

use std::path::PathBuf;

use super::label::{Code, Label};

/// What to find.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Find {
    /// Names that match.
    Search(Search),
    /// One function.
    Function(FunctionId),
}

impl Find {
    /// Whether a label is found.
    pub fn matches(&self, label: &Label<'_>) -> bool {
        match (self, label) {
            (Find::Search(search), label) => search.matches(label),
            (Find::Function(id), Label::Code(code)) => id.is(code),
            (Find::Function(_), _) => false,
        }
    }
}

/// The identity of a function: its whole name and its file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FunctionId {
    /// The name; `None` for code without a symbol in the file.
    pub name: Option<String>,
    /// Path of the file as in the target's mappings.
    pub path: PathBuf,
}

impl FunctionId {
    /// Whether this code is in the function, inlined or not.
    pub fn is(&self, code: &Code<'_>) -> bool {
        code.function == self.name.as_deref() && code.path == self.path
    }
}

/// A case-insensitive search text. Without `*` it matches any substring of a name; with `*`, which
/// matches any characters, it is a pattern for the whole name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Search {
    parts: Vec<String>,
}

impl Search {
    /// A search for this text.
    pub fn new(text: &str) -> Search {
        let parts = text.to_lowercase().split('*').map(str::to_owned).collect();
        Search { parts }
    }

    /// Whether a name matches.
    pub fn text(&self, name: &str) -> bool {
        let name = name.to_lowercase();
        let [first, middle @ .., last] = self.parts.as_slice() else {
            return self.parts.iter().all(|part| name.contains(part.as_str()));
        };
        let Some(mut rest) = name.strip_prefix(first.as_str()) else {
            return false;
        };
        for part in middle {
            match rest.find(part.as_str()) {
                Some(at) => rest = &rest[at + part.len()..],
                None => return false,
            }
        }
        rest.ends_with(last.as_str())
    }

    /// Whether a label's function, file base name or mapping matches.
    pub fn matches(&self, label: &Label<'_>) -> bool {
        match label {
            Label::Code(code) => {
                code.function.is_some_and(|f| self.text(f)) || self.text(code.file)
            }
            Label::Name(name, _) | Label::NotObserved(name, _) => self.text(name),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_and_patterns() {
        for (search, name, wanted) in [
            ("alloc", "Node::Alloc", true),
            ("", "anything", true),
            ("alloc", "all", false),
            ("node::*", "node::alloc", true),
            ("node::*", "a node::alloc", false),
            ("*alloc", "node::alloc", true),
            ("*alloc", "node::alloc2", false),
            ("n*a*c", "node::alloc", true),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("*a*b*", "xbya", false),
            ("ÄÖ", "äö", true),
        ] {
            assert_eq!(Search::new(search).text(name), wanted, "{search} {name}");
        }
    }
}
