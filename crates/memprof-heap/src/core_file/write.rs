//! Writes a snapshot as a core, which gdb and other readers of cores open.
//!
//! It contains what the kernel's cores contain by default (`coredump_filter` 0x33): private memory, shared memory that is no file, the
//! first page of ELF files, and huge pages. A mapping of a file is written whole if the process changed one of its pages. Private memory
//! is that of the snapshot. Shared memory is read when it is written, because a copy-on-write child shares it as well.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use object::elf::ELFMAG;
use schemars::JsonSchema;
use serde::Serialize;

use super::process::ProcessNotes;
use super::write_headers::{Load, headers};
use crate::memory::{Run, overlapping};
use crate::snapshot::Snapshot;
use crate::source::Source;
use memprof_sys::ids::Pid;
use memprof_sys::proc_dir;
use memprof_sys::residency::{Backing, Method, PageKind, PageRun, Scanner, Vma, page_size};
use memprof_sys::target_file::ReadAt;

/// Bytes read and written at once.
const BLOCK: u64 = 256 << 10;
/// Up to this size, a mapping is in the core to its end; of a larger one, the end that was never written to is left out.
const WHOLE: u64 = 1 << 30;

/// A core that was written. Sizes are in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
#[schemars(rename = "HeapSavedCore")]
pub struct SavedCore {
    /// Path of the core.
    pub path: String,
    /// Length of the file.
    pub bytes: u64,
    /// Space that it takes on the disk: pages of zeroes are holes.
    pub stored: u64,
    /// Bytes of mapped files and shared memory that could not be read. They are zeroes in the core.
    pub not_saved: u64,
}

/// A core to write: the path, and what describes the process.
#[derive(Debug)]
pub(crate) struct CoreWriter {
    pid: Pid,
    path: PathBuf,
    process: ProcessNotes,
    written: Option<(Temporary, SavedCore)>,
}

/// A file that is removed unless it is renamed.
#[derive(Debug)]
struct Temporary {
    path: PathBuf,
    renamed: bool,
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.renamed {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl CoreWriter {
    /// Prepares to write a core of a process.
    ///
    /// # Errors
    /// The process has ended, or may not be read.
    pub(crate) fn new(pid: Pid, path: &Path) -> Result<CoreWriter> {
        Ok(CoreWriter {
            pid,
            path: path.to_owned(),
            process: ProcessNotes::read(pid)?,
            written: None,
        })
    }

    /// Writes a synthetic snapshot, of no process, to a file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn synthetic(file: &File, snapshot: &Snapshot) -> Result<()> {
        let writer = CoreWriter {
            pid: Pid(0),
            path: PathBuf::new(),
            process: ProcessNotes::synthetic(),
            written: None,
        };
        writer.fill(file, snapshot).map(|_| ())
    }

    /// Writes a snapshot to a temporary file beside the path, which replaces the one that was written before.
    ///
    /// # Errors
    /// The file cannot be written. It is removed.
    pub(crate) fn write(&mut self, snapshot: &Snapshot) -> Result<()> {
        self.written = None;
        let failed = || {
            format!(
                "cannot write the core {}, and nothing of it is left (--save FILE: another path or disk)",
                self.path.display()
            )
        };
        self.written = Some(self.try_write(snapshot).with_context(failed)?);
        Ok(())
    }

    fn try_write(&self, snapshot: &Snapshot) -> Result<(Temporary, SavedCore)> {
        let name = self.path.file_name();
        let name = name.ok_or_else(|| anyhow!("it is no path of a file"))?;
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}.part", std::process::id()));
        let path = self.path.with_file_name(hidden);
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)?;
        let temporary = Temporary {
            path,
            renamed: false,
        };
        let not_saved = self.fill(&file, snapshot)?;
        file.sync_data()?;
        let about = file.metadata()?;
        let saved = SavedCore {
            path: self.path.display().to_string(),
            bytes: about.len(),
            stored: about.blocks().saturating_mul(512),
            not_saved,
        };
        Ok((temporary, saved))
    }

    /// Gives the core that was written its name.
    ///
    /// # Errors
    /// It cannot be renamed, or none was written. No file is left.
    pub(crate) fn finish(self) -> Result<SavedCore> {
        let written = self.written.context("no core was written")?;
        let (mut temporary, saved) = written;
        fs::rename(&temporary.path, &self.path)
            .with_context(|| format!("cannot name the core {}", self.path.display()))?;
        temporary.renamed = true;
        Ok(saved)
    }

    /// Writes everything. Returns the number of bytes that could not be read.
    fn fill(&self, file: &File, snapshot: &Snapshot) -> Result<u64> {
        let memory = proc_dir::open(self.pid, "mem").ok();
        let shared = self.shared(snapshot);
        let mut loads: Vec<Load> = snapshot
            .vmas
            .iter()
            .filter(|vma| vma.name != "[vsyscall]")
            .map(|vma| Load {
                vma,
                size: size(vma, snapshot, &shared, memory.as_ref()),
                offset: 0,
            })
            .collect();
        let notes = self.process.notes(snapshot);
        let head = headers(&mut loads, &notes)?;
        file.write_all_at(&head, 0)?;
        let end = loads.last().map_or(head.len() as u64, Load::end);
        file.set_len(end)?;
        let mut writer = Writer {
            file,
            snapshot,
            memory,
            not_saved: 0,
        };
        for load in loads.iter().filter(|load| load.size > 0) {
            writer.load(load, self.pid, &shared)?;
        }
        Ok(writer.not_saved)
    }

    /// The resident pages of shared memory that is no file.
    fn shared(&self, snapshot: &Snapshot) -> Vec<Run> {
        let vmas = snapshot.vmas.iter().filter(|vma| is_shared_memory(vma));
        let vmas: Vec<Vma> = vmas.cloned().collect();
        let mut runs = Vec::new();
        let mut found = |_: usize, run: PageRun| {
            if run.kind == PageKind::Shmem {
                runs.push(Run {
                    start: run.start.0,
                    end: run.end.0,
                    resident: true,
                });
            }
        };
        if let Ok(mut scanner) = Scanner::open(self.pid, Method::Auto)
            && scanner.scan(&vmas, &mut found, &mut || ()).is_err()
        {
            return Vec::new();
        }
        runs
    }
}

/// Whether a mapping is shared memory without a file that has a name.
fn is_shared_memory(vma: &Vma) -> bool {
    vma.backing == Backing::Shmem && vma.deleted && vma.perms.shared && vma.perms.read
}

/// Number of bytes of a mapping that the core contains.
fn size(vma: &Vma, snapshot: &Snapshot, shared: &[Run], memory: Option<&File>) -> u64 {
    let (start, end) = (vma.start.0, vma.end.0);
    let last = |runs: &mut dyn Iterator<Item = Run>| runs.last().map(|run| run.end);
    let last = match is_shared_memory(vma) {
        true => last(&mut overlapping(shared, start, end)),
        false => last(&mut snapshot.memory.runs_in(start, end)),
    };
    match last {
        Some(_) if vma.len() <= WHOLE => vma.len(),
        Some(last) => last - start,
        None if vma.name == "[vdso]" => vma.len(),
        None if vma.backing == Backing::File && vma.file_offset == 0 && vma.perms.read => {
            let mut magic = [0; 4];
            let read = memory.map(|memory| memory.read_exact_at(&mut magic, start));
            match read {
                Some(Ok(())) if magic == ELFMAG => page_size(),
                _ => 0,
            }
        }
        None => 0,
    }
}

struct Writer<'a> {
    file: &'a File,
    snapshot: &'a Snapshot,
    memory: Option<File>,
    not_saved: u64,
}

impl Writer<'_> {
    fn load(&mut self, load: &Load<'_>, pid: Pid, shared: &[Run]) -> Result<()> {
        let vma = load.vma;
        let (start, end) = (vma.start.0, vma.start.0 + load.size);
        if is_shared_memory(vma) {
            for run in overlapping(shared, start, end) {
                self.copy(load, run.start, run.end, |writer, bytes, at| {
                    writer.read_process(bytes, at)
                })?;
            }
            return Ok(());
        }
        if vma.backing == Backing::Special {
            return self.copy(load, start, end, |writer, bytes, at| {
                writer.read_process(bytes, at)
            });
        }
        if vma.ino != 0 && vma.backing != Backing::Hugetlb {
            let file = Source::Process(pid).file_of(vma);
            self.copy(load, start, end, |writer, bytes, at| {
                let at_file = vma.file_offset.checked_add(at - start);
                let read = file
                    .as_ref()
                    .zip(at_file)
                    .map(|(file, at)| file.read_some(bytes, at));
                match read {
                    Some(Ok(got)) => {
                        bytes[got..].fill(0);
                        0
                    }
                    _ => writer.read_process(bytes, at),
                }
            })?;
        }
        for run in self.snapshot.memory.runs_in(start, end) {
            let mut at = run.start;
            while let Some(bytes) = self.snapshot.memory.from(at).filter(|_| at < run.end) {
                let len = (run.end - at).min(bytes.len() as u64);
                let overwrites = vma.ino != 0;
                self.put(load, at, &bytes[..len as usize], overwrites)?;
                at += len;
            }
        }
        Ok(())
    }

    /// Reads from the process. Returns the number of bytes that could not be read; they are zeroes.
    fn read_process(&self, bytes: &mut [u8], at: u64) -> u64 {
        let read = self.memory.as_ref().map(|m| m.read_exact_at(bytes, at));
        match read {
            Some(Ok(())) => 0,
            _ => {
                bytes.fill(0);
                bytes.len() as u64
            }
        }
    }

    /// Copies a range that `read` fills block by block.
    fn copy(
        &mut self,
        load: &Load<'_>,
        start: u64,
        end: u64,
        read: impl Fn(&Self, &mut [u8], u64) -> u64,
    ) -> Result<()> {
        let mut block = vec![0; BLOCK.min(end - start) as usize];
        let mut at = start;
        while at < end {
            let len = (end - at).min(BLOCK) as usize;
            self.not_saved += read(self, &mut block[..len], at);
            self.put(load, at, &block[..len], false)?;
            at += len as u64;
        }
        Ok(())
    }

    /// Writes the bytes at an address. Pages of zeroes stay holes, unless they replace others.
    fn put(&self, load: &Load<'_>, at: u64, bytes: &[u8], overwrites: bool) -> io::Result<()> {
        let page = page_size() as usize;
        let offset = load.offset + (at - load.vma.start.0);
        let is_hole = |page: &[u8]| !overwrites && page.iter().all(|b| *b == 0);
        let mut from = 0;
        for (n, chunk) in bytes.chunks(page).enumerate() {
            if is_hole(chunk) {
                let here = n * page;
                self.file
                    .write_all_at(&bytes[from..here], offset + from as u64)?;
                from = here + chunk.len();
            }
        }
        self.file
            .write_all_at(&bytes[from.min(bytes.len())..], offset + from as u64)
    }
}
