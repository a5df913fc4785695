//! Exact sums of what each size class and each sampled chunk holds, collected while the ledger passes over the heap.
//!
//! A chunk holds its contents and header, and pins free bytes: the free bytes of a page are divided among the chunks
//! in use on it, in proportion to their bytes there. Chunks that pin are also classed by pinned bytes per byte of
//! their own, so that the sampled chunks of such a class stand for about the same number of bytes each.

use super::super::chunks::ChunkKind;
use super::super::memory::Run;
use super::super::sizes::{self, CLASSES};
use super::samples::Placed;
use super::strata::{CERTAIN, interval};

/// The allocator of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owner {
    Glibc,
    Jemalloc,
    /// An allocator of `spans`.
    Spans,
    /// CPython's pymalloc. Its blocks are not searched for unreachable ones.
    Python,
}

/// Number of owners.
pub(super) const OWNERS: usize = 4;
/// Number of groups: reachable and unreachable chunks of each owner.
pub(super) const GROUPS: usize = 2 * OWNERS;
/// Number of classes by pinned bytes per byte of a chunk. Class 0 has the chunks that are always sampled; the others
/// are powers of two.
pub(super) const PINNING: usize = 64;

/// What one or more chunks hold, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeldBytes {
    /// Number of chunks in use.
    pub chunks: u64,
    /// Contents, resident or not.
    pub contents: u64,
    /// Resident contents and headers.
    pub resident: u64,
    /// Resident free bytes that they pin.
    pub pinned: u64,
}

/// A size class.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Class {
    pub held: HeldBytes,
    /// Expected number of samples. Set only for classes by pinned bytes.
    pub expected: f64,
}

/// A sample with what its chunk holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Joined {
    pub placed: Placed,
    pub held: HeldBytes,
    /// Size of its chunk with header, in bytes.
    pub chunk: u64,
    /// Index of its chunk's size class, group included; `pinning` is the index of its class by pinned bytes.
    pub class: usize,
    pub pinning: usize,
}

/// Free bytes on pages without a chunk in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FreePages {
    pub pages: Run,
    /// Free bytes on these pages. The other bytes are the allocator's own.
    pub free: u64,
}

/// The use of an address range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RangeUse {
    /// Belongs to the chunk in use that was begun last.
    Object,
    Free,
    Own,
}

/// A chunk that may pin free bytes.
#[derive(Clone, Copy, Debug)]
struct Pinning {
    /// Sequence number of the chunk.
    number: u64,
    class: usize,
    joined: Option<usize>,
    contents: u64,
    /// Bytes that it pins on the pages added so far.
    pinned: u64,
}

/// Sums while the heap is added.
#[derive(Clone, Debug)]
pub(crate) struct Holdings {
    page: u64,
    /// Indexed by group and size class.
    pub(super) classes: Vec<Class>,
    /// Indexed by group and class of pinned bytes.
    pub(super) pinning: Vec<Class>,
    /// Mean number of bytes between samples.
    pub(super) interval: f64,
    /// In address order.
    pub(super) joined: Vec<Joined>,
    pub(super) free: Vec<FreePages>,
    /// Index of the first sample whose chunk does not lie before the chunk that was begun last.
    next: usize,
    /// The chunk being added, and the number of chunks so far.
    object: Option<Pinning>,
    number: u64,
    /// The chunk being added, if it began on an earlier page.
    carried: Option<Pinning>,
    /// Number of the page being added.
    current: Option<u64>,
    free_here: u64,
    live_here: u64,
    /// The chunks on this page, with their bytes there.
    here: Vec<(Pinning, u64)>,
    /// Whether Python's blocks are among the chunks.
    pub(super) has_python: bool,
}

impl Default for Holdings {
    fn default() -> Holdings {
        Holdings::new(1, &[], None)
    }
}

impl Holdings {
    /// Starts empty. `page` is the page size in bytes, and `every` the mean number of bytes between samples, if
    /// known.
    pub(crate) fn new(page: u64, placed: &[Placed], every: Option<u64>) -> Holdings {
        let joined = placed.iter().map(|placed| Joined {
            placed: *placed,
            held: HeldBytes::default(),
            chunk: 0,
            class: 0,
            pinning: 0,
        });
        let joined: Vec<Joined> = joined.collect();
        Holdings {
            page,
            classes: vec![Class::default(); GROUPS * CLASSES as usize],
            pinning: vec![Class::default(); GROUPS * PINNING],
            interval: interval(&joined, every),
            joined,
            free: Vec::new(),
            next: 0,
            object: None,
            number: 0,
            carried: None,
            current: None,
            free_here: 0,
            live_here: 0,
            here: Vec::new(),
            has_python: false,
        }
    }

    /// Whether a sample lies in these ranges, which are in address order. If one does, Python's blocks are counted from
    /// now on.
    pub(crate) fn begin_python(&mut self, arenas: impl Iterator<Item = Run>) -> bool {
        for arena in arenas {
            let first = self
                .joined
                .partition_point(|joined| joined.placed.start < arena.start);
            let joined = self.joined.get(first);
            self.has_python |= joined.is_some_and(|joined| joined.placed.start < arena.end);
        }
        self.has_python
    }

    /// Directs the next bytes to a chunk in use, whose `contents` bytes of contents begin at `start`.
    pub(crate) fn begin(
        &mut self,
        owner: Owner,
        kind: ChunkKind,
        size: u64,
        start: u64,
        contents: u64,
    ) {
        let lost = matches!(kind, ChunkKind::Counted | ChunkKind::Referred);
        let group = 2 * owner as usize + usize::from(lost);
        let class = group * CLASSES as usize + sizes::index(size).min(CLASSES as usize - 1);
        let held = &mut self.classes[class].held;
        held.chunks += 1;
        held.contents += contents;
        let found = self.find(start);
        if let Some(index) = found {
            let joined = &mut self.joined[index];
            (joined.class, joined.chunk) = (class, size);
            (joined.held.chunks, joined.held.contents) = (1, contents);
        }
        self.number += 1;
        self.object = Some(Pinning {
            number: self.number,
            class,
            joined: found,
            contents,
            pinned: 0,
        });
    }

    /// The sample of the chunk whose contents begin here. Continues after the previous lookup unless the address is
    /// lower, as in the next heap.
    fn find(&mut self, start: u64) -> Option<usize> {
        let starts_behind = |index: usize| {
            let joined = self.joined.get(index);
            joined.is_some_and(|joined| joined.placed.start < start)
        };
        let passed = self.next.checked_sub(1);
        if passed.is_some_and(|last| !starts_behind(last)) {
            self.next = 0;
        }
        while starts_behind(self.next) {
            self.next += 1;
        }
        let joined = self.joined.get(self.next)?;
        (joined.placed.start == start).then_some(self.next)
    }

    /// Ends the chunk: the next bytes belong to no chunk.
    pub(crate) fn end(&mut self) {
        self.object = None;
        if let Some(pinning) = self.carried.take() {
            self.settle(&pinning);
        }
    }

    /// Classes a chunk by the bytes that it pins.
    fn settle(&mut self, of: &Pinning) {
        if of.pinned == 0 {
            return;
        }
        let contents = of.contents.max(1);
        let is_certain = contents as f64 >= CERTAIN * self.interval;
        let class = match is_certain {
            true => 0,
            false => {
                1 + ((u128::from(of.pinned) << 24) / u128::from(contents))
                    .max(1)
                    .ilog2()
            }
        };
        // Reachable and unreachable chunks share a class: they pin alike.
        let group = of.class / CLASSES as usize / 2 * 2;
        let index = group * PINNING + (class as usize).min(PINNING - 1);
        let sum = &mut self.pinning[index];
        sum.held.chunks += 1;
        sum.held.pinned += of.pinned;
        sum.expected += -(-(contents as f64) / self.interval).exp_m1();
        if let Some(joined) = of.joined {
            let joined = &mut self.joined[joined];
            (joined.held.pinned, joined.pinning) = (of.pinned, index);
        }
    }

    /// Whether a chunk in use is being added.
    pub(crate) fn is_in_object(&self) -> bool {
        self.object.is_some()
    }

    /// Adds resident bytes. Addresses must ascend.
    pub(crate) fn add(&mut self, start: u64, end: u64, part: RangeUse) {
        let mut at = start;
        while at < end {
            let number = at / self.page;
            if self.current != Some(number) {
                self.finish();
                self.current = Some(number);
            }
            let whole = (end / self.page).saturating_sub(number);
            if at.is_multiple_of(self.page) && whole > 1 {
                // Whole pages of one kind.
                self.current = None;
                let len = whole * self.page;
                match part {
                    RangeUse::Object => self.hold(len),
                    RangeUse::Free => self.free_pages(at, len, len),
                    RangeUse::Own => {}
                }
                at += len;
                continue;
            }
            let stop = end.min((number + 1) * self.page);
            let len = stop - at;
            match part {
                RangeUse::Object => {
                    self.hold(len);
                    self.note(len);
                }
                RangeUse::Free => self.free_here += len,
                RangeUse::Own => {}
            }
            at = stop;
        }
    }

    fn hold(&mut self, len: u64) {
        if let Some(Pinning { class, joined, .. }) = self.object {
            self.classes[class].held.resident += len;
            if let Some(index) = joined {
                self.joined[index].held.resident += len;
            }
        }
    }

    fn note(&mut self, len: u64) {
        let Some(object) = self.object else {
            return;
        };
        self.live_here += len;
        match self.here.last_mut() {
            Some((last, bytes)) if last.number == object.number => *bytes += len,
            _ => self.here.push((self.carried.take().unwrap_or(object), len)),
        }
    }

    fn free_pages(&mut self, start: u64, len: u64, free: u64) {
        let end = start + len;
        match self.free.last_mut() {
            Some(last) if last.pages.end == start => {
                last.pages.end = end;
                last.free += free;
            }
            _ => self.free.push(FreePages {
                pages: Run {
                    start,
                    end,
                    resident: true,
                },
                free,
            }),
        }
    }

    /// Completes the current page: divides its free bytes among its chunks.
    pub(crate) fn finish(&mut self) {
        let (free, live) = (self.free_here, self.live_here);
        if let Some(number) = self.current.filter(|_| free > 0) {
            if live == 0 {
                self.free_pages(number * self.page, self.page, free);
            }
            // Cumulative division, so that the shares are whole bytes and add up.
            let (mut before, mut given) = (0, 0);
            for (of, bytes) in &mut self.here {
                before += *bytes;
                let share = free * before / live - given;
                given += share;
                of.pinned += share;
                self.classes[of.class].held.pinned += share;
            }
        }
        // The last chunk may continue on the next page.
        let unfinished = self.object.map(|object| object.number);
        let mut here = std::mem::take(&mut self.here);
        for (of, _) in here.drain(..) {
            match unfinished == Some(of.number) {
                true => self.carried = Some(of),
                false => self.settle(&of),
            }
        }
        self.here = here;
        (self.current, self.free_here, self.live_here) = (None, 0, 0);
    }
}
