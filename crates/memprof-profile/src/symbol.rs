//! Symbols of code positions. A failed lookup is a value: [`Symbol::Unknown`] has the reason why there is no name.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use crate::Frame;

/// The symbol of a code position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Symbol {
    /// The position is in a function with a name.
    Known(Function),
    /// The position is in a function without a symbol, but with known bounds.
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

    /// The name of the function or its substitute.
    pub fn name(&self) -> Option<&str> {
        match self {
            Symbol::Known(function) => Some(&function.name),
            Symbol::Unnamed(function) => Some(&function.name),
            Symbol::Unknown(_) => None,
        }
    }
}

/// A function without a symbol. The bounds come from the file's unwind information.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnnamedFunction {
    /// The substitute for a name: the file's base name and the function's address in the file, such as
    /// `python3.11+0xfb640`.
    pub name: String,
    /// Distance of the position from the function's start, in bytes.
    pub offset_in_function: u64,
}

/// The function that contains a code position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// Demangled name. A Rust name in legacy mangling includes the `::h<16 hex digits>` hash, which [`Symbols::shown`]
    /// removes.
    pub name: String,
    /// The source language, from debug information or the symbol's mangling.
    pub language: Language,
    /// Distance of the position from the function's start, in bytes; 0 if the function has no machine code in a file.
    pub offset_in_function: u64,
    /// The first line of an interpreted function or of JIT code, 0 if unknown; `None` for a function with machine code in a
    /// file.
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

/// The language of a function, if known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Language {
    /// Rust, with legacy or v0 mangling.
    Rust,
    /// Python.
    Python,
    /// Ruby.
    Ruby,
    /// JavaScript, and languages that compile to it.
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

    /// The name in saved profiles.
    pub fn name(self) -> &'static str {
        match self {
            Language::Rust => "rust",
            Language::Python => "python",
            Language::Ruby => "ruby",
            Language::JavaScript => "javascript",
            Language::Other => "other",
        }
    }

    /// Looks up a language by name.
    pub fn by_name(name: &str) -> Option<Language> {
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
    /// The file could not be read; the text has the reason.
    Unreadable(String),
}

impl UnknownReason {
    /// Parses the displayed text of a reason.
    pub fn from_text(text: &str) -> UnknownReason {
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
    /// Whether no further lookups are possible.
    is_final: bool,
    /// Whether source lines and inlined functions were looked up for all frames.
    has_lines: bool,
    /// Whether [`Symbols::shown`] includes the hashes of Rust names.
    rust_hashes: bool,
    /// The files without symbols, and how to get their names.
    advice: Option<String>,
    /// Debug information that was not read, one sentence per entry.
    unread: BTreeSet<String>,
}

impl Symbols {
    /// Marks the symbols as final: they come from a saved profile, so no further lookups are possible.
    pub fn finally(self) -> Symbols {
        Symbols {
            is_final: true,
            ..self
        }
    }

    /// Sets [`Symbols::has_lines`].
    pub fn set_has_lines(&mut self, yes: bool) {
        self.has_lines = yes;
    }

    /// Whether source lines and inlined functions were looked up for all frames.
    pub fn has_lines(&self) -> bool {
        self.has_lines
    }

    /// Whether no further lookups are possible, for example of source lines.
    pub fn is_final(&self) -> bool {
        self.is_final
    }

    /// The symbol of a frame; `None` if it was not looked up.
    pub fn get(&self, frame: Frame) -> Option<&Symbol> {
        self.shared(frame).map(Arc::as_ref)
    }

    /// Like [`Symbols::get`], for a further owner.
    pub(crate) fn shared(&self, frame: Frame) -> Option<&Arc<Symbol>> {
        self.names.get(&frame)
    }

    /// The function of a frame, if it has a symbol.
    pub fn function(&self, frame: Frame) -> Option<&Function> {
        self.get(frame).and_then(Symbol::function)
    }

    /// The name of a frame's function, or its substitute.
    pub fn name(&self, frame: Frame) -> Option<&str> {
        self.get(frame).and_then(Symbol::name)
    }

    /// All frames with their symbols, unordered.
    pub fn iter(&self) -> impl Iterator<Item = (Frame, &Symbol)> {
        self.names.iter().map(|(frame, symbol)| (*frame, &**symbol))
    }

    /// Sets the symbol of a frame, replacing a previous one.
    pub fn insert(&mut self, frame: Frame, symbol: Arc<Symbol>) {
        self.names.insert(frame, symbol);
    }

    /// Sets whether [`Symbols::shown`] includes Rust's hashes.
    pub fn show_rust_hashes(&mut self, yes: bool) {
        self.rust_hashes = yes;
    }

    /// The name of a function, inlined or not, as views and exports show it. The hash of Rust's legacy mangling is removed,
    /// so that all instances of a function have the same name. `/v1` replies include the hash, because their contract
    /// requires it.
    pub fn shown<'a>(&self, name: &'a str) -> &'a str {
        match self.rust_hashes {
            true => name,
            false => without_hash(name),
        }
    }

    /// One line about the files that matter: which files have no symbols and how to get them, and which debug information
    /// was not read and why. `None` if there is nothing to report. In a saved profile, the line describes the machine where
    /// the profile was taken.
    pub fn advice(&self) -> Option<&str> {
        self.advice.as_deref()
    }

    /// Debug information of the files that was not read: one sentence each, without a full stop.
    pub fn unread(&self) -> impl Iterator<Item = &str> {
        self.unread.iter().map(String::as_str)
    }

    /// Adds a sentence to [`Symbols::unread`].
    pub fn add_unread(&mut self, what: &str) {
        self.unread.insert(what.to_owned());
    }

    /// Sets [`Symbols::advice`]. The line may come from a saved profile, so it is truncated and made printable.
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

/// The name without the suffix of Rust's legacy mangling, `::h` and 16 hexadecimal digits. Names in v0 mangling are
/// demangled without hashes.
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
