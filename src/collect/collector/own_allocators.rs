//! Executables with an allocator of their own: whether its calls are sampled, which needs detours (`docs/sampler.md`).

use std::thread;
use std::time::Instant;

use tokio::sync::mpsc;

use super::samplers::{LOADED, PAUSE};
use memprof_code::allocators;
use memprof_heap::sampler::{self, DetoursState};
use memprof_sys::ids::Pid;
use memprof_sys::privileges::{self, ThreadRole};
use memprof_sys::target_file::TargetFile;
use memprof_sys::text::printable;
use memprof_sys::{messages, priority};

/// How long memprof has waited for the library in a process.
#[derive(Clone, Copy)]
pub(super) struct Waiting {
    since: Instant,
    looked: Instant,
}

/// Whether an executable has an allocator of its own.
pub(super) enum OwnAllocator {
    /// A thread reads its symbols, which may be many.
    Looking(Pid, mpsc::Receiver<Option<String>>),
    /// It has one, with this function. The library may not have been loaded yet.
    Waits(Pid, String, Waiting),
    /// It has one, whose calls are not sampled.
    Has,
    /// It has none, or the samples come from it.
    None,
}

impl OwnAllocator {
    /// Starts to look for the allocator of an executable.
    pub(super) fn look(pid: Pid, executable: &TargetFile) -> OwnAllocator {
        let (tell, told) = mpsc::channel(1);
        let executable = executable.clone();
        let looking = thread::Builder::new()
            .name("memprof-tables".into())
            .spawn(move || {
                priority::restore();
                privileges::reduce(ThreadRole::Tables);
                let _ = tell.try_send(allocators::own_allocator(&executable));
            });
        match looking {
            Ok(_) => OwnAllocator::Looking(pid, told),
            Err(_) => OwnAllocator::None,
        }
    }

    /// Goes on once the symbols are read, and once the library is loaded.
    pub(super) fn hear(&mut self) {
        if let OwnAllocator::Looking(pid, told) = self {
            let now = Instant::now();
            *self = match told.try_recv() {
                Ok(Some(function)) => {
                    let waiting = Waiting {
                        since: now,
                        looked: now,
                    };
                    OwnAllocator::Waits(*pid, function, waiting)
                }
                Err(mpsc::error::TryRecvError::Empty) => return,
                Ok(None) | Err(mpsc::error::TryRecvError::Disconnected) => OwnAllocator::None,
            };
            return;
        }
        let OwnAllocator::Waits(pid, function, waiting) = self else {
            return;
        };
        if waiting.looked.elapsed() < PAUSE {
            return;
        }
        waiting.looked = Instant::now();
        let placed = sampler::detours_placed(*pid).map(|placed| placed.state);
        if placed == Some(DetoursState::Placed) {
            *self = OwnAllocator::None;
        } else if waiting.since.elapsed() >= LOADED {
            messages::print(&not_sampled(*pid, function, placed));
            *self = OwnAllocator::Has;
        }
    }
}

/// What to say of a process whose executable has an allocator that is not sampled.
fn not_sampled(pid: Pid, function: &str, placed: Option<DetoursState>) -> String {
    let failure = placed.and_then(DetoursState::failure);
    let why = failure.map_or_else(String::new, |why| format!(" ({why})"));
    let attach = match placed {
        None | Some(DetoursState::None | DetoursState::Other) => {
            format!("`memprof attach-heap --pid {pid}`, which changes the process, ")
        }
        Some(_) => String::new(),
    };
    format!(
        "process {pid} allocates through its executable's own allocator ({}), whose calls are not sampled{why}: use {attach}`memprof \
         --heap=exact --duration 10 --pid {pid}`, which counts every call, or `memprof heap --pid {pid}`",
        printable(function)
    )
}
