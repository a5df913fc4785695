//! Waiting for input, for a time, or for the end.

use std::io::PipeReader;
use std::os::fd::{AsFd, BorrowedFd};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Tells a thread that it shall end: the other end of the pipe is closed.
pub struct Stopped(pub PipeReader);

impl Stopped {
    /// Waits for input, the end, or until the time is over.
    pub fn wait(&self, input: Option<BorrowedFd<'_>>, timeout: Option<Duration>) -> Wake {
        let stop = PollFd::new(self.0.as_fd(), PollFlags::POLLIN);
        let timeout = timeout.map_or(PollTimeout::NONE, |timeout| {
            PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX)
        });
        let mut ends = vec![stop];
        ends.extend(input.map(|input| PollFd::new(input, PollFlags::POLLIN)));
        match poll(&mut ends, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            // Without memory for a moment. It must not spin.
            Err(_) => thread::sleep(Duration::from_millis(10)),
        }
        let ready = |end: &PollFd<'_>| end.any().unwrap_or(false);
        match (ready(&ends[0]), ends.get(1).is_some_and(ready)) {
            (true, _) => Wake::Stop,
            (_, true) => Wake::Input,
            _ => Wake::Time,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    Stop,
    Input,
    Time,
}
