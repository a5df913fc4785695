//! Chunks with mappings of their own.
//!
//! The chunks are found by their headers at the beginning of pages, because the kernel may merge such mappings with
//! each other and with others.

use super::super::chunks::ChunkKind;
use super::super::memory::Memory;
use super::super::snapshot::Snapshot;
use super::Refusal;
use super::state::Parameters;
use super::walk::{ArenaPart, HEADER};
use memprof_sys::residency::page_size;

/// Flag `IS_MMAPPED` in a chunk's size. The other flags are clear then.
const IS_MMAPPED: u64 = 2;
const FLAGS: u64 = 7;

/// A chunk with a mapping of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mmapped {
    /// First address of the mapping.
    pub start: u64,
    /// Size of the mapping, in bytes.
    pub len: u64,
    /// Address of the chunk's header. For an aligned block, the part of the mapping before it is unused.
    pub at: u64,
    /// Kind of the chunk: in use, and how it is reached.
    pub kind: ChunkKind,
}

/// Finds all such chunks, and compares their number and bytes with glibc's counters.
pub(super) fn find(
    snapshot: &Snapshot,
    parts: &[ArenaPart],
    parameters: Option<&Parameters>,
) -> Result<Vec<Mmapped>, Refusal> {
    let page = page_size();
    let mut found: Vec<Mmapped> = Vec::new();
    let anonymous = snapshot.vmas.iter().filter(|vma| {
        vma.ino == 0 && vma.perms.write && !vma.perms.shared && !vma.name.starts_with("[stack")
    });
    for vma in anonymous {
        let (mut from, end) = (vma.start.0, vma.end.0);
        for run in snapshot.memory.runs_in(vma.start.0, end) {
            let mut at = run.start.max(from);
            while at < run.end {
                if let Some(part) = part_at(parts, at) {
                    at = part.end.next_multiple_of(page);
                    continue;
                }
                let fits = |c: &Mmapped| {
                    let last = c.start.checked_add(c.len);
                    let part = &parts[parts.partition_point(|part| part.end <= c.start)..];
                    let overlaps = |last| part.first().is_some_and(|part| part.start < last);
                    c.start >= from && last.is_some_and(|last| last <= end && !overlaps(last))
                };
                match at_page(&snapshot.memory, at).filter(fits) {
                    Some(chunk) => {
                        at = chunk.start + chunk.len;
                        from = at;
                        found.push(chunk);
                    }
                    None => at += page,
                }
            }
        }
    }
    check(&found, parameters)?;
    Ok(found)
}

/// The chunk whose header is in this page, if any: at its beginning, or in front of a block of larger alignment.
fn at_page(memory: &Memory, page: u64) -> Option<Mmapped> {
    let size = page_size();
    let alignments = std::iter::successors(Some(HEADER), |n| Some(n * 2));
    let mut places = alignments
        .take_while(|n| *n <= size)
        .map(|n| page + n - HEADER);
    places.find_map(|at| {
        // The first word of the header is the size of the unused part of the mapping in front of it.
        let (unused, head) = (memory.word(at)?, memory.word(at + 8)?);
        let used = unused.checked_add(head & !FLAGS)?;
        // Since glibc 2.43, the size excludes the header.
        let len = match used.is_multiple_of(size) {
            true => used,
            false => used.checked_add(HEADER)?,
        };
        let fits = head & FLAGS == IS_MMAPPED
            && unused % size == at - page
            && len.is_multiple_of(size)
            && head & !FLAGS > HEADER
            && unused < len;
        fits.then_some(Mmapped {
            start: at.checked_sub(unused)?,
            len,
            at,
            kind: ChunkKind::Live,
        })
    })
}

fn part_at(parts: &[ArenaPart], at: u64) -> Option<&ArenaPart> {
    let index = parts.partition_point(|part| part.end <= at);
    parts.get(index).filter(|part| part.start <= at)
}

fn check(found: &[Mmapped], parameters: Option<&Parameters>) -> Result<(), Refusal> {
    let Some(parameters) = parameters else {
        return Ok(());
    };
    let bytes: u64 = found.iter().map(|chunk| chunk.len).sum();
    let number = found.len() as u64;
    let counts = parameters.mmaps.map(u64::from);
    if bytes == parameters.mmapped && counts.contains(&number) {
        return Ok(());
    }
    Err(Refusal::Mmapped {
        found: number,
        bytes,
        counted: counts[0],
        counted_bytes: parameters.mmapped,
    })
}
