//! Whether a process's address space can be read now.
//!
//! Whoever reads the mappings, pages or memory of a process waits for its mmap lock, and cannot be interrupted. A process may
//! hold it for as long as a disk or a file server takes to answer, and all who look at the process wait with it, as `ps` does.
//! So threads that nobody waits for look first.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::Read;
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::unistd::{Pid as Tid, gettid};

use crate::ids::Pid;
use crate::privileges::{self, Role};
use crate::{proc_dir, proc_text};

/// After so long the lock counts as held. `fork` and `munmap` of gigabytes take tens of milliseconds.
const PATIENCE: Duration = Duration::from_millis(100);
/// On a busy machine, a thread may get no processor for a while, and then has not looked. ([`is_blocked`] tells it from one that
/// waits for the lock.) This is the longest wait.
const BUSY: Duration = Duration::from_secs(10);
/// After so long without progress, another thread goes on with the processes that are left.
const NEXT: Duration = Duration::from_millis(5);
/// Maximum number of threads. A process that none of them comes to look at counts as held.
const MOST: usize = 64;
/// A thread ends after so long without work.
const IDLE: Duration = Duration::from_secs(10);
/// Stack of a thread, in bytes.
const STACK: usize = 128 << 10;

static LOOKING: Mutex<Looking> = Mutex::new(Looking {
    queue: VecDeque::new(),
    asked: BTreeMap::new(),
    threads: 0,
    idle: 0,
    refused: false,
});
/// There is something in the queue.
static WANTED: Condvar = Condvar::new();
/// The queue is empty, and a process was looked at.
static SEEN: Condvar = Condvar::new();

struct Looking {
    /// The processes that no thread looks at yet.
    queue: VecDeque<Pid>,
    /// Those and the ones that are being looked at.
    asked: BTreeMap<Pid, Asked>,
    threads: usize,
    /// Those of `threads` that wait for work.
    idle: usize,
    /// The kernel refused the last thread that was to be started.
    refused: bool,
}

/// A process that was asked for.
struct Asked {
    since: Instant,
    /// The thread that looks at it.
    by: Option<Tid>,
}

/// Whether a process's mmap lock is held, so that reading its address space would wait. Takes a tenth of a second to say so
/// for the first time (longer where memprof gets no processor), then no time as long as it stays held. A process that has ended, or
/// may not be read, holds nothing.
pub fn is_held(pid: Pid) -> bool {
    !held(&[pid]).is_empty()
}

/// As [`is_held`], for many: those whose lock is held. Waits for all of them together, and five milliseconds more for each that
/// was not held before. Memprof's own lock is not asked for: its own threads take it, for moments, and one that has no processor
/// meanwhile is no reason to leave memprof out, or not to start.
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

    /// Whether it is not waited for any longer.
    fn is_decided(&self, pid: Pid) -> bool {
        let Asked { since, by } = &self.asked[&pid];
        let waited = since.elapsed();
        let cannot_look = || match by {
            Some(thread) => is_blocked(*thread),
            None => self.threads == MOST || self.refused,
        };
        waited >= BUSY || waited >= PATIENCE && cannot_look()
    }

    /// Has one more thread take processes from the queue.
    fn go_on(&mut self) {
        if self.idle > 0 {
            WANTED.notify_one();
        } else if self.threads < MOST {
            let thread = thread::Builder::new()
                .name("memprof-look".into())
                .stack_size(STACK);
            self.refused = thread.spawn(look).is_err();
            // Without it, what is in the queue counts as held.
            self.threads += usize::from(!self.refused);
        }
    }

    /// Removes from the queue those that nobody waits for any more.
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

/// A thread that looks at the processes in the queue.
fn look() {
    privileges::reduce(Role::Look);
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

/// Returns once nobody holds the process's mmap lock: the kernel takes it to read an entry of the page tables.
fn wait_for(pid: Pid) {
    if let Ok(mut pagemap) = proc_dir::open(pid, "pagemap") {
        let _ = pagemap.read(&mut [0; size_of::<u64>()]);
    }
}

/// Whether a thread of memprof waits in the kernel for a lock such as this, or for a disk: no signal interrupts it. (It does not
/// when it has no processor, nor when it waits for another thread of memprof.)
fn is_blocked(thread: Tid) -> bool {
    let stat = proc_text::read(&format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
    // The name may have any characters.
    stat.rsplit_once(") ")
        .is_some_and(|(_, state)| state.starts_with('D'))
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
