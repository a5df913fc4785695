//! Stacks by id. Addresses are converted to positions in files while the process's mappings are valid.

mod by_order;
mod code_map;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use self::by_order::StackItem;
pub use self::code_map::CodeMap;
use crate::collect::functions::FunctionTable;
use crate::probe::event::{FrameLocation, FunctionNumber, StackSeen};
use memprof_code::jit::Renamed;
use memprof_code::modules::ModuleTable;
use memprof_profile::{Frame, FrameKind, Outcome, PartialReason, Stack};
use memprof_sys::ids::{MmId, StackId};

/// Maximum number of stacks of which only some parts have arrived. The probe sends the parts of a stack without a
/// pause, so if there are more such stacks than CPUs, the rest are stacks whose other parts it could not send.
const UNFINISHED: usize = 1024;

/// All stacks, by id.
#[derive(Debug, Default)]
pub struct StackTable {
    stacks: HashMap<StackId, (MmId, Arc<Stack>)>,
    /// Frames of stacks too deep for one record, until the last part arrives.
    unfinished: BTreeMap<StackId, Vec<StackItem>>,
}

impl StackTable {
    /// The stack with this id; `None` if its record was lost.
    pub fn get(&self, id: StackId) -> Option<&Arc<Stack>> {
        self.stacks.get(&id).map(|(_, stack)| stack)
    }

    /// Removes a stack whose id may be reused.
    pub fn remove(&mut self, id: StackId) {
        self.stacks.remove(&id);
        self.unfinished.remove(&id);
    }

    /// Replaces frames of a stack of this address space that had no name.
    pub fn rename(&mut self, mm: MmId, renamed: &[Renamed], modules: &ModuleTable) {
        for one in renamed {
            // The id may have been reused for another stack meanwhile.
            let Some((_, stack)) = self.stacks.get_mut(&one.stack).filter(|(of, _)| *of == mm)
            else {
                continue;
            };
            let rename = |frame: &Frame| match frame.kind() {
                FrameKind::Code(_, addr) if modules.is_jit(*frame) && addr == one.addr => one.frame,
                _ => *frame,
            };
            *stack = Arc::new(Stack {
                frames: stack.frames.iter().map(rename).collect(),
                outcome: stack.outcome,
            });
        }
    }

    /// Names all unnamed frames of this address space by the code that is known now.
    pub fn rename_all(&mut self, mm: MmId, code: &CodeMap, modules: &mut ModuleTable) {
        for (_, stack) in self.stacks.values_mut().filter(|(of, _)| *of == mm) {
            if stack.frames.iter().any(|frame| modules.is_jit(*frame)) {
                let rename = |frame: &Frame| code.late_name(*frame, modules);
                *stack = Arc::new(Stack {
                    frames: stack.frames.iter().map(rename).collect(),
                    outcome: stack.outcome,
                });
            }
        }
    }

    /// The address space in which the stack was first seen.
    pub fn seen_in(&self, id: StackId) -> Option<MmId> {
        self.stacks.get(&id).map(|(mm, _)| *mm)
    }

    /// Adds a new stack, or one part of it. `code` is the code map of its process. It is `None` if the process has ended; then
    /// addresses are not converted. Returns the number of interpreter frames that could not be merged.
    pub fn insert(
        &mut self,
        seen: StackSeen,
        mut code: Option<&mut CodeMap>,
        functions: &FunctionTable,
        modules: &mut ModuleTable,
    ) -> u32 {
        let mut frames = self.unfinished.remove(&seen.id).unwrap_or_default();
        if seen.before == 0 {
            frames.clear(); // sent again under the same id, because a later part did not fit
        }
        if frames.len() != seen.before {
            return 0; // a part is missing: the probe counts such a stack as lost
        }
        frames.extend(seen.frames.iter().map(|place| {
            StackItem::Frame(match (*place, &mut code) {
                (FrameLocation::Evaluator, _) => return StackItem::Evaluator,
                (FrameLocation::InFile(file, address), _) => modules
                    .in_file(file, address)
                    .unwrap_or(Frame::unmapped(address)),
                (FrameLocation::Interpreted(function, at), _) => functions
                    .frame(function, at, modules)
                    .unwrap_or(Frame::unmapped(0)),
                (FrameLocation::Address(addr), Some(code)) => code.frame(addr, modules),
                (FrameLocation::Address(addr), None) => Frame::unmapped(addr.0),
            })
        }));
        if !seen.last {
            if self.unfinished.len() >= UNFINISHED {
                self.unfinished.pop_first();
            }
            self.unfinished.insert(seen.id, frames);
            return 0;
        }
        let none = FunctionNumber(0);
        let last = seen.frames.last();
        let left_out = matches!(last, Some(FrameLocation::Interpreted(n, _)) if *n == none);
        let (mut frames, unmerged) = by_order::merge(&frames, seen.outcome, left_out, modules);
        if seen.outcome != Outcome::Complete {
            trim_junk(&mut frames, modules);
        }
        if let Some(code) = code {
            code.wait_for_names(seen.id, &frames, modules);
        }
        let stack = Stack {
            outcome: ended(seen.outcome, &frames, modules),
            frames: frames.into(),
        };
        self.stacks.insert(seen.id, (seen.mm, Arc::new(stack)));
        seen.unmerged + unmerged
    }
}

/// Number of frames up to the outermost native one. If the native walk was cut off, interpreter functions follow it.
fn native_end(frames: &[Frame], modules: &ModuleTable) -> usize {
    let native = frames.iter().rposition(|f| !modules.is_interpreted(*f));
    native.map_or(0, |at| at + 1)
}

/// Removes outermost native frames that are in no file: before a failing walk detects its error, it may take a few words for return
/// addresses. The outcome shows that the stack is cut.
fn trim_junk(frames: &mut Vec<Frame>, modules: &ModuleTable) {
    let end = native_end(frames, modules);
    let junk = |f: &&Frame| matches!(f.kind(), FrameKind::Unmapped(_));
    let junk = frames[..end].iter().rev().take_while(junk).count();
    frames.drain(end - junk.min(end.saturating_sub(1))..end);
}

/// How the walk ended, more precisely than the probe knows: the probe sees code without a table, but not whether a
/// file is behind it.
fn ended(outcome: Outcome, frames: &[Frame], modules: &ModuleTable) -> Outcome {
    let end = native_end(frames, modules);
    // A misled walk with the help of frame pointers looks complete, but is not. The walk was misled if the interpreter knows more
    // functions.
    let misled = outcome == Outcome::Assisted && end < frames.len();
    let outcome = if misled {
        Outcome::Partial(PartialReason::NoTable)
    } else {
        outcome
    };
    let no_table = matches!(
        outcome,
        Outcome::Partial(PartialReason::NoTable | PartialReason::NoMapping)
    );
    let jit = |frame: &Frame| modules.is_made_at_run_time(*frame);
    match frames[..end].last() {
        Some(last) if no_table && jit(last) => Outcome::Partial(PartialReason::Jit),
        _ => outcome,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memprof_profile::PartialReason;
    use memprof_sys::ids::{Addr, Pid};

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
            unmerged: 0,
            by_order: false,
            frames: frames
                .into_iter()
                .map(Addr)
                .map(FrameLocation::Address)
                .collect(),
        };
        table.insert(
            seen,
            Some(&mut code),
            &FunctionTable::default(),
            &mut ModuleTable::new(),
        );
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
                unmerged: 0,
                by_order: false,
                frames: vec![FrameLocation::Address(Addr(own_code())); 2],
            };
            table.insert(
                seen,
                Some(&mut code),
                &FunctionTable::default(),
                &mut ModuleTable::new(),
            );
            table.get(StackId(id)).map(|stack| stack.frames.len())
        };
        assert_eq!(part(16, 0, false), None);
        // A part of another stack lies between; that stack's first part is missing.
        assert_eq!(part(17, 2, true), None);
        assert_eq!(part(16, 2, false), None);
        assert_eq!(part(16, 4, true), Some(6));
        // A part that does not follow the previous one discards the stack.
        assert_eq!(part(18, 0, false), None);
        assert_eq!(part(18, 4, true), None);
        // A stack that is sent again after only its first part was sent is accepted.
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

    /// If a native walk was cut off, the interpreter's functions that it did not reach follow its end.
    #[test]
    fn functions_behind_a_cut_walk_are_kept() {
        let mut table = StackTable::default();
        let mut code = CodeMap::new(Pid(std::process::id()));
        let mut modules = ModuleTable::new();
        let native = |addr| FrameLocation::Address(Addr(addr));
        let function = FrameLocation::Interpreted(FunctionNumber(7), None);
        for (outcome, kept, ended) in [
            (
                Outcome::Partial(PartialReason::NoTable),
                2,
                PartialReason::NoTable,
            ),
            (Outcome::Assisted, 2, PartialReason::NoTable),
        ] {
            let seen = StackSeen {
                id: StackId(16),
                mm: MmId(1),
                pid: None,
                outcome,
                before: 0,
                last: true,
                unmerged: 0,
                by_order: false,
                frames: vec![native(own_code()), native(0x10), function],
            };
            let functions = FunctionTable::default();
            table.insert(seen, Some(&mut code), &functions, &mut modules);
            let stack = table.get(StackId(16)).unwrap();
            assert_eq!(stack.frames.len(), kept, "{outcome:?}");
            assert!(modules.is_interpreted(stack.frames[1]), "{outcome:?}");
            assert_eq!(stack.outcome, Outcome::Partial(ended));
        }
    }

    #[test]
    fn a_cut_walk_loses_its_junk_but_not_its_first_frame() {
        let cut = Outcome::Partial(PartialReason::NoFramePointer);
        assert_eq!(stack(vec![own_code(), 0x10, 0x20], cut).frames.len(), 1);
        assert_eq!(stack(vec![0x10, 0x20], cut).frames.len(), 1);
        assert_eq!(stack(vec![0x10, own_code(), 0x20], cut).frames.len(), 2);
    }
}
