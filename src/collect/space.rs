//! The known state of a followed address space besides its ledger: which call mapped which range since attach, which pages were
//! resident before, where its code is.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::collect::aggregate::Recent;
use crate::collect::functions::FunctionTable;
use crate::collect::resident::RangeOwner;
use crate::collect::stack::CodeMap;
use crate::probe::event::{RangeChange, RangeEvent};
use memprof_profile::{Amounts, Peak};
use memprof_sys::ids::{MmId, Pid};
use memprof_sys::process::Container;
use memprof_sys::residency::{
    Classifier, ExitMemory, Method, PageKind, RangeMap, RangeSet, Result, Scanner, Vma, proc_maps,
};

/// Maximum number of address ranges whose caller is stored, about 100 bytes each; the kernel's own default limit
/// (`vm.max_map_count`) is 65,530 mappings.
const MAX_RANGES: usize = 131_072;
/// Maximum number of runs of pages stored as resident before the attach, about 100 bytes each.
const MAX_BEFORE: usize = 262_144;
/// Number of `fork` generations through which records are looked up.
const MAX_ANCESTORS: usize = 8;

/// The figures of a process in its last report.
#[derive(Clone, Debug)]
pub struct LastReport {
    /// The memory of the process.
    pub total: Amounts,
    /// Its container.
    pub container: Option<Container>,
    /// The time of the report.
    pub at: SystemTime,
    /// The same moment, since the target is followed.
    pub observed: Duration,
}

/// One followed address space.
#[derive(Debug)]
pub struct Space {
    /// The process.
    pub pid: Pid,
    /// The process's name.
    pub comm: String,
    /// The address spaces it was forked from, nearest first.
    pub ancestors: Vec<MmId>,
    /// The executable mappings.
    pub code: CodeMap,
    /// The functions of its interpreter.
    pub functions: FunctionTable,
    /// The call that mapped each range since the attach. Shared with the parent until one of the two changes.
    pub ranges: Arc<RangeMap<RangeOwner>>,
    /// Pages that were resident at the attach and have not been dropped since. Shared like `ranges`.
    pub before: Arc<RangeSet>,
    /// If set, keeps the memory readable after the process has ended.
    pub kept: Option<Arc<ExitMemory>>,
    /// Bytes of page tables at the end of the process; 0 until then.
    pub page_tables: u64,
    /// The figures at the last report.
    pub last: Option<LastReport>,
    /// `VmHWM` in bytes, as known so far.
    pub high_water: Option<u64>,
    /// Its peak, if it has ended, and a profile of that is kept.
    pub peak: Option<Peak>,
    /// Maximum number of `ranges` and of runs in `before`, where it is below their own limits.
    pub most: usize,
    /// Number of changes of the address space that were applied.
    pub changes: u64,
    /// The last scan, if several processes are followed.
    pub recent: Option<Recent>,
    /// The mappings at the last scan, if a single process is followed.
    pub vmas: Arc<[Vma]>,
    /// The path of its executable at the last report.
    pub executable: Option<String>,
}

impl Space {
    /// Creates an address space without any known ranges.
    pub fn new(pid: Pid, comm: &str) -> Space {
        Space {
            pid,
            comm: comm.to_owned(),
            ancestors: Vec::new(),
            code: CodeMap::new(pid),
            functions: FunctionTable::default(),
            ranges: Arc::new(RangeMap::new(MAX_RANGES)),
            before: Arc::new(RangeSet::new(MAX_BEFORE)),
            kept: None,
            page_tables: 0,
            last: None,
            high_water: None,
            peak: None,
            most: usize::MAX,
            changes: 0,
            recent: None,
            vmas: Arc::default(),
            executable: None,
        }
    }

    /// Creates a forked child's address space, which starts with its parent's ranges and code.
    pub fn forked(&self, mm: MmId, pid: Pid, comm: &str) -> Space {
        let mut ancestors = vec![mm];
        ancestors.extend(self.ancestors.iter().take(MAX_ANCESTORS - 1));
        Space {
            pid,
            comm: comm.to_owned(),
            ancestors,
            code: self.code.forked(pid),
            functions: FunctionTable::default(),
            ranges: Arc::clone(&self.ranges),
            before: Arc::clone(&self.before),
            kept: None,
            page_tables: 0,
            last: None,
            high_water: None,
            peak: None,
            most: self.most,
            changes: 0,
            recent: None,
            vmas: self.known_vmas(),
            executable: None,
        }
    }

    /// The mappings at the last scan.
    pub fn known_vmas(&self) -> Arc<[Vma]> {
        match &self.recent {
            Some(recent) => recent.vmas().into(),
            None => Arc::clone(&self.vmas),
        }
    }

    /// Number of ranges and runs of pages. Shared ones count in part.
    pub fn held(&self) -> usize {
        let part = |len: usize, owners: usize| len.div_ceil(owners);
        part(self.ranges.len(), Arc::strong_count(&self.ranges))
            + part(self.before.len(), Arc::strong_count(&self.before))
    }

    /// `ranges`, to change it.
    fn ranges_mut(&mut self) -> &mut RangeMap<RangeOwner> {
        let ranges = Arc::make_mut(&mut self.ranges);
        ranges.limit(self.most.min(MAX_RANGES));
        ranges
    }

    /// `before`, to change it.
    fn before_mut(&mut self) -> &mut RangeSet {
        let before = Arc::make_mut(&mut self.before);
        before.limit(self.most.min(MAX_BEFORE));
        before
    }

    /// Records the pages that are resident now, whose stacks were not observed.
    ///
    /// # Errors
    /// If the process has ended, or its pages may not be read.
    pub fn remember_before(&mut self, classifier: &mut Classifier) -> Result<()> {
        let mut scanner = Scanner::open(self.pid, Method::Auto)?;
        let vmas = proc_maps::read(self.pid, classifier)?;
        let before = self.before_mut();
        let mut keep = |_, run: memprof_sys::residency::PageRun| {
            if run.kind != PageKind::Hugetlb {
                // If full, the forgotten runs are shown as not observed, and counted.
                let _ = before.insert(run.start.0..run.end.0);
            }
        };
        scanner.scan(&vmas, &mut keep, &mut || ())
    }

    /// Applies a change of the address space. A full map drops ranges and counts them; it never keeps a stale one.
    pub fn apply(&mut self, e: &RangeEvent) {
        let range = e.start.0..e.end.0;
        self.changes += 1;
        match e.change {
            RangeChange::Mapped {
                stack,
                populated,
                code,
            } => {
                let owner = RangeOwner { stack, populated };
                let _ = self.ranges_mut().insert(range.clone(), owner);
                self.drop_before(range);
                if code {
                    self.code.mark_stale();
                }
            }
            RangeChange::Populated { stack } => self.populate(range, stack),
            RangeChange::Unmapped => {
                if self.ranges.overlapping(range.clone()).next().is_some() {
                    let _ = self.ranges_mut().remove(range.clone());
                }
                self.drop_before(range);
            }
            RangeChange::Emptied => {
                self.drop_before(range);
            }
            RangeChange::Executable => self.code.mark_stale(),
            RangeChange::Moved { from } => {
                let old = from.0..from.0 + (range.end - range.start);
                let _ = self.ranges_mut().move_range(old.clone(), range.start);
                let _ = self.before_mut().move_range(old, range.start);
            }
        }
    }

    /// Removes a range from `before`. Checks first, because `make_mut` copies a set that another process shares.
    fn drop_before(&mut self, range: std::ops::Range<u64>) {
        if self.before.overlapping(range.clone()).next().is_some() {
            let _ = self.before_mut().remove(range);
        }
    }

    /// Forgets all owners of ranges.
    pub fn forget_ranges(&mut self) {
        self.changes += 1;
        self.ranges_mut().clear();
    }

    /// Marks a range that the kernel filled without faults. Its pages belong to the call that mapped them or, if that call is
    /// unknown, to the call that filled them.
    fn populate(&mut self, range: std::ops::Range<u64>, stack: memprof_sys::ids::StackId) {
        let known: Vec<_> = self
            .ranges
            .overlapping(range.clone())
            .map(|(r, owner)| (r, *owner))
            .collect();
        let mut at = range.start;
        for (r, owner) in known {
            let (start, end) = (r.start.max(range.start), r.end.min(range.end));
            self.populate_part(at..start, stack);
            self.populate_part(start..end, owner.stack);
            at = end;
        }
        self.populate_part(at..range.end, stack);
    }

    fn populate_part(&mut self, range: std::ops::Range<u64>, stack: memprof_sys::ids::StackId) {
        if !range.is_empty() {
            let _ = self.ranges_mut().insert(
                range,
                RangeOwner {
                    stack,
                    populated: true,
                },
            );
        }
    }

    /// Number of ranges dropped because a map was full.
    pub fn forgotten(&self) -> u64 {
        self.ranges.dropped() + self.before.dropped()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memprof_sys::ids::{Addr, StackId};

    fn event(change: RangeChange, start: u64, end: u64) -> RangeEvent {
        RangeEvent {
            mm: MmId(1),
            start: Addr(start),
            end: Addr(end),
            change,
        }
    }

    fn owner(space: &Space, addr: u64) -> Option<(u32, bool)> {
        space
            .ranges
            .get(addr)
            .map(|(_, o)| (o.stack.0, o.populated))
    }

    fn mapped(stack: u32) -> RangeChange {
        RangeChange::Mapped {
            stack: StackId(stack),
            populated: false,
            code: false,
        }
    }

    #[test]
    fn mlock_keeps_the_mapper_and_owns_the_rest() {
        let mut s = Space::new(Pid(1), "x");
        s.apply(&event(mapped(20), 0x2000, 0x4000));
        s.apply(&event(
            RangeChange::Populated { stack: StackId(30) },
            0x1000,
            0x6000,
        ));
        assert_eq!(owner(&s, 0x1000), Some((30, true)));
        assert_eq!(owner(&s, 0x2000), Some((20, true)));
        assert_eq!(owner(&s, 0x3fff), Some((20, true)));
        assert_eq!(owner(&s, 0x4000), Some((30, true)));
        assert_eq!(owner(&s, 0x6000), None);
    }

    #[test]
    fn a_mapping_replaces_what_was_before() {
        let mut s = Space::new(Pid(1), "x");
        assert!(Arc::make_mut(&mut s.before).insert(0x1000..0x5000).is_ok());
        s.apply(&event(mapped(20), 0x2000, 0x3000));
        assert!(s.before.contains(0x1000) && !s.before.contains(0x2000));
        s.apply(&event(RangeChange::Unmapped, 0x1000, 0x2000));
        assert!(!s.before.contains(0x1000) && s.before.contains(0x3000));
    }

    #[test]
    fn a_moved_range_takes_its_owners_along() {
        let mut s = Space::new(Pid(1), "x");
        s.apply(&event(mapped(20), 0x1000, 0x3000));
        s.apply(&event(
            RangeChange::Moved { from: Addr(0x1000) },
            0x9000,
            0xb000,
        ));
        assert_eq!(owner(&s, 0x1000), None);
        assert_eq!(owner(&s, 0x9fff), Some((20, false)));
    }

    #[test]
    fn a_child_shares_its_parents_ranges_until_it_changes_them() {
        let mut parent = Space::new(Pid(1), "x");
        assert!(
            Arc::make_mut(&mut parent.before)
                .insert(0x8000..0x9000)
                .is_ok()
        );
        parent.apply(&event(mapped(20), 0x1000, 0x3000));
        let mut child = parent.forked(MmId(1), Pid(2), "x");
        let shared = |child: &Space| {
            let ranges = Arc::ptr_eq(&parent.ranges, &child.ranges);
            (ranges, Arc::ptr_eq(&parent.before, &child.before))
        };
        assert_eq!(shared(&child), (true, true));
        // No range is known there.
        child.apply(&event(RangeChange::Unmapped, 0x4000, 0x5000));
        assert_eq!(shared(&child), (true, true));
        child.apply(&event(RangeChange::Unmapped, 0x1000, 0x2000));
        assert_eq!(shared(&child), (false, true));
        child.apply(&event(RangeChange::Emptied, 0x8000, 0x9000));
        assert_eq!(shared(&child), (false, false));
        assert_eq!(
            (owner(&child, 0x1000), owner(&parent, 0x1000)),
            (None, Some((20, false)))
        );
        assert!(parent.before.contains(0x8000) && !child.before.contains(0x8000));
    }
}
