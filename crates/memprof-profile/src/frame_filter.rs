//! Selection of the frames of interpreted programs that views show.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use super::{
    CachedFile, Frame, FrameKind, Module, Origin, Places, ProcessProfile, Profile, Sample, Stack,
};
use crate::symbol::Language;

/// The modules of Python's machinery of imports, which are part of the interpreter.
const IMPORTS: [&str; 2] = [
    "<frozen importlib._bootstrap>",
    "<frozen importlib._bootstrap_external>",
];

/// The frames that a profile shows in stacks with interpreted functions. Other stacks are always shown in full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FrameFilter {
    /// Interpreted functions only, without Python's machinery of imports between them.
    #[default]
    Source,
    /// Interpreted functions, and native functions except the evaluators that run the interpreted ones.
    All,
    /// Native functions only.
    Native,
}

impl FrameFilter {
    /// All choices, in display order.
    pub const ALL: [FrameFilter; 3] = [FrameFilter::Source, FrameFilter::All, FrameFilter::Native];

    /// The name on the command line and in URLs.
    pub fn name(self) -> &'static str {
        match self {
            FrameFilter::All => "all",
            FrameFilter::Source => "source",
            FrameFilter::Native => "native",
        }
    }

    /// The frames to show; `None` if these are all frames. Behind each group of interpreted functions is the frame of the
    /// evaluator that runs them. Behind the evaluator may be a trampoline that represents the same function again.
    fn filter(self, frames: &[Frame], role: impl Fn(Frame) -> FrameRole) -> Option<Box<[Frame]>> {
        if !frames.iter().any(|f| role(*f).is_interpreted()) {
            return None;
        }
        // As in Python's own tracebacks, but not where the stack would be empty.
        let has_others = frames.iter().any(|f| role(*f) == FrameRole::Source);
        let (mut behind_source, mut behind_evaluator) = (false, false);
        let shown = frames.iter().copied().filter(|frame| {
            let role = role(*frame);
            let evaluator = behind_source && !role.is_interpreted();
            let again = behind_evaluator && role == FrameRole::Trampoline;
            (behind_source, behind_evaluator) = (role.is_interpreted(), evaluator);
            match self {
                FrameFilter::All => !evaluator && !again,
                FrameFilter::Source if has_others => role == FrameRole::Source,
                FrameFilter::Source => role.is_interpreted(),
                FrameFilter::Native => !role.is_interpreted(),
            }
        });
        Some(shown.collect())
    }
}

/// The role of a frame in a stack with interpreted functions.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FrameRole {
    /// An interpreted function.
    Source,
    /// A function of Python's machinery of imports, of which there are five for each module on a stack of imports.
    Import,
    /// JIT code that calls the evaluator for one function (`python -X perf`).
    Trampoline,
    Native,
}

impl FrameRole {
    fn for_module(module: &Module) -> FrameRole {
        match &module.functions {
            Some(functions) if functions.origin == Origin::Interpreter => {
                match IMPORTS.iter().any(|path| module.path == Path::new(path)) {
                    true => FrameRole::Import,
                    false => FrameRole::Source,
                }
            }
            Some(functions) if functions.language == Language::Python => FrameRole::Trampoline,
            _ => FrameRole::Native,
        }
    }

    fn is_interpreted(self) -> bool {
        matches!(self, FrameRole::Source | FrameRole::Import)
    }
}

impl Profile {
    /// Whether the profile has interpreted functions.
    pub fn has_source(&self) -> bool {
        self.modules.iter().any(|m| m.is_interpreted())
    }

    /// The same profile with only these frames. As recorded, a profile has all frames, including the evaluators.
    pub(crate) fn showing(&self, frames: FrameFilter) -> Profile {
        let role = |frame: Frame| match frame.kind() {
            FrameKind::Code(id, _) => self
                .module(id)
                .map_or(FrameRole::Native, |m| FrameRole::for_module(m)),
            FrameKind::Unmapped(_) => FrameRole::Native,
        };
        // Samples of several processes and files share stacks.
        let mut known: HashMap<*const Stack, Arc<Stack>> = HashMap::new();
        let mut shown = |samples: &[Sample]| {
            let sample = |sample: &Sample| {
                let stack = known
                    .entry(Arc::as_ptr(&sample.stack))
                    .or_insert_with(|| match frames.filter(&sample.stack.frames, role) {
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
        let processes = self.processes.iter().map(|share| ProcessProfile {
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
            FrameKind::Code(ModuleId(1), _) => FrameRole::Source,
            FrameKind::Code(ModuleId(2), _) => FrameRole::Trampoline,
            _ => FrameRole::Native,
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
        let shown = |frames: FrameFilter| frames.filter(&stack, role).unwrap().into_vec();
        assert_eq!(
            shown(FrameFilter::All),
            [
                native(1),
                source(1),
                source(2),
                native(3),
                source(3),
                native(4)
            ]
        );
        assert_eq!(
            shown(FrameFilter::Source),
            [source(1), source(2), source(3)]
        );
        let all_native = [1, 2, 3, 2, 4].map(native);
        assert_eq!(shown(FrameFilter::Native), all_native);
        for frames in FrameFilter::ALL {
            assert_eq!(frames.filter(&all_native, role), None);
        }
    }

    #[test]
    fn imports_stand_only_where_nothing_else_does() {
        let [native, source, import] = [0, 1, 2].map(|module| Frame::code(ModuleId(module), 1));
        let role = |f: Frame| match f.kind() {
            FrameKind::Code(ModuleId(1), _) => FrameRole::Source,
            FrameKind::Code(ModuleId(2), _) => FrameRole::Import,
            _ => FrameRole::Native,
        };
        let shown = |filter: FrameFilter, stack: &[Frame]| filter.filter(stack, role).unwrap();
        // A module that is imported by another one, and the evaluator.
        let stack = [
            native, import, import, source, native, import, source, native,
        ];
        assert_eq!(*shown(FrameFilter::Source, &stack), [source, source]);
        assert_eq!(
            *shown(FrameFilter::All, &stack),
            [native, import, import, source, import, source]
        );
        assert_eq!(*shown(FrameFilter::Native, &stack), [native; 3]);
        let alone = [native, import, native];
        assert_eq!(*shown(FrameFilter::Source, &alone), [import]);
    }

    #[test]
    fn a_trampoline_of_a_function_that_is_shown_is_left_out() {
        let at = |module, offset| Frame::code(ModuleId(module), offset);
        let role = |f: Frame| match f.kind() {
            FrameKind::Code(ModuleId(1), _) => FrameRole::Source,
            FrameKind::Code(ModuleId(2), _) => FrameRole::Trampoline,
            _ => FrameRole::Native,
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
        assert_eq!(
            FrameFilter::All.filter(&stack, role).unwrap().into_vec(),
            all
        );
        let native = FrameFilter::Native.filter(&stack, role).unwrap();
        assert!(native.contains(&at(2, 1)) && native.len() == 7);
    }
}
