//! Locks that allow one stop of a process at a time. A process that is already stopped for a heap snapshot would count as stopped
//! for an exact report, and would resume in the middle of the report.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::{FreezeError, PAUSE};
use crate::ids::Pid;

static CLAIMED: Mutex<BTreeSet<Pid>> = Mutex::new(BTreeSet::new());

fn claimed() -> MutexGuard<'static, BTreeSet<Pid>> {
    CLAIMED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Processes that no other part of memprof stops while this exists.
#[derive(Debug, Default)]
pub(super) struct StopLocks(BTreeSet<Pid>);

impl StopLocks {
    /// Claims more processes, waiting at most `patience` for them.
    ///
    /// # Errors
    /// One of the processes is still stopped for another purpose; none of `pids` was claimed.
    pub(super) fn add(&mut self, pids: &[Pid], patience: Duration) -> Result<(), FreezeError> {
        let new = || pids.iter().filter(|pid| !self.0.contains(pid));
        let end = Instant::now() + patience;
        loop {
            let mut all = claimed();
            let Some(taken) = new().find(|pid| all.contains(pid)) else {
                all.extend(new());
                break;
            };
            drop(all);
            if Instant::now() >= end {
                return Err(FreezeError::new(format!(
                    "memprof is stopping process {taken} for something else, a heap snapshot or an exact report; try again"
                )));
            }
            thread::sleep(PAUSE);
        }
        self.0.extend(pids);
        Ok(())
    }
}

impl Drop for StopLocks {
    fn drop(&mut self) {
        claimed().retain(|pid| !self.0.contains(pid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_stopped_for_one_thing_at_a_time() {
        let pids = [1, 2, 3].map(|n| Pid(u32::MAX - n));
        let (mut first, mut second) = (StopLocks::default(), StopLocks::default());
        first.add(&pids[..2], Duration::ZERO).unwrap();
        // Claiming a process again succeeds.
        first.add(&pids[..1], Duration::ZERO).unwrap();
        let error = second.add(&pids[1..], Duration::ZERO).unwrap_err();
        assert!(error.to_string().contains(&pids[1].to_string()), "{error}");
        let waiting = thread::spawn(move || second.add(&pids, Duration::from_secs(60)).is_ok());
        drop(first);
        assert!(waiting.join().unwrap());
        assert!(StopLocks::default().add(&pids, Duration::ZERO).is_ok());
    }
}
