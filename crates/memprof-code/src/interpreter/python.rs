//! Finds CPython in a file.

mod layout;
mod lines;

use object::elf::{EM_X86_64, SHT_DYNSYM, SHT_SYMTAB};

pub use self::layout::Layout;
pub use self::lines::line_of;
use super::word_at;
use crate::elf::{Elf, Extent};

/// A file with a CPython interpreter. Addresses are the file's own (before relocation).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Python {
    /// Offsets in its structures.
    pub layout: &'static Layout,
    /// Address of `_PyRuntime`.
    pub runtime: u64,
    /// Address of `PyCode_Type`.
    pub code_type: u64,
    /// Address range of the evaluator's code, `_PyEval_EvalFrameDefault`.
    pub evaluator: std::ops::Range<u64>,
}

const RUNTIME: &str = "_PyRuntime";
const CODE_TYPE: &str = "PyCode_Type";
const EVALUATOR: &str = "_PyEval_EvalFrameDefault";
const VERSION: &str = "Py_Version";

/// Position of `free_threaded` in `_Py_DebugOffsets`, which `_PyRuntime` starts with from 3.13 on.
const FREE_THREADED: u64 = 16;
/// First minor version with `Py_Version`, and first one with `_Py_DebugOffsets`.
const HAS_VERSION: u16 = 11;
const HAS_DEBUG_OFFSETS: u16 = 13;
/// Start of the directory name in which CPython looks for its library; the minor version follows, as in `python3.9`.
const DIRECTORY: &[u8] = b"python3.";
/// Maximum size of the section that is searched for the version, in bytes.
const MAX_RODATA: u64 = 64 << 20;

/// Finds CPython in a file. `Err` contains the reason why its frames cannot be read.
pub(super) fn find(elf: &Elf) -> Option<Result<Python, String>> {
    let names = [RUNTIME, CODE_TYPE, EVALUATOR, VERSION];
    let mut found = elf.extents(SHT_DYNSYM, names).ok()?;
    found[0]?;
    if found[..3].contains(&None) {
        found = elf.extents(SHT_SYMTAB, names).ok()?;
    }
    let [Some(runtime), Some(code_type), Some(evaluator), version] = found else {
        return Some(Err(
            "this CPython has no symbol PyCode_Type or _PyEval_EvalFrameDefault".into(),
        ));
    };
    Some(check(elf, runtime, version).map(|layout| Python {
        layout,
        runtime: runtime.address,
        code_type: code_type.address,
        evaluator: evaluator.address..evaluator.address.saturating_add(evaluator.size),
    }))
}

fn check(elf: &Elf, runtime: Extent, version: Option<Extent>) -> Result<&'static Layout, String> {
    if elf.machine() != EM_X86_64 {
        return Err("Python's frames are read on x86-64 only".into());
    }
    let minor = match version {
        Some(version) => minor_of_word(word_at(elf, version.address).unwrap_or_default()),
        None => minor_in_text(elf),
    };
    let minor = minor.ok_or("the version of this CPython is not known")?;
    if minor >= HAS_DEBUG_OFFSETS && word_at(elf, runtime.address + FREE_THREADED) != Some(0) {
        return Err(format!(
            "free-threaded Python 3.{minor}: its frames are not read"
        ));
    }
    let layout = Layout::for_version(minor);
    layout.ok_or_else(|| format!("Python 3.{minor}: its frames are not read; 3.8 to 3.14 are"))
}

/// The minor version in `PY_VERSION_HEX`: 0x030b07f0 is 3.11.7.
fn minor_of_word(version: u64) -> Option<u16> {
    (version >> 24 == 3).then_some((version >> 16 & 0xff) as u16)
}

/// The minor version of a CPython without `Py_Version`, from the name of its library directory. A bare version string
/// is not used, because it may be the end of another string.
fn minor_in_text(elf: &Elf) -> Option<u16> {
    let section = elf
        .section_named(".rodata")
        .filter(|s| s.size <= MAX_RODATA)?;
    let data = elf.contents(section).ok()?;
    let mut minors = memchr::memmem::find_iter(&data, DIRECTORY).filter_map(|at| {
        let version = data[at + DIRECTORY.len()..].split(|b| *b == 0).next()?;
        let digits = version.len() <= 2 && version.iter().all(u8::is_ascii_digit);
        std::str::from_utf8(version)
            .ok()
            .filter(|_| digits)?
            .parse()
            .ok()
    });
    let minor = minors.find(|minor| *minor < HAS_VERSION)?;
    minors.all(|other| other == minor).then_some(minor)
}

/// Whether a source file at this path is part of the program: neither the standard library nor an installed package.
pub(super) fn is_own(path: &str) -> bool {
    let library = ["/lib/python3", "/lib64/python3", "-packages/"];
    !path.starts_with("<frozen") && !library.iter().any(|part| path.contains(part))
}
