//! Collects the state of the followed processes from events, and joins it with residency into a
//! [`Profile`](memprof_profile::Profile).
//!
//! The aggregator stores stacks, processes and address ranges from the ring buffer. For a report, it reads the resident pages from
//! the kernel (`pass.rs` and `scan.rs`; `frozen_scan.rs` for frozen processes), adds them up (`tally.rs`) and assembles the report
//! (`report.rs`).

mod allocations;
mod ancestry;
mod code_names;
mod ended_spaces;
mod frozen_scan;
mod gather;
mod other_samplers;
mod owners;
mod pass;
mod peak;
mod range_budget;
mod report;
mod sampled_heap;
mod scan;
mod tally;

pub use frozen_scan::{FrozenScan, Prepared};
pub use pass::{Recent, Unscanned};
pub use peak::{KnownAtPeak, counter_lag};
pub use report::{ReportError, Snapshot};
pub use sampled_heap::SampledHeap;
pub use scan::{FrozenScanError, Scanned, held_by};

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use self::ancestry::Ancestry;
use self::ended_spaces::EndedSpaces;
use self::other_samplers::OtherSamplers;
use crate::collect::file_paths::FilePaths;
use crate::collect::functions::FunctionTable;
use crate::collect::samples::Samples;
use crate::collect::space::{LastReport, Space};
use crate::collect::stack::StackTable;
use crate::probe::event::{Event, ProcessChange, ProcessEvent, StackSeen};
use crate::probe::{Probe, UsedStacks};
use memprof_code::jit::Problems;
use memprof_code::modules::{AddressMap, ModuleTable};
use memprof_profile::{Amounts, ModuleId, Peak};
use memprof_sys::ids::{MmId, Pid, StackId};
use memprof_sys::process::Container;
use memprof_sys::residency::{Classifier, ExitMemory, MapCounts, Method, Pages, Scanner, category};

/// The state of the followed processes.
#[derive(Default)]
pub struct Aggregator {
    /// Creation time: the target is followed since then.
    began: Option<Instant>,
    modules: ModuleTable,
    classifier: Classifier,
    stacks: StackTable,
    /// By address space; ended address spaces are removed.
    spaces: BTreeMap<MmId, Space>,
    ancestry: Ancestry,
    ended: EndedSpaces,
    /// The address space in which memprof starts its command, before `exec`.
    starting: Option<MmId>,
    paths: FilePaths,
    /// Whether to read a process's mappings when it starts: needed if frames arrive as addresses, not as positions in files.
    reads_code_early: bool,
    /// Number of interpreter frames that could not be merged into the native stack.
    unmerged: u64,
    /// The probe's count of lost address-space events at the last check of the range totals.
    ranges_lost: u64,
    /// Problems with the names of JIT code, of processes that have ended.
    name_problems: Problems,
    samples: Samples,
    /// The source of each page's number of mappings, if that is counted (`--pss`).
    map_counts: Option<MapCounts>,
    /// `map_counts` during a pass over several processes.
    pass_counts: Option<MapCounts>,
    /// During a pass for the peak of one process: the others' cheap counters suffice.
    counters_suffice: bool,
    /// Number of ranges of all processes together.
    held: range_budget::RangeBudget,
    /// End of the last pass over many processes.
    passed: Option<Instant>,
    /// The library that memprof preloads. It is identified by its path, so that it is recognised even in a process that ends before
    /// its mappings are read.
    preloaded: Option<PathBuf>,
    /// Other copies of memprof's library, for example in a running process to which the library was attached.
    samplers: BTreeSet<ModuleId>,
    other_samplers: OtherSamplers,
}

impl Aggregator {
    /// Creates an empty aggregator. `bound` is whether the probe sends frames as positions in files.
    pub fn new(bound: bool) -> Aggregator {
        Aggregator {
            began: Some(Instant::now()),
            reads_code_early: !bound,
            ..Aggregator::default()
        }
    }

    /// Applies one event. Events must be applied in the order in which they were emitted.
    pub fn apply(&mut self, event: &Event, probe: &Probe) {
        match event {
            Event::Stack(seen) => self.stack(seen),
            Event::Process(e) => self.process(e, probe),
            Event::Range(e) => self.change_range(e),
            Event::Function(seen) => {
                if let Some(space) = self.spaces.get_mut(&seen.mm) {
                    space.functions.insert(seen);
                }
            }
            // The unwind tables need `Code`; the collector handles the others.
            Event::Code(_) | Event::Mark(_) | Event::OomKill(_) | Event::Peak(_) => {}
            Event::Names(written) => self.names_written(written),
            Event::Allocation(sample) => {
                if self.spaces.contains_key(&sample.mm) {
                    self.sampled_allocation(sample);
                }
            }
            Event::Free(freed) => self.samples.freed(freed),
        }
    }

    /// Also counts proportional shares (PSS): a page that several processes share counts once in their sum.
    pub fn count_maps(&mut self, counts: MapCounts) {
        self.map_counts = Some(counts);
    }

    /// Prepares to scan a process.
    ///
    /// # Errors
    /// See [`Scanner::for_pages`].
    pub fn scanner(&self, pages: Pages) -> Result<Scanner, memprof_sys::residency::Error> {
        let counts = self.pass_counts.as_ref().or(self.map_counts.as_ref());
        let scanner = Scanner::for_pages(pages, Method::Auto)?;
        Ok(scanner.count_maps(counts.cloned()))
    }

    /// The followed processes, in the order in which they were followed.
    pub fn pids(&self) -> Vec<Pid> {
        self.spaces.values().map(|s| s.pid).collect()
    }

    /// Marks a followed process that will become memprof's command. Its activity before `exec` is memprof's own, so page cache and
    /// kernel memory of that time are not counted.
    pub fn starts_as(&mut self, pid: Pid) {
        let mut spaces = self.spaces.iter();
        self.starting = spaces.find(|(_, s)| s.pid == pid).map(|(mm, _)| *mm);
    }

    /// Whether memprof starts its command in this address space.
    pub fn is_starting(&self, mm: MmId) -> bool {
        self.starting == Some(mm)
    }

    /// Whether no process is followed but one that has not become memprof's command yet.
    pub fn only_starts(&self) -> bool {
        self.spaces.keys().all(|mm| self.is_starting(*mm))
    }

    /// Whether any process is followed.
    pub fn follows_any(&self) -> bool {
        !self.spaces.is_empty()
    }

    /// The followed address spaces and the process in each.
    pub fn spaces(&self) -> Vec<(MmId, Pid)> {
        self.spaces.iter().map(|(mm, s)| (*mm, s.pid)).collect()
    }

    /// The process that a followed address space belongs to.
    pub fn pid_of(&self, mm: MmId) -> Option<Pid> {
        self.spaces.get(&mm).map(|space| space.pid)
    }

    /// The name of the process in an address space, and its container at the last report. The name is empty if the process is not
    /// followed.
    pub fn name_and_place(&self, mm: MmId) -> (String, Option<Container>) {
        let known = self.spaces.get(&mm);
        known.map_or_else(Default::default, |space| {
            let last = space.last.as_ref();
            let container = last.and_then(|last| last.container.clone());
            (space.comm.clone(), container)
        })
    }

    /// The sampled allocations of the followed processes.
    pub fn samples_mut(&mut self) -> &mut Samples {
        &mut self.samples
    }

    /// Sets the library that memprof preloads. Stacks of samples are shown from the library's caller on.
    pub fn set_preloaded(&mut self, path: &Path) {
        self.preloaded = Some(path.to_owned());
    }

    /// Adds a module that is another copy of memprof's library. Returns whether it was not known.
    pub fn set_sampler(&mut self, module: ModuleId) -> bool {
        self.samplers.insert(module)
    }

    /// Whether a module is another copy of memprof's library.
    pub fn is_sampler(&self, module: ModuleId) -> bool {
        self.samplers.contains(&module)
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

    /// Checks whether an address space has code that was moved to other memory.
    pub fn look_for_moved_code(&mut self, mm: MmId) {
        if let Some(space) = self.spaces.get_mut(&mm) {
            space.code.look_for_moved_code(&mut self.modules);
        }
    }

    /// A followed process whose moved code the probe must be notified of again, with its mappings and the table of files.
    pub fn moved_code(&mut self) -> Option<(Pid, Arc<AddressMap>, &mut ModuleTable)> {
        let mut spaces = self.spaces.values_mut();
        let (pid, code) = spaces.find_map(|s| Some((s.pid, s.code.take_moved()?)))?;
        Some((pid, code, &mut self.modules))
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

    /// The table of files.
    pub fn modules_mut(&mut self) -> &mut ModuleTable {
        &mut self.modules
    }

    /// Keeps the memory of a followed process when it ends, for a last scan. The thread that keeps it calls `begin` first.
    ///
    /// # Errors
    /// If the process has ended, or the kernel refuses.
    pub fn keep(&mut self, mm: MmId, begin: fn()) -> Result<(), memprof_sys::residency::Error> {
        if let Some(space) = self.spaces.get_mut(&mm) {
            space.executable = category::executable(space.pid);
            space.kept = Some(Arc::new(ExitMemory::new(space.pid, begin)?));
        }
        Ok(())
    }

    /// Stops keeping memory of processes that end.
    pub fn let_go(&mut self) {
        for space in self.spaces.values_mut() {
            space.kept = None;
        }
    }

    /// Whether a thread that keeps memory takes processor time ([`ExitMemory::spins`]).
    pub fn keeping_spins(&self) -> bool {
        let mut kept = self.spaces.values().filter_map(|s| s.kept.as_ref());
        kept.any(|kept| kept.spins())
    }

    /// Records the size of the page tables, in bytes, of an ended process whose memory is kept.
    pub fn ended_with(&mut self, mm: MmId, page_tables: u64) {
        if let Some(space) = self.spaces.get_mut(&mm) {
            space.page_tables = page_tables;
        }
    }

    /// Records what is known of the peak of a process that ends, and its memory then, if that was scanned. `high_water` is in bytes.
    pub fn ended_at(&mut self, mm: MmId, high_water: Option<u64>, own: Option<(Peak, Amounts)>) {
        let observed = self.observed();
        let Some(space) = self.spaces.get_mut(&mm) else {
            return;
        };
        space.high_water = space.high_water.max(high_water);
        if let Some((peak, total)) = own {
            space.peak = Some(peak);
            // A short life may have no other scan.
            space.last.get_or_insert_with(|| LastReport {
                total,
                container: Container::for_process(space.pid),
                at: SystemTime::now(),
                observed,
            });
        }
    }

    /// Whether an address space came from another one by `fork`.
    pub fn is_forked(&self, mm: MmId) -> bool {
        let space = self.spaces.get(&mm);
        space.is_some_and(|space| !space.ancestors.is_empty())
    }

    /// The kernel's highest figures of the followed processes at their last scans, in bytes, by address space; 0 before the first.
    pub fn high_waters(&self) -> Vec<(MmId, Pid, u64)> {
        let all = self.spaces.iter();
        all.map(|(mm, space)| (*mm, space.pid, space.high_water.unwrap_or(0)))
            .collect()
    }

    /// The kernel's highest figure of a followed process at its last scan, in bytes.
    pub fn high_water(&self, mm: MmId) -> Option<u64> {
        self.spaces.get(&mm)?.high_water
    }

    /// Time for which the target has been followed.
    fn observed(&self) -> Duration {
        self.began.map(|began| began.elapsed()).unwrap_or_default()
    }

    /// Whether a process's memory will be kept when it ends.
    pub fn is_kept(&self, mm: MmId, pid: Pid) -> bool {
        let space = self.spaces.get(&mm);
        space.is_some_and(|space| space.pid == pid && space.kept.is_some())
    }

    /// Marks the stacks that ranges, scans and samples refer to.
    pub fn mark_used(&self, used: &mut UsedStacks) {
        let ranges = self.spaces.values().flat_map(|space| space.ranges.iter());
        for (_, owner) in ranges {
            used.insert(owner.stack);
        }
        let recent = self
            .spaces
            .values()
            .filter_map(|space| space.recent.as_ref());
        recent
            .flat_map(Recent::stacks)
            .for_each(|stack| used.insert(stack));
        self.samples.stacks().for_each(|stack| used.insert(stack));
    }

    /// Removes a stack that the probe has freed.
    pub fn forget_stack(&mut self, id: StackId) {
        self.stacks.remove(id);
    }

    /// Stops following a process that continues without memprof. Returns the process's own address space.
    pub fn forget(&mut self, pid: Pid, probe: &Probe) -> Option<MmId> {
        let found = self.spaces.iter().find(|(_, s)| s.pid == pid);
        let mm = found.map(|(mm, _)| *mm);
        if let Some(mm) = mm {
            let _ = self.end(mm, pid, probe);
        }
        mm
    }

    fn stack(&mut self, seen: &StackSeen) {
        // Inserted even if the address space has ended: another process may have the same stack.
        let none = FunctionTable::default();
        let (code, functions) = match self.spaces.get_mut(&seen.mm) {
            Some(space) => (Some(&mut space.code), &space.functions),
            None => (None, &none),
        };
        let unmerged = self
            .stacks
            .insert(seen.clone(), code, functions, &mut self.modules);
        self.unmerged += u64::from(unmerged);
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
                self.samples.forked(parent_mm, e.mm);
                self.start(e.mm, space);
            }
            ProcessChange::Execed { left } => {
                let _ = self.end(left, e.pid, probe);
                self.start(e.mm, Space::new(e.pid, &e.comm));
            }
            ProcessChange::Exited { .. } => {
                if let Some(space) = self.end(e.mm, e.pid, probe) {
                    self.ended.add(space);
                }
            }
        }
    }

    fn start(&mut self, mm: MmId, mut space: Space) {
        // A vfork child has its parent's address space: the totals are the parent's.
        if self.has(mm) {
            return;
        }
        self.modules.starts(space.pid, &space.comm);
        if self.reads_code_early {
            space.code.reload(&mut self.modules);
        }
        self.ancestry.begins(&space.ancestors);
        self.spaces.insert(mm, space);
        self.held.forget();
    }

    /// Removes an address space if it is this process's own.
    fn end(&mut self, mm: MmId, pid: Pid, probe: &Probe) -> Option<Space> {
        let own = |space: &Space| space.pid == pid;
        if !self.spaces.get(&mm).is_some_and(own) {
            return None;
        }
        // Reads the names that the process wrote at its end.
        self.read_names_of(mm);
        let space = self.spaces.remove(&mm)?;
        self.held.forget();
        probe.forget_functions(space.functions.all());
        self.samples.ended(mm);
        self.keep_name_problems(space.code.name_problems());
        for unneeded in self.ancestry.ends(mm, &space.ancestors) {
            probe.forget_space(unneeded);
        }
        Some(space)
    }

    /// Clears the range totals after a lost address-space event, which can leave a wrong caller in them.
    fn distrust_ranges(&mut self, probe: &Probe) {
        let lost = probe.ranges_lost();
        if lost != self.ranges_lost {
            self.ranges_lost = lost;
            for space in self.spaces.values_mut() {
                space.forget_ranges();
            }
        }
    }
}
