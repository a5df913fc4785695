//! Stacks that wait for the names of their code.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::{MAX_WAITING, RuntimeCode};
use crate::modules::ModuleTable;
use memprof_profile::Frame;
use memprof_sys::clock::now_ns;
use memprof_sys::ids::StackId;

/// A name without a timestamp that arrives later than this after the stack may belong to other code.
const LATE: Duration = Duration::from_millis(250);
/// Minimum time between two scans of all stacks, which take at most 1/`SHARE` of the time.
const PAUSE: Duration = Duration::from_secs(1);
const SHARE: u32 = 50;
/// Suffix of a name that arrived late.
const LATE_MARK: &str = " [named later]";

/// The suffix of a name, which is empty unless the name arrived late.
pub(super) fn mark(late: bool) -> &'static str {
    if late { LATE_MARK } else { "" }
}

/// A frame that got its name after its stack was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renamed {
    /// The stack.
    pub stack: StackId,
    /// The address that had no name.
    pub addr: u64,
    /// The named frame.
    pub frame: Frame,
}

/// A stack that contains code without a name.
#[derive(Debug)]
pub(super) struct Waiting {
    stack: StackId,
    addrs: Vec<u64>,
    since: Instant,
    /// Time of the stack, in ns of the probe's clock.
    at: u64,
}

/// Whether stacks were dropped from the queue because it was full, and whether names have arrived since the last scan
/// of all stacks.
#[derive(Debug, Default)]
pub(super) struct Forgotten {
    waiting: bool,
    pub(super) named: bool,
    next_look: Option<Instant>,
}

impl RuntimeCode {
    /// Whether to scan all stacks for code without a name, because some stacks were dropped from the queue. Java, for
    /// example, names all of its code at once, long after it ran.
    pub fn has_forgotten(&self) -> bool {
        let Forgotten {
            waiting,
            named,
            next_look,
        } = self.forgotten;
        waiting && named && next_look.is_none_or(|at| Instant::now() >= at)
    }

    /// Records that all stacks were scanned, which took `took`.
    pub fn looked_at_all(&mut self, took: Duration) {
        self.forgotten.named = false;
        self.forgotten.next_look = Some(Instant::now() + PAUSE.max(took * SHARE));
    }

    /// The frame of the code at an address of an old stack, marked as named late; see [`RuntimeCode::frame`].
    pub fn late_frame(&self, addr: u64, modules: &mut ModuleTable) -> Option<Frame> {
        self.named(addr, LATE_MARK, modules)
    }

    /// Queues a stack that has unnamed code at these addresses. Its frames are renamed when the code gets a name.
    pub fn wait_for(&mut self, stack: StackId, addrs: Vec<u64>) {
        if self.waiting.len() >= MAX_WAITING {
            self.waiting.pop_front();
            self.forgotten.waiting = true;
        }
        self.waiting.push_back(Waiting {
            stack,
            addrs,
            since: Instant::now(),
            at: now_ns(),
        });
    }

    /// Renames the frames of waiting stacks with the currently known code; `timed` says that this is the code of the
    /// stacks' time. With `before`, only renames stacks older than that time, and removes them from the queue.
    pub(super) fn rename(
        &mut self,
        renamed: &mut Vec<Renamed>,
        before: Option<u64>,
        timed: bool,
        modules: &mut ModuleTable,
    ) {
        let mut waiting = std::mem::take(&mut self.waiting);
        let older = |w: &Waiting| before.is_none_or(|time| w.at < time);
        let count = waiting.iter().take_while(|w| older(w)).count();
        let mut left = VecDeque::new();
        for mut one in waiting.drain(..count) {
            let late = !timed && one.since.elapsed() > LATE;
            let mark = mark(late || self.rewritten);
            let stack = one.stack;
            one.addrs.retain(|addr| {
                let frame = self.named(*addr, mark, modules);
                renamed.extend(frame.map(|frame| Renamed {
                    stack,
                    addr: *addr,
                    frame,
                }));
                frame.is_none()
            });
            if before.is_none() && !one.addrs.is_empty() {
                left.push_back(one);
            }
        }
        left.append(&mut waiting);
        self.waiting = left;
    }
}
