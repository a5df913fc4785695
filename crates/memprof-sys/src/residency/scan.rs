//! The page scan: finds the resident and swapped pages of mappings, and the kind of each.
//!
//! There are two methods with equal results:
//! - [`Method::Ioctl`]: `PAGEMAP_SCAN` (Linux 6.7). Its time is proportional to resident memory.
//! - [`Method::Pagemap`]: `/proc/PID/pagemap` page by page with `/proc/kpageflags`. Its time is
//!   proportional to the size of the mappings: a hole takes about 2 ns per page, half a second per
//!   tebibyte. Large empty mappings are skipped.
//!
//! Both hold the process's mmap lock for reading, so both work in windows.

use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::error::{Error, Result, denial, readable};
use super::ioctl::{self, Region};
use super::map_counts::{MapCounts, Splitter};
use super::own_memory::shows_huge_zero;
use super::page::{PageRun, page_size};
use super::pagemap::{self, PageFlags};
use super::policy::Policy;
use super::runs::Runs;
use super::sparse::Sparse;
use super::throttle::{Pace, Throttle};
use super::vma::Vma;
use crate::ids::Pid;
use crate::proc_dir;

mod group;
mod pages;

use group::{Cut, together};

/// The method for finding pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// [`Method::Ioctl`] if the kernel supports it, otherwise [`Method::Pagemap`].
    #[default]
    Auto,
    /// `PAGEMAP_SCAN`.
    Ioctl,
    /// Reading `/proc/PID/pagemap`; needs CAP_SYS_ADMIN.
    Pagemap,
}

/// Maximum amount of memory found while the mmap lock is held once, and first window of a mapping, in bytes. 64 MiB of 4 KiB pages
/// take 0.3 ms, so waiters wait only briefly even on a machine ten times slower.
const WINDOW: u64 = 64 << 20;
/// Maximum window size, in bytes. Windows without a page double up to this size, so that terabyte reservations are scanned quickly;
/// existing but empty page tables take about 1 ns per entry.
const WIDEST: u64 = 4 << 30;
/// Maximum gap between mappings, in bytes, that is scanned along with them: one window, or for the page-by-page method the amount
/// that it reads in a microsecond.
const GAP: u64 = WINDOW;
const GAP_BY_PAGE: u64 = 2 << 20;
/// Regions requested at a time: 24 KiB.
const REGIONS: usize = 1024;
/// Entries of `/proc/PID/pagemap` read at a time: 256 KiB, for 128 MiB of memory in 4 KiB pages.
const ENTRIES: usize = 32_768;
/// Total time that a scan waits for pages that the kernel moves meanwhile. A program can have its own pages moved all the time.
const PATIENCE: Duration = Duration::from_millis(100);

/// The opened `/proc/PID/pagemap` of a process.
#[derive(Debug)]
pub struct Pages {
    pid: Pid,
    pagemap: File,
    sparse: Sparse,
}

impl Pages {
    /// Opens the file.
    ///
    /// # Errors
    /// [`Error::Held`]; [`Error::Gone`]; [`Error::Denied`] without the right to trace the process.
    pub fn open(pid: Pid) -> Result<Pages> {
        readable(pid)?;
        let pagemap = proc_dir::open(pid, "pagemap");
        Ok(Pages {
            pid,
            pagemap: pagemap
                .map_err(|e| Error::from_io(pid, proc_dir::shown(pid, "pagemap"), e))?,
            sparse: Sparse::new(pid),
        })
    }

    /// Duplicates the descriptor; works after the process has ended if its address space still exists.
    ///
    /// # Errors
    /// Too many open files.
    pub fn try_clone(&self) -> Result<Pages> {
        let pagemap = self.pagemap.try_clone();
        Ok(Pages {
            pid: self.pid,
            pagemap: pagemap.map_err(|e| {
                Error::from_io(self.pid, "a duplicate of the pagemap descriptor", e)
            })?,
            sparse: Sparse::new(self.pid),
        })
    }
}

/// Reads the pages of one process. The scanner is bound to the address space that the process had at opening: after `execve`, it
/// returns [`Error::Gone`].
#[derive(Debug)]
pub struct Scanner {
    pid: Pid,
    ioctl: bool,
    pagemap: Arc<File>,
    flags: Option<PageFlags>,
    counts: Option<MapCounts>,
    sparse: Sparse,
    page: u64,
    verify_huge: bool,
    pace: Pace,
    /// The remainder of [`PATIENCE`].
    patience: Duration,
    regions: Box<[Region]>,
    entries: Box<[u64]>,
}

impl Scanner {
    /// Opens the page tables of `pid`.
    ///
    /// # Errors
    /// As for [`Pages::open`]. Also [`Error::Denied`] for [`Method::Pagemap`] without CAP_SYS_ADMIN, and [`Error::Unsupported`] for
    /// [`Method::Ioctl`] before Linux 6.7.
    pub fn open(pid: Pid, method: Method) -> Result<Scanner> {
        Scanner::for_pages(Pages::open(pid)?, method)
    }

    /// A scanner for an opened pagemap.
    ///
    /// # Errors
    /// As for [`Scanner::open`].
    pub fn for_pages(pages: Pages, method: Method) -> Result<Scanner> {
        let Pages {
            pid,
            pagemap,
            sparse,
        } = pages;
        let page = page_size();
        let flags = PageFlags::open(page).ok().filter(PageFlags::is_usable);
        let ioctl = choose(pid, method, &pagemap, flags.is_some())?;
        let scanner = Scanner {
            pid,
            ioctl,
            pagemap: Arc::new(pagemap),
            flags,
            counts: None,
            sparse,
            page,
            verify_huge: ioctl && !shows_huge_zero(page),
            pace: Pace::Throttled(Throttle::new()),
            patience: PATIENCE,
            regions: vec![Region::default(); REGIONS].into_boxed_slice(),
            entries: vec![0; ENTRIES].into_boxed_slice(),
        };
        scanner.check_alive()?;
        Ok(scanner)
    }

    /// Switches to another process, with the same method.
    pub fn turn_to(&mut self, pages: Pages) {
        self.pid = pages.pid;
        self.pagemap = Arc::new(pages.pagemap);
        self.sparse = pages.sparse;
    }

    /// Also counts the mappings of each page: runs end where the number changes.
    pub fn count_maps(self, counts: Option<MapCounts>) -> Scanner {
        Scanner { counts, ..self }
    }

    /// Stops pausing, because the process is stopped, and fails with [`Error::TimeUp`] at `end`.
    pub fn hurry(&mut self, end: Instant) {
        self.pace = Pace::Until(end);
    }

    /// The total time of pauses that let waiters take the mmap lock.
    pub fn paused(&self) -> Duration {
        self.pace.paused()
    }

    /// The method in use; never [`Method::Auto`].
    pub fn method(&self) -> Method {
        if self.ioctl {
            Method::Ioctl
        } else {
            Method::Pagemap
        }
    }

    /// Whether page flags are readable. Without page flags (no CAP_SYS_ADMIN), anonymous pages in private device mappings are not
    /// counted, shmem below overlayfs counts as file pages, and on kernels before 6.16 a huge zero page counts as anonymous memory.
    pub fn sees_page_flags(&self) -> bool {
        self.flags.is_some()
    }

    /// Page size in bytes.
    pub fn page_size(&self) -> u64 {
        self.page
    }

    /// Reports the resident and swapped pages of one mapping, in address order. Calls `between_windows` whenever the mmap lock is
    /// released between two windows. Concurrent changes may or may not be seen.
    ///
    /// # Errors
    /// [`Error::Gone`] if the process ended or called `execve`; pages reported before remain valid.
    pub fn scan_vma(
        &mut self,
        vma: &Vma,
        found: &mut impl FnMut(PageRun),
        between_windows: &mut impl FnMut(),
    ) -> Result<()> {
        let vmas = std::slice::from_ref(vma);
        self.scan(vmas, &mut |_, run| found(run), between_windows)
    }

    /// Like [`Scanner::scan_vma`] for several mappings in address order; `found` receives the index of the mapping with each run.
    ///
    /// # Errors
    /// As for [`Scanner::scan_vma`].
    pub fn scan(
        &mut self,
        vmas: &[Vma],
        found: &mut impl FnMut(usize, PageRun),
        between_windows: &mut impl FnMut(),
    ) -> Result<()> {
        let Some(counts) = self.counts.clone() else {
            return self.scan_uncounted(vmas, found, between_windows);
        };
        let mut splitter = Splitter::new(counts, Arc::clone(&self.pagemap), self.page);
        let mut failed = None;
        let mut split = |index, run| {
            if let Err(e) = splitter.split(run, |part| found(index, part)) {
                failed.get_or_insert(e);
            }
        };
        self.scan_uncounted(vmas, &mut split, between_windows)?;
        failed.map_or(Ok(()), |e| Err(self.error(e)))
    }

    fn scan_uncounted(
        &mut self,
        vmas: &[Vma],
        found: &mut impl FnMut(usize, PageRun),
        between_windows: &mut impl FnMut(),
    ) -> Result<()> {
        self.patience = PATIENCE;
        let mut first = 0;
        while first < vmas.len() {
            let count = self.together(&vmas[first..]);
            let group = &vmas[first..first + count];
            let mut cut = Cut::new(group, first, &mut *found);
            self.scan_group(group, &mut |run| cut.push(run), between_windows)?;
            first += count;
            self.pace.step(self.pid)?;
        }
        Ok(())
    }

    /// The number of mappings, starting with the first, that are scanned as one range.
    fn together(&self, vmas: &[Vma]) -> usize {
        let gap = if self.ioctl { GAP } else { GAP_BY_PAGE };
        together(vmas, gap, |vma| {
            vma.is_vsyscall() || (!self.ioctl && self.sparse.is_large(vma))
        })
    }

    /// Scans mappings that have the same policy.
    fn scan_group(
        &mut self,
        vmas: &[Vma],
        found: &mut impl FnMut(PageRun),
        between_windows: &mut impl FnMut(),
    ) -> Result<()> {
        let (Some(first), Some(last)) = (vmas.first(), vmas.last()) else {
            return Ok(());
        };
        if first.is_vsyscall() || first.is_empty() {
            return Ok(());
        }
        let policy = Policy::for_mapping(first);
        let range = (first.start.0, last.end.0);
        if self.ioctl {
            self.scan_windows(range, policy, found, between_windows)
        } else if self.sparse.is_empty(first) {
            Ok(())
        } else {
            let mut runs = Runs::new(found);
            self.scan_pages(range, policy, false, &mut runs, between_windows)
        }
    }

    /// Checks that the address space still exists. A scan that found nothing has already checked this. Call it after the last
    /// mapping to know that the sum is complete.
    ///
    /// # Errors
    /// [`Error::Gone`] if it no longer exists.
    pub fn check_alive(&self) -> Result<()> {
        match pagemap::read_entries(&self.pagemap, 0, &mut [0]) {
            Ok(0) => Err(Error::Gone(self.pid)),
            Ok(_) => Ok(()),
            Err(e) => Err(self.error(e)),
        }
    }

    fn error(&self, source: std::io::Error) -> Error {
        Error::from_io(self.pid, proc_dir::shown(self.pid, "pagemap"), source)
    }

    fn scan_windows(
        &mut self,
        (start, end): (u64, u64),
        policy: Policy,
        found: &mut impl FnMut(PageRun),
        between_windows: &mut impl FnMut(),
    ) -> Result<()> {
        let max_pages = WINDOW / self.page;
        let (mut at, mut window, mut last_empty) = (start, WINDOW, true);
        while at < end {
            let stop = end.min(at.saturating_add(window));
            let regions = &mut self.regions[..];
            let count = ioctl::scan(
                &self.pagemap,
                (at, stop),
                max_pages,
                policy.categories(),
                regions,
            );
            let count = count.map_err(|e| self.error(e))?;
            let mut runs = Runs::new(&mut *found);
            for index in 0..count {
                let region = self.regions[index];
                self.resolve(region, policy, &mut runs)?;
            }
            drop(runs);
            at = resume(&self.regions[..count], REGIONS, max_pages * self.page, stop);
            last_empty = count == 0;
            window = if last_empty {
                WIDEST.min(window * 2)
            } else {
                WINDOW
            };
            if at < end {
                self.pace.step(self.pid)?;
                between_windows();
            }
        }
        if last_empty {
            self.check_alive()
        } else {
            Ok(())
        }
    }
}

/// The start of the next window. The kernel stopped early if it filled the vector or found the maximum number of pages; otherwise
/// it scanned everything up to `stop`.
fn resume(regions: &[Region], capacity: usize, max_bytes: u64, stop: u64) -> u64 {
    let bytes: u64 = regions.iter().map(|r| r.end - r.start).sum();
    match regions.last() {
        Some(last) if regions.len() == capacity || bytes >= max_bytes => last.end,
        _ => stop,
    }
}

fn choose(pid: Pid, method: Method, pagemap: &File, flags: bool) -> Result<bool> {
    let has_ioctl = || {
        ioctl::is_supported(pagemap)
            .map_err(|e| Error::from_io(pid, proc_dir::shown(pid, "pagemap"), e))
    };
    let use_ioctl = method != Method::Pagemap && has_ioctl()?;
    if use_ioctl {
        Ok(true)
    } else if method == Method::Ioctl {
        Err(Error::Unsupported {
            what: "the PAGEMAP_SCAN request, which needs Linux 6.7",
        })
    } else if flags {
        Ok(false)
    } else {
        Err(Error::Denied {
            what: "page frame numbers and /proc/kpageflags".to_owned(),
            reason: denial(libc::EPERM),
            remedy: "run memprof as root or with CAP_SYS_ADMIN",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(start: u64, end: u64) -> Region {
        Region {
            start,
            end,
            categories: ioctl::PAGE_IS_PRESENT,
        }
    }

    #[test]
    fn one_that_is_to_hurry_gives_up_in_time() {
        let own = Pid(std::process::id());
        let vmas = crate::residency::proc_maps::read(own, &mut crate::residency::Classifier::new());
        let vmas = vmas.unwrap();
        for method in [Method::Ioctl, Method::Pagemap] {
            let mut scanner = Scanner::open(own, method).unwrap();
            scanner.hurry(Instant::now());
            let done = scanner.scan(&vmas, &mut |_, _| (), &mut || ());
            assert!(
                matches!(done, Err(Error::TimeUp(p)) if p == own),
                "{done:?}"
            );
        }
    }

    #[test]
    fn a_window_resumes_where_the_kernel_stopped() {
        let two = [region(0x1000, 0x2000), region(0x4000, 0x6000)];
        assert_eq!(resume(&[], 2, 0x9000, 0x8000), 0x8000);
        assert_eq!(resume(&two, 3, 0x9000, 0x8000), 0x8000);
        assert_eq!(
            resume(&two, 2, 0x9000, 0x8000),
            0x6000,
            "the vector is full"
        );
        assert_eq!(resume(&two, 3, 0x3000, 0x8000), 0x6000, "enough pages");
    }
}
