//! Which function lies where in code made at run time, now: later code replaces earlier code.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

/// What a range takes besides its texts, in bytes, about.
const EACH: usize = 160;
/// Ranges larger than this are no functions, in bytes.
const LARGEST: u64 = 1 << 30;

/// A piece of code, as the runtime described it.
#[derive(Debug, PartialEq, Eq)]
pub struct Code {
    /// The name that the runtime gave it.
    pub name: Box<str>,
    /// The lines of its instructions, if the runtime wrote them.
    pub lines: Option<Lines>,
}

/// Lines of a piece of code.
#[derive(Debug, PartialEq, Eq)]
pub struct Lines {
    /// Its source file.
    pub file: Box<str>,
    /// Its lines, each from an offset in the code on, in bytes, ascending.
    pub at: Box<[(u32, u32)]>,
}

impl Lines {
    /// The line of the instruction at an offset; 0 if it is not known.
    pub fn at(&self, offset: u64) -> u32 {
        let behind = self
            .at
            .partition_point(|(from, _)| u64::from(*from) <= offset);
        let before = behind.checked_sub(1).and_then(|i| self.at.get(i));
        before.map_or(0, |(_, line)| *line)
    }
}

/// What all processes' ranges may still take, in bytes.
#[derive(Clone, Debug)]
pub struct Budget(Arc<AtomicUsize>);

impl Budget {
    /// A budget of this many bytes.
    pub fn new(bytes: usize) -> Budget {
        Budget(Arc::new(AtomicUsize::new(bytes)))
    }

    fn take(&self, bytes: usize) -> bool {
        let less = |left: usize| left.checked_sub(bytes);
        self.0.fetch_update(Relaxed, Relaxed, less).is_ok()
    }

    fn give(&self, bytes: usize) {
        self.0.fetch_add(bytes, Relaxed);
    }
}

/// The pieces of code of one process, by address, without overlap.
#[derive(Debug)]
pub struct Ranges {
    /// By start: the end, and the code.
    at: BTreeMap<u64, (u64, Arc<Code>)>,
    held: usize,
    budget: Budget,
}

/// What became of a new range.
#[derive(Debug, PartialEq, Eq)]
pub enum Added {
    /// Nothing was known there, or the same.
    New,
    /// It replaces code in this range of addresses.
    Replaced(Range<u64>),
    /// There is no room for it; what it overlapped is forgotten.
    NoRoom,
    /// It is no range of user addresses.
    Invalid,
}

impl Ranges {
    /// No ranges yet.
    pub fn new(budget: Budget) -> Ranges {
        Ranges {
            at: BTreeMap::new(),
            held: 0,
            budget,
        }
    }

    /// A copy for a forked child; ranges that do not fit are left out.
    pub fn forked(&self) -> Ranges {
        let mut copy = Ranges::new(self.budget.clone());
        for (start, (end, code)) in &self.at {
            copy.put(*start, *end, Arc::clone(code));
        }
        copy
    }

    /// Adds code of `size` bytes at `start`. Code that it overlaps is gone as a whole: the runtime has freed it.
    pub fn add(&mut self, start: u64, size: u64, code: Code) -> Added {
        let end = match start.checked_add(size) {
            Some(end) if size > 0 && size <= LARGEST && end >> 56 == 0 => end,
            _ => return Added::Invalid,
        };
        if let Some((was, there)) = self.at.get(&start)
            && (*was, &**there) == (end, &code)
        {
            return Added::New;
        }
        let replaced = self.remove(start..end);
        match (self.put(start, end, Arc::new(code)), replaced) {
            (false, _) => Added::NoRoom,
            (true, Some(range)) => Added::Replaced(range),
            (true, None) => Added::New,
        }
    }

    /// The code was moved from one address to another. What becomes of the other address, and the range that is free now.
    pub fn moved(&mut self, from: u64, to: u64) -> Option<(Added, Range<u64>)> {
        let (end, code) = self.at.remove(&from)?;
        self.give(&code);
        let size = end - from;
        let Some(stop) = to.checked_add(size).filter(|stop| stop >> 56 == 0) else {
            return Some((Added::Invalid, from..end));
        };
        let replaced = self.remove(to..stop);
        let added = match (self.put(to, stop, code), replaced) {
            (false, _) => Added::NoRoom,
            (true, Some(range)) => Added::Replaced(range),
            (true, None) => Added::New,
        };
        Some((added, from..end))
    }

    /// The code at an address, and the address's offset in it, in bytes.
    pub fn get(&self, addr: u64) -> Option<(&Arc<Code>, u64)> {
        let (start, (end, code)) = self.at.range(..=addr).next_back()?;
        (addr < *end).then(|| (code, addr - start))
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.at.len()
    }

    /// Removes what overlaps a range. Returns the addresses that it covered.
    fn remove(&mut self, range: Range<u64>) -> Option<Range<u64>> {
        let mut gone: Option<Range<u64>> = None;
        while let Some((start, end)) = self
            .last_before(range.end)
            .filter(|(_, end)| *end > range.start)
        {
            if let Some((_, code)) = self.at.remove(&start) {
                self.give(&code);
            }
            gone = Some(start..gone.map_or(end, |gone| gone.end));
        }
        gone
    }

    fn last_before(&self, end: u64) -> Option<(u64, u64)> {
        let (start, (stop, _)) = self.at.range(..end).next_back()?;
        Some((*start, *stop))
    }

    fn put(&mut self, start: u64, end: u64, code: Arc<Code>) -> bool {
        let size = size_of_code(&code);
        let fits = self.budget.take(size);
        if fits {
            self.held += size;
            self.at.insert(start, (end, code));
        }
        fits
    }

    fn give(&mut self, code: &Code) {
        let size = size_of_code(code);
        self.held -= size;
        self.budget.give(size);
    }
}

impl Drop for Ranges {
    fn drop(&mut self) {
        self.budget.give(self.held);
    }
}

fn size_of_code(code: &Code) -> usize {
    let lines = code.lines.as_ref();
    EACH + code.name.len() + lines.map_or(0, |l| l.file.len() + 8 * l.at.len())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn code(name: &str) -> Code {
        Code {
            name: name.into(),
            lines: None,
        }
    }

    fn name(ranges: &Ranges, addr: u64) -> Option<String> {
        ranges.get(addr).map(|(code, _)| code.name.to_string())
    }

    #[test]
    fn later_code_replaces_earlier_code_as_a_whole() {
        let mut r = Ranges::new(Budget::new(1 << 20));
        assert_eq!(r.add(100, 50, code("a")), Added::New);
        assert_eq!(r.add(150, 50, code("b")), Added::New);
        assert_eq!(r.add(100, 50, code("a")), Added::New);
        assert_eq!(r.add(140, 20, code("c")), Added::Replaced(100..200));
        assert_eq!(
            (name(&r, 139), name(&r, 140), name(&r, 159)),
            (None, Some("c".into()), Some("c".into()))
        );
        assert_eq!((name(&r, 160), r.len()), (None, 1));
        assert_eq!(r.moved(140, 150), Some((Added::New, 140..160)));
        assert_eq!((name(&r, 149), name(&r, 169)), (None, Some("c".into())));
        assert_eq!(r.moved(140, 1), None);
    }

    #[test]
    fn what_is_no_range_is_refused() {
        let mut r = Ranges::new(Budget::new(1 << 20));
        for (start, size) in [
            (0, 0),
            (1, u64::MAX),
            (u64::MAX, 1),
            (1 << 56, 1),
            (0, LARGEST + 1),
        ] {
            assert_eq!(
                r.add(start, size, code("a")),
                Added::Invalid,
                "{start:#x} {size:#x}"
            );
        }
    }

    #[test]
    fn room_is_bounded_and_given_back() {
        let budget = Budget::new(10 * (EACH + 1));
        let mut r = Ranges::new(budget.clone());
        let added: Vec<_> = (0..20).map(|i| r.add(i * 16, 16, code("f"))).collect();
        assert_eq!(added.iter().filter(|a| **a == Added::NoRoom).count(), 10);
        assert_eq!(r.forked().len(), 0);
        // Replacing needs no more room than there was.
        assert_eq!(r.add(0, 16, code("g")), Added::Replaced(0..16));
        drop(r);
        assert!(budget.take(10 * (EACH + 1)));
    }

    #[test]
    fn lines_begin_at_their_offsets() {
        let lines = Lines {
            file: "a".into(),
            at: [(4, 10), (8, 12)].into(),
        };
        assert_eq!([3, 4, 7, 8, 100].map(|o| lines.at(o)), [0, 10, 10, 12, 12]);
    }

    proptest! {
        /// Compared with an array in which each address names the last code that covered it, if that is still whole.
        #[test]
        fn the_newest_code_is_found(ops in proptest::collection::vec((0u64..60, 1u64..20), 1..60)) {
            let mut r = Ranges::new(Budget::new(1 << 20));
            let mut want: Vec<Option<usize>> = vec![None; 100];
            for (i, (start, size)) in ops.iter().enumerate() {
                let hit: Vec<usize> = (*start..start + size).filter_map(|a| want[a as usize]).collect();
                want.iter_mut().filter(|w| w.is_some_and(|w| hit.contains(&w))).for_each(|w| *w = None);
                (*start..start + size).for_each(|a| want[a as usize] = Some(i));
                r.add(*start, *size, code(&i.to_string()));
            }
            for (addr, want) in want.iter().enumerate() {
                prop_assert_eq!(name(&r, addr as u64), want.map(|w| w.to_string()));
            }
        }
    }
}
