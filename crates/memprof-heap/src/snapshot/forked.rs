//! Copies the memory of a forked child, and the parent's memory that the child does not inherit. The latter is copied
//! while both are stopped.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::inventory::Inventory;
use super::{Approach, Copied, GROWTH, Pages, Snapshot, Taken, fork_time, ms, pages};
use crate::memory::{Memory, Run};
use crate::whole::{Anonymous, Disturbed, Missing, MissingKind};
use memprof_sys::freeze::{Fork, is_killed};
use memprof_sys::ids::{Addr, Pid};
use memprof_sys::residency::proc_maps::{self, MapsSnapshot};
use memprof_sys::residency::{Classifier, Error, Method, Scanner, Vma, figures, page_size};

/// Assumed cost of copying, in ns per page: twice the cost measured for resident destination memory.
const COPY_NS: u64 = 2_400;

/// State prepared for copying memory that a child does not inherit.
pub(super) struct KeptBack {
    pid: Pid,
    classifier: Classifier,
    scanner: Scanner,
    foreseen: MapsSnapshot,
    memory: Memory,
}

impl KeptBack {
    /// Prepares for a running process. `None` if a child inherits everything, or if the rest cannot be copied in
    /// time. The guard reserves up to a quarter of `max_stop` for removing the child.
    ///
    /// # Errors
    /// The process may not be read, or there is not enough memory for the copy.
    pub(super) fn prepare(
        pid: Pid,
        before: &Inventory,
        max_stop: Duration,
    ) -> Result<Option<KeptBack>> {
        let bytes = before.bytes_kept_back();
        let copying = Duration::from_nanos(bytes / page_size() * COPY_NS);
        if bytes == 0 || fork_time(before) + copying > max_stop * 3 / 4 {
            return Ok(None);
        }
        let mut classifier = Classifier::new();
        Ok(Some(KeptBack {
            pid,
            scanner: Scanner::open(pid, Method::Auto)?,
            foreseen: MapsSnapshot::read(pid, &mut classifier)?,
            classifier,
            memory: Memory::with_room(bytes + bytes / GROWTH)?,
        }))
    }

    /// Copies the memory from the process, which is stopped until `end`. Returns all mappings of the process, and the bytes that a
    /// child does not have and that it has as zeroes.
    fn copy(mut self, child: Pid, before: &Inventory, end: Instant) -> Result<(Copied, [u64; 2])> {
        self.scanner.hurry(end);
        let vmas = self.foreseen.read_again(&mut self.classifier)?;
        let inherited = proc_maps::starts(child)?;
        let inherited: HashSet<u64> = inherited.into_iter().collect();
        let is_kept =
            |vma: &&Vma| !inherited.contains(&vma.start.0) || before.is_wiped(vma.start.0);
        let kept: Vec<Vma> = vmas.iter().filter(is_kept).cloned().collect();
        let pages = pages(&mut self.scanner, &kept)?;
        pages.copy(self.pid, &mut self.memory, Some(end))?;
        let mut bytes = [0, 0];
        for run in pages.readable.iter().chain(&pages.hugetlb) {
            bytes[usize::from(before.is_wiped(run.start))] += run.len();
        }
        Ok(((vmas, pages, self.memory), bytes))
    }
}

/// Copies the memory of a child, and the memory that it does not inherit.
///
/// # Errors
/// [`Disturbed`] if the child was killed or could not be read in time; otherwise the child may not be read, or there
/// is not enough memory for the copy.
pub(super) fn copy(
    pid: Pid,
    mut fork: Fork<'_>,
    kept_back: Option<KeptBack>,
    before: &Inventory,
    stopped: &mut Duration,
) -> Result<Snapshot> {
    let kept = kept_back.map(|kept| kept.copy(fork.child, before, fork.held_until));
    let in_time = fork.release();
    *stopped += fork.stop;
    let kept = kept.and_then(Result::ok).filter(|_| in_time);
    let has_kept = kept.is_some();
    let (kept, kept_back) = kept.unzip();
    let (copied, child) = match copy_child(fork.child, kept) {
        Ok(copied) => copied,
        Err(e) => {
            let why = why_not(fork.child, e);
            *stopped += fork.end().stop;
            return Err(why);
        }
    };
    let after = Inventory::read(pid)?;
    let taken = Taken {
        approach: Approach::Fork,
        stop_ms: ms(fork.stop),
        ..Taken::default()
    };
    let threads = std::mem::take(&mut fork.threads);
    let mut snapshot = Snapshot::whole(copied, threads, fork.at, taken);
    snapshot.kept_back = kept_back.unwrap_or_default();
    snapshot.lacks([before, &child, &after], has_kept);
    snapshot.kernel.before = before.anonymous;
    snapshot.kernel.at_stop = fork.anonymous.map(Anonymous::from);
    snapshot.kernel.after = after.anonymous;
    let removed = fork.end();
    *stopped += removed.stop;
    snapshot.taken.second_stop_ms = ms(removed.stop);
    snapshot.taken.remains = removed.remains;
    Ok(snapshot)
}

/// Why a child's memory cannot be copied.
fn why_not(child: Pid, error: anyhow::Error) -> anyhow::Error {
    if is_gone(child) {
        return Disturbed::ChildKilled.into();
    }
    match Error::is_held(&error) {
        true => Disturbed::ChildHeld.into(),
        false => error.context("the memory of its copy-on-write child cannot be copied"),
    }
}

/// Whether a child has ended or is about to. It never exits by itself.
fn is_gone(child: Pid) -> bool {
    is_killed(child.0.cast_signed()) || figures::counters(child).is_err()
}

/// Copies the memory of a child into the copy that already contains its parent's memory, if any.
fn copy_child(child: Pid, kept: Option<Copied>) -> Result<(Copied, Inventory)> {
    let inventory = Inventory::read(child)?;
    let mut scanner = Scanner::open(child, Method::Auto)?;
    let (vmas, kept, mut memory) = match kept {
        Some(kept) => kept,
        None => {
            let vmas = MapsSnapshot::read(child, &mut Classifier::new())?.into_vmas();
            (vmas, Pages::default(), Memory::default())
        }
    };
    let mut pages = pages(&mut scanner, &vmas)?;
    memory.make_room(pages.copied())?;
    pages.copy(child, &mut memory, None)?;
    pages.join(kept);
    Ok(((vmas, pages, memory), inventory))
}

impl Pages {
    /// Adds further pages. Of runs that overlap, only one is retained.
    fn join(&mut self, others: Pages) {
        let join = |all: &mut Vec<Run>, others: Vec<Run>| {
            all.extend(others);
            all.sort_by_key(|run| run.start);
            all.dedup_by(|run, before| run.start < before.end);
        };
        join(&mut self.readable, others.readable);
        join(&mut self.hidden, others.hidden);
        join(&mut self.hugetlb, others.hugetlb);
        if let (Some(huge), Some(others)) = (&mut self.huge, others.huge) {
            join(huge, others);
        }
    }
}

impl Snapshot {
    /// Records memory that the child did not inherit and that was not copied otherwise, from the inventories of the
    /// process before the fork, of the child, and of the process after the fork.
    fn lacks(&mut self, [before, child, after]: [&Inventory; 3], has_kept: bool) {
        let mut bytes = [0, 0];
        if !has_kept {
            for kept in &before.kept_back {
                bytes[usize::from(kept.is_wiped)] += kept.bytes;
            }
        }
        // Memory that was not marked (`MADV_DONTFORK`, `MADV_WIPEONFORK`) before.
        let known = |start: u64| before.kept_back.iter().any(|kept| kept.start == start);
        for kept in after.kept_back.iter().filter(|kept| !known(kept.start)) {
            let is_there = self.vmas.iter().any(|vma| vma.contains(Addr(kept.start)));
            let lacks = match kept.is_wiped {
                true => child.is_wiped(kept.start),
                false => !has_kept && !is_there,
            };
            if lacks && kept.bytes > 0 {
                bytes[usize::from(kept.is_wiped)] += kept.bytes;
                self.unforeseen = true;
            }
        }
        for (kind, bytes) in [MissingKind::NotForked, MissingKind::Wiped]
            .into_iter()
            .zip(bytes)
            .filter(|(_, bytes)| *bytes > 0)
        {
            self.missing.push(Missing { kind, bytes });
        }
    }
}
