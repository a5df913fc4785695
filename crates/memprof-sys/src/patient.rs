//! Writes to pipes and terminals, whose reader may never read: not for ever once a signal is to end memprof.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd;

/// Whether an ending signal has come. Set by its handler.
pub static SIGNALLED: AtomicBool = AtomicBool::new(false);

/// Once a signal has come, a reader that reads nothing for so long is left.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often is looked whether a signal has come.
const LOOK_MS: u8 = 50;
/// Writes of this size do not block if `poll` says that there is room (`PIPE_BUF`).
const PART: usize = 4096;

/// A writer that waits for its reader.
pub struct Patient<'f>(BorrowedFd<'f>);

impl<'f> Patient<'f> {
    /// Writes to this file.
    pub fn new(file: &'f impl AsFd) -> Patient<'f> {
        Patient(file.as_fd())
    }

    fn has_room(&self) -> bool {
        let mut fds = [PollFd::new(self.0, PollFlags::POLLOUT)];
        // (A reader that is gone is an error of the write.)
        !matches!(poll(&mut fds, PollTimeout::from(LOOK_MS)), Ok(0) | Err(_))
    }
}

impl Write for Patient<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let began = Instant::now();
        while !self.has_room() {
            if SIGNALLED.load(Ordering::Relaxed) && began.elapsed() >= PATIENCE {
                let why = "a signal ends memprof, and nobody reads what it writes";
                return Err(io::Error::new(io::ErrorKind::TimedOut, why));
            }
        }
        match unistd::write(self.0, &bytes[..bytes.len().min(PART)]) {
            // Somebody else has filled it since.
            Err(Errno::EAGAIN) => Err(io::ErrorKind::Interrupted.into()),
            written => Ok(written?),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_written_to_who_reads() {
        let (mut read, write) = io::pipe().unwrap();
        let sent: Vec<u8> = (0..1_000_000u32).map(|n| n as u8).collect();
        let text = sent.clone();
        let writer = std::thread::spawn(move || Patient::new(&write).write_all(&text));
        let mut got = Vec::new();
        io::Read::read_to_end(&mut read, &mut got).unwrap();
        writer.join().unwrap().unwrap();
        assert!(got == sent);
        let (read, write) = io::pipe().unwrap();
        drop(read);
        let gone = Patient::new(&write).write_all(b"x").unwrap_err();
        assert_eq!(gone.kind(), io::ErrorKind::BrokenPipe);
    }
}
