//! What code positions are called. Failure is data: [`Symbol::Unknown`] stands beside
//! [`Symbol::Known`] and says why there is no name.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use crate::profile::Frame;

/// What a code position is called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Symbol {
    /// The position lies in a function with a name.
    Known(Function),
    /// The position has no name.
    Unknown(UnknownReason),
}

impl Symbol {
    /// The function, where it is known.
    pub fn function(&self) -> Option<&Function> {
        match self {
            Symbol::Known(function) => Some(function),
            Symbol::Unknown(_) => None,
        }
    }
}

/// The function a code position lies in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// Demangled name; a Rust name of the legacy mangling keeps its `::h<16 hex digits>` hash.
    pub name: String,
    /// The language it was written in, as the symbol's mangling tells.
    pub language: Language,
    /// Distance of the position from the function's start, in bytes.
    pub offset_in_function: u64,
    /// Functions inlined at the position, innermost first.
    pub inlined: Vec<InlinedFunction>,
    /// Source position, where debug information names it.
    pub location: Option<Location>,
}

/// A function that the compiler inlined at a code position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InlinedFunction {
    /// Demangled name.
    pub name: String,
    /// Source position, where debug information names it.
    pub location: Option<Location>,
}

/// A source position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// Source file as debug information names it.
    pub file: String,
    /// Line, counted from 1.
    pub line: Option<u32>,
}

/// The language of a function, as far as its symbol's mangling tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Language {
    /// Rust, of either mangling.
    Rust,
    /// C, C++ and everything else.
    Other,
}

/// Why a code position has no name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UnknownReason {
    /// No file stands behind the position.
    NoFile,
    /// The file is not an ELF file; what was wrong with it.
    NotElf,
    /// The file has no symbol that covers the position.
    NoSymbol,
    /// The file could not be read; what failed.
    Unreadable(String),
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

/// Names of every code frame in a profile.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Symbols(HashMap<Frame, Arc<Symbol>>);

impl Symbols {
    /// What the frame is called; `None` where it was not looked up.
    pub fn get(&self, frame: Frame) -> Option<&Symbol> {
        self.0.get(&frame).map(Arc::as_ref)
    }

    /// The frame's function, where it is known.
    pub fn function(&self, frame: Frame) -> Option<&Function> {
        self.get(frame).and_then(Symbol::function)
    }

    /// Names a frame, in place of what it was called before.
    pub fn insert(&mut self, frame: Frame, symbol: Arc<Symbol>) {
        self.0.insert(frame, symbol);
    }

    /// How many frames have an entry.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no frame has an entry.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<(Frame, Arc<Symbol>)> for Symbols {
    fn from_iter<I: IntoIterator<Item = (Frame, Arc<Symbol>)>>(names: I) -> Symbols {
        Symbols(names.into_iter().collect())
    }
}
