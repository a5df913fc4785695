//! Takes a snapshot: a copy of a process's private memory at one moment.
//!
//! If possible, the process is forked: it is stopped until the child exists, and the copy is made from the child
//! (`memprof_sys::freeze::fork`, `forked`). Otherwise, and if it is small, the process is stopped until the copy is
//! complete.

mod forked;
mod inventory;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use schemars::JsonSchema;
use serde::Serialize;

use self::forked::KeptBack;
use self::inventory::Inventory;
use super::headroom::Headroom;
use super::memory::{Memory, Run};
use super::whole::{Agreement, Anonymous, KernelSums, Missing, MissingKind};
use memprof_sys::freeze::{self, Fork, ForkError, Frozen, Guard, Registers, now_ns};
use memprof_sys::ids::Pid;
use memprof_sys::residency::proc_maps::MapsSnapshot;
use memprof_sys::residency::{
    Classifier, Error, Method, PageKind, PageRun, Perms, Scanner, Vma, page_size, readable,
};

/// Reserve for memory that the process adds between the first scan and the stop: 1/`GROWTH` of its memory. The copy
/// of that much causes no page faults.
const GROWTH: u64 = 16;
/// Up to this many bytes of anonymous memory, stopping and copying takes no longer than forking.
const SMALL: u64 = 16 << 20;
/// Assumed cost of forking, in ns per page of anonymous memory: twice the cost measured with pages of 4 KiB.
const FORK_NS: u64 = 150;

/// How a snapshot is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "HeapApproach")]
pub enum Approach {
    /// Fork where that is possible and the process is not small, else copy
    #[default]
    Auto,
    /// Stop the process until it has made a copy-on-write child, and copy the child's memory
    Fork,
    /// Stop the process until its memory is copied
    Copy,
    /// Read the memory from a core
    Core,
}

/// How a snapshot is taken, and for how long the process may be stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotOptions {
    /// The approach.
    pub approach: Approach,
    /// Maximum total time for which the process is stopped. The thread that forks may be stopped for longer.
    pub max_stop: Duration,
    /// The option or setting that determines `max_stop`, for messages.
    pub limit: &'static str,
}

/// How a snapshot was taken.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
#[schemars(rename = "HeapTaken")]
pub struct Taken {
    /// The approach that was used: `Fork`, `Copy` or `Core`.
    pub approach: Approach,
    /// Time for which the process was stopped, in milliseconds.
    pub stop_ms: f64,
    /// Time for which one of its threads was stopped afterwards to remove all traces of the fork, in milliseconds.
    pub second_stop_ms: f64,
    /// Total time for which the process or one of its threads was stopped, including failed attempts, in
    /// milliseconds.
    pub stops_ms: f64,
    /// Why the process was not forked, although it is not small.
    pub not_forked: Option<String>,
    /// What remains of the child in the list of processes, and until when.
    pub remains: Option<String>,
}

impl Default for Taken {
    /// For a synthetic snapshot.
    fn default() -> Taken {
        Taken {
            approach: Approach::Copy,
            stop_ms: 0.0,
            second_stop_ms: 0.0,
            stops_ms: 0.0,
            not_forked: None,
            remains: None,
        }
    }
}

/// A process's private memory and registers at one moment.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// The mappings, by address.
    pub vmas: Vec<Vma>,
    /// The copied private memory.
    pub memory: Memory,
    /// The registers of the threads.
    pub threads: Vec<Registers>,
    /// How the snapshot was taken.
    pub taken: Taken,
    /// The moment, in ns of `CLOCK_MONOTONIC`.
    pub at: u64,
    /// The private pages.
    pub pages: Pages,
    /// Pages that contain only zeroes and are not in `memory`: a core has no bytes of them.
    pub zeroes: Vec<Run>,
    /// Bytes that were read from the stopped process, because its child does not have them, or has zeroes instead.
    pub kept_back: [u64; 2],
    /// The kernel's figures for the anonymous memory.
    pub kernel: KernelSums,
    /// Private memory that is not in the snapshot.
    pub missing: Vec<Missing>,
    /// Whether memory is missing that another snapshot would contain.
    pub unforeseen: bool,
}

impl Snapshot {
    /// A snapshot that was read from a core.
    pub(crate) fn of_core(
        copied: (Vec<Vma>, Pages, Memory),
        threads: Vec<Registers>,
        missing: Vec<Missing>,
        zeroes: Vec<Run>,
    ) -> Snapshot {
        let taken = Taken {
            approach: Approach::Core,
            ..Taken::default()
        };
        Snapshot {
            missing,
            zeroes,
            ..Snapshot::whole(copied, threads, 0, taken)
        }
    }

    /// Whether the snapshot was read from a core, so that there are no figures of the kernel.
    fn is_of_core(&self) -> bool {
        self.taken.approach == Approach::Core
    }

    /// Compares the anonymous memory that was found with the kernel's figures.
    pub(crate) fn agreement(&self, found: Anonymous) -> Agreement {
        match self.is_of_core() {
            true => Agreement::NotCompared,
            false => self.kernel.agree(found),
        }
    }

    /// Why no chunk of the snapshot can be reported as unreachable; `None` if chunks can.
    pub(crate) fn doubt(&self, found: Anonymous) -> Option<String> {
        match self.is_of_core() && self.missing.is_empty() {
            true => None,
            false => self.kernel.doubt(found, &self.missing),
        }
    }
}

/// The private pages of a process, resident or swapped out, by address.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Pages {
    /// Anonymous pages in readable mappings.
    pub readable: Vec<Run>,
    /// All other anonymous pages, which are not copied.
    pub hidden: Vec<Run>,
    /// Huge pages of hugetlbfs in readable mappings, which the kernel does not count as anonymous memory.
    pub hugetlb: Vec<Run>,
    /// Pages of `readable` in transparent huge pages; `None` if the kernel does not say which they are.
    pub huge: Option<Vec<Run>>,
}

/// Takes a snapshot; `guard` stops the process. `stopped` is the total time for which the process was stopped so far,
/// including earlier attempts. The options limit it.
///
/// # Errors
/// The process has ended, may not be read, or could not be stopped and copied in time. It is no longer stopped.
pub(crate) fn take(
    pid: Pid,
    options: &SnapshotOptions,
    guard: &mut Guard,
    stopped: &mut Duration,
) -> Result<Snapshot> {
    let mut snapshot = take_one(pid, options, guard, stopped)?;
    snapshot.taken.stops_ms = ms(*stopped);
    Ok(snapshot)
}

fn take_one(
    pid: Pid,
    options: &SnapshotOptions,
    guard: &mut Guard,
    stopped: &mut Duration,
) -> Result<Snapshot> {
    readable(pid)?;
    let before = Inventory::read(pid)?;
    let headroom = check_room(pid, &before)?;
    let anonymous = before.anonymous.all();
    let not_forked = match options.approach {
        Approach::Copy => None,
        Approach::Auto if anonymous <= SMALL => None,
        approach => match headroom
            .refuses_fork(anonymous)
            .or_else(|| before.refuses_fork())
            .or_else(|| takes_too_long(&before, options))
            .map_or_else(|| forked(pid, &before, options, guard, stopped), Err)
        {
            Ok(copied) => return copied,
            Err(reason) if approach == Approach::Fork => {
                return Err(anyhow!(reason)).context(
                    "it is not forked; `--snapshot copy` stops it until its memory is copied",
                );
            }
            Err(reason) => Some(reason),
        },
    };
    match (
        from_stopped(pid, options, &before, guard, stopped),
        not_forked,
    ) {
        (Ok(mut snapshot), not_forked) => {
            snapshot.taken.not_forked = not_forked;
            Ok(snapshot)
        }
        (Err(e), Some(reason)) => Err(e.context(format!("it was not forked: {reason}"))),
        (Err(e), None) => Err(e),
    }
}

/// Forks a process and copies the child's memory. The outer error says why the process was not forked.
fn forked(
    pid: Pid,
    before: &Inventory,
    options: &SnapshotOptions,
    guard: &mut Guard,
    stopped: &mut Duration,
) -> Result<Result<Snapshot>, String> {
    let left = options.max_stop.saturating_sub(*stopped);
    let kept_back = KeptBack::prepare(pid, before, left).map_err(|e| format!("{e:#}"))?;
    match Fork::start(guard, pid, left, kept_back.is_some()) {
        Ok(fork) => Ok(forked::copy(pid, fork, kept_back, before, stopped)),
        Err(ForkError { reason, stop }) => {
            *stopped += stop;
            Err(reason)
        }
    }
}

/// Returns the reason if forking is expected to exceed the limit. Not checked if forking was requested explicitly.
fn takes_too_long(before: &Inventory, options: &SnapshotOptions) -> Option<String> {
    let expected = fork_time(before);
    let told = options.approach == Approach::Fork;
    (!told && expected > options.max_stop).then(|| {
        format!(
            "that may stop it for {} ms, and the limit is {} ms, set by {}",
            expected.as_millis(),
            options.max_stop.as_millis(),
            options.limit
        )
    })
}

/// Maximum expected time for which forking stops a process.
fn fork_time(process: &Inventory) -> Duration {
    Duration::from_nanos(process.anonymous.all() / page_size() * FORK_NS)
}

/// Checks that there is enough memory for a copy. Returns the available memory.
fn check_room(pid: Pid, process: &Inventory) -> Result<Headroom> {
    let headroom = Headroom::read(pid);
    match headroom.refuses_copy(process.anonymous.all() + process.hugetlb) {
        Some(reason) => Err(anyhow!(reason)).context("there is no memory for a snapshot"),
        None => Ok(headroom),
    }
}

/// Copies the memory of a process that is about to exit and is stopped. `registers` are those of its last thread.
///
/// # Errors
/// The process may not be read, or there is not enough memory for the copy.
pub(crate) fn take_exiting(pid: Pid, registers: Option<Registers>) -> Result<Snapshot> {
    let before = Inventory::read(pid)?;
    check_room(pid, &before)?;
    let (begun, at) = (Instant::now(), now_ns());
    let copied = copy_all(pid).context("its memory cannot be copied")?;
    let taken = Taken {
        stop_ms: ms(begun.elapsed()),
        stops_ms: ms(begun.elapsed()),
        ..Taken::default()
    };
    let at_stop = anonymous_now(pid);
    let threads = registers.into_iter().collect();
    Snapshot::whole(copied, threads, at, taken).compared(pid, &before, at_stop)
}

/// The kernel's current figures for the anonymous memory of a process, if they are exact.
fn anonymous_now(pid: Pid) -> Option<Anonymous> {
    freeze::anonymous(pid).map(Anonymous::from)
}

/// Mappings, their pages, and a copy of the pages.
type Copied = (Vec<Vma>, Pages, Memory);

/// Copies the memory of a process that stays stopped meanwhile.
fn copy_all(pid: Pid) -> Result<Copied> {
    let mut scanner = Scanner::open(pid, Method::Auto)?;
    let vmas = MapsSnapshot::read(pid, &mut Classifier::new())?.into_vmas();
    let pages = pages(&mut scanner, &vmas)?;
    let mut memory = Memory::with_room(pages.copied())?;
    pages.copy(pid, &mut memory, None)?;
    Ok((vmas, pages, memory))
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Stops the process for at most the time that the options permit, and copies its memory.
fn from_stopped(
    pid: Pid,
    options: &SnapshotOptions,
    before: &Inventory,
    guard: &mut Guard,
    stopped: &mut Duration,
) -> Result<Snapshot> {
    let mut classifier = Classifier::new();
    let mut scanner = Scanner::open(pid, Method::Auto)?;
    let foreseen = MapsSnapshot::read(pid, &mut classifier)?;
    let expected = pages(&mut scanner, foreseen.vmas())?.copied();
    let mut memory = Memory::with_room(expected + expected / GROWTH)
        .with_context(|| format!("there is no memory for a copy of {} MiB", expected >> 20))?;
    let left = options.max_stop.saturating_sub(*stopped);
    let frozen = Frozen::stop_with_registers(guard, &[pid], left);
    let frozen = frozen.inspect_err(|e| *stopped += e.stats.duration)?;
    let copied = copy(
        pid,
        &frozen,
        scanner,
        foreseen,
        &mut classifier,
        &mut memory,
    );
    let in_time = frozen.is_frozen();
    let (stats, threads) = frozen.release();
    *stopped += stats.duration;
    let stop_ms = ms(stats.duration);
    // Either clock may be the first at the limit: the guard's, or that of the copy.
    let copied = match copied {
        Err(e) if Error::is_time_up(&e) => None,
        copied => Some(copied.with_context(|| {
            format!("process {pid} was stopped for {stop_ms:.1} ms and runs again")
        })?),
    };
    if !in_time && stats.duration < left {
        bail!(
            "memprof was stopped itself while it held process {pid}, which was let go after {stop_ms:.1} ms: take the snapshot again"
        );
    }
    let Some((vmas, pages, at, at_stop)) = copied.filter(|_| in_time) else {
        bail!(
            "process {pid} was stopped for {} ms, the limit, which was not enough to copy {} MiB; {} sets \
             another limit",
            left.as_millis(),
            expected >> 20,
            options.limit
        );
    };
    let taken = Taken {
        stop_ms,
        ..Taken::default()
    };
    Snapshot::whole((vmas, pages, memory), threads, at, taken).compared(pid, before, at_stop)
}

/// Results of [`copy`]: mappings, pages, time of the copy in ns, and the kernel's figures for the anonymous memory.
type CopiedMemory = (Vec<Vma>, Pages, u64, Option<Anonymous>);

/// Copies the memory of the stopped process.
fn copy(
    pid: Pid,
    frozen: &Frozen<'_>,
    mut scanner: Scanner,
    foreseen: MapsSnapshot,
    classifier: &mut Classifier,
    memory: &mut Memory,
) -> Result<CopiedMemory> {
    let end = frozen.deadline();
    scanner.hurry(end);
    let at = now_ns();
    let vmas = foreseen.read_again(classifier)?;
    let pages = pages(&mut scanner, &vmas)?;
    let copied = pages.copy(pid, memory, Some(end));
    copied.context("its memory cannot be copied")?;
    Ok((vmas, pages, at, anonymous_now(pid)))
}

/// The private pages of these mappings.
fn pages(scanner: &mut Scanner, vmas: &[Vma]) -> Result<Pages> {
    let mut pages = Pages {
        huge: (scanner.method() == Method::Ioctl).then(Vec::new),
        ..Pages::default()
    };
    let mut found = |vma: usize, run: PageRun| {
        let Perms { read, shared, .. } = vmas[vma].perms;
        let huge = pages.huge.as_mut();
        let huge = huge.filter(|_| run.huge && run.kind == PageKind::Anon && read);
        let (resident, list) = match (run.kind, read) {
            (PageKind::Anon, true) => (true, &mut pages.readable),
            (PageKind::Anon, false) => (true, &mut pages.hidden),
            (PageKind::Swap, true) => (false, &mut pages.readable),
            (PageKind::Swap, false) => (false, &mut pages.hidden),
            (PageKind::Hugetlb, true) if !shared => (true, &mut pages.hugetlb),
            _ => return,
        };
        let run = Run {
            start: run.start.0,
            end: run.end.0,
            resident,
        };
        list.push(run);
        huge.into_iter().for_each(|huge| huge.push(run));
    };
    scanner.scan(vmas, &mut found, &mut || ())?;
    Ok(pages)
}

impl Pages {
    /// Bytes of the pages to copy.
    fn copied(&self) -> u64 {
        let runs = self.readable.iter().chain(&self.hugetlb);
        runs.map(Run::len).sum()
    }

    /// Copies the pages.
    ///
    /// # Errors
    /// [`Error::TimeUp`] at `end`; the process cannot be read, or there is not enough memory for the copy.
    fn copy(&self, pid: Pid, memory: &mut Memory, end: Option<Instant>) -> Result<()> {
        memory.copy(pid, &self.readable, end)?;
        memory.copy(pid, &self.hugetlb, end)?;
        memory.sort();
        Ok(())
    }
}

impl Snapshot {
    /// A snapshot that lacks only unreadable memory.
    fn whole(
        (vmas, pages, memory): Copied,
        threads: Vec<Registers>,
        at: u64,
        taken: Taken,
    ) -> Snapshot {
        let unread = Missing {
            kind: MissingKind::Unread,
            bytes: memory.unread(),
        };
        Snapshot {
            vmas,
            memory,
            threads,
            taken,
            at,
            pages,
            zeroes: Vec::new(),
            kept_back: [0; 2],
            kernel: KernelSums::default(),
            missing: Vec::from_iter((unread.bytes > 0).then_some(unread)),
            unforeseen: false,
        }
    }

    /// Adds the kernel's figures before, at and after the stop.
    fn compared(
        mut self,
        pid: Pid,
        before: &Inventory,
        at_stop: Option<Anonymous>,
    ) -> Result<Snapshot> {
        self.kernel = KernelSums {
            before: before.anonymous,
            at_stop,
            after: Inventory::read(pid)?.anonymous,
        };
        Ok(self)
    }

    /// A synthetic snapshot.
    pub(crate) fn synthetic(vmas: Vec<Vma>, memory: Memory, threads: Vec<Registers>) -> Snapshot {
        let parts = vmas.iter().map(|vma| Run {
            start: vma.start.0,
            end: vma.end.0,
            resident: true,
        });
        let pages = Pages {
            readable: parts.collect(),
            ..Pages::default()
        };
        Snapshot::whole((vmas, pages, memory), threads, 0, Taken::default())
    }
}
