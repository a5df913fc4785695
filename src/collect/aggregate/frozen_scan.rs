//! The scan of a frozen process. While the process is frozen, memprof reads only the state that would change otherwise: its
//! mappings, its pages, their records and the kernel's counters. They are joined after its release (`gather.rs`).

use std::cell::RefCell;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::Aggregator;
use super::gather::{Gather, Gathered};
use super::scan::{FrozenScanError, Scanned, held_by};
use super::tally::Tally;
use crate::collect::resident::{Copies, Join};
use crate::probe::Probe;
use memprof_sys::ids::{MmId, Pid};
use memprof_sys::kernel_figures::KernelFigures;
use memprof_sys::residency::proc_maps::MapsSnapshot;
use memprof_sys::residency::{Error as ScanError, PageKind, PageRun, Pages, Scanner, Vma, figures};

/// A process that is about to be frozen for a scan, with everything that could be prepared in advance.
pub struct Prepared {
    mm: MmId,
    pid: Pid,
    pages: Pages,
    mappings: MapsSnapshot,
}

/// A process that was scanned while frozen.
pub struct FrozenScan {
    pid: Pid,
    before: KernelFigures,
    after: KernelFigures,
    /// `VmHWM` in bytes.
    high_water: u64,
    /// Time for reading its mappings and pages.
    pub took: Duration,
    /// Bytes of its anonymous pages.
    anon: u64,
    pages: FrozenPages,
}

/// The pages of a frozen process.
enum FrozenPages {
    /// To be joined after the release: the runs, each with the index of its mapping, and copies of their records.
    Copied {
        mm: MmId,
        vmas: Vec<Vma>,
        runs: Vec<(u32, PageRun)>,
        copies: RefCell<Copies>,
    },
    /// Joined while the process was frozen, because there are too many pages to store.
    Joined(Box<Scanned>),
}

impl FrozenScan {
    /// Memory and swap of the process in bytes, according to the kernel's counters.
    pub fn resident(&self) -> u64 {
        held_by(&self.after)
    }

    /// Whether the kernel's counter of anonymous memory equals the pages that were found. If not, the counter may be approximate
    /// (before Linux 6.16).
    pub fn agrees(&self) -> bool {
        self.anon == self.after.rss_anon
    }

    /// Reads the kernel's own page-table walk (`smaps_rollup`) while the process is frozen: one read serves as before and after.
    /// `still` is called afterwards, and returns whether the process was frozen throughout.
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
    /// Does everything that can be done before a process is frozen for a scan.
    ///
    /// # Errors
    /// If the process has ended, or may not be inspected.
    pub fn prepare_scan(&mut self, mm: MmId) -> Result<Prepared, FrozenScanError> {
        let pid = self.pid_in(mm)?;
        Ok(Prepared {
            mm,
            pid,
            pages: Pages::open(pid)?,
            mappings: MapsSnapshot::read(pid, &mut self.classifier)?,
        })
    }

    /// Reads a frozen process, until `end` at the latest. [`Aggregator::join_still`] converts the result to a scan.
    ///
    /// # Errors
    /// If the time limit is reached, the process has ended, or the scan fails.
    pub fn scan_still(
        &mut self,
        prepared: Prepared,
        scanner: &mut Scanner,
        probe: &Probe,
        end: Instant,
    ) -> Result<FrozenScan, FrozenScanError> {
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
            Err(ScanError::TimeUp(_)) => return Err(FrozenScanError::TimeUp(seen)),
            done => done?,
        }
        let gathered = gather.finish();
        let gathered = gathered.map_err(|e| e.context("cannot read the page ledger"))?;
        scanner.check_alive()?;
        let pages = match gathered {
            Gathered::Runs(runs) => FrozenPages::Copied {
                mm,
                vmas,
                runs,
                copies,
            },
            Gathered::Joined(tallied) => {
                let scanned = self.scanned(mm, vmas, *tallied, (before, begun.elapsed()))?;
                FrozenPages::Joined(Box::new(scanned))
            }
        };
        let status = figures::status(pid)?;
        Ok(FrozenScan {
            pid,
            before,
            high_water: status.high_water,
            after: status.into(),
            took: begun.elapsed(),
            anon,
            pages,
        })
    }

    /// Joins the pages of a frozen process with their records. The process may run again.
    ///
    /// # Errors
    /// If the process is no longer followed.
    pub fn join_still(
        &mut self,
        still: FrozenScan,
        probe: &Probe,
    ) -> Result<Scanned, FrozenScanError> {
        let scanned = match still.pages {
            FrozenPages::Joined(scanned) => *scanned,
            FrozenPages::Copied {
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
            high_water: Some(still.high_water),
            took: still.took,
            ..scanned
        })
    }
}
