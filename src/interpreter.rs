//! Interpreters: programs whose functions have no machine code of their own. The probe reads an interpreter's own frames
//! beside the native ones; this is what user space has to know for that.
//!
//! | what | where |
//! |---|---|
//! | which file contains an interpreter, and its layout | [`find`], one file for each interpreter |
//! | walking its frames | `src/bpf/python.bpf.h`, one file for each interpreter |
//! | their place among the native frames | `src/bpf/interpreter.bpf.h` |
//! | functions by number, and lines of their instructions | [`FunctionTable`] |

mod functions;
mod python;

pub use self::functions::FunctionTable;
pub(crate) use self::python::Python;
use crate::elf::Elf;

/// The interpreter in a file, if there is one that memprof knows; `Err` has the reason why its frames are not read.
pub fn find(elf: &Elf) -> Option<Result<Python, String>> {
    python::find(elf)
}
