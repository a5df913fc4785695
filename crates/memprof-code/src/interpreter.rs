//! Finds interpreters, whose functions have no machine code of their own. The BPF program walks an interpreter's frames
//! along with the native ones; this module provides the addresses and layouts that it needs.
//!
//! | topic | location |
//! |---|---|
//! | the file that contains an interpreter, and its layout | [`find`], one file for each interpreter |
//! | walking its frames, describing its functions | `src/bpf/python.bpf.h`, `ruby.bpf.h`: one file for each interpreter |
//! | merging its frames into the native ones | `src/bpf/interpreter.bpf.h` |
//! | functions by number, and source lines of their instructions | `collect::functions` |

pub mod python;
mod ruby;

pub use self::python::{Layout as PythonLayout, Python};
pub use self::ruby::{Ruby, qualified};
use crate::elf::Elf;
use memprof_profile::symbol::Language;

/// The supported interpreters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InterpreterKind {
    /// CPython.
    Python,
    /// CRuby.
    Ruby,
}

impl InterpreterKind {
    /// The language's name.
    pub fn name(self) -> &'static str {
        match self {
            InterpreterKind::Python => "Python",
            InterpreterKind::Ruby => "Ruby",
        }
    }

    /// The language of its programs.
    pub fn language(self) -> Language {
        match self {
            InterpreterKind::Python => Language::Python,
            InterpreterKind::Ruby => Language::Ruby,
        }
    }

    /// Whether a source file at this path is part of the program: neither the standard library nor an installed
    /// package.
    pub fn is_own(self, path: &str) -> bool {
        match self {
            InterpreterKind::Python => python::is_own(path),
            InterpreterKind::Ruby => ruby::is_own(path),
        }
    }
}

/// The interpreters whose frames are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnabledInterpreters {
    /// Whether to read CPython's frames.
    pub python: bool,
    /// Whether to read CRuby's frames.
    pub ruby: bool,
}

impl EnabledInterpreters {
    /// All interpreters.
    pub const ALL: EnabledInterpreters = EnabledInterpreters {
        python: true,
        ruby: true,
    };

    /// Whether any interpreter is enabled.
    pub fn any(self) -> bool {
        self.python || self.ruby
    }
}

/// An interpreter found in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Interpreter {
    /// CPython.
    Python(Python),
    /// CRuby.
    Ruby(Ruby),
}

impl Interpreter {
    /// The kind of interpreter.
    pub fn kind(&self) -> InterpreterKind {
        match self {
            Interpreter::Python(_) => InterpreterKind::Python,
            Interpreter::Ruby(_) => InterpreterKind::Ruby,
        }
    }
}

/// An interpreter whose frames cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unread {
    /// The kind of interpreter.
    pub kind: InterpreterKind,
    /// The reason.
    pub why: String,
}

/// Finds an enabled interpreter in a file. `Err` contains the reason why its frames cannot be read.
pub fn find(elf: &Elf, wanted: EnabledInterpreters) -> Option<Result<Interpreter, Unread>> {
    let unread = |kind| move |why| Unread { kind, why };
    let python = wanted.python.then(|| python::find(elf)).flatten();
    if let Some(found) = python {
        return Some(
            found
                .map(Interpreter::Python)
                .map_err(unread(InterpreterKind::Python)),
        );
    }
    let ruby = wanted.ruby.then(|| ruby::find(elf)).flatten()?;
    Some(
        ruby.map(Interpreter::Ruby)
            .map_err(unread(InterpreterKind::Ruby)),
    )
}

/// A word of the file's initialized data.
fn word_at(elf: &Elf, address: u64) -> Option<u64> {
    let (segment, inside) = elf.loaded_at(address)?;
    let mut word = [0; 8];
    elf.read_at(&mut word, segment.offset.checked_add(inside)?)
        .ok()?;
    Some(u64::from_le_bytes(word))
}
