//! The software events of page faults: one per thread of one process, so that other processes pay little, or one per processor.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use libbpf_rs::libbpf_sys;

use super::Probe;
use super::faults::FaultHooks;
use memprof_sys::freeze::threads;
use memprof_sys::ids::Pid;
use memprof_sys::process::is_secure;

/// Maximum number of threads with an event of their own. Each event occupies one of memprof's descriptors as long as the target
/// lives. Threads that are started later inherit it.
const MAX_THREADS: usize = 256;
/// Maximum number of searches for threads without an event. A thread that starts during a search inherits its creator's event. If
/// the creator has none yet, the next search finds the new thread.
const LOOKS: usize = 4;

/// `PERF_EVENT_IOC_SET_BPF`: `_IOW('$', 8, __u32)`, the same on both architectures.
const SET_PROGRAM: libc::Ioctl = 0x4004_2408;

/// Longest time between a count of a fault and the start of its program, which nothing but an interrupt may delay.
const UNDER_WAY: Duration = Duration::from_millis(1);

const ONLINE: &str = "/sys/devices/system/cpu/online";

/// Where the probe sees page faults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum FaultsSeen {
    /// Nowhere: no process is followed yet, or faults have no hook (`--stacks off`).
    #[default]
    Nowhere,
    /// At the kernel's tracepoints.
    Tracepoints,
    /// At the software events of the followed process's threads.
    Threads,
    /// At the software event of each processor, for this reason. Each fault of each process runs a program.
    Processors(String),
}

/// A shared [`FaultsSeen`] that may change: only the collector knows which processes it follows.
pub type SharedFaultsSeen = Arc<Mutex<FaultsSeen>>;

/// The open events.
#[derive(Default)]
pub(super) struct FaultEvents {
    /// Events of threads. An event that inherits from another ends with it, so the events of ended threads stay open.
    threads: Vec<FaultEvent>,
    processors: Vec<FaultEvent>,
    /// Page faults that the closed events have counted.
    closed: u64,
    /// Page faults that are known to have been counted without a run of the program.
    unreported: Cell<u64>,
    /// Whether a thread may have inherited an event just before it got the program: that event counts faults, and runs nothing.
    uncertain: bool,
    seen: SharedFaultsSeen,
}

/// An event that runs the program.
struct FaultEvent {
    file: File,
    /// Page faults that it had counted before it ran the program.
    before: u64,
}

impl FaultEvent {
    /// Page faults so far, of the threads that have inherited the event, too.
    fn counted(&self) -> u64 {
        count_of(&self.file).map_or(0, |count| count.saturating_sub(self.before))
    }
}

impl FaultEvents {
    /// The state before any event is open; `hooks` is `None` if faults have no hook.
    pub(super) fn new(hooks: Option<FaultHooks>) -> FaultEvents {
        let seen = match hooks {
            Some(FaultHooks::Tracepoints) => FaultsSeen::Tracepoints,
            Some(FaultHooks::Events) | None => FaultsSeen::Nowhere,
        };
        FaultEvents {
            seen: Arc::new(Mutex::new(seen)),
            ..FaultEvents::default()
        }
    }

    fn tell(&self, now: FaultsSeen) {
        *self.seen.lock().unwrap_or_else(|e| e.into_inner()) = now;
    }

    fn open_for_threads(&mut self, pids: &[Pid], program: BorrowedFd<'_>) -> Result<()> {
        let mut known = BTreeSet::new();
        for look in 0..LOOKS {
            let mut fresh: Vec<_> = pids.iter().flat_map(|pid| threads(*pid)).collect();
            fresh.retain(|thread| known.insert(*thread));
            if fresh.is_empty() {
                break;
            }
            self.uncertain |= look > 0;
            for thread in fresh {
                if self.threads.len() >= MAX_THREADS {
                    bail!("the process has more than {MAX_THREADS} threads");
                }
                match open(thread, -1) {
                    Ok(event) => self.threads.push(run_at(event, program)?),
                    Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {}
                    Err(e) => return Err(e).context("cannot open the event of a thread"),
                }
            }
        }
        Ok(())
    }

    fn open_for_processors(&mut self, program: BorrowedFd<'_>) -> Result<()> {
        let online = fs::read_to_string(ONLINE).with_context(|| format!("cannot read {ONLINE}"))?;
        let processors = numbers(online.trim())
            .ok_or_else(|| anyhow!("cannot understand {ONLINE}: {online:?}"))?;
        for cpu in processors {
            let event = open(-1, cpu).with_context(|| {
                format!("cannot open the event of page faults of processor {cpu}")
            })?;
            self.processors.push(run_at(event, program)?);
        }
        Ok(())
    }

    fn counted(&self) -> u64 {
        let open = self.threads.iter().chain(&self.processors);
        self.closed + open.map(FaultEvent::counted).sum::<u64>()
    }

    fn close_for_threads(&mut self) {
        self.closed = self.counted();
        self.threads.clear();
    }

    /// Number of page faults, of any process, that the kernel counted and did not report: it runs no program at an event while
    /// another task of the processor, which it has preempted, changes or reads a table of BPF. `reported` is the number of faults that it
    /// did report.
    pub(super) fn unreported(&self, reported: impl Fn() -> u64) -> u64 {
        let counted = self.counted();
        let missing = || counted.saturating_sub(reported());
        if !self.uncertain && missing() > self.unreported.get() {
            sleep(UNDER_WAY);
            self.unreported.set(self.unreported.get().max(missing()));
        }
        self.unreported.get()
    }
}

impl Probe {
    /// Makes the probe see page faults of processes that are about to be followed. Where software events are used, opens the events
    /// of their threads, or of all processors if that fails. Does nothing if all processors have an event.
    ///
    /// # Errors
    /// The kernel also refuses the events of processors.
    pub fn see_faults_of(&mut self, pids: &[Pid]) -> Result<()> {
        if !self.has_events_of_threads() {
            return Ok(());
        }
        let program = self.skel.progs.fault_event.as_fd();
        match self.fault_events.open_for_threads(pids, program) {
            Ok(()) => self.fault_events.tell(FaultsSeen::Threads),
            Err(e) => self.see_all_faults(&format!("{e:#}"))?,
        }
        Ok(())
    }

    /// Like [`Self::see_faults_of`], for a process that has executed a program, if that gains privileges: the kernel has then ended the
    /// events of its threads.
    ///
    /// # Errors
    /// As for [`Self::see_faults_of`].
    pub fn see_faults_after_exec(&mut self, pid: Pid) -> Result<()> {
        match self.has_events_of_threads() && is_secure(pid) {
            true => self.see_faults_of(&[pid]),
            false => Ok(()),
        }
    }

    fn has_events_of_threads(&self) -> bool {
        self.fault_hooks == Some(FaultHooks::Events) && self.fault_events.processors.is_empty()
    }

    /// Makes the probe see page faults of all processes, where software events are used. `why` is the reason in [`FaultsSeen`].
    ///
    /// # Errors
    /// The kernel refuses an event.
    pub fn see_all_faults(&mut self, why: &str) -> Result<()> {
        if self.fault_hooks != Some(FaultHooks::Events) {
            return Ok(());
        }
        let events = &mut self.fault_events;
        if events.processors.is_empty() {
            events.close_for_threads();
            events.open_for_processors(self.skel.progs.fault_event.as_fd())?;
        }
        events.tell(FaultsSeen::Processors(why.to_owned()));
        Ok(())
    }

    /// Closes the events of threads, because no process is followed any more.
    pub fn see_no_faults(&mut self) {
        if !self.fault_events.threads.is_empty() {
            self.fault_events.close_for_threads();
            self.fault_events.tell(FaultsSeen::Nowhere);
        }
    }

    /// Where page faults are seen, now and later.
    pub fn faults_seen(&self) -> SharedFaultsSeen {
        Arc::clone(&self.fault_events.seen)
    }
}

/// Runs a program whenever an event occurs. A BPF link would take a second descriptor.
fn run_at(event: OwnedFd, program: BorrowedFd<'_>) -> Result<FaultEvent> {
    // SAFETY: the request takes a descriptor by value.
    let done = unsafe { libc::ioctl(event.as_raw_fd(), SET_PROGRAM, program.as_raw_fd()) };
    if done != 0 {
        return Err(io::Error::last_os_error())
            .context("cannot attach a program to the event of page faults");
    }
    let file = File::from(event);
    let before = count_of(&file).context("cannot read the event of page faults")?;
    Ok(FaultEvent { file, before })
}

/// Number of page faults that an event has counted, of the threads that have inherited it, too.
fn count_of(mut event: &File) -> io::Result<u64> {
    let mut count = [0; 8];
    event.read_exact(&mut count)?;
    Ok(u64::from_ne_bytes(count))
}

/// Opens the page-fault event of a thread (-1: all threads, 0: this thread) on a processor (-1: all processors).
pub(super) fn open(thread: libc::pid_t, cpu: i32) -> io::Result<OwnedFd> {
    let mut attributes = libbpf_sys::perf_event_attr {
        type_: libbpf_sys::PERF_TYPE_SOFTWARE,
        size: size_of::<libbpf_sys::perf_event_attr>() as u32,
        config: libbpf_sys::PERF_COUNT_SW_PAGE_FAULTS.into(),
        sample_type: libbpf_sys::PERF_SAMPLE_ADDR.into(),
        ..Default::default()
    };
    attributes.__bindgen_anon_1.sample_period = 1;
    // The kernel refuses inheritance for an event of all threads.
    attributes.set_inherit((thread != -1).into());
    // SAFETY: the attributes outlive the call, and contain their size.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attributes,
            thread,
            cpu,
            -1,
            libbpf_sys::PERF_FLAG_FD_CLOEXEC,
        )
    };
    match fd {
        // SAFETY: the descriptor is new, and nothing else owns it.
        0.. => Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Parses a list such as `0-3,5`.
fn numbers(list: &str) -> Option<Vec<i32>> {
    let mut all = Vec::new();
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        all.extend(first.parse::<i32>().ok()?..=last.parse::<i32>().ok()?);
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_without_a_run_of_the_program_are_counted() {
        let mut events = FaultEvents {
            closed: 10,
            ..FaultEvents::default()
        };
        // The program of the last fault has not begun yet.
        let reported = Cell::new(9);
        assert_eq!(events.unreported(|| reported.replace(10)), 0);
        assert_eq!(events.unreported(|| 7), 3);
        // Later faults do not hide them.
        assert_eq!(events.unreported(|| 12), 3);
        events.closed = 20;
        events.uncertain = true;
        assert_eq!(events.unreported(|| 12), 3);
    }

    #[test]
    fn processors_are_listed_by_ranges() {
        assert_eq!(numbers("0"), Some(vec![0]));
        assert_eq!(numbers("0-2,5,7-8"), Some(vec![0, 1, 2, 5, 7, 8]));
        assert_eq!(numbers(""), None);
        assert_eq!(numbers("0-x"), None);
    }
}
