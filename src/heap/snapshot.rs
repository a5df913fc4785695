//! Taking the snapshot: the process's private memory, as it was at one moment, is copied.
//!
//! A process is forked if that is possible: it is stopped until the child exists, and the copy is made from the child
//! (`freeze::fork`). Otherwise, and for small processes, it is stopped until the copy is made.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use clap::ValueEnum;
use serde::Serialize;

use super::headroom::Headroom;
use super::memory::{Memory, RANGES, Run};
use crate::event::Pid;
use crate::freeze::{Fork, ForkError, Frozen, Guard, Registers, now_ns};
use crate::residency::proc_maps::Foreseen;
use crate::residency::{
    Classifier, Method, PageKind, PageRun, Scanner, Vma, figures, page_size, readable,
};

/// Share of memory that may come in between the first look and the stop without page faults of the copy: one of this.
const GROWTH: u64 = 16;
/// Up to this many bytes of anonymous memory, stopping and copying takes no longer than forking.
const SMALL: u64 = 16 << 20;
/// What forking takes, in ns for each page of anonymous memory: twice what was measured with pages of 4 KiB.
const FORK_NS: u64 = 150;

/// How a snapshot is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Approach {
    /// Fork where that is possible and the process is not small, else copy
    #[default]
    Auto,
    /// Stop the process until it has made a copy-on-write child, and copy the child's memory
    Fork,
    /// Stop the process until its memory is copied
    Copy,
}

/// How a snapshot is taken, and for how long the process may be stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotOptions {
    /// How it is taken.
    pub approach: Approach,
    /// Maximum time for which the process is stopped, all stops together. The thread by which a process is forked may be stopped
    /// for longer.
    pub max_stop: Duration,
    /// What sets that limit, for messages.
    pub limit: &'static str,
}

/// How a snapshot was taken.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Taken {
    /// By which approach: forked or copied.
    pub approach: Approach,
    /// The time for which the process was stopped, in milliseconds.
    pub stop_ms: f64,
    /// The time for which one of its threads was stopped afterwards, so that nothing remains, in milliseconds.
    pub second_stop_ms: f64,
    /// The time for which the process or one of its threads was stopped in all, in milliseconds: by attempts that failed, too.
    pub stops_ms: f64,
    /// Why it was not forked, although it is not small.
    pub not_forked: Option<String>,
    /// What is left of the child in the list of processes, and until when.
    pub remains: Option<String>,
}

impl Default for Taken {
    /// Of one that is made up.
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

/// A process at one moment.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// Its mappings, by address.
    pub vmas: Vec<Vma>,
    /// Its private memory.
    pub memory: Memory,
    /// The registers of its threads.
    pub threads: Vec<Registers>,
    /// How the snapshot was taken.
    pub taken: Taken,
    /// The moment, in ns of `CLOCK_MONOTONIC`.
    pub at: u64,
    /// Its anonymous pages.
    pub pages: Pages,
}

/// The anonymous pages of a process, in memory or swapped out, by address.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    /// Those in readable mappings.
    pub readable: Vec<Run>,
    /// The others, which are not copied.
    pub hidden: Vec<Run>,
}

/// Takes a snapshot; the guard stops the process. `stopped` is the time for which that was done before for the same purpose,
/// and which the options limit.
///
/// # Errors
/// The process has ended, may not be read, or could not be stopped and copied in time; it runs.
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
    let (anonymous, headroom) = check_room(pid)?;
    let not_forked = match options.approach {
        Approach::Copy => None,
        Approach::Auto if anonymous <= SMALL => None,
        approach => match headroom
            .refuses_fork(anonymous)
            .or_else(|| takes_too_long(anonymous, options))
            .map_or_else(|| forked(pid, options, guard, stopped), Err)
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
    match (from_stopped(pid, options, guard, stopped), not_forked) {
        (Ok(mut snapshot), not_forked) => {
            snapshot.taken.not_forked = not_forked;
            Ok(snapshot)
        }
        (Err(e), Some(reason)) => Err(e.context(format!("it was not forked: {reason}"))),
        (Err(e), None) => Err(e),
    }
}

/// Why a process with so many bytes of anonymous memory is not forked, if it is too large and nobody told memprof to.
fn takes_too_long(anonymous: u64, options: &SnapshotOptions) -> Option<String> {
    let expected = Duration::from_nanos(anonymous / page_size() * FORK_NS);
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

/// Checks that memprof has room for a copy. Returns how many bytes there are to copy, and what room there is.
fn check_room(pid: Pid) -> Result<(u64, Headroom)> {
    let anonymous = figures::rollup(pid)?.anonymous + figures::counters(pid)?.swap;
    let headroom = Headroom::of(pid);
    match headroom.refuses_copy(anonymous) {
        Some(reason) => Err(anyhow!(reason)).context("there is no memory for a snapshot"),
        None => Ok((anonymous, headroom)),
    }
}

/// Copies the memory of a process that is about to exit and is stopped, with the registers of its last thread.
///
/// # Errors
/// It may not be read, or there is no memory for the copy.
pub(crate) fn take_exiting(pid: Pid, registers: Option<Registers>) -> Result<Snapshot> {
    check_room(pid)?;
    let (begun, at) = (Instant::now(), now_ns());
    let (vmas, pages, memory) = copy_of(pid).context("its memory cannot be copied")?;
    Ok(Snapshot {
        vmas,
        memory,
        threads: registers.into_iter().collect(),
        pages,
        at,
        taken: Taken {
            stop_ms: ms(begun.elapsed()),
            stops_ms: ms(begun.elapsed()),
            ..Taken::default()
        },
    })
}

/// Forks a process and copies the child's memory. The outer error says why the process was not forked.
fn forked(
    pid: Pid,
    options: &SnapshotOptions,
    guard: &mut Guard,
    stopped: &mut Duration,
) -> Result<Result<Snapshot>, String> {
    match Fork::of(guard, pid, options.max_stop.saturating_sub(*stopped)) {
        Ok(fork) => {
            *stopped += fork.stop;
            Ok(from_child(fork, stopped))
        }
        Err(ForkError { reason, stop }) => {
            *stopped += stop;
            Err(reason)
        }
    }
}

/// Copies the memory of a child.
fn from_child(mut fork: Fork<'_>, stopped: &mut Duration) -> Result<Snapshot> {
    let copied = copy_of(fork.child);
    let (vmas, pages, memory) =
        copied.context("the memory of its copy-on-write child cannot be copied")?;
    let (threads, stop_ms) = (std::mem::take(&mut fork.threads), ms(fork.stop));
    let (at, removed) = (fork.at, fork.end());
    *stopped += removed.stop;
    Ok(Snapshot {
        vmas,
        memory,
        threads,
        pages,
        at,
        taken: Taken {
            approach: Approach::Fork,
            stop_ms,
            second_stop_ms: ms(removed.stop),
            remains: removed.remains,
            ..Taken::default()
        },
    })
}

/// Copies the memory of a process that stands still for as long as that takes.
fn copy_of(pid: Pid) -> Result<(Vec<Vma>, Pages, Memory)> {
    let mut scanner = Scanner::open(pid, Method::Auto)?;
    let vmas = Foreseen::read(pid, &mut Classifier::new())?.into_vmas();
    let pages = pages(&mut scanner, &vmas)?;
    let mut memory = Memory::with_room(pages.readable.iter().map(Run::len).sum())?;
    for some in pages.readable.chunks(RANGES) {
        memory.copy(pid, some)?;
    }
    Ok((vmas, pages, memory))
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Stops the process for the time that the options permit at most, and copies its memory.
fn from_stopped(
    pid: Pid,
    options: &SnapshotOptions,
    guard: &mut Guard,
    stopped: &mut Duration,
) -> Result<Snapshot> {
    let mut classifier = Classifier::new();
    let mut scanner = Scanner::open(pid, Method::Auto)?;
    let foreseen = Foreseen::read(pid, &mut classifier)?;
    let expected = pages(&mut scanner, foreseen.vmas())?;
    let expected: u64 = expected.readable.iter().map(Run::len).sum();
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
    let (vmas, pages, at) = copied
        .with_context(|| format!("process {pid} was stopped for {stop_ms:.1} ms and runs again"))?;
    if !in_time && stats.duration < left {
        bail!(
            "memprof was stopped itself while it held process {pid}, which was let go after {stop_ms:.1} ms: take the snapshot again"
        );
    }
    if !in_time {
        bail!(
            "process {pid} was stopped for {} ms, the limit, which was not enough to copy {} MiB; {} sets \
             another limit",
            left.as_millis(),
            memory.len() >> 20,
            options.limit
        );
    }
    Ok(Snapshot {
        vmas,
        memory,
        threads,
        pages,
        at,
        taken: Taken {
            stop_ms,
            ..Taken::default()
        },
    })
}

type Copied = (Vec<Vma>, Pages, u64);

/// What is done while the process is stopped.
fn copy(
    pid: Pid,
    frozen: &Frozen<'_>,
    mut scanner: Scanner,
    foreseen: Foreseen,
    classifier: &mut Classifier,
    memory: &mut Memory,
) -> Result<Copied> {
    let end = frozen.deadline();
    scanner.hurry(end);
    let at = now_ns();
    let vmas = foreseen.read_again(classifier)?;
    let pages = pages(&mut scanner, &vmas)?;
    for some in pages.readable.chunks(RANGES) {
        if Instant::now() >= end {
            break;
        }
        memory
            .copy(pid, some)
            .context("its memory cannot be copied")?;
    }
    Ok((vmas, pages, at))
}

fn pages(scanner: &mut Scanner, vmas: &[Vma]) -> Result<Pages> {
    let mut pages = Pages::default();
    let mut found = |vma: usize, run: PageRun| {
        let resident = match run.kind {
            PageKind::Anon => true,
            PageKind::Swap => false,
            _ => return,
        };
        let list = match vmas[vma].perms.read {
            true => &mut pages.readable,
            false => &mut pages.hidden,
        };
        list.push(Run {
            start: run.start.0,
            end: run.end.0,
            resident,
        });
    };
    scanner.scan(vmas, &mut found, &mut || ())?;
    Ok(pages)
}

impl Snapshot {
    /// One that is made up.
    pub(crate) fn of(vmas: Vec<Vma>, memory: Memory, threads: Vec<Registers>) -> Snapshot {
        let parts = vmas.iter().map(|vma| Run {
            start: vma.start.0,
            end: vma.end.0,
            resident: true,
        });
        Snapshot {
            pages: Pages {
                readable: parts.collect(),
                hidden: Vec::new(),
            },
            vmas,
            memory,
            threads,
            taken: Taken::default(),
            at: 0,
        }
    }
}
