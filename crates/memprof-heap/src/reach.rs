//! The reachability search: which chunks in use the program can still refer to.
//!
//! The search starts from the threads' registers, their stacks, the program's data and all other private memory, and
//! follows the contents of chunks. It is conservative: each word that could be an address in a chunk's contents
//! counts as a reference. A chunk that is reported as unreachable has no such word anywhere, unless the program hides
//! its pointers (in shared memory, in a file, encoded) or has only a pointer beyond the end of the contents.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use schemars::JsonSchema;
use serde::Serialize;

use super::all_heaps::{AllHeaps, ChunkRef};
use super::chunks::ChunkKind;
use super::memory::{Memory, Run, overlapping};
use super::roots::OTHER;
use super::shapes::{Group, LostShape};
use super::snapshot::Snapshot;
use super::types::{Census, TypeKind};
use memprof_sys::freeze::Registers;
use memprof_sys::ids::Addr;
use memprof_sys::residency::Vma;

/// Bytes below a stack pointer that a function may use (the red zone of x86-64).
const RED_ZONE: u64 = 128;
/// Search range for a thread's variables below and above its thread pointer, in bytes, where they are not on its
/// stack.
const THREAD_LOCAL: (u64, u64) = (64 << 10, 8 << 10);
/// Maximum number of queued chunks. Further chunks are marked, and found again by a pass over all chunks.
const MAX_WAITING: usize = if cfg!(test) { 4 } else { 2 << 20 };

/// Number of words whose chunks are prefetched at once; `AHEAD` is the prefetch distance in queued chunks.
const TOGETHER: usize = 16;
const AHEAD: usize = 8;

/// The chunks in use that are unreachable.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
#[schemars(rename = "HeapUnreachable")]
pub struct Unreachable {
    /// Number of chunks.
    pub chunks: u64,
    /// Bytes of their contents.
    pub bytes: u64,
    /// The heads: chunks to which no other unreachable chunk refers, each with the chunks that only it leads to. In
    /// descending order of bytes.
    pub heads: Vec<Head>,
    /// Number of heads that are not listed.
    pub heads_left_out: u64,
    /// The same chunks by the shape of their groups, in descending order of bytes.
    pub shapes: Vec<LostShape>,
    /// Number of shapes that are not listed.
    pub shapes_left_out: u64,
}

/// The head of a group of unreachable chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, JsonSchema, Serialize)]
#[schemars(rename = "HeapHead")]
pub struct Head {
    /// Bytes of the contents of all chunks of the group.
    pub bytes: u64,
    /// Number of chunks in the group, including the head.
    pub chunks: u64,
    /// Address of the head's contents.
    pub address: u64,
    /// Size of the head's contents, in bytes.
    pub own: u64,
}

/// Finds the unreachable chunks, and counts all chunks in use by type and by root in `census`. Lists the `top`
/// largest heads.
pub(super) fn search(
    snapshot: &Snapshot,
    heaps: &mut AllHeaps,
    census: &mut Census,
    top: usize,
) -> Unreachable {
    mark(snapshot, heaps, census).group(top)
}

/// Counts all chunks in use like [`search`], for a snapshot that lacks memory that may refer to chunks. No chunk is
/// reported as unreachable.
pub(super) fn search_in_part(snapshot: &Snapshot, heaps: &mut AllHeaps, census: &mut Census) {
    mark(snapshot, heaps, census).follow_all();
}

/// Marks the reachable chunks.
fn mark<'a, 'b>(
    snapshot: &'a Snapshot,
    heaps: &'a mut AllHeaps,
    census: &'a mut Census<'b>,
) -> Search<'a, 'b> {
    let roots = roots(snapshot, heaps);
    // Variables come first: of several equally near roots, they are the most informative.
    let (mut variables, mut others) = (Vec::new(), Vec::new());
    let arenas = &census.python.arenas;
    let first_arena = arenas.first().map(|arena| arena.start);
    for (start, end, vma) in roots {
        let split = census.end_of_file(start).unwrap_or(start).clamp(start, end);
        variables.push((start, split));
        let mut start = split;
        for part in overlapping(arenas, split, end) {
            others.push((start, part.start, vma, None));
            others.push((part.start, part.end, vma, first_arena));
            start = part.end;
        }
        others.push((start, end, vma, None));
    }
    others.retain(|(start, end, ..)| start < end);
    let mut search = Search::new(&snapshot.memory, heaps, census);
    search.from = From::Variables;
    for (start, end) in variables {
        search.range(start, end);
    }
    for thread in &snapshot.threads {
        search.from = From::Root(search.census.roots.thread(thread.tid));
        search.words(&thread.words);
    }
    for (start, end, vma, arena) in others {
        let vma = &snapshot.vmas[vma];
        let root = match (arena, thread_of(&snapshot.threads, vma, start)) {
            // Their addresses would tell nothing.
            (Some(first), _) => search.census.roots.python(first),
            (None, Some(tid)) => search.census.roots.thread(tid),
            (None, None) => search.census.roots.mapping(vma.start.0, &vma.name),
        };
        search.from = From::Root(root);
        search.range(start, end);
    }
    search.follow();
    search
}

/// The roots: all private memory of the process except its heap and the unused parts of the stacks. Each range has
/// the index of its mapping.
fn roots(snapshot: &Snapshot, heaps: &AllHeaps) -> Vec<(u64, u64, usize)> {
    let mut ranges = heaps.ranges();
    // Pointers to chunks in glibc's own main arena are not references.
    if let Some(heap) = &heaps.glibc {
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
    }
    let mut roots = Vec::new();
    for (index, vma) in snapshot.vmas.iter().enumerate() {
        let within = |addr: &u64| vma.contains(Addr(*addr));
        let stacks = snapshot.threads.iter().map(|thread| thread.stack_pointer);
        let used = stacks.filter(within).min();
        let used = used.map_or(0, |sp| sp.saturating_sub(RED_ZONE));
        let mut start = vma.start.0.max(used / 8 * 8);
        for part in overlapping(&ranges, start, vma.end.0) {
            roots.push((start, part.start, index));
            start = part.end;
        }
        // Thread-local variables are a separate root.
        let local = snapshot.threads.iter().map(|thread| thread.thread_pointer);
        if let Some(pointer) = local.filter(within).min().filter(|_| used == 0) {
            let local = thread_local(pointer, vma);
            for end in [local.0, local.1] {
                if start < end {
                    roots.push((start, end, index));
                    start = end;
                }
            }
        }
        roots.push((start, vma.end.0, index));
    }
    roots.retain(|(start, end, _)| start < end);
    roots
}

/// Address range that may contain a thread's variables, in the mapping that its thread pointer points into.
fn thread_local(pointer: u64, vma: &Vma) -> (u64, u64) {
    let (below, above) = THREAD_LOCAL;
    let start = pointer.saturating_sub(below) / 8 * 8;
    let end = pointer.saturating_add(above) / 8 * 8;
    (start.max(vma.start.0), end.min(vma.end.0))
}

/// The thread whose stack is this mapping, or whose variables are at this address.
fn thread_of(threads: &[Registers], vma: &Vma, addr: u64) -> Option<i32> {
    let within = |addr: u64| vma.contains(Addr(addr));
    let stack = threads.iter().filter(|thread| within(thread.stack_pointer));
    let stack = stack.min_by_key(|thread| thread.stack_pointer);
    let has = |thread: &&Registers| {
        let pointer = thread.thread_pointer;
        let (start, end) = thread_local(pointer, vma);
        within(pointer) && start <= addr && addr < end
    };
    stack
        .or_else(|| threads.iter().find(has))
        .map(|thread| thread.tid)
}

/// The origin of the words being read.
#[derive(Clone, Copy, Debug)]
enum From {
    /// Variables: each word is a root of its own.
    Variables,
    /// This root, or a chunk that it leads to.
    Root(u32),
}

/// A chunk whose contents are to be read.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    place: ChunkRef,
    /// The root that leads to it.
    root: u32,
    /// Size of its contents in bytes, saturated at `u32::MAX`. The size is known when the chunk is found; later it is
    /// no longer in the CPU cache.
    len: u32,
}

/// One pass of the search: the kinds that it accepts, the kind that an accepted chunk gets, and whether its contents
/// are read.
type Step = (fn(ChunkKind) -> bool, ChunkKind, bool);

struct Search<'a, 'b> {
    memory: &'a Memory,
    heaps: &'a mut AllHeaps,
    census: &'a mut Census<'b>,
    /// First address of all heaps, and their end.
    bounds: (u64, u64),
    step: Step,
    from: From,
    /// Chunks whose contents are to be read, nearest first.
    waiting: VecDeque<Waiting>,
    /// Maximum length of the queue; `more` is set if it overflowed.
    most: usize,
    more: bool,
}

impl<'a, 'b> Search<'a, 'b> {
    fn new(
        memory: &'a Memory,
        heaps: &'a mut AllHeaps,
        census: &'a mut Census<'b>,
    ) -> Search<'a, 'b> {
        Search {
            memory,
            bounds: heaps.bounds(),
            heaps,
            census,
            step: (|kind| kind == ChunkKind::Live, ChunkKind::Reached, true),
            from: From::Root(OTHER),
            waiting: VecDeque::new(),
            most: MAX_WAITING,
            more: false,
        }
    }

    /// Finds the chunk whose contents include an address.
    fn place(&self, addr: u64) -> Option<(ChunkRef, ChunkKind)> {
        match addr < self.bounds.0 || addr >= self.bounds.1 {
            true => None,
            false => self.heaps.place(addr),
        }
    }

    /// Handles the word at an address; `next` is the word after it.
    fn word(&mut self, at: u64, word: u64, next: u64) {
        let Some((place, kind)) = self.place(word) else {
            return;
        };
        let (wanted, becomes, follow) = self.step;
        if self.census.is_of_file(next) {
            let (start, end) = self.heaps.contents(place);
            if start == word {
                self.census.pair(word, end - start, next);
            }
        }
        if !wanted(kind) {
            return;
        }
        if follow && self.waiting.len() >= self.most {
            self.more = true;
            // While unreachable chunks are grouped, such chunks become heads of their own instead.
            if becomes == ChunkKind::Reached {
                self.heaps.set(place, ChunkKind::Waiting);
            }
            return;
        }
        self.heaps.set(place, becomes);
        if follow {
            let root = match self.from {
                From::Variables => self.census.roots.word(at),
                From::Root(root) => root,
            };
            self.wait(place, root);
        }
    }

    fn wait(&mut self, place: ChunkRef, root: u32) {
        let (start, end) = self.heaps.contents(place);
        let len = u32::try_from(end.saturating_sub(start)).unwrap_or(u32::MAX);
        self.waiting.push_back(Waiting { place, root, len });
    }

    /// Takes the next chunk from the queue: its contents and its root.
    fn next_waiting(&mut self) -> Option<((u64, u64), u32)> {
        let Waiting { place, root, len } = self.waiting.pop_front()?;
        let ahead = self.waiting.get(AHEAD);
        if let Some(start) = ahead.and_then(|ahead| AllHeaps::start(ahead.place)) {
            self.memory.prefetch(start);
        }
        let contents = match AllHeaps::start(place) {
            Some(start) if len < u32::MAX => (start, start + u64::from(len)),
            _ => self.heaps.contents(place),
        };
        Some((contents, root))
    }

    fn words(&mut self, words: &[u64]) {
        for (index, word) in words.iter().enumerate() {
            self.word(0, *word, words.get(index + 1).copied().unwrap_or(0));
        }
    }

    /// Handles all copied words of an address range.
    fn range(&mut self, start: u64, end: u64) {
        let (memory, bounds) = (self.memory, self.bounds);
        for run in memory.runs_in(start, end) {
            let bytes = memory.from(run.start).unwrap_or_default();
            let bytes = &bytes[..bytes.len().min(run.len() as usize)];
            let words = bytes.as_chunks::<8>().0;
            let may_be = |word: &[u8; 8]| {
                let word = u64::from_le_bytes(*word);
                (word >= bounds.0 && word < bounds.1).then_some(word)
            };
            for (some, first) in words.chunks(TOGETHER).zip((0..).step_by(TOGETHER)) {
                some.iter()
                    .filter_map(may_be)
                    .for_each(|w| self.heaps.prefetch(w));
                for (index, word) in (first..).zip(some) {
                    if let Some(word) = may_be(word) {
                        let next = words.get(index + 1);
                        let next = next.map_or(0, |next| u64::from_le_bytes(*next));
                        self.word(run.start + 8 * index as u64, word, next);
                    }
                }
            }
        }
    }

    /// Reads the contents of all chunks found, and of all chunks that those lead to.
    fn follow(&mut self) {
        self.drain();
        // Chunks that did not fit into the queue are looked up again. They and all that they lead to have an unknown
        // root.
        while std::mem::take(&mut self.more) {
            let mut next = self.heaps.first();
            while let Some(place) = next {
                if self.heaps.kind(place) == ChunkKind::Waiting {
                    self.heaps.set(place, ChunkKind::Reached);
                    self.wait(place, OTHER);
                    self.drain();
                }
                next = self.heaps.next(place);
            }
        }
    }

    fn drain(&mut self) {
        while let Some(((start, end), root)) = self.next_waiting() {
            self.census.add((start, end), Some(root));
            self.from = From::Root(root);
            self.range(start, end);
        }
    }

    /// Counts all remaining chunks under the root for memory that the snapshot lacks.
    fn follow_all(mut self) {
        let root = self.census.roots.missing();
        let mut next = self.heaps.first();
        while let Some(place) = next {
            if self.heaps.kind(place) == ChunkKind::Live {
                self.heaps.set(place, ChunkKind::Reached);
                self.wait(place, root);
                self.follow();
            }
            next = self.heaps.next(place);
        }
    }

    /// Groups the remaining, unreachable chunks by head.
    fn group(mut self, top: usize) -> Unreachable {
        // Mark the chunks that other unreachable chunks refer to. Each chunk's contents are read once. A chunk that
        // only refers to itself remains a head.
        self.step = (|kind| kind == ChunkKind::Live, ChunkKind::Referred, false);
        let mut next = self.heaps.first();
        let mut any = false;
        while let Some(place) = next {
            let own = self.heaps.kind(place);
            if matches!(own, ChunkKind::Live | ChunkKind::Referred) {
                any = true;
                let (start, end) = self.heaps.contents(place);
                self.heaps.set(place, ChunkKind::Reached);
                self.range(start, end);
                self.heaps.set(place, own);
            }
            next = self.heaps.next(place);
        }
        if !any {
            return Unreachable::default();
        }
        let unreached = |kind| matches!(kind, ChunkKind::Live | ChunkKind::Referred);
        self.step = (unreached, ChunkKind::Counted, true);
        let mut found = Unreachable::default();
        let mut heads: BinaryHeap<Reverse<Head>> = BinaryHeap::new();
        // First the chunks that nothing refers to. The remaining chunks then refer to each other in cycles.
        for kind in [ChunkKind::Live, ChunkKind::Referred] {
            let mut next = self.heaps.first();
            while let Some(place) = next {
                if self.heaps.kind(place) == kind {
                    let head = self.count(place);
                    found.chunks += head.chunks;
                    found.bytes += head.bytes;
                    heads.push(Reverse(head));
                    if heads.len() > top {
                        heads.pop();
                        found.heads_left_out += 1;
                    }
                }
                next = self.heaps.next(place);
            }
        }
        let heads = heads.into_sorted_vec().into_iter();
        found.heads = heads.map(|Reverse(head)| head).collect();
        found
    }

    /// Counts a chunk with all chunks that it leads to and that are not counted yet.
    fn count(&mut self, place: ChunkRef) -> Head {
        let (address, end) = self.heaps.contents(place);
        let mut head = Head {
            bytes: 0,
            chunks: 0,
            address,
            own: end - address,
        };
        self.heaps.set(place, ChunkKind::Counted);
        let mut group = Group::default();
        self.wait(place, OTHER);
        while let Some(((start, end), _)) = self.next_waiting() {
            if let Some((id, kind)) = self.census.add((start, end), None) {
                group.add(id, kind == TypeKind::Text, end - start);
            }
            self.census.heads.note(start, address);
            head.bytes += end - start;
            head.chunks += 1;
            self.range(start, end);
        }
        self.census
            .shapes
            .add(group, (address, head.chunks, head.bytes));
        head
    }
}
