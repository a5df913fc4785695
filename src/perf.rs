//! Page-fault perf events: one pair per thread that runs at attach time, inherited by its children.
//!
//! They report each fault that succeeded, with its address, and only in the threads they are opened
//! on: a process that is not followed has none.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::event::Pid;

/// `struct perf_event_attr` of linux/perf_event.h in its first published size, which every kernel takes.
#[repr(C)]
#[derive(Clone, Copy)]
struct Attr {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    bp_type: u32,
    bp_addr: u64,
}

const _: () = assert!(size_of::<Attr>() == 64); // PERF_ATTR_SIZE_VER0

const PERF_TYPE_SOFTWARE: u32 = 1;
const PERF_COUNT_SW_PAGE_FAULTS_MIN: u64 = 5;
const PERF_COUNT_SW_PAGE_FAULTS_MAJ: u64 = 6;
const FLAG_INHERIT: u64 = 1 << 1;
/// Linux 5.13 (2b26f0aa0004): inherit to threads only, so that children do not pay.
const FLAG_INHERIT_THREAD: u64 = 1 << 35;
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 1 << 3;
/// `_IOW('$', 8, __u32)`.
const PERF_EVENT_IOC_SET_BPF: libc::c_ulong = 0x4004_2408;

/// Pairs given back when descriptors run out: the page scan, the server and the symbols need some.
const SPARE_PAIRS: usize = 48;

/// Who inherits the events of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inherit {
    /// New threads of the process.
    Threads,
    /// New threads and child processes.
    Processes,
}

/// The two programs that perf events run.
#[derive(Clone, Copy, Debug)]
pub struct FaultPrograms<'a> {
    /// Run at the end of a minor fault.
    pub minor: BorrowedFd<'a>,
    /// Run at the end of a major fault (one that had to wait for IO).
    pub major: BorrowedFd<'a>,
}

/// The perf events of one process. Dropping them detaches.
#[derive(Debug, Default)]
pub struct FaultEvents {
    events: Vec<(u32, [OwnedFd; 2])>,
}

impl FaultEvents {
    /// Opens the events on every thread of the process, again until no new thread appears.
    ///
    /// Threads that end meanwhile are passed over; threads that could not be opened are returned: their
    /// faults are still recorded, by the slower way. Where descriptors run out, some are given back.
    ///
    /// # Errors
    /// The process is gone, or not one of its threads could be opened.
    pub fn attach(
        pid: Pid,
        programs: FaultPrograms<'_>,
        inherit: Inherit,
    ) -> io::Result<(FaultEvents, Vec<u32>)> {
        let mut all = FaultEvents::default();
        let mut failed = Vec::new();
        let mut first_error = None;
        'threads: loop {
            let fresh: Vec<u32> = threads(pid)?
                .into_iter()
                .filter(|t| !failed.contains(t) && !all.events.iter().any(|(seen, _)| seen == t))
                .collect();
            if fresh.is_empty() {
                break;
            }
            for (n, &tid) in fresh.iter().enumerate() {
                match open_pair(tid, programs, inherit) {
                    Ok(pair) => all.events.push((tid, pair)),
                    Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {}
                    Err(e) if out_of_descriptors(&e) => {
                        failed.extend_from_slice(&fresh[n..]);
                        let keep = all.events.len().saturating_sub(SPARE_PAIRS);
                        failed.extend(all.events.drain(keep..).map(|(tid, _)| tid));
                        first_error.get_or_insert(e);
                        break 'threads;
                    }
                    Err(e) => {
                        failed.push(tid);
                        first_error.get_or_insert(e);
                    }
                }
            }
        }
        match first_error {
            Some(e) if all.events.is_empty() => Err(e),
            _ => Ok((all, failed)),
        }
    }

    /// How many threads have events of their own (those that inherit them are not counted).
    pub fn threads(&self) -> usize {
        self.events.len()
    }
}

fn out_of_descriptors(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

fn threads(pid: Pid) -> io::Result<Vec<u32>> {
    let mut tids = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        if let Some(tid) = entry?.file_name().to_str().and_then(|s| s.parse().ok()) {
            tids.push(tid);
        }
    }
    Ok(tids)
}

fn open_pair(tid: u32, programs: FaultPrograms<'_>, inherit: Inherit) -> io::Result<[OwnedFd; 2]> {
    Ok([
        open(tid, PERF_COUNT_SW_PAGE_FAULTS_MIN, programs.minor, inherit)?,
        open(tid, PERF_COUNT_SW_PAGE_FAULTS_MAJ, programs.major, inherit)?,
    ])
}

/// Opens a page-fault event on the calling thread and closes it again.
///
/// # Errors
/// The kernel refuses it.
pub fn probe() -> io::Result<()> {
    perf_event_open(&attr(PERF_COUNT_SW_PAGE_FAULTS_MIN), 0).map(drop)
}

/// An event for each fault, also of threads and processes to come.
fn attr(config: u64) -> Attr {
    Attr {
        kind: PERF_TYPE_SOFTWARE,
        size: size_of::<Attr>() as u32,
        config,
        sample_period: 1,
        sample_type: 0,
        read_format: 0,
        flags: FLAG_INHERIT,
        wakeup_events: 0,
        bp_type: 0,
        bp_addr: 0,
    }
}

fn open(tid: u32, config: u64, program: BorrowedFd<'_>, inherit: Inherit) -> io::Result<OwnedFd> {
    let mut attr = attr(config);
    let event = if inherit == Inherit::Threads {
        attr.flags |= FLAG_INHERIT_THREAD;
        match perf_event_open(&attr, tid) {
            // Before 5.13 the flag is a reserved bit, refused with EINVAL.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
                attr.flags &= !FLAG_INHERIT_THREAD;
                perf_event_open(&attr, tid)?
            }
            other => other?,
        }
    } else {
        perf_event_open(&attr, tid)?
    };
    // SAFETY: the ioctl takes the program's descriptor by value and touches no memory of ours.
    let set = unsafe {
        libc::ioctl(
            event.as_raw_fd(),
            PERF_EVENT_IOC_SET_BPF,
            program.as_raw_fd(),
        )
    };
    if set < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(event)
}

fn perf_event_open(attr: &Attr, tid: u32) -> io::Result<OwnedFd> {
    // SAFETY: the kernel reads `attr.size` bytes at `attr`, which lives through the call.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const *attr,
            tid as libc::pid_t,
            -1 as libc::c_int,
            -1 as libc::c_int,
            PERF_FLAG_FD_CLOEXEC,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so `fd` is a fresh descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}
