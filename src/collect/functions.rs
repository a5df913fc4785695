//! The functions of a process's interpreter, by the numbers that the probe assigns.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::probe::event::{FunctionKey, FunctionNumber, FunctionSeen, LineTable};
use memprof_code::interpreter::{InterpreterKind, python};
use memprof_code::modules::ModuleTable;
use memprof_profile::{Frame, FunctionName, Origin};
use memprof_sys::ids::{Addr, Pid};
use memprof_sys::{mmap_lock, proc_dir};

/// Maximum size of a function's line table, in bytes. Line tables of large modules have tens of thousands of bytes.
const MAX_LINES: u64 = 1 << 20;
/// Maximum number of functions of one process, a few hundred bytes each.
const MAX_FUNCTIONS: usize = 262_144;
/// Memory for the line tables of one process, in bytes.
const MAX_ALL_LINES: usize = 32 << 20;

/// The functions of one address space.
#[derive(Debug, Default)]
pub struct FunctionTable {
    functions: HashMap<FunctionNumber, Function>,
    /// The interpreter; `None` before the first function.
    kind: Option<InterpreterKind>,
    /// Total size of the line tables, in bytes.
    lines: usize,
    /// Number of functions that did not fit.
    refused: u64,
}

#[derive(Debug)]
struct Function {
    key: FunctionKey,
    kind: InterpreterKind,
    /// Minor version of its interpreter.
    version: u16,
    name: FunctionName,
    file: Box<str>,
    /// The line table; empty if it could not be read.
    lines: Box<[u8]>,
}

impl FunctionTable {
    /// Adds a function. Its line table is read from the process at once, because the function may soon be gone.
    pub fn insert(&mut self, seen: &FunctionSeen) {
        if self.functions.len() >= MAX_FUNCTIONS {
            self.refused += 1;
            return;
        }
        let mut lines = match &seen.lines {
            LineTable::Sent(lines) => lines.clone(),
            LineTable::At(at) => seen
                .pid
                .and_then(|pid| read_lines(pid, seen, *at))
                .unwrap_or_default(),
        };
        if self.lines + lines.len() > MAX_ALL_LINES {
            lines = Box::default();
        }
        self.lines += lines.len();
        self.kind = Some(seen.interpreter);
        let function = Function {
            key: FunctionKey {
                mm: seen.mm,
                code: seen.code,
                check: seen.check,
            },
            kind: seen.interpreter,
            version: seen.version,
            name: FunctionName {
                name: seen.name.as_str().into(),
                first_line: seen.first_line,
            },
            file: seen.file.as_str().into(),
            lines,
        };
        self.functions.insert(seen.number, function);
    }

    /// Number of functions that did not fit.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// The keys of all functions, for their removal from the probe when the process ends.
    pub fn all(&self) -> impl Iterator<Item = FunctionKey> {
        self.functions.values().map(|f| f.key)
    }

    /// The frame of an instruction. `at` is the position that the probe knows: in Python, the offset from the function's first
    /// instruction, in bytes; in Ruby, the line. `None` if the name does not fit.
    pub fn frame(
        &self,
        number: FunctionNumber,
        at: Option<u32>,
        modules: &mut ModuleTable,
    ) -> Option<Frame> {
        let Some(function) = self.functions.get(&number) else {
            // Omitted frames of the stack, or a function whose description was lost.
            let kind = self.kind.unwrap_or(InterpreterKind::Python);
            let language = kind.name();
            let what = match number.0 {
                0 => format!("[more {language} frames]"),
                _ => format!("[unknown {language} function]"),
            };
            let name = FunctionName {
                name: what.into(),
                first_line: 0,
            };
            let (of, file) = (
                (Origin::Interpreter, kind.language()),
                format!("[{language}]"),
            );
            return modules.in_source(of, &file, false, name, 0);
        };
        let Function {
            kind,
            version,
            name,
            file,
            lines,
            ..
        } = function;
        let line = at.and_then(|at| match kind {
            InterpreterKind::Python => python::line_of(*version, lines, name.first_line, at),
            InterpreterKind::Ruby => Some(at),
        });
        let (of, own) = ((Origin::Interpreter, kind.language()), kind.is_own(file));
        modules.in_source(of, file, own, name.clone(), line.unwrap_or(0))
    }
}

/// Reads a function's line table, if the function exists.
fn read_lines(pid: Pid, seen: &FunctionSeen, at: Addr) -> Option<Box<[u8]>> {
    if mmap_lock::is_held(pid) {
        return None;
    }
    let memory = proc_dir::open(pid, "mem").ok()?;
    let layout = python::Layout::for_version(seen.version)?;
    // PyBytesObject: reference count, type, size, hash, bytes.
    let size = word(&memory, at.0.checked_add(16)?)?;
    if size > MAX_LINES {
        return None;
    }
    let mut lines = vec![0; usize::try_from(size).ok()?];
    memory
        .read_exact_at(&mut lines, at.0.checked_add(32)?)
        .ok()?;
    // Read after the table: if the code object is unchanged now, so was its table. The allocator overwrites the first word of a
    // freed object with a pointer, whose bits differ from those of a reference count (32 bits; from 3.14 on with flags in the
    // highest 16).
    let code = |offset: u16| word(&memory, seen.code.0.checked_add(offset.into())?);
    let references = code(0)?;
    let same = references as u32 != 0
        && references >> 32 & 0xffff == 0
        && code(layout.code_lines)? == at.0
        && code(layout.code_first_line)? as u32 == seen.first_line;
    same.then(|| lines.into())
}

fn word(memory: &File, at: u64) -> Option<u64> {
    let mut word = [0; 8];
    memory.read_exact_at(&mut word, at).ok()?;
    Some(u64::from_ne_bytes(word))
}
