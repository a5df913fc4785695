//! Stacks whose code has no name yet.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::{MOST_WAITING, RuntimeCode};
use crate::modules::ModuleTable;
use memprof_profile::Frame;
use memprof_sys::clock::now_ns;
use memprof_sys::ids::StackId;

/// A name without a time that comes later than this after the stack may be that of other code.
const LATE: Duration = Duration::from_millis(250);
/// Minimum time between two looks at all stacks, which take at most 1/`SHARE` of the time.
const PAUSE: Duration = Duration::from_secs(1);
const SHARE: u32 = 50;
/// What is added to such a name.
const LATE_MARK: &str = " [named later]";

/// What is added to a name.
pub(super) fn mark(late: bool) -> &'static str {
    if late { LATE_MARK } else { "" }
}

/// A function whose frame was found after its stack was taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renamed {
    /// The stack.
    pub stack: StackId,
    /// The address that had no name.
    pub addr: u64,
    /// Its frame.
    pub frame: Frame,
}

/// A stack with code that has no name yet.
#[derive(Debug)]
pub(super) struct Waiting {
    stack: StackId,
    addrs: Vec<u64>,
    since: Instant,
    /// In ns of the probe's clock.
    at: u64,
}

/// Whether stacks no longer wait because there were too many, and names have come since all of them were looked at.
#[derive(Debug, Default)]
pub(super) struct Forgotten {
    waiting: bool,
    pub(super) named: bool,
    next_look: Option<Instant>,
}

impl RuntimeCode {
    /// Whether all stacks with code without a name should be looked at, because some of them no longer wait. Java, for one,
    /// names all of its code at once, long after it ran.
    pub fn has_forgotten(&self) -> bool {
        let Forgotten {
            waiting,
            named,
            next_look,
        } = self.forgotten;
        waiting && named && next_look.is_none_or(|at| Instant::now() >= at)
    }

    /// All stacks were looked at, which took this long.
    pub fn looked_at_all(&mut self, took: Duration) {
        self.forgotten.named = false;
        self.forgotten.next_look = Some(Instant::now() + PAUSE.max(took * SHARE));
    }

    /// The frame of the code at an address of an old stack; see [`RuntimeCode::frame`].
    pub fn late_frame(&self, addr: u64, modules: &mut ModuleTable) -> Option<Frame> {
        self.named(addr, LATE_MARK, modules)
    }

    /// The stack has code at these addresses that has no name; its frames are renamed once it has one.
    pub fn wait_for(&mut self, stack: StackId, addrs: Vec<u64>) {
        if self.waiting.len() >= MOST_WAITING {
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

    /// Renames the frames of waiting stacks by the code that is known now; `timed` says that this is the code of their
    /// time. With a time, only of those that are older, which then do not wait any more.
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
