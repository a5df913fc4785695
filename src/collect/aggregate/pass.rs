//! One pass over all followed processes, while they run. Of few, each is scanned. Of many (`--all`, `--cgroup`), those are
//! that have changed since their last scan, as long as there is time; the others' last scans are used again.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::Aggregator;
use super::scan::Scanned;
use crate::probe::Probe;
use memprof_sys::ids::{MmId, Pid, StackId};
use memprof_sys::kernel_figures::KernelFigures;
use memprof_sys::residency::{Error as ScanError, MapCounts, figures};
use memprof_sys::{mmap_lock, proc_text};

/// So many processes are scanned in each pass.
const FEW: usize = 32;
/// After so long a process is scanned again, whatever the kernel has counted: it does not count that pages became one huge
/// page or several, that other processes began to share them (PSS), or, before Linux 6.16, that a few of them came or went.
const LONGEST: Duration = Duration::from_secs(30);
/// Passes take this part of the time, or this long.
const SHARE: u32 = 4;
const LEAST: Duration = Duration::from_millis(250);

/// What a pass found.
#[derive(Default)]
pub struct Pass {
    /// The processes, in the order in which they were followed.
    pub scanned: Vec<Scanned>,
    /// Those that could not be scanned.
    pub unscanned: Vec<Unscanned>,
    /// How many of `scanned` are scans of an earlier pass although the process has changed, because time was up.
    pub older: u64,
    /// How many are, because their mmap lock was held.
    pub held: u64,
}

/// A process that could not be scanned.
pub struct Unscanned {
    /// The process.
    pub pid: Pid,
    /// Why.
    pub why: anyhow::Error,
}

/// What the kernel counts of a process. What changes in its pages changes one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counted {
    figures: KernelFigures,
    /// Page faults, minor and major, also those of threads that have ended; and threads.
    faults: [u64; 3],
    /// Changes of its address space that the probe saw.
    changes: u64,
}

impl Counted {
    fn read(pid: Pid, changes: u64) -> Option<Counted> {
        Some(Counted {
            faults: faults(&proc_text::read(&format!("/proc/{pid}/stat")).ok()?)?,
            figures: figures::counters(pid).ok()?,
            changes,
        })
    }
}

/// Minor faults, major faults and threads in the text of `/proc/PID/stat`.
fn faults(stat: &str) -> Option<[u64; 3]> {
    // The name may have any characters. After it come the fields from the third on.
    let (_, fields) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse().ok();
    Some([field(10)?, field(12)?, field(20)?])
}

/// The last scan of one of several processes.
#[derive(Debug)]
pub struct Recent {
    scanned: Box<Scanned>,
    at: Instant,
}

impl Recent {
    /// The scan, for another pass.
    fn again(&self) -> Scanned {
        Scanned {
            repeated: true,
            ..(*self.scanned).clone()
        }
    }

    /// The stacks of its pages.
    pub(super) fn stacks(&self) -> impl Iterator<Item = StackId> {
        self.scanned.totals.stacks.keys().copied()
    }
}

/// A process that is to be scanned, in this order: of those that have changed, the ones without a scan first, then those
/// whose scan is oldest; and then those that have not changed for long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Due {
    unchanged: bool,
    last: Option<Instant>,
    /// Its place among the followed processes.
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
        // They are waited for together, not one after the other.
        mmap_lock::held(&spaces.iter().map(|(_, pid)| *pid).collect::<Vec<_>>());
        let pass = match spaces.len() <= FEW {
            true => self.scan_each(&spaces, probe),
            false => self.scan_changed(&spaces, probe),
        };
        self.pass_counts = None;
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

    /// Scans a process whose last scan is forgotten, unless it cannot be read now.
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

    /// The scans of processes that have not changed are taken as they are. The others are scanned as long as there is time.
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
                // Of one that has ended since, the last memory is scanned now or not at all.
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

    /// The last scan of one of several processes.
    pub fn last_scan(&self, mm: MmId) -> Option<Scanned> {
        let recent = self.spaces.get(&mm)?.recent.as_ref()?;
        Some(recent.again())
    }

    /// Keeps the scan of one of several processes for the next passes.
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
    fn faults_and_threads_are_read_whatever_the_name() {
        let stat = "42 (a) (b) S 1 42 42 0 -1 4194560 1203 5 17 6 3 4 0 0 20 0 9 0 1234 5678";
        assert_eq!(faults(stat), Some([1203, 17, 9]));
        assert_eq!(faults("42 (a) S 1 2"), None);
        assert_eq!(faults(""), None);
    }

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
