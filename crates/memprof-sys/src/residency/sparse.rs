//! Finds large empty mappings, which the page-by-page scan then skips.
//!
//! Reading `/proc/PID/pagemap` takes 2 ns per page, for holes as well. If large mappings exist,
//! `/proc/PID/smaps` is read once per scan: the kernel walks the page tables for it and skips absent
//! ones. A large mapping with even one page is still read whole; that takes about half a
//! second per tebibyte and cannot be avoided without the ioctl.
//!
//! However, smaps holds the mmap lock for a whole mapping, and a process with much memory in one mapping
//! would wait. For such a process smaps is read only to skip mappings that take over 0.25 s to read.

use std::collections::HashSet;
use std::io::{BufRead, BufReader};

use super::figures;
use super::throttle::ThrottledFile;
use super::vma::Vma;
use crate::ids::Pid;

/// Minimum size, in bytes, of a mapping that is looked up in smaps if the process holds little memory.
const LARGE: u64 = 4 << 30;
/// The same for any other process.
const VAST: u64 = 512 << 30;

/// The large mappings without pages, read on demand.
#[derive(Debug)]
pub(super) struct Sparse {
    pid: Pid,
    large: u64,
    empty: Option<HashSet<(u64, u64)>>,
}

impl Sparse {
    pub(super) fn new(pid: Pid) -> Sparse {
        let little = figures::counters(pid).is_ok_and(|now| figures::holds_little(&now));
        Sparse {
            pid,
            large: if little { LARGE } else { VAST },
            empty: None,
        }
    }

    /// Whether the mapping is large enough to be looked up in smaps.
    pub(super) fn is_large(&self, vma: &Vma) -> bool {
        vma.len() >= self.large
    }

    /// Whether the mapping is known to have no pages, resident or swapped. The first large mapping causes
    /// smaps to be read.
    pub(super) fn is_empty(&mut self, vma: &Vma) -> bool {
        if !self.is_large(vma) {
            return false;
        }
        let pid = self.pid;
        let empty = self.empty.get_or_insert_with(|| read_empty(pid));
        empty.contains(&(vma.start.0, vma.end.0))
    }
}

/// Returns an empty set if smaps cannot be read.
fn read_empty(pid: Pid) -> HashSet<(u64, u64)> {
    let Ok(file) = ThrottledFile::open(pid, "smaps") else {
        return HashSet::new();
    };
    parse_empty(BufReader::new(file))
}

/// Ranges of large mappings whose page counters are all zero.
fn parse_empty(smaps: impl BufRead) -> HashSet<(u64, u64)> {
    let mut empty = HashSet::new();
    let mut range = None;
    for line in smaps.split(b'\n').map_while(|line| line.ok()) {
        let line = String::from_utf8_lossy(&line);
        if let Some(next) = header(&line) {
            range = Some(next).filter(|(start, end)| end - start >= LARGE);
            empty.extend(range);
        } else if counts_pages(&line)
            && let Some(range) = range
        {
            empty.remove(&range);
        }
    }
    empty
}

/// The address range of a mapping's first line.
fn header(line: &str) -> Option<(u64, u64)> {
    let (start, end) = line.split(' ').next()?.split_once('-')?;
    let start = u64::from_str_radix(start, 16).ok()?;
    let end = u64::from_str_radix(end, 16).ok()?;
    (start < end).then_some((start, end))
}

/// Whether the line is a nonzero page counter.
fn counts_pages(line: &str) -> bool {
    let counters = ["Rss", "Swap", "Shared_Hugetlb", "Private_Hugetlb"];
    let Some((key, value)) = line.split_once(':') else {
        return false;
    };
    counters.contains(&key) && value.trim() != "0 kB"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_large_and_empty_ones() {
        let smaps = "7000000000-7200000000 ---p 00000000 00:00 0 \n\
            Size: 8388608 kB\nRss: 0 kB\nSwap: 0 kB\nPrivate_Hugetlb: 0 kB\n\
            8000000000-8200000000 rw-p 00000000 00:00 0 \nRss: 4 kB\nSwap: 0 kB\n\
            9000000000-9200000000 rw-p 00000000 00:00 0 \nRss: 0 kB\nSwap: 4 kB\n\
            a000000000-a200000000 rw-p 00000000 00:00 0 \nRss: 0 kB\nPrivate_Hugetlb: 2048 kB\n\
            b000000000-b000001000 rw-p 00000000 00:00 0 /a-b c\nRss: 0 kB\n";
        let empty = parse_empty(smaps.as_bytes());
        assert_eq!(empty, HashSet::from([(0x70_0000_0000, 0x72_0000_0000)]));
        assert!(parse_empty(&b"\xff\n-\n1-\nRss 5"[..]).is_empty());
    }
}
