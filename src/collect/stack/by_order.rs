//! Merging functions of an interpreter whose evaluators are known only by their order: CPython 3.8 and 3.9.
//!
//! Usually their numbers are equal. If there are more evaluators, the innermost ones are starting or ending, or run another
//! interpreter's functions. With greenlets, whose C stacks begin somewhere on other C stacks, the outermost evaluators belong to
//! another greenlet.

use memprof_code::modules::ModuleTable;
use memprof_profile::{Frame, Outcome};

/// Part of the paths of files that switch C stacks: greenlet's. Evaluators behind such a frame may be another greenlet's.
const SWITCHES_STACKS: &str = "greenlet";

/// A part of a stack as it arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StackItem {
    /// A frame.
    Frame(Frame),
    /// The next frame is an evaluator's, which runs one function.
    Evaluator,
}

/// The frames of a stack, each function before the frame of its evaluator, and the number of functions or evaluators that could not
/// be merged. `left_out` is whether the last function stands for many.
pub(super) fn merge(
    parts: &[StackItem],
    outcome: Outcome,
    left_out: bool,
    modules: &ModuleTable,
) -> (Vec<Frame>, u32) {
    let switches = |frame: Frame| {
        let path = modules.path(frame);
        path.is_some_and(|path| path.to_string_lossy().contains(SWITCHES_STACKS))
    };
    let cut = left_out || matches!(outcome, Outcome::Partial(_));
    put_together(parts, cut, outcome, |f| modules.is_interpreted(f), switches)
}

fn put_together(
    parts: &[StackItem],
    cut: bool,
    outcome: Outcome,
    is_interpreted: impl Fn(Frame) -> bool,
    switches: impl Fn(Frame) -> bool,
) -> (Vec<Frame>, u32) {
    let frame = |part: &StackItem| match part {
        StackItem::Frame(frame) => Some(*frame),
        StackItem::Evaluator => None,
    };
    let count = |parts: &[StackItem]| parts.iter().filter(|p| **p == StackItem::Evaluator).count();
    let evaluators = count(parts);
    if evaluators == 0 {
        return (parts.iter().filter_map(frame).collect(), 0);
    }
    let is_native = |p: &StackItem| frame(p).is_none_or(|f| !is_interpreted(f));
    let end = parts.iter().rposition(is_native).map_or(0, |at| at + 1);
    let (native, functions) = parts.split_at(end);
    let without_functions = || {
        let all = native.iter().filter_map(frame).collect();
        (all, evaluators.abs_diff(functions.len()) as u32)
    };
    // Number of innermost evaluators without a function: they are starting or ending, or run another interpreter's functions.
    let starting = match evaluators.checked_sub(functions.len()) {
        _ if cut => 0,
        Some(0) => 0,
        // The walk was misled, see ended(): the other evaluators are not on the stack.
        None if outcome == Outcome::Assisted => 0,
        Some(more) => match native.iter().position(|p| frame(p).is_some_and(&switches)) {
            None => more,
            Some(at) if count(&native[..at]) == functions.len() => 0,
            Some(_) => return without_functions(),
        },
        None => return without_functions(),
    };
    let mut functions = functions.iter().filter_map(frame);
    let mut evaluators = 0;
    let mut merged = Vec::with_capacity(parts.len());
    for part in native {
        match part {
            StackItem::Frame(frame) => merged.push(*frame),
            StackItem::Evaluator => {
                evaluators += 1;
                if evaluators > starting {
                    merged.extend(functions.next());
                }
            }
        }
    }
    merged.extend(functions);
    (merged, 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use memprof_profile::{FrameKind, ModuleId, PartialReason};

    const NATIVE: u16 = 0;
    const SWITCH: u16 = 1;
    const SOURCE: u16 = 2;
    const CUT: Outcome = Outcome::Partial(PartialReason::NoTable);

    /// `e`: an evaluator, numbered from the innermost one on; `g`: greenlet's code; digits: functions.
    fn merged(stack: &str, outcome: Outcome, left_out: bool) -> (String, u32) {
        let mut parts = Vec::new();
        for c in stack.chars() {
            let module = match c {
                'e' => {
                    parts.push(StackItem::Evaluator);
                    NATIVE
                }
                'g' => SWITCH,
                _ => SOURCE,
            };
            parts.push(StackItem::Frame(Frame::code(ModuleId(module), c.into())));
        }
        let of = |frame: Frame, module| matches!(frame.kind(), FrameKind::Code(id, _) if id == ModuleId(module));
        let cut = left_out || matches!(outcome, Outcome::Partial(_));
        let source = |f| of(f, SOURCE);
        let (frames, unmerged) = put_together(&parts, cut, outcome, source, |f| of(f, SWITCH));
        let text = frames.iter().map(|frame| match frame.kind() {
            FrameKind::Code(_, c) => char::from_u32(c as u32).unwrap(),
            FrameKind::Unmapped(_) => '?',
        });
        (text.collect(), unmerged)
    }

    #[test]
    fn each_evaluator_runs_one_function() {
        for (stack, outcome, left_out, wanted, unmerged) in [
            ("ee12", Outcome::Complete, false, "1e2e", 0),
            // The innermost one is starting.
            ("eee12", Outcome::Complete, false, "e1e2e", 0),
            // Two greenlets: the outer evaluators belong to the other one.
            ("eegee12", Outcome::Complete, false, "1e2egee", 0),
            // The greenlet's innermost evaluator may be starting, so the functions cannot be assigned.
            ("eeegee12", Outcome::Complete, false, "eeegee", 3),
            ("ee123", Outcome::Complete, false, "ee", 1),
            // The native walk was cut off, or misled.
            ("ee1234", CUT, false, "1e2e34", 0),
            ("ee1234", Outcome::Assisted, false, "1e2e34", 0),
            // The last function stands for many.
            ("eeeee12+", Outcome::Complete, true, "1e2e+eee", 0),
            ("g", Outcome::Complete, false, "g", 0),
        ] {
            assert_eq!(
                merged(stack, outcome, left_out),
                (wanted.into(), unmerged),
                "{stack}"
            );
        }
    }
}
