//! Writes to pipes and terminals whose reader may never read. Once a signal asks memprof to exit, such writes time out.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd;

/// True once a terminating signal has arrived. Set by the signal handler.
pub static SIGNALLED: AtomicBool = AtomicBool::new(false);

/// After a signal, time to wait for a reader that does not read.
const PATIENCE: Duration = Duration::from_secs(1);
/// Interval at which [`SIGNALLED`] is checked, in milliseconds.
const LOOK_MS: u8 = 50;
/// Maximum size of a write, in bytes. Writes of up to `PIPE_BUF` bytes do not block if `poll` reports the pipe writable.
const PART: usize = 4096;

/// A writer that waits for its reader, with a time limit once memprof is to exit.
pub struct InterruptibleWriter<'f>(BorrowedFd<'f>);

impl<'f> InterruptibleWriter<'f> {
    /// Writes to `file`.
    pub fn new(file: &'f impl AsFd) -> InterruptibleWriter<'f> {
        InterruptibleWriter(file.as_fd())
    }

    fn has_room(&self) -> bool {
        let mut fds = [PollFd::new(self.0, PollFlags::POLLOUT)];
        // If the reader has closed the pipe, `poll` returns and the write reports the error.
        !matches!(poll(&mut fds, PollTimeout::from(LOOK_MS)), Ok(0) | Err(_))
    }
}

impl Write for InterruptibleWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let began = Instant::now();
        while !self.has_room() {
            if SIGNALLED.load(Ordering::Relaxed) && began.elapsed() >= PATIENCE {
                let why = "a signal ends memprof, and nobody reads what it writes";
                return Err(io::Error::new(io::ErrorKind::TimedOut, why));
            }
        }
        match unistd::write(self.0, &bytes[..bytes.len().min(PART)]) {
            // Another writer has filled the pipe since.
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
        let writer = std::thread::spawn(move || InterruptibleWriter::new(&write).write_all(&text));
        let mut got = Vec::new();
        io::Read::read_to_end(&mut read, &mut got).unwrap();
        writer.join().unwrap().unwrap();
        assert!(got == sent);
        let (read, write) = io::pipe().unwrap();
        drop(read);
        let gone = InterruptibleWriter::new(&write)
            .write_all(b"x")
            .unwrap_err();
        assert_eq!(gone.kind(), io::ErrorKind::BrokenPipe);
    }
}
