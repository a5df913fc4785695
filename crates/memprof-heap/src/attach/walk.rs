//! The stack walk of a stopped thread.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use super::loaded_files::Files;
use super::safe_point::Frame;
use memprof_code::unwind::walk::{Ended, Mapped, Process, Registers, walk};
use memprof_code::unwind::{Arch, CfaKind, Table};
use memprof_sys::freeze::ThreadPosition;

/// Maximum number of frames of a walk.
const MAX_FRAMES: usize = 1024;

type FileId = ((u32, u32), u64);

/// Unwind tables of a process's files. They are built while its threads run.
#[derive(Debug, Default)]
pub(super) struct Tables {
    known: HashMap<FileId, Option<Table>>,
    /// Files whose tables a walk lacked.
    wanted: RefCell<Vec<FileId>>,
}

/// State of one walk.
struct Walking<'a> {
    memory: &'a File,
    files: &'a Files,
    tables: &'a Tables,
}

impl Process for Walking<'_> {
    fn read(&self, addr: u64) -> Option<u64> {
        let mut word = [0; 8];
        self.memory.read_exact_at(&mut word, addr).ok()?;
        Some(u64::from_le_bytes(word))
    }

    fn module(&self, pc: u64) -> Mapped<'_> {
        let Some((file, address)) = self.files.at(pc) else {
            return Mapped::Nothing;
        };
        match self.tables.known.get(&file.id) {
            Some(Some(table)) => Mapped::Table(table, pc.wrapping_sub(address)),
            Some(None) => Mapped::NoTable,
            None => {
                self.tables.wanted.borrow_mut().push(file.id);
                Mapped::NoTable
            }
        }
    }
}

impl Tables {
    /// Returns the frames of a stopped thread, innermost first, and how the walk ended.
    pub(super) fn walk(
        &self,
        memory: &File,
        files: &Files,
        state: &ThreadPosition,
    ) -> (Vec<Frame>, Ended) {
        let process = Walking {
            memory,
            files,
            tables: self,
        };
        let start = Registers {
            ip: state.ip,
            sp: state.sp,
            fp: state.fp,
            lr: 0,
            bx: state.bx,
        };
        let walked = walk(&process, Arch::X86_64, start, MAX_FRAMES);
        let frames = walked.frames.iter().map(|pc| self.frame(files, *pc));
        (frames.collect(), walked.ended)
    }

    fn frame(&self, files: &Files, pc: u64) -> Frame {
        let found = files.at(pc);
        let table = found.and_then(|(file, _)| self.known.get(&file.id)?.as_ref());
        let rule = table.zip(found).map(|(table, (_, at))| table.rule_at(at));
        Frame {
            kind: found.map(|(file, _)| file.kind),
            function: found.and_then(|(file, at)| file.function_at(at)),
            is_signal: rule.is_some_and(|rule| rule.cfa_kind() == CfaKind::Signal),
        }
    }

    /// Builds the tables that walks lacked. Returns whether there were any.
    pub(super) fn build(&mut self, files: &Files) -> bool {
        let wanted = self.wanted.take();
        for id in &wanted {
            let file = files.files.iter().find(|file| file.id == *id);
            let table = file.and_then(|file| Table::build(&file.file).ok());
            self.known.insert(*id, table);
        }
        !wanted.is_empty()
    }
}
