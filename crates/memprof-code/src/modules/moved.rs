//! Code that a program has moved: copied from its file's mapping to other memory at the same addresses, usually to back
//! it with huge pages (`node --use-largepages`, hugify, iodlr).
//!
//! The kernel shows such memory like JIT code. Memory counts as moved code only if three conditions hold: the mappings
//! before and after it belong to one file; all three lie where that file's program headers put them with one load bias;
//! a sample of its bytes equals the file's.

use super::ModuleTable;
use super::code_mappings::Mapping;
use crate::elf::{Elf, Segment};
use memprof_profile::ModuleId;
use memprof_sys::ids::Pid;
use memprof_sys::residency::page_size;
use memprof_sys::target_file::{ReadAt, TargetMemory};

/// Number of positions at which bytes are compared, and number of bytes at each.
const PLACES: u64 = 16;
const BYTES: u64 = 4096;
/// Maximum number of mappings of a process that are compared per load.
const MAX_MAPPINGS: usize = 256;

/// A range of moved code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MovedCode {
    /// First address.
    pub start: u64,
    /// End, exclusive.
    pub end: u64,
    /// Load bias: an address minus `bias` is the address in the file's own addresses.
    pub bias: u64,
    /// File offset of the first byte, in bytes.
    pub offset: u64,
    /// Module of the file that the code was moved from.
    pub module: ModuleId,
}

/// Executable memory without a file, between two mappings of one file.
#[derive(Debug)]
pub(super) struct Enclosed {
    code: Mapping,
    before: Mapping,
    after: Mapping,
}

/// Finds enclosed code in a process's mappings.
#[derive(Debug, Default)]
pub(super) struct Finder {
    /// The last file mapping.
    before: Option<Mapping>,
    /// Executable mappings without a file since then.
    since: Vec<Mapping>,
    found: Vec<Enclosed>,
}

impl Finder {
    /// Examines the next mapping, in address order.
    pub(super) fn see(&mut self, m: &Mapping) {
        if m.without_file() {
            if m.exec && self.before.is_some() && self.since.len() < MAX_MAPPINGS {
                self.since.push(m.clone());
            }
            return;
        }
        let since = std::mem::take(&mut self.since);
        if let Some(before) = self.before.replace(m.clone())
            && (before.dev, before.inode) == (m.dev, m.inode)
        {
            let room = MAX_MAPPINGS.saturating_sub(self.found.len());
            self.found
                .extend(since.into_iter().take(room).map(|code| Enclosed {
                    code,
                    before: before.clone(),
                    after: m.clone(),
                }));
        }
    }

    pub(super) fn found(self) -> Vec<Enclosed> {
        self.found
    }
}

impl Enclosed {
    /// The address range of the code.
    pub(super) fn range(&self) -> std::ops::Range<u64> {
        self.code.start..self.code.end
    }

    /// Identifies the code that was moved there; `None` if it is other code.
    pub(super) fn identify(
        &self,
        pid: Pid,
        exe: Option<(u64, u64)>,
        table: &mut ModuleTable,
    ) -> Option<MovedCode> {
        let module = table.intern(pid, &self.before, exe)?;
        let file = table.modules.get(usize::from(module.0))?.file.clone()?;
        let elf = Elf::read(&file).ok()?;
        let memory = TargetMemory::for_process(pid).ok()?;
        let place = |(bias, segment): (u64, &Segment)| {
            let inside = self
                .code
                .start
                .wrapping_sub(bias)
                .wrapping_sub(segment.addr);
            let offset = segment.offset.wrapping_add(inside);
            is_same(&self.code, &memory, offset, &file).then_some(MovedCode {
                start: self.code.start,
                end: self.code.end,
                bias,
                offset,
                module,
            })
        };
        let segments: Vec<Segment> = elf.loaded_segments().copied().collect();
        places(self, &segments).find_map(place)
    }
}

/// The executable segments that the code may have been moved from, each with its load bias.
fn places<'s>(
    at: &'s Enclosed,
    segments: &'s [Segment],
) -> impl Iterator<Item = (u64, &'s Segment)> {
    let bias = |m: &Mapping, s: &Segment| s.bias_in(m.start, m.offset);
    let biases = segments.iter().filter_map(move |s| bias(&at.before, s));
    let biases = biases.filter(move |found| {
        let mut after = segments.iter().filter_map(|s| bias(&at.after, s));
        after.any(|after| after == *found)
    });
    biases.flat_map(move |bias| {
        let code = segments.iter().filter(|s| s.code());
        let holds = move |s: &&Segment| {
            let (first, last) = in_pages(s.addr.wrapping_add(bias), s.size_in_memory);
            first <= at.code.start && at.code.end <= last
        };
        code.filter(holds).map(move |s| (bias, s))
    })
}

/// Rounds a range outwards to whole pages: the first address, and the end.
fn in_pages(start: u64, size: u64) -> (u64, u64) {
    let end = start.saturating_add(size);
    (
        start / page_size() * page_size(),
        end.checked_next_multiple_of(page_size()).unwrap_or(end),
    )
}

/// Whether a sample of the code's bytes equals the file's; a small mapping is compared as a whole. Samples that all
/// repeat a single byte are no evidence.
fn is_same(code: &Mapping, memory: &dyn ReadAt, offset: u64, file: &dyn ReadAt) -> bool {
    let size = code.end - code.start;
    let part = (size / PLACES).max(BYTES);
    let mut said = false;
    for place in (0..size).step_by(part as usize) {
        let bytes = BYTES.min(size - place) as usize;
        let (mut here, mut there) = (vec![0; bytes], vec![0; bytes]);
        let read = memory.fill(&mut here, code.start + place).is_ok()
            && file.fill(&mut there, offset.wrapping_add(place)).is_ok();
        if !read || here != there {
            return false;
        }
        said |= there.iter().any(|byte| *byte != there[0]);
    }
    said
}
