//! Notes that only memprof's cores have: the mappings with everything that `/proc/PID/maps` says, and which pages were in memory. A
//! core that `memprof heap --save` wrote has the figures of the snapshot because of them. Other readers skip them.

use std::collections::HashMap;

use super::headers::Segment;
use super::mappings::Mapping;
use crate::memory::Run;
use crate::snapshot::{Pages, Snapshot};
use crate::whole::{Missing, MissingKind};
use memprof_code::elf::u64_at;
use memprof_sys::residency::proc_maps;
use memprof_sys::residency::{Backing, Vma, page_size};

/// The owner of these notes.
pub(super) const OWNER: &[u8] = b"memprof\0";
/// The mappings, one on each line: a letter for the backing, then a line as in `/proc/PID/maps`.
pub(super) const MAPPINGS: u32 = 1;
/// The runs of pages: start, end and kind, in words of 64 bits.
pub(super) const PAGES: u32 = 2;
/// The runs of transparent huge pages, if the snapshot knows them: start and end, in words of 64 bits. Follows `PAGES`.
pub(super) const HUGE: u32 = 4;
/// What the snapshot lacked: kind and bytes, in words of 64 bits.
pub(super) const MISSING: u32 = 3;

const BACKINGS: [(u8, Backing); 7] = [
    (b'a', Backing::Anon),
    (b's', Backing::Shmem),
    (b'f', Backing::File),
    (b'o', Backing::Stacked),
    (b'h', Backing::Hugetlb),
    (b'd', Backing::Device),
    (b'k', Backing::Special),
];

const KINDS: [MissingKind; 6] = [
    MissingKind::NotForked,
    MissingKind::Wiped,
    MissingKind::Unread,
    MissingKind::NotInCore,
    MissingKind::CutOff,
    MissingKind::Registers,
];

/// What these notes say.
#[derive(Debug, Default)]
pub(super) struct OwnNotes {
    /// The mappings, by address.
    pub vmas: Vec<Vma>,
    /// The pages.
    pub pages: Pages,
    /// What the snapshot lacked.
    pub missing: Vec<Missing>,
    /// Whether a note is damaged.
    pub is_damaged: bool,
}

/// The notes of a snapshot: type and contents.
pub(super) fn write(snapshot: &Snapshot) -> Vec<(u32, Vec<u8>)> {
    let mut maps = Vec::new();
    for vma in &snapshot.vmas {
        let letter = BACKINGS.iter().find(|(_, backing)| *backing == vma.backing);
        maps.push(letter.map_or(b'k', |(letter, _)| *letter));
        let name = vma.name.replace('\n', "\\012");
        let deleted = if vma.deleted { " (deleted)" } else { "" };
        let line = format!(
            "{:x}-{:x} {} {:x} {:x}:{:x} {} {name}{deleted}\n",
            vma.start.0, vma.end.0, vma.perms, vma.file_offset, vma.dev.0, vma.dev.1, vma.ino
        );
        maps.extend(line.as_bytes());
    }
    let pages = &snapshot.pages;
    let mut runs = Vec::new();
    for (kind, list) in [
        (0, &pages.readable),
        (1, &pages.hidden),
        (2, &pages.hugetlb),
    ] {
        for run in list {
            let kind = kind << 1 | u64::from(run.resident);
            runs.extend(
                [run.start, run.end, kind]
                    .iter()
                    .flat_map(|w| w.to_le_bytes()),
            );
        }
    }
    let missing = snapshot.missing.iter().flat_map(|missing| {
        let kind = KINDS.iter().position(|kind| *kind == missing.kind);
        [kind.unwrap_or(0) as u64, missing.bytes]
    });
    let missing = missing.flat_map(u64::to_le_bytes).collect();
    let huge = pages.huge.as_ref().map(|huge| {
        let words = huge.iter().flat_map(|run| [run.start, run.end]);
        (HUGE, words.flat_map(u64::to_le_bytes).collect())
    });
    let notes = [(MAPPINGS, maps), (PAGES, runs), (MISSING, missing)];
    notes.into_iter().chain(huge).collect()
}

impl OwnNotes {
    /// Adds a note. Returns whether it is valid.
    pub(super) fn add(&mut self, kind: u32, note: &[u8]) -> bool {
        match kind {
            MAPPINGS if self.vmas.is_empty() => self.mappings(note).is_some(),
            PAGES if self.pages == Pages::default() => self.runs(note).is_some(),
            HUGE if self.pages.huge.is_none() => self.huge(note).is_some(),
            MISSING if self.missing.is_empty() => {
                for pair in note.chunks_exact(16) {
                    let kind = usize::try_from(u64_at(pair, 0)).ok();
                    if let Some(kind) = kind.and_then(|kind| KINDS.get(kind)) {
                        self.missing.push(Missing {
                            kind: *kind,
                            bytes: u64_at(pair, 8),
                        });
                    }
                }
                self.missing.len() <= KINDS.len()
            }
            _ => false,
        }
    }

    fn mappings(&mut self, note: &[u8]) -> Option<()> {
        let mut inodes = HashMap::new();
        let mut last = 0;
        for line in note.split(|b| *b == b'\n').filter(|line| !line.is_empty()) {
            let (letter, line) = line.split_first()?;
            let (_, backing) = BACKINGS.iter().find(|(known, _)| known == letter)?;
            let mut vma = proc_maps::parse(line).ok()?.pop()?;
            let page = page_size();
            let aligned = vma.start.0.is_multiple_of(page) && vma.end.0.is_multiple_of(page);
            (aligned && vma.start.0 >= last).then_some(())?;
            last = vma.end.0;
            vma.backing = *backing;
            if vma.ino != 0 {
                // One number for each file, whatever its device.
                let next = inodes.len() as u64 + 1;
                vma.ino = *inodes.entry((vma.dev, vma.ino)).or_insert(next);
                vma.dev = (0, 1);
            }
            self.vmas.push(vma);
        }
        (!self.vmas.is_empty()).then_some(())
    }

    fn huge(&mut self, note: &[u8]) -> Option<()> {
        let huge = self.pages.huge.insert(Vec::new());
        note.chunks_exact(16)
            .try_for_each(|run| push(huge, run, true))
    }

    fn runs(&mut self, note: &[u8]) -> Option<()> {
        for run in note.chunks_exact(24) {
            let kind = u64_at(run, 16);
            let list = match kind >> 1 {
                0 => &mut self.pages.readable,
                1 => &mut self.pages.hidden,
                2 => &mut self.pages.hugetlb,
                _ => return None,
            };
            push(list, run, kind & 1 == 1)?;
        }
        Some(())
    }

    /// Whether the notes can be used.
    pub(super) fn are_usable(&self) -> bool {
        let within = |run: &Run| {
            let at = self.vmas.partition_point(|vma| vma.end.0 <= run.start);
            let vma = self.vmas.get(at);
            vma.is_some_and(|vma| vma.start.0 <= run.start && run.end <= vma.end.0)
        };
        let Pages {
            readable,
            hidden,
            hugetlb,
            huge,
        } = &self.pages;
        let huge = huge.iter().flatten();
        let mut runs = readable.iter().chain(hidden).chain(hugetlb).chain(huge);
        !self.is_damaged && !self.vmas.is_empty() && !readable.is_empty() && runs.all(within)
    }

    /// The mappings with their bytes in the core.
    pub(super) fn build(&self, segments: &[Segment]) -> Vec<Mapping> {
        let bytes_of = |vma: &Vma| {
            let at = segments.partition_point(|segment| segment.end <= vma.start.0);
            let segment = segments.get(at)?;
            let inside = segment.start <= vma.start.0 && vma.end.0 <= segment.end;
            let skip = vma.start.0.checked_sub(segment.start).filter(|_| inside)?;
            let size = segment.size.saturating_sub(skip).min(vma.len());
            Some((segment.offset.saturating_add(skip), size))
        };
        let all = self.vmas.iter().map(|vma| Mapping {
            vma: vma.clone(),
            bytes: bytes_of(vma),
        });
        all.collect()
    }

    /// Whether the snapshot had a copy of the page at an address.
    pub(super) fn has(&self, addr: u64) -> bool {
        let has = |runs: &[Run]| {
            let at = runs.partition_point(|run| run.end <= addr);
            runs.get(at).is_some_and(|run| run.start <= addr)
        };
        has(&self.pages.readable) || has(&self.pages.hugetlb)
    }
}

/// Adds a run, whose first two words are its start and end. `None` if it is damaged or lies before the last one.
fn push(list: &mut Vec<Run>, run: &[u8], resident: bool) -> Option<()> {
    let run = Run {
        start: u64_at(run, 0),
        end: u64_at(run, 8),
        resident,
    };
    let follows = list.last().is_none_or(|last| last.end <= run.start);
    let page = page_size();
    let aligned = run.start.is_multiple_of(page) && run.end.is_multiple_of(page);
    (follows && aligned && run.start < run.end).then(|| list.push(run))
}
