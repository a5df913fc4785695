//! Pauses in work that takes a running process's mmap lock repeatedly.
//!
//! A reader that releases this lock and takes it again at once gets it before a writer that was just
//! woken: with holds of 0.3 ms each, such a writer (any `mmap` call) waited for 16 ms.

use std::fs::File;
use std::io::{self, Read};
use std::time::{Duration, Instant};

use super::error::{Error, Result};
use crate::ids::Pid;
use crate::proc_dir;

/// Time after which the next gap between two holds of the lock gets a pause.
const STRETCH: Duration = Duration::from_millis(1);
/// Long enough for a thread to wake up on another CPU.
const PAUSE: Duration = Duration::from_micros(50);

/// Inserts the pauses and measures them.
#[derive(Debug)]
pub(super) struct Throttle {
    since: Instant,
    paused: Duration,
}

impl Throttle {
    pub(super) fn new() -> Throttle {
        Throttle {
            since: Instant::now(),
            paused: Duration::ZERO,
        }
    }

    /// Pauses if one is due. Call it between two holds of the lock.
    pub(super) fn pause(&mut self) {
        let begun = Instant::now();
        if begun.duration_since(self.since) >= STRETCH {
            std::thread::sleep(PAUSE);
            self.since = Instant::now();
            self.paused += self.since.duration_since(begun);
        }
    }
}

/// What a scan does between two holds of the lock.
#[derive(Debug)]
pub(super) enum Pace {
    /// It pauses.
    Throttled(Throttle),
    /// It does not pause, because the process is stopped, and fails at this time.
    Until(Instant),
}

impl Pace {
    /// Call this between two holds of the lock.
    ///
    /// # Errors
    /// [`Error::TimeUp`].
    pub(super) fn step(&mut self, pid: Pid) -> Result<()> {
        match self {
            Pace::Throttled(throttle) => throttle.pause(),
            Pace::Until(end) if Instant::now() >= *end => return Err(Error::TimeUp(pid)),
            Pace::Until(_) => {}
        }
        Ok(())
    }

    /// The total time of the pauses.
    pub(super) fn paused(&self) -> Duration {
        match self {
            Pace::Throttled(throttle) => throttle.paused,
            Pace::Until(_) => Duration::ZERO,
        }
    }
}

/// A file of `/proc/PID` that takes the lock on each read, read with pauses.
#[derive(Debug)]
pub struct ThrottledFile {
    file: File,
    throttle: Throttle,
}

impl ThrottledFile {
    /// Opens the file.
    ///
    /// # Errors
    /// Those of [`File::open`].
    pub fn open(pid: Pid, name: &str) -> io::Result<ThrottledFile> {
        Ok(ThrottledFile {
            file: proc_dir::open(pid, name)?,
            throttle: Throttle::new(),
        })
    }
}

impl Read for ThrottledFile {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.throttle.pause();
        self.file.read(into)
    }
}
