//! Turns events into totals per stack, and joins them with residency into a [`Profile`].
//!
//! The aggregator keeps what the ring buffer delivered: stacks, processes, address ranges. It reads the resident
//! pages from the kernel when a report is requested.

mod ancestry;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use self::ancestry::Ancestry;
use crate::event::{Event, MmId, Pid, ProcessChange, ProcessEvent, RangeEvent, StackId, StackSeen};
use crate::file_paths::FilePaths;
use crate::modules::{AddressMap, ModuleTable};
use crate::probe::{Probe, UsedStacks};
use crate::profile::{
    CachedFile, FileId, FreezeOutcome, KernelFigures, Kind, LOST_STACK, Losses, Mapping,
    NotObserved, Places, Profile, Sample, Share, TargetInfo, Unobserved, Usage,
};
use crate::residency::{Classifier, Kept};
use crate::source::Totals;
use crate::space::Space;
use crate::stack::StackTable;

mod scan;

pub use scan::{Prepared, Scanned, StillError, held_by};

/// All that is known about the followed processes.
#[derive(Default)]
pub struct Aggregator {
    modules: ModuleTable,
    classifier: Classifier,
    stacks: StackTable,
    /// By address space; ended ones are removed.
    spaces: BTreeMap<MmId, Space>,
    ancestry: Ancestry,
    paths: FilePaths,
    /// Whether to read a process's mappings when it starts: needed if frames arrive as addresses, not as places in
    /// files.
    reads_code_early: bool,
    /// The probe's count of lost address-space events at the last check of the range totals.
    ranges_lost: u64,
}

/// Why there is no report.
#[derive(Debug)]
pub enum ReportError {
    /// No followed process is left.
    NoTarget,
    /// The report failed: what was attempted, and the reason.
    Failed(anyhow::Error),
}

impl Aggregator {
    /// Creates an empty aggregator. `bound` says that the probe sends frames as places in files.
    pub fn new(bound: bool) -> Aggregator {
        Aggregator {
            reads_code_early: !bound,
            ..Aggregator::default()
        }
    }

    /// Applies one event. Events must be applied in the order in which they were emitted.
    pub fn apply(&mut self, event: &Event, probe: &Probe) {
        match event {
            Event::Stack(seen) => self.stack(seen),
            Event::Process(e) => self.process(e, probe),
            Event::Range(e) => self.range(e),
            // Only the unwind tables need it.
            Event::Code(_) => {}
        }
    }

    /// The followed processes, in the order in which they were followed.
    pub fn pids(&self) -> Vec<Pid> {
        self.spaces.values().map(|s| s.pid).collect()
    }

    /// Whether any process is followed.
    pub fn follows_any(&self) -> bool {
        !self.spaces.is_empty()
    }

    /// The followed address spaces and the process in each.
    pub fn spaces(&self) -> Vec<(MmId, Pid)> {
        self.spaces.iter().map(|(mm, s)| (*mm, s.pid)).collect()
    }

    /// Whether an address space is followed.
    pub fn has(&self, mm: MmId) -> bool {
        self.spaces.contains_key(&mm)
    }

    /// The code that a followed address space has mapped now, and the table of its files.
    pub fn code_now(&mut self, mm: MmId) -> Option<(Arc<AddressMap>, &mut ModuleTable)> {
        let space = self.spaces.get_mut(&mm)?;
        space.code.reload(&mut self.modules);
        Some((space.code.map(), &mut self.modules))
    }

    /// The code that an unfollowed process has mapped, as if `exe` were its executable; `None` if it may not be
    /// inspected.
    pub fn look_at_code(
        &mut self,
        pid: Pid,
        exe: &Path,
    ) -> Option<(Arc<AddressMap>, &mut ModuleTable)> {
        let code = AddressMap::load_as(pid, exe, &mut self.modules).ok()?;
        Some((Arc::new(code), &mut self.modules))
    }

    /// Arranges that the memory of a followed process is kept when it ends, for a last scan. The thread that keeps it
    /// calls `begin` first.
    ///
    /// # Errors
    /// If the process has ended, or the kernel refuses.
    pub fn keep(&mut self, mm: MmId, begin: fn()) -> Result<(), crate::residency::Error> {
        if let Some(space) = self.spaces.get_mut(&mm) {
            space.kept = Some(Arc::new(Kept::new(space.pid, begin)?));
        }
        Ok(())
    }

    /// Records the bytes of page tables with which a process whose memory is kept has ended.
    pub fn ended_with(&mut self, mm: MmId, page_tables: u64) {
        if let Some(space) = self.spaces.get_mut(&mm) {
            space.page_tables = page_tables;
        }
    }

    /// Whether a process's memory will be kept when it ends.
    pub fn is_kept(&self, mm: MmId, pid: Pid) -> bool {
        let space = self.spaces.get(&mm);
        space.is_some_and(|space| space.pid == pid && space.kept.is_some())
    }

    /// Marks the stacks that the range totals refer to.
    pub fn mark_used(&self, used: &mut UsedStacks) {
        let ranges = self.spaces.values().flat_map(|space| space.ranges.iter());
        for (_, owner) in ranges {
            used.insert(owner.stack);
        }
    }

    /// Removes a stack that the probe has freed.
    pub fn forget_stack(&mut self, id: StackId) {
        self.stacks.remove(id);
    }

    /// Stops following a process that continues without memprof. Returns the address space that was its own.
    pub fn forget(&mut self, pid: Pid, probe: &Probe) -> Option<MmId> {
        let found = self.spaces.iter().find(|(_, s)| s.pid == pid);
        let mm = found.map(|(mm, _)| *mm);
        if let Some(mm) = mm {
            self.end(mm, pid, probe);
        }
        mm
    }

    fn stack(&mut self, seen: &StackSeen) {
        // Also if the address space has ended: another process may have the same stack.
        let code = self.spaces.get_mut(&seen.mm).map(|space| &mut space.code);
        self.stacks.insert(seen.clone(), code, &mut self.modules);
    }

    fn process(&mut self, e: &ProcessEvent, probe: &Probe) {
        match e.change {
            ProcessChange::Found => {
                let mut space = Space::new(e.pid, &e.comm);
                // Pages that cannot be read now are shown as "not observed" later; nothing is lost.
                let _ = space.remember_before(&mut self.classifier);
                self.start(e.mm, space);
            }
            ProcessChange::Matched => self.start(e.mm, Space::new(e.pid, &e.comm)),
            // A vfork child is in its parent's address space: the totals are the parent's.
            ProcessChange::Forked { .. } if self.has(e.mm) => {}
            ProcessChange::Forked { parent_mm, .. } => {
                let space = match self.spaces.get(&parent_mm) {
                    Some(parent) => parent.forked(parent_mm, e.pid, &e.comm),
                    None => Space::new(e.pid, &e.comm),
                };
                self.start(e.mm, space);
            }
            ProcessChange::Execed { left } => {
                self.end(left, e.pid, probe);
                self.start(e.mm, Space::new(e.pid, &e.comm));
            }
            ProcessChange::Exited { .. } => self.end(e.mm, e.pid, probe),
        }
    }

    fn start(&mut self, mm: MmId, mut space: Space) {
        // A vfork child has its parent's address space: the totals are the parent's.
        if self.has(mm) {
            return;
        }
        if self.reads_code_early {
            space.code.reload(&mut self.modules);
        }
        self.ancestry.begins(&space.ancestors);
        self.spaces.insert(mm, space);
    }

    fn end(&mut self, mm: MmId, pid: Pid, probe: &Probe) {
        let own = |space: &Space| space.pid == pid;
        if !self.spaces.get(&mm).is_some_and(own) {
            return;
        }
        if let Some(space) = self.spaces.remove(&mm) {
            for unneeded in self.ancestry.ends(mm, &space.ancestors) {
                probe.forget_space(unneeded);
            }
        }
    }

    fn range(&mut self, e: &RangeEvent) {
        if let Some(space) = self.spaces.get_mut(&e.mm) {
            space.apply(e);
        }
    }

    /// A lost address-space event can leave a wrong caller in the range totals: they are cleared.
    fn distrust_ranges(&mut self, probe: &Probe) {
        let lost = probe.ranges_lost();
        if lost != self.ranges_lost {
            self.ranges_lost = lost;
            for space in self.spaces.values_mut() {
                space.forget_ranges();
            }
        }
    }

    /// Resolves stack ids to stacks. All events up to the snapshot must have been applied: a stack's record is in the
    /// ledger at once, but its frames come through the ring buffer.
    pub fn profile(&mut self, snapshot: Snapshot, probe: &Probe) -> Profile {
        let first = snapshot.processes.first();
        let target = TargetInfo {
            pid: first.map_or(Pid(0), |p| p.pid),
            comm: first.map(|p| p.comm.clone()).unwrap_or_default(),
            pids: snapshot.processes.iter().map(|p| p.pid).collect(),
            alive: !self.spaces.is_empty(),
        };
        let (mut before, mut after) = (KernelFigures::default(), KernelFigures::default());
        for process in &snapshot.processes {
            before += process.before;
            after += process.after;
        }
        let processes = match snapshot.processes.len() {
            0 | 1 => Vec::new(),
            _ => self.shares(&snapshot),
        };
        let mut totals = snapshot.beside;
        let (files, other_files) = (std::mem::take(&mut totals.files), totals.other_files);
        let mut mappings = Vec::new();
        for process in snapshot.processes {
            mappings.extend(process.mappings());
            totals.merge(process.totals);
        }
        let places = self.places(mappings, files, other_files);
        let rows = self.rows(totals);
        Profile {
            taken: SystemTime::now(),
            target,
            samples: rows.samples,
            not_observed: rows.not_observed,
            total: rows.total,
            kernel_before: before,
            kernel_after: after,
            losses: self.losses(probe),
            modules: self.modules.modules(),
            places: Arc::new(places),
            processes,
            hold: FreezeOutcome::Ran,
            kernel_counted: probe.counts(Kind::Kernel),
        }
    }

    /// Each process's share. Page cache and kernel memory belong to the address space in which their stack was first
    /// seen.
    fn shares(&self, snapshot: &Snapshot) -> Vec<Share> {
        let mut beside: HashMap<MmId, Totals> = HashMap::new();
        for (&id, &usage) in &snapshot.beside.stacks {
            if let Some(mm) = self.stacks.seen_in(id) {
                beside.entry(mm).or_default().add_stack(id, usage);
            }
        }
        let share = |process: &Scanned| {
            let mut totals = beside.remove(&process.mm).unwrap_or_default();
            totals.merge(process.totals.clone());
            let rows = self.rows(totals);
            Share {
                pid: process.pid,
                comm: process.comm.clone(),
                samples: rows.samples,
                not_observed: rows.not_observed,
                total: rows.total,
                kernel_before: process.before,
                kernel_after: process.after,
                hold: process.hold.clone(),
            }
        };
        snapshot.processes.iter().map(share).collect()
    }

    fn rows(&self, totals: Totals) -> Rows {
        let mut rows = Rows::default();
        let mut unobserved = totals.unobserved;
        for (id, usage) in sorted(totals.stacks) {
            let Some(stack) = self.stacks.get(id) else {
                let key = (LOST_STACK.to_owned(), Unobserved::StackLost);
                *unobserved.entry(key).or_default() += usage;
                continue;
            };
            rows.total += usage;
            rows.samples.push(Sample {
                stack: Arc::clone(stack),
                usage,
            });
        }
        for ((mapping, reason), usage) in unobserved {
            rows.total += usage;
            rows.not_observed.push(NotObserved {
                mapping,
                reason,
                usage,
            });
        }
        rows
    }

    fn losses(&self, probe: &Probe) -> Losses {
        let mut losses = probe.losses();
        losses.add(
            "code mappings without a place in the module table",
            self.modules.refused(),
        );
        losses.add(
            "modules whose file could not be opened",
            self.modules.unopened(),
        );
        let forgotten = self.spaces.values().map(Space::forgotten).sum();
        losses.add("address ranges forgotten: range map full", forgotten);
        losses
    }

    fn places(
        &self,
        mappings: Vec<Mapping>,
        files: BTreeMap<FileId, HashMap<StackId, u64>>,
        other_files: u64,
    ) -> Places {
        let files = files.into_iter().map(|(id, stacks)| {
            let mut file = CachedFile {
                id,
                path: self.paths.get(id).cloned(),
                samples: Vec::with_capacity(stacks.len()),
                lost: 0,
            };
            for (id, cache) in sorted(stacks) {
                let usage = Usage {
                    cache,
                    ..Usage::default()
                };
                match self.stacks.get(id).map(Arc::clone) {
                    Some(stack) => file.samples.push(Sample { stack, usage }),
                    None => file.lost += cache,
                }
            }
            file
        });
        Places {
            mappings,
            files: files.collect(),
            other_files,
        }
    }
}

/// The memory of all followed processes, by stack id.
#[derive(Default)]
pub struct Snapshot {
    processes: Vec<Scanned>,
    /// Memory outside address spaces: page cache and kernel memory of all processes.
    beside: Totals,
}

/// Bytes by resolved owner, and their sum.
#[derive(Default)]
struct Rows {
    samples: Vec<Sample>,
    not_observed: Vec<NotObserved>,
    total: Usage,
}

/// Sorted by id, so that reports of the same state are identical.
fn sorted<T>(stacks: HashMap<StackId, T>) -> Vec<(StackId, T)> {
    let mut rows: Vec<_> = stacks.into_iter().collect();
    rows.sort_unstable_by_key(|(id, _)| *id);
    rows
}
