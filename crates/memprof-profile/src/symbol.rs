//! Symbols of code positions. A failure is a value: [`Symbol::Unknown`] says why there is no name.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use crate::Frame;

/// The symbol of a code position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Symbol {
    /// The position lies in a function with a name.
    Known(Function),
    /// The position lies in a function that has no symbol, but whose bounds are known.
    Unnamed(UnnamedFunction),
    /// The position has no name.
    Unknown(UnknownReason),
}

impl Symbol {
    /// The function, if it has a symbol.
    pub fn function(&self) -> Option<&Function> {
        match self {
            Symbol::Known(function) => Some(function),
            Symbol::Unnamed(_) | Symbol::Unknown(_) => None,
        }
    }

    /// The function's name, or what stands for it.
    pub fn name(&self) -> Option<&str> {
        match self {
            Symbol::Known(function) => Some(&function.name),
            Symbol::Unnamed(function) => Some(&function.name),
            Symbol::Unknown(_) => None,
        }
    }
}

/// A function without a symbol. Its bounds come from the file's unwind information.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnnamedFunction {
    /// What stands for a name: the file's base name and the function's address in it, `python3.11+0xfb640`.
    pub name: String,
    /// Distance of the position from the function's start, in bytes.
    pub offset_in_function: u64,
}

/// The function that contains a code position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// Demangled name; a Rust name in legacy mangling keeps its `::h<16 hex digits>` hash, which [`Symbols::shown`] cuts.
    pub name: String,
    /// The source language, from debug information or the symbol's mangling.
    pub language: Language,
    /// Distance of the position from the function's start, in bytes; 0 if it has no machine code of its own.
    pub offset_in_function: u64,
    /// The first line of a function that has no machine code of its own in a file: one of an interpreted program, or made
    /// at run time. 0 if it has no lines.
    pub first_line: Option<u32>,
    /// Functions inlined at the position, innermost first.
    pub inlined: Vec<InlinedFunction>,
    /// Source position, if debug information has it.
    pub location: Option<Location>,
}

/// A function that the compiler inlined at a code position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InlinedFunction {
    /// Demangled name.
    pub name: String,
    /// Source position, if debug information has it.
    pub location: Option<Location>,
}

/// A source position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// Source file as named in debug information.
    pub file: String,
    /// Line, counted from 1.
    pub line: Option<u32>,
}

/// The language of a function, as far as known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Language {
    /// Rust, with legacy or v0 mangling.
    Rust,
    /// Python.
    Python,
    /// Ruby.
    Ruby,
    /// JavaScript, and what is compiled to it.
    JavaScript,
    /// C, C++ and everything else.
    Other,
}

impl Language {
    /// Every language.
    const ALL: [Language; 5] = [
        Language::Rust,
        Language::Python,
        Language::Ruby,
        Language::JavaScript,
        Language::Other,
    ];

    /// Its name in saved profiles.
    pub fn name(self) -> &'static str {
        match self {
            Language::Rust => "rust",
            Language::Python => "python",
            Language::Ruby => "ruby",
            Language::JavaScript => "javascript",
            Language::Other => "other",
        }
    }

    /// The language with that name.
    pub(crate) fn by_name(name: &str) -> Option<Language> {
        Language::ALL.into_iter().find(|l| l.name() == name)
    }
}

/// Why a code position has no name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UnknownReason {
    /// The position is not in a file.
    NoFile,
    /// The file is not an ELF file.
    NotElf,
    /// The file has no symbol that covers the position.
    NoSymbol,
    /// The file could not be read, for this reason.
    Unreadable(String),
}

impl UnknownReason {
    /// The reason with that text, as it is displayed.
    pub(crate) fn from_text(text: &str) -> UnknownReason {
        let fixed = [
            UnknownReason::NoFile,
            UnknownReason::NotElf,
            UnknownReason::NoSymbol,
        ];
        let known = fixed.into_iter().find(|reason| reason.to_string() == text);
        known.unwrap_or_else(|| {
            let what = text.strip_prefix("unreadable: ").unwrap_or(text);
            UnknownReason::Unreadable(what.to_owned())
        })
    }
}

impl fmt::Display for UnknownReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UnknownReason::NoFile => f.write_str("no file"),
            UnknownReason::NotElf => f.write_str("not an ELF file"),
            UnknownReason::NoSymbol => f.write_str("no symbol"),
            UnknownReason::Unreadable(what) => write!(f, "unreadable: {what}"),
        }
    }
}

/// Maximum length of [`Symbols::advice`], in characters.
const MAX_ADVICE: usize = 1000;

/// The symbols of all code frames in a profile.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Symbols {
    names: HashMap<Frame, Arc<Symbol>>,
    /// Whether nothing more can be looked up.
    is_final: bool,
    /// Whether [`Symbols::shown`] keeps the hashes of Rust names.
    rust_hashes: bool,
    /// Which files have no symbols, and what would bring names.
    advice: Option<String>,
    /// What was not read of the debug information of files, in words.
    unread: BTreeSet<String>,
}

impl Symbols {
    /// These symbols, with the note that nothing more can be looked up: they come from a saved profile.
    pub fn finally(self) -> Symbols {
        Symbols {
            is_final: true,
            ..self
        }
    }

    /// Whether nothing more can be looked up, such as source lines.
    pub fn is_final(&self) -> bool {
        self.is_final
    }

    /// The frame's symbol; `None` if it was not looked up.
    pub fn get(&self, frame: Frame) -> Option<&Symbol> {
        self.names.get(&frame).map(Arc::as_ref)
    }

    /// The frame's function, if it has a symbol.
    pub fn function(&self, frame: Frame) -> Option<&Function> {
        self.get(frame).and_then(Symbol::function)
    }

    /// The name of the frame's function, or what stands for it.
    pub fn name(&self, frame: Frame) -> Option<&str> {
        self.get(frame).and_then(Symbol::name)
    }

    /// All frames with their symbols, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (Frame, &Symbol)> {
        self.names.iter().map(|(frame, symbol)| (*frame, &**symbol))
    }

    /// Sets the symbol of a frame and replaces a previous one.
    pub fn insert(&mut self, frame: Frame, symbol: Arc<Symbol>) {
        self.names.insert(frame, symbol);
    }

    /// Sets whether names are shown with Rust's hashes.
    pub fn show_rust_hashes(&mut self, yes: bool) {
        self.rust_hashes = yes;
    }

    /// The name of a function, also of an inlined one, as views and exports show it: without the hash of Rust's legacy
    /// mangling, so that instances of one function have one name. (The contract of `/v1` has it.)
    pub fn shown<'a>(&self, name: &'a str) -> &'a str {
        match self.rust_hashes {
            true => name,
            false => without_hash(name),
        }
    }

    /// One line: which files of the profile have no symbols, and what would bring their names; which debug information was not read, and
    /// why. `None` if there is nothing to say of any file that matters. A saved profile has that of the machine it comes from.
    pub fn advice(&self) -> Option<&str> {
        self.advice.as_deref()
    }

    /// What was not read of the debug information of the files: one sentence for each, without a full stop.
    pub fn unread(&self) -> impl Iterator<Item = &str> {
        self.unread.iter().map(String::as_str)
    }

    /// Adds what was not read of a file's debug information.
    pub fn add_unread(&mut self, what: &str) {
        self.unread.insert(what.to_owned());
    }

    /// Sets the line of [`Symbols::advice`]. It may come from a saved profile, so it is shortened and made printable.
    pub fn set_advice(&mut self, advice: Option<String>) {
        let printable = |c: char| if c.is_control() { '\u{fffd}' } else { c };
        self.advice = advice.map(|line| line.chars().take(MAX_ADVICE).map(printable).collect());
    }

    /// The number of frames with an entry.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether no frame has an entry.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }
}

impl FromIterator<(Frame, Arc<Symbol>)> for Symbols {
    fn from_iter<I: IntoIterator<Item = (Frame, Arc<Symbol>)>>(names: I) -> Symbols {
        Symbols {
            names: names.into_iter().collect(),
            ..Symbols::default()
        }
    }
}

/// The name without `::h` and the 16 hexadecimal digits with which Rust's legacy mangling ends it. (Names in v0 mangling
/// are demangled without hashes.)
fn without_hash(name: &str) -> &str {
    let hash = |digits: &str| {
        let lower_hex = |b: u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
        digits.len() == 16 && digits.bytes().all(lower_hex)
    };
    match name.rsplit_once("::h") {
        Some((rest, digits)) if !rest.is_empty() && hash(digits) => rest,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_rust_hash_is_cut_and_only_unless_it_is_wanted() {
        let mut symbols = Symbols::default();
        for (name, shown) in [
            ("node::run::h0123456789abcdef", "node::run"),
            (
                "<a::B as c::D>::e::{{closure}}::h1366bc9ff3ad4c9b",
                "<a::B as c::D>::e::{{closure}}",
            ),
            ("node::run", "node::run"),
            ("node::run::h0123456789abcde", "node::run::h0123456789abcde"),
            (
                "node::run::h0123456789ABCDEF",
                "node::run::h0123456789ABCDEF",
            ),
            (
                "node::run::h0123456789abcdef::x",
                "node::run::h0123456789abcdef::x",
            ),
            ("::h0123456789abcdef", "::h0123456789abcdef"),
            ("", ""),
        ] {
            symbols.show_rust_hashes(false);
            assert_eq!(symbols.shown(name), shown);
            symbols.show_rust_hashes(true);
            assert_eq!(symbols.shown(name), name);
        }
    }
}
