//! Events → books per stack, and the join with residency → [`Profile`].
//!
//! The aggregator keeps what the ring buffer said: stacks, processes, address ranges. What pages
//! there are it reads from the kernel when a report is asked for.

mod ancestry;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context, Result};

use self::ancestry::Ancestry;
use crate::event::{Event, MmId, Pid, ProcessChange, ProcessEvent, RangeEvent, StackId, StackSeen};
use crate::file_paths::FilePaths;
use crate::freeze::stands_still;
use crate::modules::{AddressMap, ModuleTable};
use crate::probe::Probe;
use crate::profile::{
    CachedFile, FileId, Hold, KernelFigures, LOST_STACK, Losses, MappedBytes, Mapping, Module,
    NotObserved, Places, Profile, Sample, Share, TargetInfo, Unobserved, Usage,
};
use crate::residency::{
    Classifier, Error as ScanError, Method, Scanner, Vma, figures, maps, page_size,
};
use crate::source::resident::{Join, SpaceView};
use crate::source::{Books, kernel_memory, page_cache};
use crate::space::Space;
use crate::stack::StackTable;

/// Everything known of the followed processes.
#[derive(Default)]
pub struct Aggregator {
    modules: ModuleTable,
    classifier: Classifier,
    stacks: StackTable,
    /// By address space; those that have ended are gone.
    spaces: BTreeMap<MmId, Space>,
    ancestry: Ancestry,
    paths: FilePaths,
    /// Address-space events lost when the range books were last trusted.
    ranges_lost: u64,
}

/// Files that code lies in, by [`ModuleId`](crate::profile::ModuleId).
type Files = Arc<[Arc<Module>]>;

/// Why there is no report.
#[derive(Debug)]
pub enum NoReport {
    /// No followed process is left.
    NoTarget,
    /// It failed; what was tried and why it failed.
    Failed(anyhow::Error),
}

impl Aggregator {
    /// Takes one event in. Events must come in the order in which they were emitted.
    pub fn apply(&mut self, event: &Event, probe: &Probe) {
        match event {
            Event::Stack(seen) => self.stack(seen),
            Event::Process(e) => self.process(e, probe),
            Event::Range(e) => self.range(e),
        }
    }

    /// The followed processes, in the order in which they were followed.
    pub fn pids(&self) -> Vec<Pid> {
        self.spaces.values().map(|s| s.pid).collect()
    }

    /// The followed processes and their address spaces.
    pub fn spaces(&self) -> impl Iterator<Item = (Pid, MmId)> + '_ {
        self.spaces.iter().map(|(mm, space)| (space.pid, *mm))
    }

    /// Whether an address space is followed.
    pub fn has(&self, mm: MmId) -> bool {
        self.spaces.contains_key(&mm)
    }

    /// The code that a process, followed or not, has mapped, and the files it lies in.
    ///
    /// # Errors
    /// The process is gone or may not be looked at.
    pub fn look_at_code(&mut self, pid: Pid) -> std::io::Result<(AddressMap, Files)> {
        let code = AddressMap::load(pid, &mut self.modules)?;
        Ok((code, self.modules.modules()))
    }

    /// Gives out the code mappings that changed since the last call.
    ///
    /// # Errors
    /// Those of `give`.
    pub fn changed_code(
        &mut self,
        mut give: impl FnMut(MmId, &AddressMap, &[Arc<Module>]) -> Result<()>,
    ) -> Result<()> {
        for (mm, space) in &mut self.spaces {
            if let Some(code) = space.code.changed(&mut self.modules) {
                give(*mm, code, &self.modules.modules())?;
            }
        }
        Ok(())
    }

    /// Has these address spaces' code given out again.
    pub fn republish(&mut self, mms: &[MmId]) {
        for mm in mms {
            if let Some(space) = self.spaces.get_mut(mm) {
                space.code.republish();
            }
        }
    }

    /// Forgets a process that goes on without memprof; the address space that was its own.
    pub fn forget(&mut self, pid: Pid, probe: &Probe) -> Option<MmId> {
        let found = self.spaces.iter().find(|(_, s)| s.pid == pid);
        let mm = found.map(|(mm, _)| *mm);
        if let Some(mm) = mm {
            self.end(mm, pid, probe);
        }
        mm
    }

    fn stack(&mut self, seen: &StackSeen) {
        // A space that ended meanwhile: its stacks own nothing that could be shown.
        if let Some(space) = self.spaces.get_mut(&seen.mm) {
            self.stacks
                .insert(seen.clone(), &mut space.code, &mut self.modules);
        }
    }

    fn process(&mut self, e: &ProcessEvent, probe: &Probe) {
        match e.change {
            ProcessChange::Found => {
                let mut space = Space::new(e.pid, &e.comm);
                // What cannot be read now is read as "not observed" later; nothing is lost.
                let _ = space.remember_before(&mut self.classifier);
                self.start(e.mm, space);
            }
            ProcessChange::Matched => self.start(e.mm, Space::new(e.pid, &e.comm)),
            // A vfork child is in its parent's address space: the books are the parent's.
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
            ProcessChange::Exited => self.end(e.mm, e.pid, probe),
        }
    }

    fn start(&mut self, mm: MmId, mut space: Space) {
        if self.has(mm) {
            return;
        }
        space.code.reload(&mut self.modules);
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

    /// After a lost address-space event the range books may name the wrong caller: start them anew.
    fn distrust_ranges(&mut self, probe: &Probe) {
        let lost = probe.ranges_lost();
        if lost != self.ranges_lost {
            self.ranges_lost = lost;
            for space in self.spaces.values_mut() {
                space.forget_ranges();
            }
        }
    }

    /// Scans every followed process and joins its pages with the ledger: bytes by stack id.
    ///
    /// # Errors
    /// [`NoReport::NoTarget`] if every process has ended, else what failed.
    pub fn tally(&mut self, probe: &Probe) -> Result<Tally, NoReport> {
        self.distrust_ranges(probe);
        let mut tally = Tally::default();
        let mms: Vec<MmId> = self.spaces.keys().copied().collect();
        for mm in mms {
            match self.scan(mm, probe) {
                Ok(scanned) => tally.processes.push(scanned),
                Err(e) if is_gone(&e) => {}
                Err(e) => return Err(NoReport::Failed(e)),
            }
        }
        if tally.processes.is_empty() {
            return Err(NoReport::NoTarget);
        }
        let cached = probe.cached_pages().map_err(NoReport::Failed)?;
        page_cache::collect(&cached, page_size(), &mut tally.beside);
        if let Some(pages) = probe.kernel_pages().map_err(NoReport::Failed)? {
            kernel_memory::collect(&pages, page_size(), &mut tally.beside);
            tally.kernel_counted = true;
        }
        let files: Vec<FileId> = tally.beside.files.keys().copied().collect();
        let pids: Vec<Pid> = tally.processes.iter().map(|p| p.pid).collect();
        self.paths.keep(&files, &pids);
        Ok(tally)
    }

    /// Scans one process.
    fn scan(&mut self, mm: MmId, probe: &Probe) -> Result<Scanned> {
        let space = self
            .spaces
            .get(&mm)
            .context("the process is no longer followed")?;
        let pid = space.pid;
        let mut scanner = Scanner::open(pid, Method::Auto)?;
        let mut before = figures::counters(pid)?;
        let vmas = maps::read(pid, &mut self.classifier)?;
        let rolled_up = figures::is_brief(&before, &vmas) || stands_still(pid);
        if rolled_up {
            before = figures::read(pid)?;
        }
        let view = SpaceView {
            mm,
            ancestors: &space.ancestors,
            ranges: &space.ranges,
            before: &space.before,
            page_size: scanner.page_size(),
        };
        let mut join = Join::new(probe, view);
        let mut books = Books::default();
        let mut bytes = vec![MappedBytes::default(); vmas.len()];
        let mut failed = None;
        let mut found = |index: usize, run| {
            if failed.is_none() {
                books.mapping = bytes[index];
                failed = join.add(&vmas[index], run, &mut books).err();
                bytes[index] = std::mem::take(&mut books.mapping);
            }
        };
        scanner.scan(&vmas, &mut found, &mut || ())?;
        if let Some(e) = failed {
            return Err(e.context("cannot read the page ledger"));
        }
        let mappings = vmas.iter().zip(bytes);
        let mappings = mappings.map(|(vma, bytes)| mapping(pid, vma, bytes));
        scanner.check_alive()?;
        self.paths.mapped(&vmas);
        Ok(Scanned {
            mm,
            pid,
            comm: space.comm.clone(),
            books,
            mappings: mappings.collect(),
            before,
            after: match rolled_up {
                true => figures::read(pid)?,
                false => figures::counters(pid)?,
            },
        })
    }

    /// Turns stack ids into stacks. The events that came up to the tally must have been taken in: a
    /// stack's record reaches the ledger at once, its frames come through the ring buffer.
    pub fn profile(&mut self, tally: Tally, probe: &Probe) -> Profile {
        let first = tally.processes.first();
        let target = TargetInfo {
            pid: first.map_or(Pid(0), |p| p.pid),
            comm: first.map(|p| p.comm.clone()).unwrap_or_default(),
            pids: tally.processes.iter().map(|p| p.pid).collect(),
            alive: !self.spaces.is_empty(),
        };
        let (mut before, mut after) = (KernelFigures::default(), KernelFigures::default());
        for process in &tally.processes {
            before += process.before;
            after += process.after;
        }
        let processes = match tally.processes.len() {
            0 | 1 => Vec::new(),
            _ => self.shares(&tally),
        };
        let mut books = tally.beside;
        let (files, other_files) = (std::mem::take(&mut books.files), books.other_files);
        let mut mappings = Vec::new();
        for process in tally.processes {
            books.merge(process.books);
            mappings.extend(process.mappings);
        }
        let places = self.places(mappings, files, other_files);
        let rows = self.rows(books);
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
            hold: Hold::Ran,
            kernel_counted: tally.kernel_counted,
        }
    }

    /// What each process has; page cache and kernel memory are his whose address space the stack was seen
    /// in.
    fn shares(&self, tally: &Tally) -> Vec<Share> {
        let mut beside: HashMap<MmId, Books> = HashMap::new();
        for (&id, &usage) in &tally.beside.stacks {
            if let Some(mm) = self.stacks.seen_in(id) {
                beside.entry(mm).or_default().add_stack(id, usage);
            }
        }
        let share = |process: &Scanned| {
            let mut books = beside.remove(&process.mm).unwrap_or_default();
            books.merge(process.books.clone());
            let rows = self.rows(books);
            Share {
                pid: process.pid,
                comm: process.comm.clone(),
                samples: rows.samples,
                not_observed: rows.not_observed,
                total: rows.total,
                kernel_before: process.before,
                kernel_after: process.after,
            }
        };
        tally.processes.iter().map(share).collect()
    }

    fn rows(&self, books: Books) -> Rows {
        let mut rows = Rows::default();
        let mut unobserved = books.unobserved;
        for (id, usage) in sorted(books.stacks) {
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
        losses.add("address ranges forgotten: range books full", forgotten);
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

/// The memory of every followed process, by stack id.
#[derive(Default)]
pub struct Tally {
    processes: Vec<Scanned>,
    /// What lies in no address space: page cache and kernel memory, over all of them.
    beside: Books,
    kernel_counted: bool,
}

/// One process, scanned.
struct Scanned {
    mm: MmId,
    pid: Pid,
    comm: String,
    books: Books,
    mappings: Vec<Mapping>,
    before: KernelFigures,
    after: KernelFigures,
}

/// Bytes with names for their owners, and their sum.
#[derive(Default)]
struct Rows {
    samples: Vec<Sample>,
    not_observed: Vec<NotObserved>,
    total: Usage,
}

/// In order of id, so that a report of the same state is the same report.
fn sorted<T>(stacks: HashMap<StackId, T>) -> Vec<(StackId, T)> {
    let mut rows: Vec<_> = stacks.into_iter().collect();
    rows.sort_unstable_by_key(|(id, _)| *id);
    rows
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

fn is_gone(e: &anyhow::Error) -> bool {
    e.downcast_ref::<ScanError>()
        .is_some_and(ScanError::is_gone)
}
