//! Each process's own peak: the profiles of those processes that had the most memory.

use std::collections::BTreeMap;

use super::Moment;
use memprof_profile::Peak;
use memprof_sys::ids::{MmId, Pid};

/// Maximum number of processes whose peaks are kept, some 100 KiB each. A build has thousands of processes, most of which are small.
const MAX_PROCESSES: usize = 64;
/// Maximum number of stacks in all profiles together, some 150 bytes each, unless there is one profile alone.
const MAX_STACKS: usize = 1 << 17;

/// The peaks of processes. A process that executes a program is another one from then on.
#[derive(Default)]
pub(super) struct OwnPeaks {
    by_space: BTreeMap<MmId, Own>,
    /// The highest peak that was left out, in bytes.
    floor: u64,
}

/// The peak of a process.
pub(super) struct Own {
    pub pid: Pid,
    pub moment: Moment,
    /// `VmHWM` in bytes, as known so far.
    high_water: u64,
}

impl Own {
    /// The peak, for a profile that shows it or not.
    pub fn peak(&self, is_shown: bool) -> Peak {
        self.moment.peak(Some(self.high_water), is_shown)
    }
}

impl OwnPeaks {
    /// A process is kept only if it had more than this, in bytes. Without the 16th, each of a thousand equal processes might have a few
    /// pages more than the least.
    pub fn floor(&self) -> u64 {
        self.floor + self.floor / 16
    }

    /// Whether there are too many, or too large ones.
    fn is_full(&self) -> bool {
        let all = self.by_space.values().map(|own| &own.moment.profile.1);
        let stacks: usize = all.map(|profile| profile.samples.len()).sum();
        self.by_space.len() > MAX_PROCESSES || self.by_space.len() > 1 && stacks > MAX_STACKS
    }

    pub fn get(&self, mm: MmId) -> Option<&Own> {
        self.by_space.get(&mm)
    }

    /// The highest peak of a process, in any of its programs.
    pub fn of_process(&mut self, pid: Pid) -> Option<&mut Own> {
        let own = self.by_space.values_mut().filter(|own| own.pid == pid);
        own.max_by_key(|own| own.moment.rss)
    }

    pub fn moments(&mut self) -> impl Iterator<Item = &mut Moment> {
        self.by_space.values_mut().map(|own| &mut own.moment)
    }

    /// Stores a moment of a process, unless an earlier one shows more of its memory, or enough other processes had more.
    pub fn offer(&mut self, mm: MmId, pid: Pid, moment: &Moment, high_water: u64) {
        let before = match self.by_space.get(&mm) {
            Some(known) if known.moment.shown() >= moment.shown() => return,
            Some(known) => known.high_water,
            None if moment.rss <= self.floor() => return,
            None => 0,
        };
        let own = Own {
            pid,
            moment: moment.clone(),
            high_water: before.max(high_water),
        };
        self.by_space.insert(mm, own);
        while self.is_full() {
            let all = self.by_space.iter().map(|(mm, own)| (own.moment.rss, *mm));
            let Some((rss, least)) = all.min() else {
                return;
            };
            self.floor = self.floor.max(rss);
            self.by_space.remove(&least);
        }
    }

    /// Leaves out processes with such a peak, in bytes: there are more than can be scanned.
    pub fn leave_out(&mut self, rss: u64) {
        self.floor = self.floor.max(rss);
    }

    /// Notes the kernel's figure of a process, in bytes.
    pub fn note_high_water(&mut self, mm: MmId, bytes: u64) {
        if let Some(own) = self.by_space.get_mut(&mm) {
            own.high_water = own.high_water.max(bytes);
        }
    }

    /// Removes an address space: a child's before it executes a program is its parent's.
    pub fn forget(&mut self, mm: MmId) {
        self.by_space.remove(&mm);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::testing::{at, kib, profile};

    fn moment(rss: u64, gone: u64) -> Moment {
        Moment {
            profile: (1, Arc::new(profile(&[], &[]))),
            rss,
            gone,
            after: Duration::ZERO,
            unresolved: None,
        }
    }

    #[test]
    fn the_largest_are_kept() {
        let mut peaks = OwnPeaks::default();
        for n in 1..=MAX_PROCESSES as u32 {
            peaks.offer(MmId(n), Pid(n), &moment(u64::from(n) * 100, 0), 0);
        }
        assert_eq!(peaks.floor(), 0);
        peaks.offer(MmId(100), Pid(100), &moment(101, 0), 0);
        assert!(peaks.get(MmId(100)).is_some() && peaks.get(MmId(1)).is_none());
        assert_eq!(peaks.floor(), 106);
        // Hardly more than those that were left out.
        peaks.offer(MmId(101), Pid(101), &moment(106, 0), 0);
        assert!(peaks.get(MmId(101)).is_none() && peaks.get(MmId(2)).is_some());
        assert_eq!(peaks.by_space.len(), MAX_PROCESSES);
        peaks.leave_out(300);
        assert_eq!(peaks.floor(), 318);
    }

    #[test]
    fn large_profiles_are_fewer() {
        let stack = [at(0, 1)];
        let samples = vec![(&stack[..], kib(1, 0)); MAX_STACKS / 2 + 1];
        let large = Arc::new(profile(&samples, &[]));
        let mut peaks = OwnPeaks::default();
        for n in 1..=3 {
            let profile = (1, Arc::clone(&large));
            let moment = Moment {
                profile,
                ..moment(u64::from(n), 0)
            };
            peaks.offer(MmId(n), Pid(n), &moment, 0);
        }
        assert_eq!((peaks.by_space.len(), peaks.floor()), (1, 2));
        assert!(peaks.get(MmId(3)).is_some());
    }

    #[test]
    fn a_moment_that_shows_more_counts() {
        let mut peaks = OwnPeaks::default();
        let rss = |peaks: &OwnPeaks| peaks.get(MmId(1)).unwrap().peak(false).rss;
        peaks.offer(MmId(1), Pid(1), &moment(50, 0), 60);
        // Higher, but most of it is not known.
        peaks.offer(MmId(1), Pid(1), &moment(60, 40), 60);
        assert_eq!(rss(&peaks), 50);
        peaks.offer(MmId(1), Pid(1), &moment(60, 5), 0);
        assert_eq!(rss(&peaks), 60);
        peaks.note_high_water(MmId(1), 64);
        peaks.note_high_water(MmId(1), 1);
        let shown = peaks.get(MmId(1)).unwrap().peak(true);
        assert_eq!((shown.high_water, shown.is_shown), (Some(64), true));
    }

    #[test]
    fn each_program_of_a_process_has_its_own() {
        let mut peaks = OwnPeaks::default();
        peaks.offer(MmId(1), Pid(7), &moment(50, 0), 0);
        peaks.offer(MmId(2), Pid(7), &moment(40, 0), 0);
        assert_eq!(peaks.of_process(Pid(7)).unwrap().moment.rss, 50);
        peaks.forget(MmId(1));
        assert_eq!(peaks.of_process(Pid(7)).unwrap().moment.rss, 40);
        assert!(peaks.of_process(Pid(8)).is_none());
    }
}
