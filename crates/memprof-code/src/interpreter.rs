//! Interpreters: programs whose functions have no machine code of their own. The probe reads an interpreter's own frames
//! beside the native ones; this is what user space has to know for that.
//!
//! | what | where |
//! |---|---|
//! | which file contains an interpreter, and its layout | [`find`], one file for each interpreter |
//! | walking its frames, describing its functions | `src/bpf/python.bpf.h`, `ruby.bpf.h`: one file for each interpreter |
//! | their place among the native frames | `src/bpf/interpreter.bpf.h` |
//! | functions by number, and lines of their instructions | `collect::functions` |

pub mod python;
mod ruby;

pub use self::python::{Layout as PythonLayout, Python};
pub use self::ruby::{Ruby, qualified};
use crate::elf::Elf;
use memprof_profile::symbol::Language;

/// The interpreters that memprof knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// CPython.
    Python,
    /// CRuby.
    Ruby,
}

impl Kind {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Python => "Python",
            Kind::Ruby => "Ruby",
        }
    }

    /// The language of its programs.
    pub fn language(self) -> Language {
        match self {
            Kind::Python => Language::Python,
            Kind::Ruby => Language::Ruby,
        }
    }

    /// Whether a file with that path is the program's own: neither the standard library nor an installed package.
    pub fn is_own(self, path: &str) -> bool {
        match self {
            Kind::Python => python::is_own(path),
            Kind::Ruby => ruby::is_own(path),
        }
    }
}

/// Which interpreters' frames are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// CPython's.
    pub python: bool,
    /// CRuby's.
    pub ruby: bool,
}

impl Wanted {
    /// Those of all interpreters.
    pub const ALL: Wanted = Wanted {
        python: true,
        ruby: true,
    };

    /// Whether there is one.
    pub fn any(self) -> bool {
        self.python || self.ruby
    }
}

/// An interpreter in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Interpreter {
    /// CPython.
    Python(Python),
    /// CRuby.
    Ruby(Ruby),
}

impl Interpreter {
    /// Which one it is.
    pub fn kind(&self) -> Kind {
        match self {
            Interpreter::Python(_) => Kind::Python,
            Interpreter::Ruby(_) => Kind::Ruby,
        }
    }
}

/// An interpreter whose frames are not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unread {
    /// Which one.
    pub kind: Kind,
    /// The reason.
    pub why: String,
}

/// The interpreter in a file, if there is one that memprof knows and that is wanted; `Err` has the reason why its frames are
/// not read.
pub fn find(elf: &Elf, wanted: Wanted) -> Option<Result<Interpreter, Unread>> {
    let unread = |kind| move |why| Unread { kind, why };
    let python = wanted.python.then(|| python::find(elf)).flatten();
    if let Some(found) = python {
        return Some(found.map(Interpreter::Python).map_err(unread(Kind::Python)));
    }
    let ruby = wanted.ruby.then(|| ruby::find(elf)).flatten()?;
    Some(ruby.map(Interpreter::Ruby).map_err(unread(Kind::Ruby)))
}

/// A word of initialised data.
fn word_at(elf: &Elf, address: u64) -> Option<u64> {
    let (segment, inside) = elf.loaded_at(address)?;
    let mut word = [0; 8];
    elf.read_at(&mut word, segment.offset.checked_add(inside)?)
        .ok()?;
    Some(u64::from_le_bytes(word))
}
