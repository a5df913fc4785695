//! Determines the kind of each region or page of the scan.

use std::ops::Range;
use std::time::Duration;

use super::Scanner;
use crate::residency::error::Result;
use crate::residency::ioctl::{
    PAGE_IS_FILE, PAGE_IS_HUGE, PAGE_IS_PFNZERO, PAGE_IS_SWAPPED, Region,
};
use crate::residency::page::{PageKind, PageRun};
use crate::residency::pagemap::{self, Entry};
use crate::residency::policy::{FileRule, OtherRule, Policy};
use crate::residency::runs::Runs;

/// Zero entries, to skip many absent pages with one comparison.
static HOLE: [u64; 512] = [0; 512];

/// Time to wait before reading a moving page again. The kernel moves pages by the hundred, and the thread that moves them may have
/// to wait for CPU time in the middle of it.
const LOOK_AGAIN: Duration = Duration::from_micros(100);

impl Scanner {
    /// Turns a region into runs; scans it page by page if its categories do not determine the kind.
    pub(super) fn resolve(
        &mut self,
        region: Region,
        policy: Policy,
        runs: &mut Runs<impl FnMut(PageRun)>,
    ) -> Result<()> {
        let has = |bit| region.categories & bit != 0;
        if has(PAGE_IS_PFNZERO) {
            return Ok(());
        }
        let huge = has(PAGE_IS_HUGE);
        let range = (region.start, region.end);
        let kind = if has(PAGE_IS_SWAPPED) || (huge && self.verify_huge) {
            None
        } else if has(PAGE_IS_FILE) {
            known_file(policy)
        } else {
            match policy.other {
                OtherRule::Known(kind) => Some(kind),
                OtherRule::Drop => return Ok(()),
                OtherRule::Prove => None,
            }
        };
        match kind {
            Some(kind) => runs.push(range, kind, huge),
            None => self.scan_pages(range, policy, huge, runs, &mut || ())?,
        }
        Ok(())
    }

    pub(super) fn scan_pages(
        &mut self,
        (start, end): (u64, u64),
        policy: Policy,
        huge: bool,
        runs: &mut Runs<impl FnMut(PageRun)>,
        between_windows: &mut impl FnMut(),
    ) -> Result<()> {
        let (mut at, last) = (start / self.page, end / self.page);
        while at < last {
            let want = self.entries.len().min((last - at) as usize);
            let read = pagemap::read_entries(&self.pagemap, at, &mut self.entries[..want]);
            let count = read.map_err(|e| self.error(e))?;
            if count == 0 {
                return self.check_alive();
            }
            for first in (0..count).step_by(HOLE.len()) {
                let last = count.min(first + HOLE.len());
                if self.entries[first..last] == HOLE[..last - first] {
                    continue;
                }
                let kinds = self.kinds_of(first..last, at, policy)?;
                for (page, kind) in (at + first as u64..).zip(kinds) {
                    if let Some(kind) = kind {
                        runs.push((page * self.page, (page + 1) * self.page), kind, huge);
                    }
                }
            }
            runs.flush();
            at += count as u64;
            if at < last {
                self.pace.step(self.pid)?;
                between_windows();
            }
        }
        Ok(())
    }

    /// The kinds of the pages whose entries are at `indices`, `None` for pages that are not counted. `at` is the virtual page
    /// number of the first of all entries.
    ///
    /// The kernel may move a page between reading its entry and its flags (compaction, NUMA balancing), so that the flags belong to
    /// another page. Where flags matter, the entries are read again until they are unchanged. When the scan's patience is
    /// exhausted, a page that still moves keeps its latest kind; one without flags (under migration) counts as a file page.
    fn kinds_of(
        &mut self,
        indices: Range<usize>,
        at: u64,
        policy: Policy,
    ) -> Result<[Option<PageKind>; HOLE.len()]> {
        let mut kinds = [None; HOLE.len()];
        let first = at + indices.start as u64;
        let mut entries = HOLE;
        let mut known = [false; HOLE.len()];
        let count = indices.len();
        entries[..count].copy_from_slice(&self.entries[indices]);
        loop {
            for index in (0..count).filter(|&i| !known[i]) {
                kinds[index] = self.kind_of(entries[index], first + index as u64, policy);
            }
            if !policy.needs_flags() || self.flags.is_none() {
                break;
            }
            let mut again = HOLE;
            pagemap::read_entries(&self.pagemap, first, &mut again[..count])
                .map_err(|e| self.error(e))?;
            for index in 0..count {
                let now = Entry::decode(again[index]);
                let same = now == Entry::decode(entries[index]);
                known[index] |= same && !matches!(now, Entry::Migrating(_));
            }
            if known[..count].iter().all(|&k| k) || self.patience.is_zero() {
                break;
            }
            entries = again;
            std::thread::sleep(LOOK_AGAIN);
            self.patience = self.patience.saturating_sub(LOOK_AGAIN);
        }
        Ok(kinds)
    }

    /// The kind of a page, `None` if it is not counted; `page` is its virtual page number.
    fn kind_of(&mut self, entry: u64, page: u64, policy: Policy) -> Option<PageKind> {
        let (frame, file) = match Entry::decode(entry) {
            Entry::Nothing => return None,
            Entry::Swapped => return Some(PageKind::Swap),
            Entry::File(frame) => (frame, true),
            Entry::NotFile(frame) => (frame, false),
            Entry::Migrating(file) => (0, file),
        };
        let mut flags = self.flags.as_mut();
        if let Some(flags) = &mut flags
            && flags.is_zero(frame, page)
        {
            return None;
        }
        if file {
            let shmem = || flags.is_some_and(|f| f.is_shmem(frame));
            return known_file(policy).or_else(|| Some(by_flag(shmem())));
        }
        match policy.other {
            OtherRule::Drop => None,
            OtherRule::Known(kind) => Some(kind),
            OtherRule::Prove => flags?.is_anon(frame).then_some(PageKind::Anon),
        }
    }
}

fn by_flag(shmem: bool) -> PageKind {
    if shmem {
        PageKind::Shmem
    } else {
        PageKind::File
    }
}

fn known_file(policy: Policy) -> Option<PageKind> {
    match policy.file {
        FileRule::Known(kind) => Some(kind),
        FileRule::Flags => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Addr, Pid};
    use crate::residency::own_memory::OwnMemory;
    use crate::residency::scan::Method;
    use crate::residency::vma::{Backing, Perms, Vma};

    /// Kernels before 6.16 do not mark the huge zero page; checking every huge page finds it.
    #[test]
    fn the_huge_zero_page_is_found_without_the_mark() {
        const LEN: u64 = 8 << 20;
        let own = OwnMemory::map(LEN).unwrap();
        own.advise_huge();
        for offset in (0..LEN).step_by(4096) {
            own.touch(offset);
        }
        let vma = Vma {
            start: Addr(own.start()),
            end: Addr(own.start() + LEN),
            perms: Perms::default(),
            file_offset: 0,
            dev: (0, 0),
            ino: 0,
            name: String::new(),
            deleted: false,
            backing: Backing::Anon,
        };
        for method in [Method::Ioctl, Method::Pagemap] {
            let mut scanner = Scanner::open(Pid(std::process::id()), method).unwrap();
            for verify in [false, true] {
                scanner.verify_huge = verify;
                let mut found = Vec::new();
                let mut keep = |run: PageRun| found.push(run);
                scanner.scan_vma(&vma, &mut keep, &mut || ()).unwrap();
                assert_eq!(found, [], "{method:?}, {verify}");
            }
            // With neither the mark nor the check, the page would count as resident memory.
            let region = Region {
                start: own.start(),
                end: own.start() + LEN,
                categories: PAGE_IS_HUGE | crate::residency::ioctl::PAGE_IS_PRESENT,
            };
            for (verify, bytes) in [(false, LEN), (true, 0)] {
                scanner.verify_huge = verify;
                let mut sum = 0;
                let mut runs = Runs::new(|run: PageRun| sum += run.len());
                scanner
                    .resolve(region, Policy::for_mapping(&vma), &mut runs)
                    .unwrap();
                drop(runs);
                assert_eq!(sum, bytes);
            }
        }
    }
}
