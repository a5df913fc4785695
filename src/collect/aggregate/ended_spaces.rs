//! The last figures of recently ended processes.

use std::collections::VecDeque;
use std::time::{Duration, Instant, SystemTime};

use crate::collect::space::Space;
use memprof_profile::{Ended, EndedProcess, Peak};

/// Maximum number of stored processes, about 1 KiB each.
const MAX_PROCESSES: usize = Ended::MAX_PROCESSES;
/// How long a process is stored.
const KEPT: Duration = Duration::from_secs(600);

/// The ended processes.
#[derive(Default)]
pub(super) struct EndedSpaces {
    /// The processes, each with the time at which memprof noticed the end.
    newest: VecDeque<(Instant, EndedProcess)>,
    unscanned: u64,
}

impl EndedSpaces {
    /// Adds a process that has ended.
    pub(super) fn add(&mut self, space: Space) {
        let Some(last) = space.last else {
            self.unscanned += 1;
            return;
        };
        // Without a profile of its peak, the last report has the highest figure.
        let peak = space.peak.unwrap_or_else(|| {
            let usage = last.total.usage;
            let rss = usage.resident() + usage.file;
            Peak::new(rss, space.high_water, 1, last.observed)
        });
        if self.newest.len() == MAX_PROCESSES {
            self.newest.pop_front();
        }
        let ended = EndedProcess {
            pid: space.pid,
            comm: space.comm,
            container: last.container,
            total: last.total,
            scanned: last.at,
            peak: Some(peak),
            ended: SystemTime::now(),
        };
        self.newest.push_back((Instant::now(), ended));
    }

    /// The processes that ended within [`KEPT`].
    pub(super) fn newest(&mut self) -> Ended {
        self.newest.retain(|(at, _)| at.elapsed() <= KEPT);
        let processes = self.newest.iter().map(|(_, ended)| ended.clone());
        Ended {
            processes: processes.collect(),
            unscanned: self.unscanned,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::space::LastReport;
    use memprof_profile::Amounts;
    use memprof_sys::ids::Pid;

    #[test]
    fn the_newest_are_kept_and_those_without_figures_counted() {
        let mut ended = EndedSpaces::default();
        ended.add(Space::new(Pid(1), "never"));
        for pid in 0..MAX_PROCESSES as u32 + 5 {
            let mut space = Space::new(Pid(pid), "x");
            space.last = Some(LastReport {
                total: Amounts::default(),
                container: None,
                at: SystemTime::now(),
                observed: Duration::ZERO,
            });
            ended.add(space);
        }
        let kept = ended.newest();
        assert_eq!((kept.processes.len(), kept.unscanned), (MAX_PROCESSES, 1));
        assert_eq!(kept.processes[0].pid, Pid(5));
        ended.newest[0].0 -= KEPT * 2;
        assert_eq!(ended.newest().processes[0].pid, Pid(6));
    }
}
