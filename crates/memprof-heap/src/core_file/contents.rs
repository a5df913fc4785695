//! The contents of a core: which pages it has of the process's private memory, and a copy of them.

use std::collections::HashSet;
use std::fs::File;
use std::os::fd::AsRawFd;

use anyhow::{Context, Result};

use super::files::{CoreFiles, page_of_file};
use super::mappings::{Mapping, is_private, page_of};
use super::own_notes::OwnNotes;
use crate::memory::{Memory, Run};
use crate::snapshot::Pages;
use crate::whole::{Missing, MissingKind};
use crate::zero_pages::is_zero;
use memprof_sys::residency::{Backing, page_size};
use memprof_sys::target_file::{ReadAt, TargetFile};

/// Bytes read at once.
const BLOCK: usize = 64 << 10;

/// The pages of a core, and their contents.
#[derive(Debug, Default)]
pub(super) struct Contents {
    pub pages: Pages,
    pub memory: Memory,
    pub missing: Vec<Missing>,
    /// Pages of zeroes that are in no other figure, and whose bytes are not kept: holes, or all such pages of a core without
    /// holes.
    pub zeroes: Vec<Run>,
    /// Whether the core has holes for pages that were never written to, so that its pages of zeroes were written to.
    pub has_holes: bool,
    /// Bytes of pages of mapped files that are the file's own.
    pub unchanged: u64,
    /// Bytes of pages of mapped files that could not be compared with the file.
    pub not_compared: u64,
}

/// The core as a file, for finding holes in it, and its size.
#[derive(Clone, Copy, Debug)]
pub(super) struct CoreBytes<'a> {
    pub bytes: &'a dyn ReadAt,
    /// `None` for a core that is no file.
    pub file: Option<&'a File>,
    pub size: u64,
}

impl CoreBytes<'_> {
    /// The next range of bytes that is no hole, within a range.
    fn data(&self, start: u64, end: u64) -> Option<(u64, u64)> {
        let end = end.min(self.size);
        if start >= end {
            return None;
        }
        let Some(file) = self.file else {
            return Some((start, end));
        };
        let seek = |from: u64, what| {
            let from = i64::try_from(from).ok()?;
            // SAFETY: the call only moves the file's position, which nothing here depends on.
            let at = unsafe { libc::lseek(file.as_raw_fd(), from, what) };
            u64::try_from(at).ok()
        };
        match seek(start, libc::SEEK_DATA) {
            Some(data) => {
                let hole = seek(data, libc::SEEK_HOLE).unwrap_or(end);
                (data < end).then(|| (data.max(start), hole.clamp(data + 1, end)))
            }
            None => {
                let error = std::io::Error::last_os_error().raw_os_error();
                // ENXIO: there is no data behind this offset.
                (error != Some(libc::ENXIO)).then_some((start, end))
            }
        }
    }

    /// Number of bytes of these ranges that are no hole.
    pub(super) fn stored(&self, ranges: impl Iterator<Item = (u64, u64)>) -> u64 {
        let mut stored = 0;
        for (offset, size) in ranges {
            let (mut at, end) = (offset, offset.saturating_add(size));
            while let Some((start, stop)) = self.data(at, end) {
                stored += stop - start;
                at = stop;
            }
        }
        stored
    }
}

/// Reads the private memory of all mappings.
///
/// # Errors
/// The core cannot be read, or there is not enough memory for the copy.
pub(super) fn read(
    core: CoreBytes<'_>,
    mappings: &[Mapping],
    files: &CoreFiles,
    own: Option<OwnNotes>,
) -> Result<Contents> {
    let segments = mappings.iter().filter_map(|mapping| mapping.bytes);
    let there = segments
        .clone()
        .map(|(at, size)| size.min(core.size.saturating_sub(at)));
    let has_holes = core.file.is_some() && core.stored(segments) < there.sum();
    let mut reader = Reader {
        core,
        own: own.as_ref(),
        contents: Contents {
            has_holes,
            ..Contents::default()
        },
        block: vec![0; BLOCK],
        of_file: vec![0; page_size() as usize],
    };
    let (mut absent, mut cut) = (0, 0);
    let code = mappings.iter().filter(|m| m.vma.perms.exec);
    let code: HashSet<u64> = code.map(|m| m.vma.ino).collect();
    for mapping in mappings {
        let vma = &mapping.vma;
        if !is_private(vma) {
            continue;
        }
        let (at, size) = mapping.bytes.unwrap_or((0, 0));
        let there = size.min(core.size.saturating_sub(at));
        cut += size - there;
        // A file's pages are only in a core if the process changed one of them, and those of code hardly ever.
        let is_written = vma.perms.read && vma.perms.write && own.is_none();
        if is_written && (vma.ino == 0 || code.contains(&vma.ino)) {
            absent += vma.len() - size;
        }
        reader
            .read(mapping, files)
            .with_context(|| format!("cannot read the memory at {:#x}", vma.start.0))?;
    }
    let mut contents = reader.contents;
    let missing = [(MissingKind::NotInCore, absent), (MissingKind::CutOff, cut)];
    let missing = missing.into_iter().filter(|(_, bytes)| *bytes > 0);
    contents.missing = missing
        .map(|(kind, bytes)| Missing { kind, bytes })
        .collect();
    if let Some(own) = own {
        contents.missing.extend(own.missing);
        contents.pages = own.pages;
    }
    Ok(contents)
}

impl Contents {
    /// Notes pages of zeroes at these offsets in a mapping.
    fn zeroes(&mut self, mapping: &Mapping, from: u64, to: u64) {
        let start = mapping.vma.start.0;
        let run = Run {
            start: start + from,
            end: start + to,
            resident: true,
        };
        push(&mut self.zeroes, run);
    }
}

struct Reader<'a> {
    core: CoreBytes<'a>,
    /// Notes of memprof's own, which say what was resident.
    own: Option<&'a OwnNotes>,
    contents: Contents,
    block: Vec<u8>,
    of_file: Vec<u8>,
}

impl Reader<'_> {
    fn read(&mut self, mapping: &Mapping, files: &CoreFiles) -> Result<()> {
        let Some((offset, size)) = mapping.bytes else {
            return Ok(());
        };
        let file = files.file_of(&mapping.vma);
        let end = offset.saturating_add(size).min(self.core.size);
        let mut at = offset;
        // Holes are zeroes. Only in a file's mapping do zeroes say something.
        let holes = mapping.vma.ino == 0;
        while at < end {
            let (start, stop) = match holes {
                true => match self.core.data(at, end) {
                    Some((start, stop)) => {
                        let start = offset + page_of(start - offset);
                        let start = start.max(at);
                        self.contents.zeroes(mapping, at - offset, start - offset);
                        (start, stop)
                    }
                    None => {
                        self.contents.zeroes(mapping, at - offset, end - offset);
                        return Ok(());
                    }
                },
                false => (at, end),
            };
            // Whole pages.
            let stop = stop
                .saturating_sub(offset)
                .next_multiple_of(page_size())
                .saturating_add(offset)
                .min(end);
            self.read_data(mapping, file.as_ref(), start, stop)?;
            at = stop;
        }
        Ok(())
    }

    fn read_data(
        &mut self,
        mapping: &Mapping,
        file: Option<&TargetFile>,
        start: u64,
        end: u64,
    ) -> Result<()> {
        let (offset, _) = mapping.bytes.unwrap_or((start, 0));
        let mut block = std::mem::take(&mut self.block);
        let mut at = start;
        while at < end {
            let len = (end - at).min(BLOCK as u64) as usize;
            let got = self.core.bytes.read_some(&mut block[..len], at)?;
            // The file became shorter. What it has lost was counted as there.
            if got < len {
                anyhow::bail!(
                    "the core is being changed: it ends at byte {}",
                    at + got as u64
                );
            }
            for (n, page) in block[..len].chunks(page_size() as usize).enumerate() {
                let inside = at - offset + n as u64 * page_size();
                self.page(mapping, file, inside, page)?;
            }
            at += len as u64;
        }
        self.block = block;
        Ok(())
    }

    /// Adds a page; the last one of a file that is cut off may be shorter.
    fn page(
        &mut self,
        mapping: &Mapping,
        file: Option<&TargetFile>,
        inside: u64,
        page: &[u8],
    ) -> Result<()> {
        let vma = &mapping.vma;
        let contents = &mut self.contents;
        let len = page.len() as u64;
        let start = vma.start.0 + inside;
        let run = Run {
            start,
            end: start + len,
            resident: true,
        };
        let mut counts = true;
        if self.own.is_some_and(|own| !own.has(start)) && (vma.ino == 0 || file.is_some()) {
            contents.unchanged += len;
            return Ok(());
        }
        if vma.ino == 0 || vma.backing == Backing::Hugetlb {
            if is_zero(page) && !contents.has_holes {
                contents.zeroes(mapping, inside, inside + len);
                return Ok(());
            }
        } else {
            let of_file = &mut self.of_file[..page.len()];
            let at = vma.file_offset.checked_add(inside);
            match file.and_then(|file| page_of_file(file, at?, of_file)) {
                Some(()) if of_file == page => {
                    contents.unchanged += len;
                    return Ok(());
                }
                Some(()) => {}
                None => {
                    contents.not_compared += len;
                    // Code, and the first page of a file, are there to say which file it is.
                    counts = vma.perms.write;
                }
            }
        }
        match (vma.perms.read, vma.backing) {
            (false, _) => {
                push(&mut contents.pages.hidden, run);
                return Ok(());
            }
            (true, Backing::Hugetlb) => push(&mut contents.pages.hugetlb, run),
            (true, _) if counts => push(&mut contents.pages.readable, run),
            (true, _) => {}
        }
        contents.memory.push(start, page)?;
        Ok(())
    }
}

/// Adds a run, which may continue the last one.
fn push(runs: &mut Vec<Run>, run: Run) {
    match runs.last_mut() {
        _ if run.len() == 0 => {}
        Some(last) if last.end == run.start => last.end = run.end,
        _ => runs.push(run),
    }
}
