//! The page scan of the followed processes, joined with the ledger.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::pass::Counted;
use super::tally::{Tallied, Tally, Unknown};
use super::{Aggregator, ReportError, Snapshot};
use crate::collect::resident::{Join, SpaceView};
use crate::collect::stack::StackTable;
use crate::probe::Probe;
use crate::probe::source::Totals;
use memprof_profile::{FreezeOutcome, MappedBytes, Mapping};
use memprof_sys::file_id::FileId;
use memprof_sys::freeze::stands_still;
use memprof_sys::ids::{MmId, Pid};
use memprof_sys::kernel_figures::KernelFigures;
use memprof_sys::residency::{
    Category, Classifier, Error as ScanError, Pages, Scanner, Vma, category, figures, page_size,
    proc_maps,
};

/// The scan of one process.
#[derive(Clone, Debug)]
pub struct Scanned {
    pub(super) mm: MmId,
    /// The process.
    pub pid: Pid,
    pub(super) comm: String,
    pub(super) totals: Totals,
    pub(super) vmas: Vec<Vma>,
    /// The bytes in each of `vmas`.
    pub(super) bytes: Vec<MappedBytes>,
    /// The part of `bytes` whose stack was not known at the scan.
    pub(super) unknown: Vec<Unknown>,
    /// The category of each of `vmas`.
    pub(super) categories: Vec<Category>,
    pub(super) before: KernelFigures,
    pub(super) after: KernelFigures,
    /// `VmHWM` after the scan, in bytes; `None` if the process has ended.
    pub(super) high_water: Option<u64>,
    /// Whether the process was frozen during the scan.
    pub(super) freeze: FreezeOutcome,
    /// Time for reading its mappings and pages, pauses excluded.
    pub took: Duration,
    /// The kernel's counters of the process just before the scan; `None` if nothing looks for changes.
    pub(super) counted: Option<Counted>,
    /// Whether the scan was also in an earlier report.
    pub(super) repeated: bool,
}

/// Why a frozen process was not scanned.
#[derive(Debug)]
pub enum FrozenScanError {
    /// The time limit was reached; with the number of bytes found until then.
    TimeUp(u64),
    /// The process has ended.
    Gone,
    /// The scan failed.
    Failed(anyhow::Error),
}

impl From<anyhow::Error> for FrozenScanError {
    fn from(e: anyhow::Error) -> FrozenScanError {
        match e.downcast_ref::<ScanError>() {
            Some(ScanError::Gone(_)) => FrozenScanError::Gone,
            Some(ScanError::TimeUp(_)) => FrozenScanError::TimeUp(0),
            _ => FrozenScanError::Failed(e),
        }
    }
}

impl From<ScanError> for FrozenScanError {
    fn from(e: ScanError) -> FrozenScanError {
        anyhow::Error::from(e).into()
    }
}

impl Scanned {
    /// The mappings. Bytes count as lost if their stack is not in `stacks`.
    pub(super) fn mappings(&self, stacks: &StackTable) -> impl Iterator<Item = Mapping> {
        let mut bytes = self.bytes.clone();
        for lost in self
            .unknown
            .iter()
            .filter(|u| stacks.get(u.stack).is_none())
        {
            bytes[lost.mapping as usize].lose(lost.usage);
        }
        let mappings = self.vmas.iter().zip(&self.categories).zip(bytes);
        mappings.map(|((vma, category), bytes)| mapping(self.pid, vma, *category, bytes))
    }

    /// Sets how the process was frozen during the scan.
    pub fn with(self, freeze: FreezeOutcome) -> Scanned {
        Scanned { freeze, ..self }
    }

    /// Memory and swap of the process in bytes, according to the kernel's counters.
    pub fn resident(&self) -> u64 {
        held_by(&self.after)
    }
}

/// Memory and swap of a process in bytes, according to the kernel's counters.
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
        for process in &mut snapshot.processes {
            // The executable may have been registered since the process started.
            self.modules.runs(process.pid);
            self.paths.mapped(&process.vmas);
            let executable = self.executable(process.mm);
            if process.categories.len() != process.vmas.len() {
                process.categories = category::of_all(process.pid, &process.vmas, executable);
            }
            if let Some(space) = self.spaces.get_mut(&process.mm) {
                space.high_water = space.high_water.max(process.high_water);
            }
            self.remember(process);
            self.note_mappings(process);
        }
        for collect in probe.sources().iter().filter_map(|source| source.collect) {
            collect(probe, page_size(), &mut snapshot.beside).map_err(ReportError::Failed)?;
        }
        let files: Vec<FileId> = snapshot.beside.files.keys().copied().collect();
        let pids: Vec<Pid> = snapshot.processes.iter().map(|p| p.pid).collect();
        self.paths.keep(&files, &pids);
        Ok(snapshot)
    }

    /// Like [`Self::snapshot`], for a process that is one of several.
    ///
    /// # Errors
    /// As for [`Self::snapshot`].
    pub fn snapshot_of_one(
        &mut self,
        process: Scanned,
        probe: &Probe,
    ) -> Result<Snapshot, ReportError> {
        let snapshot = self.snapshot(vec![process], probe)?;
        Ok(Snapshot {
            is_share: true,
            ..snapshot
        })
    }

    /// Scans a process while it runs, or its kept memory after its end; `None` if it has ended and no memory is kept.
    ///
    /// # Errors
    /// If the scan fails.
    pub fn scan(&mut self, mm: MmId, probe: &Probe) -> Result<Option<Scanned>> {
        let scanned = match self.scan_running(mm, probe) {
            Err(FrozenScanError::Gone) => self.scan_kept(mm, probe),
            scanned => scanned,
        };
        match scanned {
            Ok(scanned) => Ok(Some(scanned)),
            Err(FrozenScanError::Gone) => Ok(None),
            Err(FrozenScanError::Failed(e)) => Err(e),
            Err(FrozenScanError::TimeUp(_)) => {
                Err(anyhow::anyhow!("a scan without a time limit timed out"))
            }
        }
    }

    fn scan_running(&mut self, mm: MmId, probe: &Probe) -> Result<Scanned, FrozenScanError> {
        self.distrust_ranges(probe);
        let pid = self.pid_in(mm)?;
        let mut scanner = self.scanner(Pages::open(pid)?)?;
        let mut before = figures::counters(pid)?;
        let begun = Instant::now();
        let vmas = proc_maps::read(pid, &mut self.classifier)?;
        let read = begun.elapsed();
        let rolled_up = !self.counters_suffice
            && (figures::rollup_is_cheap(&before, &vmas) || stands_still(pid));
        if rolled_up {
            before = figures::read(pid)?;
        }
        let mut scanned = self.join(mm, probe, &mut scanner, vmas, before)?;
        scanned.took += read;
        let anonymous = match rolled_up {
            true => Some(figures::rollup(pid)?.anonymous),
            false => None,
        };
        let status = figures::status(pid)?;
        scanned.high_water = Some(status.high_water);
        scanned.after = KernelFigures {
            anonymous,
            ..status.into()
        };
        Ok(scanned)
    }

    /// Scans the kept memory of a process that has ended.
    fn scan_kept(&mut self, mm: MmId, probe: &Probe) -> Result<Scanned, FrozenScanError> {
        let space = self.spaces.get(&mm).ok_or(FrozenScanError::Gone)?;
        let (kept, page_tables) = (space.kept.clone(), space.page_tables);
        let kept = kept.ok_or(FrozenScanError::Gone)?;
        self.distrust_ranges(probe);
        let mut scanner = self.scanner(kept.pages()?)?;
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

    /// Scans the pages and totals them by owner. The caller reads the kernel's counters afterwards.
    pub(super) fn join(
        &mut self,
        mm: MmId,
        probe: &Probe,
        scanner: &mut Scanner,
        vmas: Vec<Vma>,
        before: KernelFigures,
    ) -> Result<Scanned, FrozenScanError> {
        let (begun, paused) = (Instant::now(), scanner.paused());
        let view = self.view(mm, probe)?;
        let mut tally = Tally::new(Join::new(probe, view), &vmas, &self.stacks);
        match scanner.scan(&vmas, &mut |index, run| tally.add(index, run), &mut || ()) {
            Err(ScanError::TimeUp(_)) => return Err(FrozenScanError::TimeUp(tally.seen)),
            done => done?,
        }
        let tallied = tally.finish()?;
        scanner.check_alive()?;
        let took = begun.elapsed().saturating_sub(scanner.paused() - paused);
        self.scanned(mm, vmas, tallied, (before, took))
    }

    /// The path of the executable of an address space's process, even if the process has ended.
    fn executable(&mut self, mm: MmId) -> Option<String> {
        let space = self.spaces.get_mut(&mm)?;
        if let Some(path) = category::executable(space.pid) {
            space.executable = Some(path);
        }
        space.executable.clone()
    }

    /// The known state of an address space besides its ledger.
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

    /// The result of a scan, with the kernel's counters before it and its duration.
    pub(super) fn scanned(
        &self,
        mm: MmId,
        vmas: Vec<Vma>,
        tallied: Tallied,
        (before, took): (KernelFigures, Duration),
    ) -> Result<Scanned, FrozenScanError> {
        let space = self.spaces.get(&mm);
        let space = space.context("the process is no longer followed")?;
        Ok(Scanned {
            mm,
            pid: space.pid,
            comm: space.comm.clone(),
            totals: tallied.totals,
            categories: Vec::new(),
            vmas,
            bytes: tallied.bytes,
            unknown: tallied.unknown,
            before,
            after: before,
            high_water: None,
            freeze: FreezeOutcome::Ran,
            took,
            counted: None,
            repeated: false,
        })
    }
}

fn mapping(pid: Pid, vma: &Vma, category: Category, bytes: MappedBytes) -> Mapping {
    Mapping {
        pid,
        start: vma.start.0,
        end: vma.end.0,
        permissions: vma.perms.to_string(),
        name: match vma.name.as_str() {
            "" => vma.label().to_owned(),
            name => name.to_owned(),
        },
        category,
        bytes,
    }
}
