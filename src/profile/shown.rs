//! Which frames of an interpreted program are shown.

use std::collections::HashMap;
use std::sync::Arc;

use super::{CachedFile, Frame, FrameKind, Places, Profile, Sample, Share, Stack};

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

    /// The frames to show; `None` if that is all of them. `is_source` says which are functions of the interpreted program:
    /// behind each group of them is the frame of the evaluator that runs them.
    fn of(self, frames: &[Frame], is_source: impl Fn(Frame) -> bool) -> Option<Box<[Frame]>> {
        if !frames.iter().any(|f| is_source(*f)) {
            return None;
        }
        let mut inner = false;
        let shown = frames.iter().copied().filter(|frame| {
            let source = is_source(*frame);
            let evaluator = inner && !source;
            inner = source;
            match self {
                Frames::All => !evaluator,
                Frames::Source => source,
                Frames::Native => !source,
            }
        });
        Some(shown.collect())
    }
}

impl Profile {
    /// Whether there are functions of an interpreted program.
    pub fn has_source(&self) -> bool {
        self.modules.iter().any(|m| m.is_interpreted())
    }

    /// The same profile with these frames. As recorded, a profile has all of them, the evaluators too.
    pub(crate) fn showing(&self, frames: Frames) -> Profile {
        let is_source = |frame: Frame| match frame.kind() {
            FrameKind::Code(id, _) => self.module(id).is_some_and(|m| m.is_interpreted()),
            FrameKind::Unmapped(_) => false,
        };
        // Samples of several processes and files share stacks.
        let mut known: HashMap<*const Stack, Arc<Stack>> = HashMap::new();
        let mut shown = |samples: &[Sample]| {
            let sample = |sample: &Sample| {
                let stack = known
                    .entry(Arc::as_ptr(&sample.stack))
                    .or_insert_with(|| match frames.of(&sample.stack.frames, is_source) {
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
    use crate::profile::ModuleId;

    #[test]
    fn an_evaluator_stands_behind_the_functions_that_it_runs() {
        let native = |offset| Frame::code(ModuleId(0), offset);
        let source = |offset| Frame::code(ModuleId(1), offset);
        let is_source = |f: Frame| matches!(f.kind(), FrameKind::Code(ModuleId(1), _));
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
        let shown = |frames: Frames| frames.of(&stack, is_source).unwrap().into_vec();
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
            assert_eq!(frames.of(&all_native, is_source), None);
        }
    }
}
