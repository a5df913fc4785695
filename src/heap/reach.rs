//! Which chunks in use can be reached: from the threads' registers, their stacks, the program's data and all its other
//! private memory, through other chunks. Each word that could be the address of a chunk's contents counts as one
//! (conservative): a chunk that is called unreachable has no such word anywhere, unless the program hides its pointers (in
//! shared memory, in a file, encoded) or keeps only a pointer behind the contents' end.

use serde::Serialize;

use super::chunks::Kind;
use super::glibc::{Heap, Mmapped, Part};
use super::memory::{Memory, Run, overlapping};
use super::snapshot::Snapshot;

/// Bytes below a stack pointer that a function may use (the red zone of x86-64).
const RED_ZONE: u64 = 128;
/// Offset of a chunk's contents, and how far they extend behind its end.
const CONTENTS: u64 = 16;
const BEHIND: u64 = 8;

/// The chunks in use that cannot be reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Unreachable {
    /// Their number.
    pub chunks: u64,
    /// Bytes of their contents.
    pub bytes: u64,
    /// Those that no other unreachable chunk refers to, each with what only it leads to: the largest sums first.
    pub heads: Vec<Head>,
    /// Number of heads that are not listed.
    pub heads_left_out: u64,
}

/// An unreachable chunk, with what it leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Head {
    /// Bytes of the contents of all these chunks.
    pub bytes: u64,
    /// Number of chunks: itself and those that it leads to.
    pub chunks: u64,
    /// Address of its contents.
    pub address: u64,
    /// Their size, in bytes.
    pub own: u64,
}

/// Finds them. Lists the `top` largest heads.
pub(super) fn search(snapshot: &Snapshot, heap: &mut Heap, top: usize) -> Unreachable {
    let mut ranges = heap.ranges();
    // glibc's own addresses of chunks are no references.
    let (start, end) = heap.main_arena;
    let at = ranges.partition_point(|range| range.start < start);
    ranges.insert(
        at,
        Run {
            start,
            end,
            resident: true,
        },
    );
    let mut search = Search::new(&snapshot.memory, heap);
    for thread in &snapshot.threads {
        search.words(&thread.words);
    }
    for (start, end) in roots(snapshot, &ranges) {
        search.range(start, end);
    }
    search.follow();
    search.group(top)
}

/// All private memory of the process but its heap, and of the stacks only the parts in use.
fn roots(snapshot: &Snapshot, heap: &[Run]) -> Vec<(u64, u64)> {
    let mut roots = Vec::new();
    for vma in &snapshot.vmas {
        let stack = snapshot.threads.iter().map(|thread| thread.stack_pointer);
        let lowest = stack
            .filter(|sp| vma.contains(crate::event::Addr(*sp)))
            .min();
        let used = lowest.map_or(0, |sp| sp.saturating_sub(RED_ZONE));
        let mut start = vma.start.0.max(used / 8 * 8);
        for part in overlapping(heap, start, vma.end.0) {
            roots.push((start, part.start));
            start = part.end;
        }
        roots.push((start, vma.end.0));
    }
    roots.retain(|(start, end)| start < end);
    roots
}

/// Where a chunk is.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// In the part with this index, at this address.
    Part(usize, u64),
    /// The chunk with a mapping of its own with this index.
    Mapped(usize),
}

struct Search<'a> {
    memory: &'a Memory,
    parts: &'a mut [Part],
    mapped: &'a mut [Mmapped],
    /// First address of all, and first one behind all.
    bounds: (u64, u64),
    /// What a chunk must be to be found, and what it becomes.
    step: (fn(Kind) -> bool, Kind),
    /// Chunks whose contents are to be read.
    left: Vec<Place>,
}

impl<'a> Search<'a> {
    fn new(memory: &'a Memory, heap: &'a mut Heap) -> Search<'a> {
        let starts = heap.parts.iter().map(|part| part.start);
        let start = starts.chain(heap.mmapped.iter().map(|c| c.start)).min();
        let ends = heap.parts.iter().map(|part| part.end);
        let end = ends
            .chain(heap.mmapped.iter().map(|c| c.start + c.len))
            .max();
        Search {
            memory,
            parts: &mut heap.parts,
            mapped: &mut heap.mmapped,
            bounds: (start.unwrap_or(0), end.unwrap_or(0)),
            step: (|kind| kind == Kind::Live, Kind::Reached),
            left: Vec::new(),
        }
    }

    /// The chunk in whose contents an address lies.
    fn place(&self, addr: u64) -> Option<(Place, Kind)> {
        if addr < self.bounds.0 || addr >= self.bounds.1 {
            return None;
        }
        let index = self.parts.partition_point(|part| part.end <= addr);
        if let Some(part) = self.parts.get(index).filter(|part| part.start <= addr) {
            let (at, kind) = part.chunks.containing(addr - BEHIND)?;
            return (addr >= at + CONTENTS).then_some((Place::Part(index, at), kind));
        }
        let index = self.mapped.partition_point(|c| c.start + c.len <= addr);
        let chunk = self.mapped.get(index)?;
        (addr >= chunk.at + CONTENTS).then_some((Place::Mapped(index), chunk.kind))
    }

    /// First address of a chunk's contents, and the first one behind them.
    fn contents(&self, place: Place) -> (u64, u64) {
        match place {
            Place::Part(index, at) => {
                let part = &self.parts[index];
                let end = at + part.chunks.size(at) + BEHIND;
                (at + CONTENTS, end.min(part.end))
            }
            Place::Mapped(index) => {
                let chunk = &self.mapped[index];
                (chunk.at + CONTENTS, chunk.start + chunk.len)
            }
        }
    }

    fn set(&mut self, place: Place, kind: Kind) {
        match place {
            Place::Part(index, at) => self.parts[index].chunks.set(at, kind),
            Place::Mapped(index) => self.mapped[index].kind = kind,
        }
    }

    fn word(&mut self, word: u64) {
        let (wanted, becomes) = self.step;
        if let Some((place, kind)) = self.place(word)
            && wanted(kind)
        {
            self.set(place, becomes);
            self.left.push(place);
        }
    }

    fn words(&mut self, words: &[u64]) {
        words.iter().for_each(|word| self.word(*word));
    }

    /// Looks at all words between two addresses, as far as they were copied.
    fn range(&mut self, start: u64, end: u64) {
        let memory = self.memory;
        for run in memory.runs_in(start, end) {
            let bytes = memory.from(run.start).unwrap_or_default();
            let bytes = &bytes[..bytes.len().min(run.len() as usize)];
            for word in bytes.as_chunks::<8>().0 {
                self.word(u64::from_le_bytes(*word));
            }
        }
    }

    /// Looks at the contents of all chunks that were found, and of those that are found thereby.
    fn follow(&mut self) {
        while let Some(place) = self.left.pop() {
            let (start, end) = self.contents(place);
            self.range(start, end);
        }
    }

    /// Sums up what was not found, by the chunks that lead to the others.
    fn group(mut self, top: usize) -> Unreachable {
        let lost = self.unreached(|kind| kind == Kind::Live);
        // Which of them do others refer to? (Each looks at its contents once; a chunk that refers to itself alone stays
        // a head.)
        self.step = (|kind| kind == Kind::Live, Kind::Referred);
        for place in &lost {
            let (start, end) = self.contents(*place);
            let own = self.kind(*place);
            self.set(*place, Kind::Reached);
            self.range(start, end);
            self.set(*place, own);
        }
        self.left.clear();
        self.step = (
            |kind| matches!(kind, Kind::Live | Kind::Referred),
            Kind::Counted,
        );
        let mut found = Unreachable::default();
        let mut heads = Vec::new();
        // Those that nothing refers to first; what is left then refers to each other in rings.
        for kind in [Kind::Live, Kind::Referred] {
            for place in &lost {
                if self.kind(*place) == kind {
                    heads.push(self.count(*place));
                }
            }
        }
        found.chunks = heads.iter().map(|head| head.chunks).sum();
        found.bytes = heads.iter().map(|head| head.bytes).sum();
        heads.sort_by(|a, b| b.cmp(a));
        found.heads_left_out = heads.len().saturating_sub(top) as u64;
        heads.truncate(top);
        found.heads = heads;
        found
    }

    fn kind(&self, place: Place) -> Kind {
        match place {
            Place::Part(index, at) => self.parts[index].chunks.kind_at(at).unwrap_or(Kind::Own),
            Place::Mapped(index) => self.mapped[index].kind,
        }
    }

    fn unreached(&self, wanted: fn(Kind) -> bool) -> Vec<Place> {
        let parts = self.parts.iter().enumerate().flat_map(|(index, part)| {
            let chunks = part.chunks.iter().filter(move |chunk| wanted(chunk.kind));
            chunks.map(move |chunk| Place::Part(index, chunk.at))
        });
        let mapped = self.mapped.iter().enumerate();
        let mapped = mapped.filter(|(_, chunk)| wanted(chunk.kind));
        parts
            .chain(mapped.map(|(index, _)| Place::Mapped(index)))
            .collect()
    }

    /// Counts a chunk with all that it leads to and that is not counted yet.
    fn count(&mut self, place: Place) -> Head {
        let (address, end) = self.contents(place);
        let mut head = Head {
            bytes: 0,
            chunks: 0,
            address,
            own: end - address,
        };
        self.set(place, Kind::Counted);
        self.left.push(place);
        while let Some(place) = self.left.pop() {
            let (start, end) = self.contents(place);
            head.bytes += end - start;
            head.chunks += 1;
            self.range(start, end);
        }
        head
    }
}
