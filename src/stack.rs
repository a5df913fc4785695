//! Stacks by id, with their addresses turned into positions in files while the mappings still hold.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::event::{Addr, MmId, Outcome, PartialReason, Pid, Place, StackId, StackSeen};
use crate::modules::{AddressMap, ModuleTable};
use crate::profile::{Frame, FrameKind, Stack};

/// How often, at most, an unknown address has a process's mappings read again.
const RELOAD_PAUSE: Duration = Duration::from_millis(100);

/// Stacks at most of which only some parts have come. The probe sends the parts of one without a pause,
/// so more than there are CPUs are stacks whose other parts it could not send.
const UNFINISHED: usize = 1024;

/// Every stack seen, by id.
#[derive(Debug, Default)]
pub struct StackTable {
    stacks: HashMap<StackId, (MmId, Arc<Stack>)>,
    /// Frames of stacks too deep for one record, until the last part has come.
    unfinished: BTreeMap<StackId, Vec<Frame>>,
}

impl StackTable {
    /// The stack of an id; `None` for one whose record was lost.
    pub fn get(&self, id: StackId) -> Option<&Arc<Stack>> {
        self.stacks.get(&id).map(|(_, stack)| stack)
    }

    /// Forgets a stack whose id may be given to another one.
    pub fn remove(&mut self, id: StackId) {
        self.stacks.remove(&id);
        self.unfinished.remove(&id);
    }

    /// The address space that it was first seen in.
    pub fn seen_in(&self, id: StackId) -> Option<MmId> {
        self.stacks.get(&id).map(|(mm, _)| *mm)
    }

    /// Keeps a stack seen for the first time, or a part of one. `code` are the mappings of the process that it
    /// was seen in; `None` if that has ended: then addresses stay addresses.
    pub fn insert(
        &mut self,
        seen: StackSeen,
        mut code: Option<&mut CodeMap>,
        modules: &mut ModuleTable,
    ) {
        let mut frames = self.unfinished.remove(&seen.id).unwrap_or_default();
        if seen.before == 0 {
            frames.clear(); // sent anew, under the same id, as a later part did not fit
        }
        if frames.len() != seen.before {
            return; // a part is missing: the probe counts such a stack as lost
        }
        frames.extend(seen.frames.iter().map(|place| {
            match (*place, &mut code) {
                (Place::InFile(file, address), _) => modules
                    .in_file(file, address)
                    .unwrap_or(Frame::unmapped(address)),
                (Place::Address(addr), Some(code)) => code.frame(addr, modules),
                (Place::Address(addr), None) => Frame::unmapped(addr.0),
            }
        }));
        if !seen.last {
            if self.unfinished.len() >= UNFINISHED {
                self.unfinished.pop_first();
            }
            self.unfinished.insert(seen.id, frames);
            return;
        }
        if seen.outcome != Outcome::Complete {
            trim_junk(&mut frames);
        }
        let stack = Stack {
            outcome: ended(seen.outcome, &frames, modules),
            frames: frames.into(),
        };
        self.stacks.insert(seen.id, (seen.mm, Arc::new(stack)));
    }
}

/// A walk that lost its way may have taken a few words for return addresses before it noticed:
/// outermost frames that lie in no file are no frames. The outcome says that the stack is cut.
fn trim_junk(frames: &mut Vec<Frame>) {
    while frames.len() > 1
        && frames
            .last()
            .is_some_and(|f| matches!(f.kind(), FrameKind::Unmapped(_)))
    {
        frames.pop();
    }
}

/// How the walk ended, where it can be said better than the probe could: it knows code without a
/// table, but not whether there is a file.
fn ended(outcome: Outcome, frames: &[Frame], modules: &ModuleTable) -> Outcome {
    let no_table = matches!(
        outcome,
        Outcome::Partial(PartialReason::NoTable | PartialReason::NoMapping)
    );
    let jit = |frame: &Frame| modules.is_jit(*frame);
    match frames.last() {
        Some(last) if no_table && jit(last) => Outcome::Partial(PartialReason::Jit),
        _ => outcome,
    }
}

/// The executable mappings of one address space, read again when they prove stale.
#[derive(Debug)]
pub struct CodeMap {
    pid: Pid,
    map: Arc<AddressMap>,
    stale: bool,
    read: Option<Instant>,
}

impl CodeMap {
    /// The mappings of a process; read at first use.
    pub fn new(pid: Pid) -> CodeMap {
        CodeMap {
            pid,
            map: Arc::default(),
            stale: true,
            read: None,
        }
    }

    /// A child's, which starts as its parent's.
    pub fn forked(&self, child: Pid) -> CodeMap {
        CodeMap {
            pid: child,
            map: Arc::clone(&self.map),
            stale: self.stale,
            read: self.read,
        }
    }

    /// Executable memory was mapped or dropped: read again before the next address.
    pub fn mark_stale(&mut self) {
        self.stale = true;
    }

    /// Reads the mappings now. A process that is gone keeps those known.
    pub fn reload(&mut self, modules: &mut ModuleTable) {
        self.stale = false;
        self.read = Some(Instant::now());
        if let Ok(map) = AddressMap::load(self.pid, modules)
            && !map.is_empty()
        {
            self.map = Arc::new(map);
        }
    }

    /// The mappings as they were last read.
    pub fn map(&self) -> Arc<AddressMap> {
        Arc::clone(&self.map)
    }

    fn frame(&mut self, addr: Addr, modules: &mut ModuleTable) -> Frame {
        if self.stale {
            self.reload(modules);
        }
        let mut found = self.map.locate(addr.0);
        if found.is_none() && self.read.is_none_or(|at| at.elapsed() >= RELOAD_PAUSE) {
            self.reload(modules);
            found = self.map.locate(addr.0);
        }
        match found {
            Some((module, offset)) => Frame::code(module, offset),
            None => Frame::unmapped(addr.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{MmId, PartialReason};

    fn own_code() -> u64 {
        own_code as fn() -> u64 as usize as u64
    }

    fn stack(frames: Vec<u64>, outcome: Outcome) -> Stack {
        let mut table = StackTable::default();
        let mut code = CodeMap::new(Pid(std::process::id()));
        let seen = StackSeen {
            id: StackId(16),
            mm: MmId(1),
            pid: None,
            outcome,
            before: 0,
            last: true,
            frames: frames.into_iter().map(Addr).map(Place::Address).collect(),
        };
        table.insert(seen, Some(&mut code), &mut ModuleTable::new());
        let stack = table.get(StackId(16)).expect("kept");
        Stack {
            frames: stack.frames.clone(),
            outcome: stack.outcome,
        }
    }

    #[test]
    fn addresses_become_positions_in_files() {
        let s = stack(vec![own_code(), 0x10], Outcome::Complete);
        assert!(matches!(s.frames[0].kind(), FrameKind::Code(..)));
        assert_eq!(s.frames[1].kind(), FrameKind::Unmapped(0x10));
    }

    #[test]
    fn parts_are_put_together_and_incomplete_ones_are_not_shown() {
        let mut table = StackTable::default();
        let mut code = CodeMap::new(Pid(std::process::id()));
        let mut part = |id: u32, before: usize, last: bool| {
            let seen = StackSeen {
                id: StackId(id),
                mm: MmId(1),
                pid: None,
                outcome: Outcome::Complete,
                before,
                last,
                frames: vec![Place::Address(Addr(own_code())); 2],
            };
            table.insert(seen, Some(&mut code), &mut ModuleTable::new());
            table.get(StackId(id)).map(|stack| stack.frames.len())
        };
        assert_eq!(part(16, 0, false), None);
        // Another's lies between, and its first part is missing.
        assert_eq!(part(17, 2, true), None);
        assert_eq!(part(16, 2, false), None);
        assert_eq!(part(16, 4, true), Some(6));
        // A part that does not follow the one before it ends the stack.
        assert_eq!(part(18, 0, false), None);
        assert_eq!(part(18, 4, true), None);
        // Nor does it hold up a stack that is sent again after only its first part was.
        assert_eq!(part(19, 0, false), None);
        assert_eq!(part(19, 0, false), None);
        assert_eq!(part(19, 2, true), Some(4));
        for id in 100..5000 {
            assert_eq!(part(id, 0, false), None);
        }
        assert_eq!(part(4999, 2, true), Some(4));
        assert_eq!(part(100, 2, true), None);
        assert!(table.unfinished.len() <= UNFINISHED);
    }

    #[test]
    fn a_cut_walk_loses_its_junk_but_not_its_first_frame() {
        let cut = Outcome::Partial(PartialReason::NoFramePointer);
        assert_eq!(stack(vec![own_code(), 0x10, 0x20], cut).frames.len(), 1);
        assert_eq!(stack(vec![0x10, 0x20], cut).frames.len(), 1);
        assert_eq!(stack(vec![0x10, own_code(), 0x20], cut).frames.len(), 2);
    }
}
