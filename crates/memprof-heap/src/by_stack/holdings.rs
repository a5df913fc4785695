//! What each size class holds, exactly, and what the chunks with samples hold of it. Collected while the ledger goes over
//! the heap.
//!
//! A chunk holds its contents and header, and pins free bytes: those of a page are divided among the chunks in use on it by
//! their bytes there. Chunks that pin are also classed by how much they pin for each byte of their own: those of one such
//! class that were sampled stand for about as much each.

use super::super::chunks::Kind;
use super::super::memory::Run;
use super::super::sizes::{self, CLASSES};
use super::samples::Placed;
use super::strata::{CERTAIN, interval};

/// Which allocator's chunks they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owner {
    Glibc,
    Jemalloc,
}

/// Number of groups: by allocator, and whether they are reachable.
pub(super) const GROUPS: usize = 4;
/// Number of classes by pinned bytes for each byte of a chunk: its power of two, and before those the chunks that are always
/// sampled.
pub(super) const PINNING: usize = 64;

/// What chunks hold, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    /// Number of chunks in use.
    pub chunks: u64,
    /// Contents, resident or not.
    pub contents: u64,
    /// Contents and header in memory.
    pub resident: u64,
    /// Free bytes in memory that they pin.
    pub pinned: u64,
}

/// A size class.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Class {
    pub held: Held,
    /// Number of samples that are expected of them; of classes by pinned bytes.
    pub expected: f64,
}

/// A sample and what its chunk holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Joined {
    pub placed: Placed,
    pub held: Held,
    /// Bytes of its chunk with header.
    pub chunk: u64,
    /// The group and the class of its chunk, by size and by what it pins.
    pub class: usize,
    pub pinning: usize,
}

/// Free bytes on pages without a chunk in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FreePages {
    pub pages: Run,
    /// Free bytes there; the others are the allocator's own.
    pub free: u64,
}

/// What a range is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Of the chunk in use that was begun.
    Object,
    Free,
    Own,
}

/// A chunk that may pin free bytes.
#[derive(Clone, Copy, Debug)]
struct Pinning {
    /// Its number.
    number: u64,
    class: usize,
    joined: Option<usize>,
    contents: u64,
    /// Bytes that it pins on the pages that were added.
    pinned: u64,
}

/// Sums while the heap is added.
#[derive(Clone, Debug)]
pub(crate) struct Holdings {
    page: u64,
    /// By group and class.
    pub(super) classes: Vec<Class>,
    /// By group and pinned bytes for each byte.
    pub(super) pinning: Vec<Class>,
    /// The mean number of bytes between samples.
    pub(super) interval: f64,
    /// In address order.
    pub(super) joined: Vec<Joined>,
    pub(super) free: Vec<FreePages>,
    /// The first sample whose chunk does not lie before the one that was begun last.
    next: usize,
    /// The chunk that is being added, and the number of chunks.
    object: Option<Pinning>,
    number: u64,
    /// The same chunk, if it began on a page that was added.
    carried: Option<Pinning>,
    /// Number of the page that is being added.
    current: Option<u64>,
    free_here: u64,
    live_here: u64,
    /// The chunks on this page and their bytes there.
    here: Vec<(Pinning, u64)>,
}

impl Default for Holdings {
    fn default() -> Holdings {
        Holdings::new(1, &[], None)
    }
}

impl Holdings {
    /// None yet, of pages of this many bytes. `every` is the mean number of bytes between samples, if it is known.
    pub(crate) fn new(page: u64, placed: &[Placed], every: Option<u64>) -> Holdings {
        let joined = placed.iter().map(|placed| Joined {
            placed: *placed,
            held: Held::default(),
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
        }
    }

    /// What is added next belongs to a chunk in use, with its contents from `start` on, of `contents` bytes.
    pub(crate) fn begin(&mut self, owner: Owner, kind: Kind, size: u64, start: u64, contents: u64) {
        let lost = matches!(kind, Kind::Counted | Kind::Referred);
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

    /// The sample of the chunk whose contents begin here, behind those that were looked for before if it is the same heap.
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

    /// What is added next belongs to none.
    pub(crate) fn end(&mut self) {
        self.object = None;
        if let Some(pinning) = self.carried.take() {
            self.settle(&pinning);
        }
    }

    /// Classes a chunk by what it pins.
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
        // Reachable or not, they pin alike.
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

    /// Adds resident bytes behind those that were added before.
    pub(crate) fn add(&mut self, start: u64, end: u64, part: Part) {
        let mut at = start;
        while at < end {
            let number = at / self.page;
            if self.current != Some(number) {
                self.finish();
                self.current = Some(number);
            }
            let whole = (end / self.page).saturating_sub(number);
            if at.is_multiple_of(self.page) && whole > 1 {
                // Pages that are entirely alike.
                self.current = None;
                let len = whole * self.page;
                match part {
                    Part::Object => self.hold(len),
                    Part::Free => self.free_pages(at, len, len),
                    Part::Own => {}
                }
                at += len;
                continue;
            }
            let stop = end.min((number + 1) * self.page);
            let len = stop - at;
            match part {
                Part::Object => {
                    self.hold(len);
                    self.note(len);
                }
                Part::Free => self.free_here += len,
                Part::Own => {}
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

    /// Counts the last page.
    pub(crate) fn finish(&mut self) {
        let (free, live) = (self.free_here, self.live_here);
        if let Some(number) = self.current.filter(|_| free > 0) {
            if live == 0 {
                self.free_pages(number * self.page, self.page, free);
            }
            // Cumulated, so that the shares are whole bytes and add up.
            let (mut before, mut given) = (0, 0);
            for (of, bytes) in &mut self.here {
                before += *bytes;
                let share = free * before / live - given;
                given += share;
                of.pinned += share;
                self.classes[of.class].held.pinned += share;
            }
        }
        // The last one may go on behind this page.
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
