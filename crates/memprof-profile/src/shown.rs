//! Which frames of an interpreted program are shown.

use std::collections::HashMap;
use std::sync::Arc;

use super::{CachedFile, Frame, FrameKind, Module, Origin, Places, Profile, Sample, Share, Stack};
use crate::symbol::Language;

/// Which frames a profile shows of stacks with functions of an interpreted program. Other stacks are always shown as they
/// are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Frames {
    /// The program's functions, and native ones except for the evaluators that run the program's.
    #[default]
    All,
    /// The program's functions alone.
    Source,
    /// Native functions alone.
    Native,
}

impl Frames {
    /// All choices, in display order.
    pub const ALL: [Frames; 3] = [Frames::All, Frames::Source, Frames::Native];

    /// Its name on the command line and in URLs.
    pub fn name(self) -> &'static str {
        match self {
            Frames::All => "all",
            Frames::Source => "source",
            Frames::Native => "native",
        }
    }

    /// The frames to show; `None` if that is all of them. Behind each group of functions of the interpreted program is the
    /// frame of the evaluator that runs them, and behind that one may be a trampoline that stands for the same function.
    fn of(self, frames: &[Frame], role: impl Fn(Frame) -> Role) -> Option<Box<[Frame]>> {
        if !frames.iter().any(|f| role(*f) == Role::Source) {
            return None;
        }
        let (mut behind_source, mut behind_evaluator) = (false, false);
        let shown = frames.iter().copied().filter(|frame| {
            let role = role(*frame);
            let evaluator = behind_source && role != Role::Source;
            let again = behind_evaluator && role == Role::Trampoline;
            (behind_source, behind_evaluator) = (role == Role::Source, evaluator);
            match self {
                Frames::All => !evaluator && !again,
                Frames::Source => role == Role::Source,
                Frames::Native => role != Role::Source,
            }
        });
        Some(shown.collect())
    }
}

/// What a frame is in a stack with functions of an interpreted program.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// A function of the program.
    Source,
    /// Machine code that was made to call the evaluator for one function (`python -X perf`).
    Trampoline,
    Native,
}

impl Role {
    fn of(module: &Module) -> Role {
        match &module.functions {
            Some(functions) if functions.origin == Origin::Interpreter => Role::Source,
            Some(functions) if functions.language == Language::Python => Role::Trampoline,
            _ => Role::Native,
        }
    }
}

impl Profile {
    /// Whether there are functions of an interpreted program.
    pub fn has_source(&self) -> bool {
        self.modules.iter().any(|m| m.is_interpreted())
    }

    /// The same profile with these frames. As recorded, a profile has all of them, the evaluators too.
    pub(crate) fn showing(&self, frames: Frames) -> Profile {
        let role = |frame: Frame| match frame.kind() {
            FrameKind::Code(id, _) => self.module(id).map_or(Role::Native, |m| Role::of(m)),
            FrameKind::Unmapped(_) => Role::Native,
        };
        // Samples of several processes and files share stacks.
        let mut known: HashMap<*const Stack, Arc<Stack>> = HashMap::new();
        let mut shown = |samples: &[Sample]| {
            let sample = |sample: &Sample| {
                let stack = known
                    .entry(Arc::as_ptr(&sample.stack))
                    .or_insert_with(|| match frames.of(&sample.stack.frames, role) {
                        Some(frames) => Arc::new(Stack {
                            frames,
                            outcome: sample.stack.outcome,
                        }),
                        None => Arc::clone(&sample.stack),
                    });
                Sample {
                    stack: Arc::clone(stack),
                    amounts: sample.amounts,
                }
            };
            samples.iter().map(sample).collect::<Vec<_>>()
        };
        let samples = shown(&self.samples);
        let processes = self.processes.iter().map(|share| Share {
            samples: shown(&share.samples),
            ..share.clone()
        });
        let processes = processes.collect();
        let files = self.places.files.iter().map(|file| CachedFile {
            samples: shown(&file.samples),
            ..file.clone()
        });
        let places = Places {
            files: files.collect(),
            ..Places::clone(&self.places)
        };
        Profile {
            samples,
            processes,
            places: Arc::new(places),
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ModuleId;

    #[test]
    fn an_evaluator_stands_behind_the_functions_that_it_runs() {
        let native = |offset| Frame::code(ModuleId(0), offset);
        let source = |offset| Frame::code(ModuleId(1), offset);
        let role = |f: Frame| match f.kind() {
            FrameKind::Code(ModuleId(1), _) => Role::Source,
            FrameKind::Code(ModuleId(2), _) => Role::Trampoline,
            _ => Role::Native,
        };
        let stack = [
            native(1), // malloc
            source(1),
            source(2),
            native(2), // the evaluator
            native(3), // a call from C
            source(3),
            native(2),
            native(4), // main
        ];
        let shown = |frames: Frames| frames.of(&stack, role).unwrap().into_vec();
        assert_eq!(
            shown(Frames::All),
            [
                native(1),
                source(1),
                source(2),
                native(3),
                source(3),
                native(4)
            ]
        );
        assert_eq!(shown(Frames::Source), [source(1), source(2), source(3)]);
        let all_native = [1, 2, 3, 2, 4].map(native);
        assert_eq!(shown(Frames::Native), all_native);
        for frames in Frames::ALL {
            assert_eq!(frames.of(&all_native, role), None);
        }
    }
    #[test]
    fn a_trampoline_of_a_function_that_is_shown_is_left_out() {
        let at = |module, offset| Frame::code(ModuleId(module), offset);
        let role = |f: Frame| match f.kind() {
            FrameKind::Code(ModuleId(1), _) => Role::Source,
            FrameKind::Code(ModuleId(2), _) => Role::Trampoline,
            _ => Role::Native,
        };
        let evaluator = at(0, 2);
        let stack = [
            at(1, 1),
            evaluator,
            at(2, 1),
            at(0, 3), // a call from C
            at(2, 4), // a function that was not merged
            evaluator,
            at(1, 3),
            evaluator,
            at(0, 4), // main
        ];
        let all = [at(1, 1), at(0, 3), at(2, 4), evaluator, at(1, 3), at(0, 4)];
        assert_eq!(Frames::All.of(&stack, role).unwrap().into_vec(), all);
        let native = Frames::Native.of(&stack, role).unwrap();
        assert!(native.contains(&at(2, 1)) && native.len() == 7);
    }
}
