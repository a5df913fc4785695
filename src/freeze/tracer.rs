//! A thread that traces others.

use std::io;
use std::path::PathBuf;
use std::sync::mpsc::sync_channel;
use std::thread;

use super::PAUSE;

/// A thread that stops processes. Whatever it still traces when it ends, the kernel releases.
#[derive(Debug)]
pub(super) struct Tracer<T> {
    thread: Option<thread::JoinHandle<T>>,
    /// Its `/proc` directory, which exists while it lives.
    proc_dir: PathBuf,
}

impl<T: Send + 'static> Tracer<T> {
    /// Starts it.
    ///
    /// # Errors
    /// The kernel has no room for a thread.
    pub(super) fn start(
        name: &str,
        run: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<Tracer<T>> {
        let (tell, told) = sync_channel(1);
        let thread = thread::Builder::new().name(name.into()).spawn(move || {
            let _ = tell.send(nix::unistd::gettid());
            run()
        })?;
        let own = told.recv().map_or(0, nix::unistd::Pid::as_raw);
        Ok(Tracer {
            thread: Some(thread),
            proc_dir: PathBuf::from(format!("/proc/self/task/{own}")),
        })
    }
}

impl<T> Tracer<T> {
    /// Waits until it has ended and traces nothing. Returns what it returned; `None` if it panicked.
    pub(super) fn end(mut self) -> Option<T> {
        self.join()
    }

    fn join(&mut self) -> Option<T> {
        let returned = self.thread.take()?.join().ok();
        // The kernel releases its remaining tracees only after it can be joined.
        while self.proc_dir.exists() {
            thread::sleep(PAUSE);
        }
        returned
    }
}

impl<T> Drop for Tracer<T> {
    fn drop(&mut self) {
        self.join();
    }
}
