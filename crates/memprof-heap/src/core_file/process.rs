//! The notes that describe a process in a core that is written.

use anyhow::{Context, Result};
use object::elf::{NT_AUXV, NT_FILE, NT_PRPSINFO, NT_PRSTATUS};

use super::own_notes;
use crate::snapshot::Snapshot;
use memprof_sys::freeze::Registers;
use memprof_sys::ids::Pid;
use memprof_sys::proc_dir;
use memprof_sys::process;
use memprof_sys::residency::{Vma, page_size};

/// Maximum size of the auxiliary vector and of the command line, in bytes.
const MAX: usize = 4096;

/// Number of general registers of a thread.
const WORDS: usize = if cfg!(target_arch = "aarch64") {
    34
} else {
    27
};

/// What `/proc` says of a process.
#[derive(Debug)]
pub(super) struct ProcessNotes {
    pid: Pid,
    comm: String,
    arguments: Vec<u8>,
    auxv: Vec<u8>,
    /// Parent, process group and session.
    family: [u32; 3],
    /// User and group.
    owner: [u32; 2],
}

impl ProcessNotes {
    /// Reads the description of a process.
    ///
    /// # Errors
    /// The process has ended, or may not be read.
    pub(super) fn read(pid: Pid) -> Result<ProcessNotes> {
        let limited = |name| -> Result<Vec<u8>> {
            let mut bytes = Vec::new();
            let file = proc_dir::open(pid, name);
            let read = file.and_then(|file| {
                use std::io::Read;
                file.take(MAX as u64).read_to_end(&mut bytes)
            });
            read.with_context(|| format!("cannot read {}", proc_dir::shown(pid, name)))?;
            Ok(bytes)
        };
        let mut arguments = limited("cmdline")?;
        arguments.iter_mut().for_each(|byte| {
            if *byte == 0 {
                *byte = b' ';
            }
        });
        let stat = proc_dir::text(pid, "stat")?;
        // The name may contain anything, also parentheses.
        let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let mut fields = fields.split_whitespace().skip(1);
        let mut number = || fields.next().and_then(|n| n.parse().ok()).unwrap_or(0);
        let family = [number(), number(), number()];
        let status = proc_dir::text(pid, "status")?;
        let id = |name| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let id = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
            id.unwrap_or(0)
        };
        Ok(ProcessNotes {
            pid,
            comm: process::comm(pid).unwrap_or_default(),
            arguments,
            auxv: limited("auxv")?,
            family,
            owner: [id("Uid:"), id("Gid:")],
        })
    }

    /// Of no process.
    pub(super) fn synthetic() -> ProcessNotes {
        ProcessNotes {
            pid: Pid(0),
            comm: String::new(),
            arguments: Vec::new(),
            auxv: Vec::new(),
            family: [0; 3],
            owner: [0; 2],
        }
    }

    /// All notes of a core.
    pub(super) fn notes(&self, snapshot: &Snapshot) -> Vec<u8> {
        let mut notes = Vec::new();
        let first = |thread: &&Registers| u32::try_from(thread.tid) == Ok(self.pid.0);
        let threads = snapshot.threads.iter();
        let others = threads.clone().filter(|thread| !first(thread));
        for (n, thread) in threads.clone().filter(first).chain(others).enumerate() {
            add(&mut notes, b"CORE\0", NT_PRSTATUS.0, &self.thread(thread));
            if n == 0 {
                add(&mut notes, b"CORE\0", NT_PRPSINFO.0, &self.process());
                add(&mut notes, b"CORE\0", NT_AUXV.0, &self.auxv);
                let files = mapped_files(&snapshot.vmas);
                add(&mut notes, b"CORE\0", NT_FILE.0, &files);
            }
            if cfg!(target_arch = "aarch64") {
                let pointer = thread.thread_pointer.to_le_bytes();
                add(&mut notes, b"LINUX\0", 0x401, &pointer);
            }
        }
        for (kind, note) in own_notes::write(snapshot) {
            add(&mut notes, own_notes::OWNER, kind, &note);
        }
        notes
    }

    /// `struct elf_prstatus`.
    fn thread(&self, thread: &Registers) -> Vec<u8> {
        let mut note = vec![0; 32];
        let [parent, group, session] = self.family;
        for id in [thread.tid.cast_unsigned(), parent, group, session] {
            note.extend(id.to_le_bytes());
        }
        // Times, which memprof does not read.
        note.resize(112, 0);
        note.extend(thread.words.iter().flat_map(|word| word.to_le_bytes()));
        // Whether there are floating-point registers, and padding.
        note.resize(112 + 8 * WORDS + 8, 0);
        note
    }

    /// `struct elf_prpsinfo`.
    fn process(&self) -> Vec<u8> {
        let mut note = vec![0; 16];
        // The process runs.
        note[1] = b'R';
        for id in [self.owner[0], self.owner[1], self.pid.0] {
            note.extend(id.to_le_bytes());
        }
        for id in self.family {
            note.extend(id.to_le_bytes());
        }
        for (text, len) in [(self.comm.as_bytes(), 16), (&self.arguments, 80)] {
            let end = note.len() + len;
            note.extend(&text[..text.len().min(len - 1)]);
            note.resize(end, 0);
        }
        note
    }
}

/// The list of mapped files.
fn mapped_files(vmas: &[Vma]) -> Vec<u8> {
    let files: Vec<&Vma> = vmas.iter().filter(|vma| vma.ino != 0).collect();
    let page = page_size();
    let mut words = vec![files.len() as u64, page];
    for vma in &files {
        words.extend([vma.start.0, vma.end.0, vma.file_offset / page]);
    }
    let mut note: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    for vma in files {
        note.extend(vma.name.as_bytes());
        if vma.deleted {
            note.extend(b" (deleted)");
        }
        note.push(0);
    }
    note
}

/// Adds a note.
fn add(notes: &mut Vec<u8>, owner: &[u8], kind: u32, contents: &[u8]) {
    for word in [owner.len() as u32, contents.len() as u32, kind] {
        notes.extend(word.to_le_bytes());
    }
    for part in [owner, contents] {
        notes.extend(part);
        notes.resize(notes.len().next_multiple_of(4), 0);
    }
}
