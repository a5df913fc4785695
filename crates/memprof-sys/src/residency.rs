//! A process's memory as the kernel reports it: its mappings, the resident pages of each, and the kernel's own figures. This module
//! does not know about stacks.
//!
//! In reading order: [`proc_maps`] lists the mappings; `classify` determines the backing of each; `scan` walks their pages with
//! `PAGEMAP_SCAN` or page by page; [`figures`] reads the kernel's totals, which the sums are checked against; `smaps` reads the
//! kernel's figures for each mapping; `threads` locates thread stacks; `category` determines the category of each mapping;
//! [`cachestat`] counts a file's pages in the page cache; `ranges` stores address ranges; `cgroup` reads the charges of a control
//! group; `kept` retains the memory of an ended process.
//!
//! For a stopped process the sums are exact: `anon` equals `Anonymous` of `smaps_rollup`, and
//! `anon + shmem` equals `RssAnon + RssShmem` of `status` if the kernel's counters are exact.

pub mod cachestat;
pub mod category;
pub mod cgroup;
pub(crate) mod classify;
pub(crate) mod error;
pub(crate) mod exit_memory;
pub mod figures;
mod inode;
mod ioctl;
mod map_counts;
mod own_memory;
pub(crate) mod page;
mod pagemap;
mod policy;
pub mod proc_maps;
mod ranges;
mod runs;
pub(crate) mod scan;
pub mod smaps;
mod sparse;
pub mod threads;
mod throttle;
pub(crate) mod vma;

pub use category::Category;
pub use classify::Classifier;
pub use error::{Error, Result};
pub use error::{PROTECTED, denial, has_capabilities, readable};
pub use exit_memory::ExitMemory;
pub use inode::directory_id;
pub use inode::file_id;
pub use map_counts::MapCounts;
pub use page::SHARE_SHIFT;
pub use page::{PageKind, PageRun, page_size};
pub use ranges::{Full, RangeMap, RangeSet};
pub use scan::{Method, Pages, Scanner};
pub use throttle::ThrottledFile;
pub use vma::{Backing, Perms, Vma, VmaKind};

use crate::ids::Pid;
use crate::kernel_figures::KernelFigures;
use crate::usage::Usage;

/// The memory totals of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Residency {
    /// Totals of the scan, in bytes; `cache` is 0.
    pub total: Usage,
    /// The number of mappings.
    pub vmas: usize,
    /// The kernel's figures just before the scan.
    pub before: KernelFigures,
    /// The kernel's figures just after the scan.
    pub after: KernelFigures,
    /// The method used.
    pub method: Method,
}

/// Adds the bytes of a run to the category it counts under.
pub fn add_run(usage: &mut Usage, run: PageRun) {
    *figure_of(usage, run.kind) += run.len();
}

/// The figure under which pages of this kind count, in bytes.
pub fn figure_of(usage: &mut Usage, kind: PageKind) -> &mut u64 {
    match kind {
        PageKind::Anon => &mut usage.anon,
        PageKind::Shmem => &mut usage.shmem,
        PageKind::File => &mut usage.file,
        PageKind::Swap => &mut usage.swap,
        PageKind::Hugetlb => &mut usage.hugetlb,
    }
}

/// Scans a process once.
///
/// # Errors
/// The errors of [`proc_maps::read`], [`Scanner::open`], [`Scanner::scan`] and [`figures::read`].
pub fn read(pid: Pid) -> Result<Residency> {
    read_with(pid, Method::Auto, &mut Classifier::new())
}

/// Scans a process once with the given method.
///
/// # Errors
/// As for [`read`].
pub fn read_with(pid: Pid, method: Method, classifier: &mut Classifier) -> Result<Residency> {
    let mut scanner = Scanner::open(pid, method)?;
    let before = figures::read(pid)?;
    let vmas = proc_maps::read(pid, classifier)?;
    let mut total = Usage::default();
    scanner.scan(&vmas, &mut |_, run| add_run(&mut total, run), &mut || ())?;
    scanner.check_alive()?;
    Ok(Residency {
        total,
        vmas: vmas.len(),
        before,
        after: figures::read(pid)?,
        method: scanner.method(),
    })
}
