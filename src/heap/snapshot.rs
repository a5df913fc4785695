//! Taking the snapshot: the process is stopped, its private memory is copied, and it continues.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::memory::{Memory, RANGES, Run};
use crate::event::Pid;
use crate::freeze::{Frozen, Registers};
use crate::residency::proc_maps::Foreseen;
use crate::residency::{Classifier, Method, PageKind, PageRun, Scanner, Vma};

/// Share of memory that may come in between the first look and the stop without page faults of the copy: one of this.
const GROWTH: u64 = 16;

/// A process at one moment.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// Its mappings, by address.
    pub vmas: Vec<Vma>,
    /// Its private memory.
    pub memory: Memory,
    /// The registers of its threads.
    pub threads: Vec<Registers>,
    /// The time for which it was stopped.
    pub stop: Duration,
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

/// Takes a snapshot: stops the process for `max` at most.
///
/// # Errors
/// The process has ended, may not be read, or could not be stopped and copied in time; it runs.
pub(crate) fn take(pid: Pid, max: Duration) -> Result<Snapshot> {
    let mut classifier = Classifier::new();
    let mut scanner = Scanner::open(pid, Method::Auto)?;
    let foreseen = Foreseen::read(pid, &mut classifier)?;
    let expected = pages(&mut scanner, foreseen.vmas())?;
    let expected: u64 = expected.readable.iter().map(Run::len).sum();
    let mut memory = Memory::with_room(expected + expected / GROWTH)
        .with_context(|| format!("there is no memory for a copy of {} MiB", expected >> 20))?;
    let mut frozen = Frozen::stop(&[pid], max)?;
    let copied = copy(
        pid,
        &mut frozen,
        scanner,
        foreseen,
        &mut classifier,
        &mut memory,
    );
    let in_time = frozen.is_frozen();
    let stats = frozen.release();
    let (vmas, pages, threads) = copied.with_context(|| {
        format!(
            "process {pid} was stopped for {:.1} ms and runs again",
            stats.duration.as_secs_f64() * 1e3
        )
    })?;
    if !in_time {
        bail!(
            "process {pid} was stopped for {} ms, the limit, which was not enough to copy {} MiB; --max-stop sets \
             another limit",
            max.as_millis(),
            memory.len() >> 20
        );
    }
    Ok(Snapshot {
        vmas,
        memory,
        threads,
        stop: stats.duration,
        pages,
    })
}

type Copied = (Vec<Vma>, Pages, Vec<Registers>);

/// What is done while the process is stopped.
fn copy(
    pid: Pid,
    frozen: &mut Frozen,
    mut scanner: Scanner,
    foreseen: Foreseen,
    classifier: &mut Classifier,
    memory: &mut Memory,
) -> Result<Copied> {
    let end = frozen.deadline();
    scanner.hurry(end);
    let threads = frozen.registers()?;
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
    Ok((vmas, pages, threads))
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
            stop: Duration::ZERO,
        }
    }
}
