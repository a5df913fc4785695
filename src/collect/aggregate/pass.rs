//! A pass over all followed processes while they run. If they are few, each is scanned. If they are many (`--all`, `--cgroup`),
//! only processes that have changed since their last scan are scanned, as long as time permits. For the others, the last scan is
//! used again.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::Aggregator;
use super::scan::Scanned;
use crate::probe::Probe;
use memprof_sys::ids::{MmId, Pid, StackId};
use memprof_sys::kernel_figures::KernelFigures;
use memprof_sys::mmap_lock;
use memprof_sys::procfs::{Field, Stat};
use memprof_sys::residency::{Error as ScanError, MapCounts, Vma, figures};

/// Maximum number of followed processes for which each pass scans all of them.
const FEW: usize = 32;
/// Maximum age of a scan. An older scan is repeated whatever the kernel's counters show, because they miss some changes: pages that
/// became one huge page or several, pages that other processes began to share (PSS), and, before Linux 6.16, a few pages that came
/// or went.
const LONGEST: Duration = Duration::from_secs(30);
/// A pass takes at most 1/`SHARE` of the time since the last pass, but may always take `LEAST`.
const SHARE: u32 = 4;
const LEAST: Duration = Duration::from_millis(250);

/// The result of a pass.
#[derive(Default)]
pub struct Pass {
    /// The processes, in the order in which they were followed.
    pub scanned: Vec<Scanned>,
    /// The processes that could not be scanned.
    pub unscanned: Vec<Unscanned>,
    /// Number of entries of `scanned` from an earlier pass although the process has changed, because time was up.
    pub older: u64,
    /// Number of entries of `scanned` from an earlier pass because the process's mmap lock was held.
    pub held: u64,
}

/// A process that could not be scanned.
pub struct Unscanned {
    /// The process.
    pub pid: Pid,
    /// The reason.
    pub why: anyhow::Error,
}

/// The kernel's counters of a process. Changes of its pages change one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counted {
    figures: KernelFigures,
    /// Minor and major page faults, including those of ended threads, and the number of threads.
    faults: [u64; 3],
    /// Number of changes of its address space that the probe saw.
    changes: u64,
}

impl Counted {
    fn read(pid: Pid, changes: u64) -> Option<Counted> {
        let stat = Stat::read(pid).ok()?;
        Some(Counted {
            faults: [
                stat.number(Field::MinorFaults)?,
                stat.number(Field::MajorFaults)?,
                stat.number(Field::Threads)?,
            ],
            figures: figures::counters(pid).ok()?,
            changes,
        })
    }
}

/// The last scan of a process, if several are followed.
#[derive(Debug)]
pub struct Recent {
    scanned: Box<Scanned>,
    at: Instant,
}

impl Recent {
    /// The scan, marked as repeated, for another pass.
    fn again(&self) -> Scanned {
        Scanned {
            repeated: true,
            ..(*self.scanned).clone()
        }
    }

    /// The mappings.
    pub fn vmas(&self) -> &[Vma] {
        &self.scanned.vmas
    }

    /// The stacks of its pages.
    pub(super) fn stacks(&self) -> impl Iterator<Item = StackId> {
        self.scanned.totals.stacks.keys().copied()
    }
}

/// A process to be scanned. The order is: changed processes without a scan, other changed processes from the oldest scan to the
/// newest, then unchanged processes whose scan is too old.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Due {
    unchanged: bool,
    last: Option<Instant>,
    /// The process's index among the followed processes.
    at: usize,
}

impl Aggregator {
    /// Scans the followed processes while they run, and joins their pages with the ledger. A process that has ended is
    /// skipped.
    pub fn pass(&mut self, probe: &Probe) -> Pass {
        let spaces = self.spaces();
        self.pass_counts = match spaces.len() {
            0 | 1 => None,
            _ => self.map_counts.as_ref().map(MapCounts::for_one_pass),
        };
        // Waits for all held locks together, not for one after the other.
        mmap_lock::held(&spaces.iter().map(|(_, pid)| *pid).collect::<Vec<_>>());
        let pass = match spaces.len() <= FEW {
            true => self.scan_each(&spaces, probe),
            false => self.scan_changed(&spaces, probe),
        };
        self.pass_counts = None;
        pass
    }

    /// Like [`Self::pass`], with the scan of one process as it was at its peak, a moment ago. `others` is the most that the others had
    /// at that moment, in bytes. If they have more now, each counts with what it has now or had at its last scan, whichever is less,
    /// or not at all if it had none. If they have less, those of `ended` count, too, which have ended about then. Many processes are
    /// not scanned for this: they count with their last scans, or not at all if those have more.
    pub fn pass_with(
        &mut self,
        at_peak: Scanned,
        others: u64,
        ended: impl Iterator<Item = Scanned>,
        probe: &Probe,
    ) -> Pass {
        let spaces = self.spaces().into_iter();
        let last = spaces.filter_map(|(mm, _)| Some((mm, self.last_scan(mm)?)));
        let mut last: BTreeMap<MmId, Scanned> = last.collect();
        let mut pass = match self.spaces.len() <= FEW {
            true => {
                self.counters_suffice = true;
                let pass = self.pass(probe);
                self.counters_suffice = false;
                pass
            }
            false => Pass {
                scanned: std::mem::take(&mut last).into_values().collect(),
                ..Pass::default()
            },
        };
        pass.unscanned.retain(|process| process.pid != at_peak.pid);
        pass.scanned.retain(|process| process.mm != at_peak.mm);
        let rss = |process: &Scanned| process.after.resident() + process.after.rss_file;
        if pass.scanned.iter().map(rss).sum::<u64>() > others {
            pass.scanned.retain_mut(|now| match last.remove(&now.mm) {
                Some(before) if rss(&before) < rss(now) => {
                    *now = before;
                    true
                }
                before => before.is_some(),
            });
        }
        let mut sum: u64 = pass.scanned.iter().map(rss).sum();
        for process in ended {
            let is_there = |other: &Scanned| other.mm == process.mm;
            if sum + rss(&process) <= others && !pass.scanned.iter().any(is_there) {
                sum += rss(&process);
                pass.scanned.push(process);
            }
        }
        pass.scanned.push(at_peak);
        pass.scanned.sort_by_key(|process| process.mm);
        pass
    }

    fn scan_each(&mut self, spaces: &[(MmId, Pid)], probe: &Probe) -> Pass {
        let mut pass = Pass::default();
        for &(mm, pid) in spaces {
            let scanned = self.scan_again(mm, pid, probe, &mut pass);
            pass.scanned.extend(scanned);
        }
        pass
    }

    /// Scans a process and discards its last scan. If the process's mmap lock is held, returns the last scan again.
    fn scan_again(
        &mut self,
        mm: MmId,
        pid: Pid,
        probe: &Probe,
        pass: &mut Pass,
    ) -> Option<Scanned> {
        let space = self.spaces.get_mut(&mm)?;
        let recent = space.recent.take();
        match (self.scan(mm, probe), recent) {
            (Ok(process), _) => process,
            (Err(why), Some(recent)) if ScanError::is_held(&why) => {
                let scanned = recent.again();
                self.spaces.get_mut(&mm)?.recent = Some(recent);
                pass.held += 1;
                Some(scanned)
            }
            (Err(why), _) => {
                pass.unscanned.push(Unscanned { pid, why });
                None
            }
        }
    }

    /// Reuses the scans of unchanged processes. Scans the other processes as long as time permits.
    fn scan_changed(&mut self, spaces: &[(MmId, Pid)], probe: &Probe) -> Pass {
        let begun = Instant::now();
        let since_last = self.passed.map_or(Duration::ZERO, |at| at.elapsed());
        let end = begun + (since_last / SHARE).max(LEAST);
        self.distrust_ranges(probe);
        let (mut pass, mut scanned, mut due) = (Pass::default(), BTreeMap::new(), Vec::new());
        let mut counted = Vec::with_capacity(spaces.len());
        for (at, &(mm, pid)) in spaces.iter().enumerate() {
            let space = self.spaces.get(&mm);
            counted.push(space.and_then(|space| Counted::read(pid, space.changes)));
            let recent = space.and_then(|space| space.recent.as_ref());
            let same =
                |recent: &&Recent| counted[at].is_some() && recent.scanned.counted == counted[at];
            match recent.filter(same) {
                Some(recent) if recent.at.elapsed() < LONGEST => {
                    scanned.insert(at, recent.again());
                }
                same => due.push(Due {
                    unchanged: same.is_some(),
                    last: recent.map(|recent| recent.at),
                    at,
                }),
            }
        }
        due.sort_unstable();
        let changed = due.iter().filter(|due| !due.unchanged).count();
        for Due { unchanged, at, .. } in due {
            let (mm, pid) = spaces[at];
            let recent = self.spaces.get_mut(&mm).map(|space| &mut space.recent);
            let late = Instant::now() >= end;
            match recent {
                // If the process has ended since, this is the last chance to scan its memory.
                Some(Some(recent)) if late && counted[at].is_some() => {
                    scanned.insert(at, recent.again());
                    pass.older += u64::from(!unchanged);
                    continue;
                }
                Some(_) => {}
                None => continue,
            }
            if let Some(mut process) = self.scan_again(mm, pid, probe, &mut pass) {
                if !process.repeated {
                    process.counted = counted[at];
                }
                scanned.insert(at, process);
            }
        }
        self.passed = Some(Instant::now());
        let (processes, older) = (spaces.len(), pass.older);
        tracing::debug!(processes, changed, older, took = ?begun.elapsed(), "a pass");
        pass.scanned = scanned.into_values().collect();
        pass
    }

    /// The last scan of a process, if several are followed.
    pub fn last_scan(&self, mm: MmId) -> Option<Scanned> {
        let recent = self.spaces.get(&mm)?.recent.as_ref()?;
        Some(recent.again())
    }

    /// Stores the scan of a process for the next passes, if several are followed.
    pub(super) fn remember(&mut self, process: &Scanned) {
        let one_of_several = self.spaces.len() > 1;
        if let Some(space) = self.spaces.get_mut(&process.mm)
            && !process.repeated
            && one_of_several
        {
            space.recent = Some(Recent {
                scanned: Box::new(process.clone()),
                at: Instant::now(),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_changed_comes_first_and_then_what_is_oldest() {
        let now = Instant::now();
        let due = |unchanged, last: Option<u64>, at| Due {
            unchanged,
            last: last.map(|ago| now - Duration::from_millis(ago)),
            at,
        };
        let mut all = [
            due(true, Some(90), 0),
            due(false, Some(10), 1),
            due(false, None, 2),
            due(false, Some(50), 3),
        ];
        all.sort_unstable();
        assert_eq!(all.map(|due| due.at), [2, 3, 1, 0]);
    }

    #[test]
    fn this_process_is_counted() {
        let own = Pid(std::process::id());
        let before = Counted::read(own, 0).unwrap();
        let memory = std::hint::black_box(vec![1_u8; 8 << 20]);
        let after = Counted::read(own, 0).unwrap();
        assert!(after.faults[0] > before.faults[0] && after != before);
        drop(memory);
        assert_eq!(Counted::read(Pid(0), 0), None);
    }
}
