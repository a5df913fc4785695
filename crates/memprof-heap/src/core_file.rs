//! Cores: the memory and the registers of a process in an ELF file, which the kernel writes when a process crashes, and `gcore` and
//! `memprof heap --save` for a process that goes on.
//!
//! - `headers` and `notes` read what describes the process, `mappings` makes its list of mappings of both.
//! - `files` finds the programs and libraries, most of whose pages are not in a core.
//! - `contents` copies the private memory.
//! - `write` writes a snapshot as a core; `own_notes` are what only such cores say.
//!
//! Everything in a core is untrusted. What is damaged is either an error, or is left out and listed beside the figures.

mod contents;
mod files;
mod headers;
mod mappings;
mod notes;
mod own_notes;
mod packed;
mod process;
#[cfg(test)]
mod tests;
mod text;
mod write;
mod write_headers;

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};
use schemars::JsonSchema;
use serde::Serialize;

use self::contents::CoreBytes;
pub(crate) use self::files::CoreFiles;
pub use self::files::{CoreFileRow, CoreFileState, CorePaths};
use self::headers::Headers;
use self::notes::{Notes, auxv};
pub(crate) use self::write::CoreWriter;
pub use self::write::SavedCore;
use super::headroom::Headroom;
use super::ledger;
use super::memory::Run;
use super::report::Heap;
use super::snapshot::Snapshot;
use super::source::Source;
use super::whole::{Missing, MissingKind};
use memprof_sys::ids::Pid;
use memprof_sys::residency::page_size;
use memprof_sys::target_file::{ReadAt, TargetFile, find};

/// The core that a snapshot was read from. Sizes are in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
#[schemars(rename = "HeapCore")]
pub struct CoreReport {
    /// Path of the core.
    pub path: String,
    /// Size of the core, unpacked.
    pub bytes: u64,
    /// How the file is compressed: `zstd`, `lz4`, `xz` or `gzip`.
    pub compression: Option<&'static str>,
    /// The command line of the process, which the kernel cuts off after 79 bytes.
    pub command: String,
    /// The signal that ended the process; 0 for none.
    pub signal: u16,
    /// Number of threads whose registers are in the core.
    pub threads: usize,
    /// Whether the core says which pages were in memory, as those that memprof wrote do. The figures are then those of the snapshot;
    /// otherwise `resident` figures are bytes that the core has, without `zeroes`.
    pub residency: bool,
    /// Pages of zeroes outside of mapped files that are in no other figure: with `holes`, only holes; otherwise all, because those
    /// that were never written to look like the others. With `residency`, they may be in other figures.
    pub zeroes: u64,
    /// Whether the core is a file with holes.
    pub holes: bool,
    /// Pages of mapped files in the core that are as in the file. They are in no other figure.
    pub unchanged: u64,
    /// Pages of mapped files in the core that could not be compared with the file, because it was not found. Those of writable
    /// mappings count as anonymous memory.
    pub not_compared: u64,
    /// The mapped programs, libraries, and other files with bytes in the core.
    pub files: Vec<CoreFileRow>,
    /// What the core lacks, in sentences without a full stop.
    pub lacks: Vec<String>,
}

/// A core that was read.
#[derive(Debug)]
struct Core {
    snapshot: Snapshot,
    files: CoreFiles,
    report: CoreReport,
}

/// Reads the heap from a core. Lists the `top` largest chunks.
///
/// # Errors
/// The file cannot be read or is no core, its headers are damaged, or there is not enough memory for a copy.
pub fn measure_core(path: &Path, paths: &CorePaths, top: usize) -> Result<Heap> {
    let failed = || format!("cannot read the core {}", path.display());
    let opened = find(path).and_then(TargetFile::of_handle);
    let file = opened.with_context(failed)?;
    let unpacked = packed::unpack(&file, &std::env::temp_dir()).with_context(failed)?;
    let mut core = match &unpacked {
        Some(unpacked) => {
            let read = Core::read(&unpacked.file, Some(&unpacked.file), Some(paths));
            match &unpacked.damage {
                Some(damage) => read.with_context(|| damage.clone()),
                None => read,
            }
        }
        None => Core::read(&file, file.opened(), Some(paths)),
    }
    .with_context(failed)?;
    core.report.path = path.display().to_string();
    if let Some(unpacked) = unpacked {
        core.report.compression = Some(unpacked.format);
        core.report.lacks.extend(unpacked.damage);
    }
    core.measure(top).with_context(failed)
}

/// Reads the heap from the bytes of a core, without any file.
///
/// # Errors
/// As for [`measure_core`].
pub fn measure_core_bytes(bytes: &dyn ReadAt, top: usize) -> Result<Heap> {
    Core::read(bytes, None, None)?.measure(top)
}

impl Core {
    fn read(bytes: &dyn ReadAt, file: Option<&File>, paths: Option<&CorePaths>) -> Result<Core> {
        let headers = Headers::read(bytes)?;
        let mut notes = Notes::read(bytes, &headers.notes, headers.machine)?;
        if let Some(page) = notes.auxiliary(auxv::PAGE_SIZE) {
            ensure!(
                page == page_size(),
                "its pages have {page} bytes, and those of this machine {}",
                page_size()
            );
        }
        let own = notes
            .own
            .are_usable()
            .then(|| std::mem::take(&mut notes.own));
        let mut mappings = match &own {
            Some(own) => own.build(&headers.segments),
            None => mappings::build(&headers.segments, &notes),
        };
        let residency = own.is_some();
        let files = CoreFiles::find(bytes, &mut mappings, &notes, paths)?;
        let core = CoreBytes {
            bytes,
            file,
            size: bytes.size()?,
        };
        let stored = core.stored(headers.segments.iter().map(|s| (s.offset, s.size)));
        let headroom = Headroom::read(Pid(std::process::id()));
        if let Some(reason) = headroom.refuses_copy(stored) {
            return Err(anyhow!(reason)).context("there is no memory for a copy of it");
        }
        let mut contents = contents::read(core, &mappings, &files, own)?;
        if notes.threads.is_empty() {
            contents.missing.push(Missing {
                kind: MissingKind::Registers,
                bytes: 0,
            });
        }
        let report = CoreReport {
            path: String::new(),
            bytes: core.size,
            compression: None,
            command: notes.command(),
            signal: notes.signal,
            threads: notes.threads.len(),
            residency,
            zeroes: contents.zeroes.iter().map(Run::len).sum(),
            holes: contents.has_holes,
            unchanged: contents.unchanged,
            not_compared: contents.not_compared,
            files: files.rows.clone(),
            lacks: notes.lacks,
        };
        let vmas = mappings.into_iter().map(|mapping| mapping.vma).collect();
        let copied = (vmas, contents.pages, contents.memory);
        Ok(Core {
            snapshot: Snapshot::of_core(copied, notes.threads, contents.missing, contents.zeroes),
            files,
            report,
        })
    }

    fn measure(self, top: usize) -> Result<Heap> {
        let source = Source::Core(&self.files);
        let mut measured = ledger::measure_snapshot(source, self.snapshot, top, None)?;
        if !self.report.residency {
            // Pages that were never touched look like others.
            measured.heap.zero_pages = None;
        }
        measured.heap.core = Some(self.report);
        Ok(measured.heap)
    }
}
