//! Which stacks brought in some pages of a process.

use super::tally::Tally;
use super::{Aggregator, ReportError, Snapshot};
use crate::collect::resident::Join;
use crate::probe::Probe;
use memprof_heap::HeapPages;
use memprof_sys::ids::Pid;

impl Aggregator {
    /// The memory of these pages alone, by stack id as the ledger has it now. A page that was given back since has no
    /// record any more, or that of its next owner.
    ///
    /// # Errors
    /// The process is no longer followed, or its ledger could not be read.
    pub fn owners(
        &mut self,
        pid: Pid,
        pages: HeapPages,
        probe: &Probe,
    ) -> Result<Snapshot, ReportError> {
        let space = self.spaces.iter().find(|(_, space)| space.pid == pid);
        let mm = *space.ok_or(ReportError::NoTarget)?.0;
        self.distrust_ranges(probe);
        let view = self.view(mm, probe).map_err(ReportError::Failed)?;
        let mut tally = Tally::new(Join::new(probe, view), &pages.vmas, &self.stacks);
        for (index, run) in &pages.runs {
            tally.add(*index, *run);
        }
        let tallied = tally.finish().map_err(ReportError::Failed)?;
        let nothing = Default::default();
        let scanned = self.scanned(mm, pages.vmas, tallied, nothing);
        let scanned = scanned.map_err(|_| ReportError::NoTarget)?;
        Ok(Snapshot {
            processes: vec![scanned],
            ..Snapshot::default()
        })
    }
}
