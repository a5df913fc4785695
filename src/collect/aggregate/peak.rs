//! The scan of a process at its peak, when it was about to drop memory. The records of that moment were copied, and [`restore`]
//! finds which pages were resident. The kernel's counters of that moment limit each kind of memory, so the total never exceeds
//! them. What they count in addition is memory whose pages are not known: [`Unobserved::Gone`].

mod restore;

use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;

use super::Aggregator;
use super::scan::{FrozenScanError, Scanned};
use super::tally::Tally;
use crate::collect::resident::{Join, RangeOwner, SpaceView};
use crate::probe::Probe;
use crate::probe::event::PeakSeen;
use crate::probe::source::resident_pages::{Chunk, PageLedger};
use memprof_profile::{MappedBytes, Unobserved};
use memprof_sys::ids::{Addr, MmId};
use memprof_sys::kernel_figures::KernelFigures;
use memprof_sys::residency::{
    Error as ScanError, PageRun, Pages, RangeMap, RangeSet, Vma, page_size, proc_maps,
};
use restore::{AtPeak, Chunks, Present, Restored, add_missing, push, unnamed};

/// The name of the mapping that stands for memory whose pages are not known.
const GONE: &str = "[gone]";

/// Maximum number of pages that a counter of an address space lacks: each processor adds to it in batches of 32, or of twice as many
/// as there are processors; up to Linux 6.1, each thread in batches of 64.
pub fn counter_lag() -> u64 {
    let processors = libbpf_rs::num_possible_cpus().unwrap_or(1) as u64;
    (processors * (2 * processors).max(32)).max(64)
}

/// The records at the peak, and the records of other address spaces.
struct PeakLedger<'a> {
    probe: &'a Probe,
    mm: MmId,
    then: &'a Chunks,
}

impl PageLedger for PeakLedger<'_> {
    fn chunk(&self, mm: MmId, chunk: u64) -> Result<Option<Chunk>> {
        match mm == self.mm {
            true => Ok(self.then.get(&chunk).map(|chunk| **chunk)),
            false => self.probe.chunk(mm, chunk),
        }
    }
}

/// What was known of a process at its peak, besides its records. Later events change it.
#[derive(Clone, Debug)]
pub struct KnownAtPeak {
    ancestors: Vec<MmId>,
    ranges: Arc<RangeMap<RangeOwner>>,
    before: Arc<RangeSet>,
    /// The mappings at the last scan.
    vmas: Arc<[Vma]>,
}

impl Aggregator {
    /// The only followed address space; `None` if there are none or several, or if memprof starts its command in it.
    pub fn only_space(&self) -> Option<MmId> {
        let mut spaces = self.spaces.keys();
        let only = spaces.next().filter(|mm| !self.is_starting(**mm))?;
        spaces.next().is_none().then_some(*only)
    }

    /// Stores the mappings of a process for a peak that comes later, if the process is the only one.
    pub(super) fn note_mappings(&mut self, process: &Scanned) {
        // The scan of a peak has mappings that are no longer there, at the end.
        let in_order = process.vmas.is_sorted_by(|a, b| a.end <= b.start);
        if in_order
            && self.only_space() == Some(process.mm)
            && let Some(space) = self.spaces.get_mut(&process.mm)
        {
            space.vmas = process.vmas.as_slice().into();
        }
    }

    /// What is known of a followed process besides its records.
    pub fn known_at_peak(&self, mm: MmId) -> Option<KnownAtPeak> {
        let space = self.spaces.get(&mm)?;
        Some(KnownAtPeak {
            ancestors: space.ancestors.clone(),
            ranges: Arc::clone(&space.ranges),
            before: Arc::clone(&space.before),
            vmas: space.known_vmas(),
        })
    }

    /// The memory of a process at its peak. `known` is what was known at that moment.
    ///
    /// # Errors
    /// If the process is not followed, or the scan fails.
    pub fn scan_peak(
        &mut self,
        seen: &PeakSeen,
        known: &KnownAtPeak,
        probe: &Probe,
    ) -> Result<Scanned> {
        let begun = Instant::now();
        let then = probe.chunks(seen.copy)?;
        let present = match self.present(seen.mm) {
            Err(FrozenScanError::Gone) => Present::default(),
            Ok(present) => present,
            Err(e) => anyhow::bail!("cannot scan what stays after a peak: {e:?}"),
        };
        let since = probe.chunks(seen.mm)?;
        let inherited = inherited(known, probe)?;
        let view = SpaceView {
            ancestors: &known.ancestors,
            ranges: &known.ranges,
            before: &known.before,
            ..self.view(seen.mm, probe)?
        };
        let may_be_unrecorded = |addr: u64| {
            let populated = || {
                view.ranges
                    .get(addr)
                    .is_some_and(|(_, owner)| owner.populated)
            };
            view.sampled || view.before.contains(addr) || populated()
        };
        let at_peak = AtPeak {
            now: &present,
            before: &known.vmas,
            then: &then,
            since: &since,
            inherited: &inherited,
            older: &known.before,
            is_forked: !known.ancestors.is_empty(),
            seen,
            may_be_unrecorded: &may_be_unrecorded,
            lag: counter_lag(),
            page_size: page_size(),
        };
        let Restored {
            mut vmas,
            runs,
            gone,
        } = at_peak.restore();
        let ledger = PeakLedger {
            probe,
            mm: seen.mm,
            then: &then,
        };
        let mut tally = Tally::new(Join::new(&ledger, view), &vmas, &self.stacks);
        for (index, run) in runs {
            tally.add(index as usize, run);
        }
        let mut tallied = tally.finish()?;
        if gone.resident() + gone.file > 0 {
            tallied.totals.add_unobserved(GONE, Unobserved::Gone, gone);
            tallied.bytes.push(MappedBytes {
                not_observed: gone,
                ..MappedBytes::default()
            });
            let at = Addr(seen.dropped.start);
            vmas.push(unnamed(at, at, GONE));
        }
        let bytes = |pages: u64| pages * page_size();
        let figures = KernelFigures {
            anonymous: None,
            rss_anon: bytes(seen.anon),
            rss_shmem: bytes(seen.shmem),
            rss_file: bytes(seen.file),
            swap: bytes(seen.swap),
            page_tables: 0,
        };
        let scanned = self.scanned(seen.mm, vmas, tallied, (figures, begun.elapsed()));
        let scanned = scanned.map_err(|e| anyhow::anyhow!("{e:?}"))?;
        // No later report may use it.
        Ok(Scanned {
            repeated: true,
            ..scanned
        })
    }

    /// The pages that a process has now, or had at its end if its memory is kept.
    fn present(&mut self, mm: MmId) -> Result<Present, FrozenScanError> {
        let pid = self.pid_in(mm)?;
        let running = || -> Result<_, ScanError> { Pages::open(pid) };
        let (pages, vmas) = match (running(), proc_maps::read(pid, &mut self.classifier)) {
            (Ok(pages), Ok(vmas)) => (pages, vmas),
            _ => {
                let kept = self.spaces.get(&mm).and_then(|space| space.kept.clone());
                let kept = kept.ok_or(FrozenScanError::Gone)?;
                (kept.pages()?, kept.mappings(&mut self.classifier)?)
            }
        };
        let mut scanner = self.scanner(pages)?;
        let mut runs = Vec::new();
        let mut add = |index: usize, run: PageRun| push(&mut runs, index as u32, run);
        scanner.scan(&vmas, &mut add, &mut || ())?;
        Ok(Present { vmas, runs })
    }
}

/// The records of the processes from which a process was forked, those of the nearest first.
fn inherited(known: &KnownAtPeak, probe: &Probe) -> Result<Chunks> {
    let mut all = Chunks::new();
    for ancestor in &known.ancestors {
        add_missing(&mut all, &probe.chunks(*ancestor)?);
    }
    Ok(all)
}
