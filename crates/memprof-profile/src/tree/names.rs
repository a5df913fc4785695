//! Conversion of frames to labels.

use rustc_hash::FxHashMap;

use super::label::{Beside, Category, Code, Label, LabelId, Labels, Merge, Naming, SourceLine};
use crate::symbol::{Function, Location, Symbols};
use crate::{Frame, FrameKind, Module, Profile, Stack};

/// The label of a frame of this profile. An inlined function is attributed to the function that contains its code.
pub fn frame_label<'a>(of: (&'a Profile, &'a Symbols), frame: Frame, merge: Merge) -> Label<'a> {
    code(of, frame, merge).map_or(Label::Unmapped, |code| {
        merged(outer(of.1, frame, code, merge), merge)
    })
}

/// The labels of a frame, innermost first: functions inlined there if they are frames, then the function that contains the code.
pub fn frame_labels<'a>(
    of: (&'a Profile, &'a Symbols),
    frame: Frame,
    naming: Naming,
) -> Vec<Label<'a>> {
    let mut names = FrameLabels::new(of, naming);
    let mut labels = Labels::default();
    let ids = names.get(frame, &mut labels).to_vec();
    ids.into_iter().map(|id| *labels.get(id)).collect()
}

/// Finds the program's own functions on the stacks of a profile.
#[derive(Debug)]
pub struct OwnCode<'a> {
    names: FrameLabels<'a>,
    labels: Labels<'a>,
}

impl<'a> OwnCode<'a> {
    /// Starts with no frame looked up.
    pub fn new(of: (&'a Profile, &'a Symbols)) -> OwnCode<'a> {
        let naming = Naming {
            merge: Merge::Function,
            inlined: true,
        };
        OwnCode {
            names: FrameLabels::new(of, naming),
            labels: Labels::default(),
        }
    }

    /// The innermost function of the program itself on a stack, inlined or not, with a name if one has a name; the innermost
    /// function of all if there is none. `None` if no frame is in a known file.
    pub fn innermost(&mut self, stack: &Stack) -> Option<Code<'a>> {
        let (mut first, mut unnamed) = (None, None);
        for frame in &stack.frames {
            for id in self.names.get(*frame, &mut self.labels).to_vec() {
                let Label::Code(code) = *self.labels.get(id) else {
                    continue;
                };
                // A label has the line of the stack that it was first seen in.
                match code.category.0.is_own() {
                    true if code.function.is_some() => return Some(code),
                    true => drop(unnamed.get_or_insert(code)),
                    false => drop(first.get_or_insert(code)),
                }
            }
        }
        unnamed.or(first)
    }
}

/// The code at a frame, with every field that identifies it but the function's name; `None` if the frame is in no known
/// file.
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
        function: None,
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
        source: Beside(None),
        category: Beside(match (merge, function.map(|f| f.language)) {
            (Merge::Frame, language) => Category::by_file(module, language),
            (_, language) => Category::for_module(module, language),
        }),
        module: Some(id),
    })
}

/// The function that contains the code.
fn outer<'a>(symbols: &'a Symbols, frame: Frame, code: Code<'a>, merge: Merge) -> Code<'a> {
    let function = symbols.function(frame);
    match merge {
        // `/v1` has no name for a function without a symbol, and shows names with their hashes.
        Merge::Frame => Code {
            function: function.map(|f| f.name.as_str()),
            ..code
        },
        _ => {
            let name = symbols.name(frame).map(|name| symbols.shown(name));
            of_function(code, name, function.and_then(|f| f.location.as_ref()))
        }
    }
}

/// The code with a function's name and line, which decide whether it is of a library.
fn of_function<'a>(code: Code<'a>, name: Option<&'a str>, at: Option<&'a Location>) -> Code<'a> {
    let source = source(at);
    Code {
        function: name,
        source: Beside(source),
        category: Beside(code.category.0.of_function(name, source)),
        ..code
    }
}

fn source(location: Option<&Location>) -> Option<SourceLine<'_>> {
    let location = location?;
    location.line.map(|line| SourceLine {
        file: &location.file,
        line,
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
            let name = self.of.1.shown(&inner.name);
            let inner = Code {
                inlined: true,
                ..of_function(code, Some(name), inner.location.as_ref())
            };
            self.found.push(labels.id(merged(inner, merge)));
        }
        let outer = outer(self.of.1, frame, code, merge);
        self.found.push(labels.id(merged(outer, merge)));
    }
}
