//! Detects processes whose mmap lock is held, so that their address space cannot be read now.
//!
//! Reading the mappings, pages or memory of a process waits for its mmap lock, uninterruptibly. A process may hold the lock for as
//! long as a disk or a file server takes to answer, and every reader waits with it, as `ps` does. So helper threads, which no other
//! thread waits for, try to take the lock first.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::Read;
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::unistd::{Pid as Tid, gettid};

use crate::ids::Pid;
use crate::privileges::{self, ThreadRole};
use crate::proc_dir;
use crate::procfs::Stat;

/// Time after which a lock counts as held. `fork` and `munmap` of gigabytes take tens of milliseconds.
const PATIENCE: Duration = Duration::from_millis(100);
/// Maximum time to wait for a helper thread that is not blocked. On a busy machine, a thread may not run for a while;
/// [`is_blocked`] distinguishes such a thread from one that waits for the lock.
const BUSY: Duration = Duration::from_secs(10);
/// Time without progress after which another helper thread takes over the remaining processes.
const NEXT: Duration = Duration::from_millis(5);
/// Maximum number of helper threads. A process that no helper gets to counts as held.
const MAX_HELPERS: usize = 64;
/// A helper thread exits after this time without work.
const IDLE: Duration = Duration::from_secs(10);
/// Stack size of a helper thread, in bytes.
const STACK: usize = 128 << 10;

static LOOKING: Mutex<Looking> = Mutex::new(Looking {
    queue: VecDeque::new(),
    asked: BTreeMap::new(),
    threads: 0,
    idle: 0,
    refused: false,
});
/// Signalled when a process is queued.
static WANTED: Condvar = Condvar::new();
/// Signalled when a process was checked and the queue is empty.
static SEEN: Condvar = Condvar::new();

struct Looking {
    /// Processes that no helper has taken yet.
    queue: VecDeque<Pid>,
    /// The queued processes and those that a helper is checking.
    asked: BTreeMap<Pid, Asked>,
    threads: usize,
    /// Number of the `threads` that wait for work.
    idle: usize,
    /// True if the kernel refused to start the last helper thread.
    refused: bool,
}

/// A process to check.
struct Asked {
    since: Instant,
    /// The helper thread that checks it.
    by: Option<Tid>,
}

/// Whether a process's mmap lock is held, so that reading its address space would block.
///
/// Takes 100 ms to detect a held lock for the first time (longer where memprof gets no CPU time), and no time while the lock stays
/// held. False for a process that has ended or that memprof may not read.
pub fn is_held(pid: Pid) -> bool {
    !held(&[pid]).is_empty()
}

/// Like [`is_held`] for several processes: returns those whose lock is held. Waits for all of them together, and 5 ms more for each
/// whose lock was not held before.
///
/// memprof itself is never checked. Threads of memprof take its lock for moments, and a thread that gets no CPU time meanwhile is
/// no reason to leave memprof out or not to start.
pub fn held(pids: &[Pid]) -> BTreeSet<Pid> {
    let mut looking = LOOKING.lock().unwrap_or_else(PoisonError::into_inner);
    let now = Instant::now();
    let own = Pid(std::process::id());
    for pid in pids.iter().filter(|pid| **pid != own) {
        looking.ask(*pid, now);
    }
    let mut left = usize::MAX;
    loop {
        let asked = |pid: &Pid| looking.asked.contains_key(pid);
        let held: BTreeSet<Pid> = pids.iter().copied().filter(asked).collect();
        if held.iter().all(|pid| looking.is_decided(*pid)) {
            looking.take_back(&held);
            return held;
        }
        if !looking.queue.is_empty() && looking.queue.len() == left {
            looking.go_on();
        }
        left = looking.queue.len();
        let waited = SEEN.wait_timeout(looking, NEXT);
        looking = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
}

impl Looking {
    fn ask(&mut self, pid: Pid, now: Instant) {
        if self.asked.contains_key(&pid) {
            return;
        }
        let (since, by) = (now, None);
        self.asked.insert(pid, Asked { since, by });
        self.queue.push_back(pid);
        if self.queue.len() == 1 {
            self.go_on();
        }
    }

    /// Whether to stop waiting for this process.
    fn is_decided(&self, pid: Pid) -> bool {
        let Asked { since, by } = &self.asked[&pid];
        let waited = since.elapsed();
        let cannot_look = || match by {
            Some(thread) => is_blocked(*thread),
            None => self.threads == MAX_HELPERS || self.refused,
        };
        waited >= BUSY || waited >= PATIENCE && cannot_look()
    }

    /// Starts or wakes a helper thread to take processes from the queue.
    fn go_on(&mut self) {
        if self.idle > 0 {
            WANTED.notify_one();
        } else if self.threads < MAX_HELPERS {
            let thread = thread::Builder::new()
                .name("memprof-look".into())
                .stack_size(STACK);
            self.refused = thread.spawn(look).is_err();
            // Without a new thread, the queued processes count as held.
            self.threads += usize::from(!self.refused);
        }
    }

    /// Removes the `held` processes from the queue, because nobody waits for them any longer.
    fn take_back(&mut self, held: &BTreeSet<Pid>) {
        let Looking { queue, asked, .. } = self;
        queue.retain(|pid| {
            let unwanted = held.contains(pid);
            if unwanted {
                asked.remove(pid);
            }
            !unwanted
        });
    }
}

/// The main function of a helper thread: checks the processes in the queue.
fn look() {
    privileges::reduce(ThreadRole::Look);
    let own = gettid();
    let mut looking = LOOKING.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let Some(pid) = looking.queue.pop_front() else {
            looking.idle += 1;
            let waited = WANTED.wait_timeout(looking, IDLE);
            let (again, waited) = waited.unwrap_or_else(PoisonError::into_inner);
            looking = again;
            looking.idle -= 1;
            if waited.timed_out() && looking.queue.is_empty() {
                looking.threads -= 1;
                return;
            }
            continue;
        };
        if let Some(asked) = looking.asked.get_mut(&pid) {
            asked.by = Some(own);
        }
        drop(looking);
        wait_for(pid);
        looking = LOOKING.lock().unwrap_or_else(PoisonError::into_inner);
        looking.asked.remove(&pid);
        if looking.queue.is_empty() {
            SEEN.notify_all();
        }
    }
}

/// Returns once the process's mmap lock is free: the kernel takes it to read a `pagemap` entry.
fn wait_for(pid: Pid) {
    if let Ok(mut pagemap) = proc_dir::open(pid, "pagemap") {
        let _ = pagemap.read(&mut [0; size_of::<u64>()]);
    }
}

/// Whether a thread of memprof is in uninterruptible sleep (state `D`), as when it waits for an mmap lock or a disk. A thread
/// without CPU time, or one that waits for another thread of memprof, is not.
fn is_blocked(thread: Tid) -> bool {
    let stat = Stat::read(format_args!("self/task/{thread}"));
    stat.is_ok_and(|stat| stat.state() == Some('D'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_of_a_process_that_does_nothing_is_free() {
        let parent = Pid(std::os::unix::process::parent_id());
        let pids = [parent, Pid(1), Pid(i32::MAX as u32), parent];
        for _ in 0..100 {
            assert_eq!(held(&pids), BTreeSet::new());
        }
        let looking = LOOKING.lock().unwrap();
        assert!(looking.asked.is_empty() && looking.queue.is_empty());
    }
}
