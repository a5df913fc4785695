//! Adds the bytes of glibc's heap to the ledger, by kind.

use super::super::by_stack::Owner;
use super::super::chunks::CONTENTS;
use super::super::glibc;
use super::super::memory::overlapping;
use super::super::report::HeapRegion;
use super::Ledger;
use memprof_sys::residency::page_size;

/// Size of the first word of a chunk's header, which belongs to the preceding chunk, in bytes.
const SIZE_FIELD: u64 = 8;
/// Bytes at the beginning of a large free chunk that `malloc_trim` does not return.
const LINKS: u64 = 48;

impl Ledger<'_> {
    /// Adds the heap's parts and the chunks with mappings of their own, in address order.
    pub(super) fn add_glibc(&mut self, heap: &glibc::Heap) {
        let mut mapped = heap.mmapped.iter().peekable();
        for part in &heap.parts {
            while let Some(chunk) = mapped.next_if(|chunk| chunk.start < part.start) {
                self.add_mapped(chunk);
            }
            self.add_part(part);
        }
        mapped.for_each(|chunk| self.add_mapped(chunk));
        self.finish_pages();
    }

    fn add_part(&mut self, part: &glibc::ArenaPart) {
        self.arenas.begin(part.arena);
        let first = part.chunks.start() + SIZE_FIELD;
        self.add(
            (part.start, first.min(part.end)),
            HeapRegion::Overhead,
            None,
        );
        for chunk in part.chunks.iter() {
            let what = HeapRegion::from_kind(chunk.kind);
            let contents = chunk.at + CONTENTS;
            // The first word of the next chunk's header belongs to this chunk.
            let end = (chunk.at + chunk.size + SIZE_FIELD).min(part.end);
            if what.is_live() {
                self.begin_object(Owner::Glibc, chunk.kind, chunk.size, (contents, end));
            }
            self.add(
                (chunk.at + SIZE_FIELD, contents),
                HeapRegion::Overhead,
                None,
            );
            self.rows[what as usize].0 += u64::from(what != HeapRegion::Overhead);
            self.arenas.add(what, 1, 0, 0);
            let class = (what != HeapRegion::Top && what != HeapRegion::Overhead)
                .then(|| self.sizes.add(chunk.size, what.is_live()));
            let resident = self.add((contents, end), what, class);
            self.end_object();
            match what {
                HeapRegion::Live => self.rank(contents, end, resident),
                HeapRegion::Unsorted | HeapRegion::Small | HeapRegion::Large => {
                    self.trim(chunk.at + LINKS, chunk.at + chunk.size);
                }
                // malloc_trim shortens the main arena, and leaves a chunk of the minimum size.
                HeapRegion::Top if part.arena == 0 => {
                    self.trim(chunk.at + 33, chunk.at + chunk.size)
                }
                _ => {}
            }
        }
    }

    fn add_mapped(&mut self, chunk: &glibc::Mmapped) {
        self.arenas.begin_mapped();
        self.arenas.add(HeapRegion::LiveMapped, 1, 0, 0);
        let (contents, end) = (chunk.at + CONTENTS, chunk.start + chunk.len);
        self.begin_object(Owner::Glibc, chunk.kind, end - chunk.at, (contents, end));
        self.add((chunk.start, contents), HeapRegion::Overhead, None);
        let class = self.sizes.add(end - chunk.at, true);
        self.rows[HeapRegion::LiveMapped as usize].0 += 1;
        let resident = self.add((contents, end), HeapRegion::LiveMapped, Some(class));
        self.end_object();
        self.rank(contents, end, resident);
    }

    /// Counts the resident whole pages of a free range as trimmable.
    fn trim(&mut self, start: u64, end: u64) {
        let page = page_size();
        let (start, end) = (start.next_multiple_of(page), end / page * page);
        if start < end {
            let runs = overlapping(&self.pages[self.next..], start, end);
            self.trimmable += runs.map(|run| run.len()).sum::<u64>();
        }
    }
}
