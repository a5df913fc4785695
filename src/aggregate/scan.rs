//! The page scan of the followed processes, joined with the ledger.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::{Aggregator, ReportError, Snapshot};
use crate::event::{MmId, Pid};
use crate::freeze::stands_still;
use crate::probe::Probe;
use crate::profile::{FileId, FreezeOutcome, KernelFigures, MappedBytes, Mapping};
use crate::residency::proc_maps;
use crate::residency::{
    Classifier, Error as ScanError, Method, PageRun, Scanner, Vma, figures, page_size,
};
use crate::source::Totals;
use crate::source::resident::{Join, PageLedger, SpaceView};

/// One process, scanned.
pub struct Scanned {
    pub(super) mm: MmId,
    /// The process.
    pub pid: Pid,
    pub(super) comm: String,
    pub(super) totals: Totals,
    pub(super) vmas: Vec<Vma>,
    /// The bytes in each of `vmas`.
    pub(super) bytes: Vec<MappedBytes>,
    pub(super) before: KernelFigures,
    pub(super) after: KernelFigures,
    /// Whether the process was frozen during the scan.
    pub(super) freeze: FreezeOutcome,
    /// How long reading its mappings and pages took, pauses excluded.
    pub took: Duration,
}

/// Why a frozen process was not scanned.
#[derive(Debug)]
pub enum StillError {
    /// The time limit was reached; the bytes found until then.
    TimeUp(u64),
    /// The process has ended.
    Gone,
    /// The scan failed.
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

    /// Sets how the process was held during the scan.
    pub fn with(self, freeze: FreezeOutcome) -> Scanned {
        Scanned { freeze, ..self }
    }

    /// The bytes that it holds according to the kernel's counters.
    pub fn resident(&self) -> u64 {
        held_by(&self.after)
    }
}

/// Bytes that a process holds according to the kernel's counters.
pub fn held_by(figures: &KernelFigures) -> u64 {
    figures.resident() + figures.rss_file + figures.swap
}

impl Aggregator {
    /// Combines the scans of processes with the memory outside address spaces.
    ///
    /// # Errors
    /// [`ReportError::NoTarget`] if every process has ended, else the failure.
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

    /// Scans all followed processes while they run, and joins their pages with the ledger.
    ///
    /// # Errors
    /// The first failure; a process that has ended is skipped.
    pub fn scan_all(&mut self, probe: &Probe) -> Result<Vec<Scanned>> {
        let mut scanned = Vec::new();
        for (mm, _) in self.spaces() {
            scanned.extend(self.scan(mm, probe)?);
        }
        Ok(scanned)
    }

    /// Scans a process while it runs, or its kept memory after its end; `None` if it has ended and nothing is kept.
    ///
    /// # Errors
    /// If the scan fails.
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
                Err(anyhow::anyhow!("a scan without a time limit timed out"))
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

    /// Scans the kept memory of a process that has ended.
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

    pub(super) fn pid_in(&self, mm: MmId) -> Result<Pid> {
        let space = self.spaces.get(&mm);
        Ok(space.context("the process is no longer followed")?.pid)
    }

    /// Scans the pages and totals them by owner. The caller reads the kernel's figures afterwards.
    pub(super) fn join(
        &mut self,
        mm: MmId,
        probe: &Probe,
        scanner: &mut Scanner,
        vmas: Vec<Vma>,
        before: KernelFigures,
    ) -> Result<Scanned, StillError> {
        let (begun, paused) = (Instant::now(), scanner.paused());
        let view = self.view(mm, probe)?;
        let mut tally = Tally::new(Join::new(probe, view), &vmas);
        match scanner.scan(&vmas, &mut |index, run| tally.add(index, run), &mut || ()) {
            Err(ScanError::TimeUp(_)) => return Err(StillError::TimeUp(tally.seen)),
            done => done?,
        }
        let (totals, bytes) = tally.finish()?;
        scanner.check_alive()?;
        let took = begun.elapsed().saturating_sub(scanner.paused() - paused);
        self.scanned(mm, vmas, (totals, bytes), (before, took))
    }

    /// What is known of an address space besides its ledger.
    pub(super) fn view(&self, mm: MmId, probe: &Probe) -> Result<SpaceView<'_>> {
        let space = self.spaces.get(&mm);
        let space = space.context("the process is no longer followed")?;
        Ok(SpaceView {
            mm,
            ancestors: &space.ancestors,
            ranges: &space.ranges,
            before: &space.before,
            page_size: page_size(),
            sampled: !probe.walks_all(),
        })
    }

    /// The result of a scan, with the kernel's counters before it and how long it took.
    pub(super) fn scanned(
        &self,
        mm: MmId,
        vmas: Vec<Vma>,
        (totals, bytes): (Totals, Vec<MappedBytes>),
        (before, took): (KernelFigures, Duration),
    ) -> Result<Scanned, StillError> {
        let space = self.spaces.get(&mm);
        let space = space.context("the process is no longer followed")?;
        Ok(Scanned {
            mm,
            pid: space.pid,
            comm: space.comm.clone(),
            totals,
            vmas,
            bytes,
            before,
            after: before,
            freeze: FreezeOutcome::Ran,
            took,
        })
    }
}

/// Totals the pages of a process by owner and by mapping.
pub(super) struct Tally<'a, L> {
    join: Join<'a, L>,
    vmas: &'a [Vma],
    totals: Totals,
    bytes: Vec<MappedBytes>,
    failed: Option<anyhow::Error>,
    /// The bytes so far.
    seen: u64,
    /// The current mapping.
    last: Option<usize>,
}

impl<'a, L: PageLedger> Tally<'a, L> {
    pub(super) fn new(join: Join<'a, L>, vmas: &'a [Vma]) -> Self {
        Tally {
            join,
            vmas,
            totals: Totals::default(),
            bytes: vec![MappedBytes::default(); vmas.len()],
            failed: None,
            seen: 0,
            last: None,
        }
    }

    /// Adds a run of pages of the mapping with this index.
    pub(super) fn add(&mut self, index: usize, run: PageRun) {
        if let Some(ended) = self.last.replace(index).filter(|last| *last != index) {
            self.end_mapping(ended);
        }
        if self.failed.is_none() {
            self.seen += run.len();
            let (totals, bytes) = (&mut self.totals, &mut self.bytes[index]);
            let added = self.join.add(&self.vmas[index], run, totals, bytes);
            self.failed = added.err();
        }
    }

    fn end_mapping(&mut self, index: usize) {
        let (totals, bytes) = (&mut self.totals, &mut self.bytes[index]);
        self.join.end_mapping(&self.vmas[index], totals, bytes);
    }

    /// The totals by owner, and the bytes of each mapping.
    ///
    /// # Errors
    /// If the ledger could not be read.
    pub(super) fn finish(mut self) -> Result<(Totals, Vec<MappedBytes>)> {
        if let Some(e) = self.failed {
            return Err(e.context("cannot read the page ledger"));
        }
        if let Some(ended) = self.last {
            self.end_mapping(ended);
        }
        Ok((self.totals, self.bytes))
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
