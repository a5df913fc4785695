//! Conversion of frames to labels.

use rustc_hash::FxHashMap;

use super::label::{Category, Code, Label, LabelId, Labels, Merge, Naming};
use crate::symbol::{Function, Symbols};
use crate::{Frame, FrameKind, Module, Profile};

/// The label of a frame of this profile. An inlined function is attributed to the function that contains its code.
pub fn frame_label<'a>(of: (&'a Profile, &'a Symbols), frame: Frame, merge: Merge) -> Label<'a> {
    code(of, frame, merge).map_or(Label::Unmapped, |code| merged(code, merge))
}

/// The frame's function, with every field that identifies it; `None` if the frame is in no known file.
fn code<'a>(
    (profile, symbols): (&'a Profile, &'a Symbols),
    frame: Frame,
    merge: Merge,
) -> Option<Code<'a>> {
    let FrameKind::Code(id, offset) = frame.kind() else {
        return None;
    };
    let module: &'a Module = profile.module(id)?;
    let function = symbols.function(frame);
    let first_line = function.and_then(|f| f.first_line);
    Some(Code {
        // `/v1` has no name for a function without a symbol, and shows names with their hashes.
        function: match merge {
            Merge::Frame => function.map(|f| f.name.as_str()),
            _ => symbols.name(frame).map(|name| symbols.shown(name)),
        },
        file: &module.name,
        path: &module.path,
        // An unknown line counts as the first line of the function. Clients of `/v1` distinguish the frames of a file by
        // offset, so `/v1` gets the encoded position of the function and the line.
        offset: Some(match (function, first_line) {
            (Some(f), Some(first)) if merge != Merge::Frame => line_of(f).unwrap_or(first).into(),
            _ => offset,
        }),
        first_line,
        inlined: false,
        category: Category::for_module(module, function.map(|f| f.language)),
        module: Some(id),
    })
}

fn line_of(function: &Function) -> Option<u32> {
    function.location.as_ref().and_then(|at| at.line)
}

fn merged(code: Code<'_>, merge: Merge) -> Label<'_> {
    let (offset, module) = match merge {
        Merge::Function => (None, None),
        Merge::Site => (code.offset, None),
        Merge::Frame => (code.offset, code.module),
        Merge::Name => return code.by_name(),
    };
    Label::Code(Code {
        offset,
        module,
        ..code
    })
}

/// A cache of the labels of one profile's frames; each frame is looked up once.
#[derive(Debug)]
pub(super) struct FrameLabels<'a> {
    of: (&'a Profile, &'a Symbols),
    naming: Naming,
    /// The range of each frame's labels in `found`, innermost first.
    at: FxHashMap<Frame, (u32, u32)>,
    found: Vec<LabelId>,
}

impl<'a> FrameLabels<'a> {
    pub(super) fn new(of: (&'a Profile, &'a Symbols), naming: Naming) -> Self {
        FrameLabels {
            of,
            naming,
            at: FxHashMap::default(),
            found: Vec::new(),
        }
    }

    /// The labels of a frame, innermost first; more than one only if functions were inlined.
    pub(super) fn get(&mut self, frame: Frame, labels: &mut Labels<'a>) -> &[LabelId] {
        let (start, end) = match self.at.get(&frame) {
            Some(range) => *range,
            None => {
                let start = self.found.len() as u32;
                self.look_up(frame, labels);
                let range = (start, self.found.len() as u32);
                self.at.insert(frame, range);
                range
            }
        };
        &self.found[start as usize..end as usize]
    }

    fn look_up(&mut self, frame: Frame, labels: &mut Labels<'a>) {
        let Naming { merge, inlined } = self.naming;
        let Some(code) = code(self.of, frame, merge) else {
            self.found.push(Labels::UNMAPPED);
            return;
        };
        let function = self.of.1.function(frame).filter(|_| inlined);
        for inner in function.iter().flat_map(|f| &f.inlined) {
            let inner = Code {
                function: Some(self.of.1.shown(&inner.name)),
                inlined: true,
                ..code
            };
            self.found.push(labels.id(merged(inner, merge)));
        }
        self.found.push(labels.id(merged(code, merge)));
    }
}
