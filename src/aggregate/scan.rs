//! The page scan of the followed processes, joined with the ledger: of processes that run, and of those that
//! stand still for it.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::{Aggregator, ReportError, Snapshot};
use crate::event::{MmId, Pid};
use crate::freeze::stands_still;
use crate::probe::Probe;
use crate::profile::{FileId, FreezeOutcome, KernelFigures, MappedBytes, Mapping};
use crate::residency::proc_maps::{self, Foreseen};
use crate::residency::{
    Classifier, Error as ScanError, Method, Pages, Scanner, Vma, figures, page_size,
};
use crate::source::Totals;
use crate::source::resident::{Join, SpaceView};

/// One process, scanned.
pub struct Scanned {
    pub(super) mm: MmId,
    /// The process.
    pub pid: Pid,
    pub(super) comm: String,
    pub(super) totals: Totals,
    vmas: Vec<Vma>,
    /// What is in each of them.
    bytes: Vec<MappedBytes>,
    pub(super) before: KernelFigures,
    pub(super) after: KernelFigures,
    /// Whether it stood still.
    pub(super) hold: FreezeOutcome,
    /// How long reading its mappings and pages took, without pauses.
    pub took: Duration,
}

/// A process about to be held still for a scan: what could be done before.
pub struct Prepared {
    mm: MmId,
    pid: Pid,
    pages: Pages,
    mappings: Foreseen,
}

/// Why a process that stands still was not scanned.
#[derive(Debug)]
pub enum StillError {
    /// The time was up; how many bytes had been found.
    TimeUp(u64),
    /// It has ended.
    Gone,
    /// It failed.
    Failed(anyhow::Error),
}

impl From<anyhow::Error> for StillError {
    fn from(e: anyhow::Error) -> StillError {
        match e.downcast_ref::<ScanError>() {
            Some(ScanError::Gone(_)) => StillError::Gone,
            Some(ScanError::TimeUp(_)) => StillError::TimeUp(0),
            _ => StillError::Failed(e),
        }
    }
}

impl From<ScanError> for StillError {
    fn from(e: ScanError) -> StillError {
        anyhow::Error::from(e).into()
    }
}

impl Scanned {
    pub(super) fn mappings(&self) -> impl Iterator<Item = Mapping> {
        let mappings = self.vmas.iter().zip(&self.bytes);
        mappings.map(|(vma, bytes)| mapping(self.pid, vma, *bytes))
    }

    /// The same, of a process that was held so.
    pub fn with(self, hold: FreezeOutcome) -> Scanned {
        Scanned { hold, ..self }
    }

    /// What the kernel's counters say it holds, in bytes.
    pub fn resident(&self) -> u64 {
        held_by(&self.after)
    }

    /// Reads what the kernel finds by its own walk of the page tables, while the process still stands still:
    /// one reading serves for before and after. `still` says afterwards whether it did.
    ///
    /// # Errors
    /// The process is gone, or may not be looked at.
    pub fn sum_up(&mut self, still: impl FnOnce() -> bool) -> Result<()> {
        let anonymous = Some(figures::rollup(self.pid)?.anonymous);
        if still() {
            (self.before.anonymous, self.after.anonymous) = (anonymous, anonymous);
        }
        Ok(())
    }
}

/// Bytes that a process holds by the kernel's counters.
pub fn held_by(figures: &KernelFigures) -> u64 {
    figures.resident() + figures.rss_file + figures.swap
}

impl Aggregator {
    /// Puts scans of processes together with what lies in no address space.
    ///
    /// # Errors
    /// [`ReportError::NoTarget`] if every process has ended, else what failed.
    pub fn snapshot(
        &mut self,
        processes: Vec<Scanned>,
        probe: &Probe,
    ) -> Result<Snapshot, ReportError> {
        if processes.is_empty() {
            return Err(ReportError::NoTarget);
        }
        let mut snapshot = Snapshot {
            processes,
            ..Snapshot::default()
        };
        for process in &snapshot.processes {
            self.paths.mapped(&process.vmas);
        }
        for collect in probe.sources().iter().filter_map(|source| source.collect) {
            collect(probe, page_size(), &mut snapshot.beside).map_err(ReportError::Failed)?;
        }
        let files: Vec<FileId> = snapshot.beside.files.keys().copied().collect();
        let pids: Vec<Pid> = snapshot.processes.iter().map(|p| p.pid).collect();
        self.paths.keep(&files, &pids);
        Ok(snapshot)
    }

    /// Scans every followed process as it runs, and joins its pages with the ledger.
    ///
    /// # Errors
    /// What failed; a process that has ended is left out.
    pub fn scan_all(&mut self, probe: &Probe) -> Result<Vec<Scanned>> {
        let mut scanned = Vec::new();
        for (mm, _) in self.spaces() {
            scanned.extend(self.scan(mm, probe)?);
        }
        Ok(scanned)
    }

    /// Scans one process as it runs, or as it ended where its memory is kept; `None` if it has ended.
    ///
    /// # Errors
    /// What failed.
    pub fn scan(&mut self, mm: MmId, probe: &Probe) -> Result<Option<Scanned>> {
        let scanned = match self.scan_running(mm, probe) {
            Err(StillError::Gone) => self.scan_kept(mm, probe),
            scanned => scanned,
        };
        match scanned {
            Ok(scanned) => Ok(Some(scanned)),
            Err(StillError::Gone) => Ok(None),
            Err(StillError::Failed(e)) => Err(e),
            Err(StillError::TimeUp(_)) => {
                Err(anyhow::anyhow!("a scan that may take any time ended"))
            }
        }
    }

    fn scan_running(&mut self, mm: MmId, probe: &Probe) -> Result<Scanned, StillError> {
        self.distrust_ranges(probe);
        let pid = self.pid_in(mm)?;
        let mut scanner = Scanner::open(pid, Method::Auto)?;
        let mut before = figures::counters(pid)?;
        let begun = Instant::now();
        let vmas = proc_maps::read(pid, &mut self.classifier)?;
        let read = begun.elapsed();
        let rolled_up = figures::is_brief(&before, &vmas) || stands_still(pid);
        if rolled_up {
            before = figures::read(pid)?;
        }
        let mut scanned = self.join(mm, probe, &mut scanner, vmas, before)?;
        scanned.took += read;
        scanned.after = match rolled_up {
            true => figures::read(pid)?,
            false => figures::counters(pid)?,
        };
        Ok(scanned)
    }

    /// Scans a process that has ended, whose memory is kept.
    fn scan_kept(&mut self, mm: MmId, probe: &Probe) -> Result<Scanned, StillError> {
        let space = self.spaces.get(&mm).ok_or(StillError::Gone)?;
        let (kept, page_tables) = (space.kept.clone(), space.page_tables);
        let kept = kept.ok_or(StillError::Gone)?;
        self.distrust_ranges(probe);
        let mut scanner = Scanner::of(kept.pages()?, Method::Auto)?;
        let figures = |classifier: &mut Classifier| -> Result<KernelFigures, ScanError> {
            Ok(KernelFigures {
                page_tables,
                ..kept.figures(classifier)?
            })
        };
        let before = figures(&mut self.classifier)?;
        let vmas = kept.mappings(&mut self.classifier)?;
        let mut scanned = self.join(mm, probe, &mut scanner, vmas, before)?;
        scanned.after = figures(&mut self.classifier)?;
        Ok(scanned)
    }

    /// Does what can be done before a process is held still for a scan.
    ///
    /// # Errors
    /// The process is gone, or may not be looked at.
    pub fn prepare_scan(&mut self, mm: MmId) -> Result<Prepared, StillError> {
        let pid = self.pid_in(mm)?;
        Ok(Prepared {
            mm,
            pid,
            pages: Pages::open(pid)?,
            mappings: Foreseen::read(pid, &mut self.classifier)?,
        })
    }

    /// Scans a process that stands still, until `end` at most.
    ///
    /// # Errors
    /// The time was up, the process is gone, or what failed.
    pub fn scan_still(
        &mut self,
        prepared: Prepared,
        scanner: &mut Scanner,
        probe: &Probe,
        end: Instant,
    ) -> Result<Scanned, StillError> {
        self.distrust_ranges(probe);
        scanner.turn_to(prepared.pages);
        scanner.hurry(end);
        let before = figures::counters(prepared.pid)?;
        let begun = Instant::now();
        let vmas = prepared.mappings.read_again(&mut self.classifier)?;
        let read = begun.elapsed();
        let mut scanned = self.join(prepared.mm, probe, scanner, vmas, before)?;
        scanned.took += read;
        scanned.after = figures::counters(prepared.pid)?;
        Ok(scanned)
    }

    fn pid_in(&self, mm: MmId) -> Result<Pid> {
        let space = self.spaces.get(&mm);
        Ok(space.context("the process is no longer followed")?.pid)
    }

    /// Scans the pages and totals each under its owner. What the kernel says afterwards is for the caller to read.
    fn join(
        &mut self,
        mm: MmId,
        probe: &Probe,
        scanner: &mut Scanner,
        vmas: Vec<Vma>,
        before: KernelFigures,
    ) -> Result<Scanned, StillError> {
        let space = self.spaces.get(&mm);
        let space = space.context("the process is no longer followed")?;
        let pid = space.pid;
        let view = SpaceView {
            mm,
            ancestors: &space.ancestors,
            ranges: &space.ranges,
            before: &space.before,
            page_size: scanner.page_size(),
        };
        let (begun, paused) = (Instant::now(), scanner.paused());
        let mut join = Join::new(probe, view);
        let mut totals = Totals::default();
        let mut bytes = vec![MappedBytes::default(); vmas.len()];
        let (mut failed, mut seen) = (None, 0);
        let mut found = |index: usize, run: crate::residency::PageRun| {
            if failed.is_none() {
                seen += run.len();
                failed = join
                    .add(&vmas[index], run, &mut totals, &mut bytes[index])
                    .err();
            }
        };
        match scanner.scan(&vmas, &mut found, &mut || ()) {
            Err(ScanError::TimeUp(_)) => return Err(StillError::TimeUp(seen)),
            done => done?,
        }
        if let Some(e) = failed {
            return Err(e.context("cannot read the page ledger").into());
        }
        scanner.check_alive()?;
        let took = begun.elapsed().saturating_sub(scanner.paused() - paused);
        Ok(Scanned {
            mm,
            pid,
            comm: space.comm.clone(),
            totals,
            vmas,
            bytes,
            before,
            after: before,
            hold: FreezeOutcome::Ran,
            took,
        })
    }
}

fn mapping(pid: Pid, vma: &Vma, bytes: MappedBytes) -> Mapping {
    Mapping {
        pid,
        start: vma.start.0,
        end: vma.end.0,
        permissions: vma.perms.to_string(),
        name: match vma.name.as_str() {
            "" => vma.label().to_owned(),
            name => name.to_owned(),
        },
        bytes,
    }
}
