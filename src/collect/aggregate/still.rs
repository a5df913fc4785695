//! The scan of a frozen process. While it stands still, only what would change with it is read: its mappings, its pages,
//! their records and the kernel's counters. They are joined after its release (`gather.rs`).

use std::cell::RefCell;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::Aggregator;
use super::gather::{Gather, Gathered};
use super::scan::{Scanned, StillError, held_by};
use super::tally::Tally;
use crate::collect::resident::{Copies, Join};
use crate::probe::Probe;
use memprof_sys::ids::{MmId, Pid};
use memprof_sys::kernel_figures::KernelFigures;
use memprof_sys::residency::proc_maps::Foreseen;
use memprof_sys::residency::{Error as ScanError, PageKind, PageRun, Pages, Scanner, Vma, figures};

/// A process about to be frozen for a scan, with all that could be prepared in advance.
pub struct Prepared {
    mm: MmId,
    pid: Pid,
    pages: Pages,
    mappings: Foreseen,
}

/// A process that was scanned while frozen.
pub struct Still {
    pid: Pid,
    before: KernelFigures,
    after: KernelFigures,
    /// How long reading its mappings and pages took.
    pub took: Duration,
    /// Bytes of its anonymous pages.
    anon: u64,
    pages: StillPages,
}

/// The pages of a frozen process.
enum StillPages {
    /// To be joined after the release: its runs, each with the index of its mapping, and their records.
    Copied {
        mm: MmId,
        vmas: Vec<Vma>,
        runs: Vec<(u32, PageRun)>,
        copies: RefCell<Copies>,
    },
    /// Joined already, because there are too many to keep.
    Joined(Box<Scanned>),
}

impl Still {
    /// The bytes that it holds according to the kernel's counters.
    pub fn resident(&self) -> u64 {
        held_by(&self.after)
    }

    /// Whether the kernel's counter of anonymous memory equals the pages that were found. If not, it may be approximate
    /// (before Linux 6.16).
    pub fn agrees(&self) -> bool {
        self.anon == self.after.rss_anon
    }

    /// Reads the kernel's own page-table walk (`smaps_rollup`) while the process is frozen: one read serves as before
    /// and after. `still` is called afterwards, and tells whether the process was frozen throughout.
    ///
    /// # Errors
    /// If the process has ended, or may not be inspected.
    pub fn sum_up(&mut self, still: impl FnOnce() -> bool) -> Result<()> {
        let anonymous = Some(figures::rollup(self.pid)?.anonymous);
        if still() {
            (self.before.anonymous, self.after.anonymous) = (anonymous, anonymous);
        }
        Ok(())
    }
}

impl Aggregator {
    /// Prepares all that can be done before a process is frozen for a scan.
    ///
    /// # Errors
    /// If the process has ended, or may not be inspected.
    pub fn prepare_scan(&mut self, mm: MmId) -> Result<Prepared, StillError> {
        let pid = self.pid_in(mm)?;
        Ok(Prepared {
            mm,
            pid,
            pages: Pages::open(pid)?,
            mappings: Foreseen::read(pid, &mut self.classifier)?,
        })
    }

    /// Reads a frozen process, at most until `end`. [`Aggregator::join_still`] makes a scan of it.
    ///
    /// # Errors
    /// If the time limit is reached, the process has ended, or the scan fails.
    pub fn scan_still(
        &mut self,
        prepared: Prepared,
        scanner: &mut Scanner,
        probe: &Probe,
        end: Instant,
    ) -> Result<Still, StillError> {
        let Prepared {
            mm,
            pid,
            pages,
            mappings,
        } = prepared;
        self.distrust_ranges(probe);
        scanner.turn_to(pages);
        scanner.hurry(end);
        let before = figures::counters(pid)?;
        let begun = Instant::now();
        let vmas = mappings.read_again(&mut self.classifier)?;
        let (mut anon, mut seen) = (0, 0);
        let copies = RefCell::default();
        let mut gather = Gather::new(probe, self.view(mm, probe)?, &copies, &vmas, &self.stacks);
        let mut found = |index: usize, run: PageRun| {
            seen += run.len();
            if run.kind == PageKind::Anon {
                anon += run.len();
            }
            gather.add(index, run);
        };
        match scanner.scan(&vmas, &mut found, &mut || ()) {
            Err(ScanError::TimeUp(_)) => return Err(StillError::TimeUp(seen)),
            done => done?,
        }
        let gathered = gather.finish();
        let gathered = gathered.map_err(|e| e.context("cannot read the page ledger"))?;
        scanner.check_alive()?;
        let pages = match gathered {
            Gathered::Runs(runs) => StillPages::Copied {
                mm,
                vmas,
                runs,
                copies,
            },
            Gathered::Joined(tallied) => {
                let scanned = self.scanned(mm, vmas, *tallied, (before, begun.elapsed()))?;
                StillPages::Joined(Box::new(scanned))
            }
        };
        Ok(Still {
            pid,
            before,
            after: figures::counters(pid)?,
            took: begun.elapsed(),
            anon,
            pages,
        })
    }

    /// Joins the pages of a frozen process with their records; it may run again.
    ///
    /// # Errors
    /// If the process is no longer followed.
    pub fn join_still(&mut self, still: Still, probe: &Probe) -> Result<Scanned, StillError> {
        let scanned = match still.pages {
            StillPages::Joined(scanned) => *scanned,
            StillPages::Copied {
                mm,
                vmas,
                runs,
                copies,
            } => {
                let mut tally = Tally::new(
                    Join::new(&copies, self.view(mm, probe)?),
                    &vmas,
                    &self.stacks,
                );
                for (index, run) in runs {
                    tally.add(index as usize, run);
                }
                let sums = tally.finish()?;
                self.scanned(mm, vmas, sums, (still.before, still.took))?
            }
        };
        Ok(Scanned {
            before: still.before,
            after: still.after,
            took: still.took,
            ..scanned
        })
    }
}
