//! What the nodes of a [`Layout`](super::Layout) are called, each name once.

use std::fmt;
use std::path::Path;

use rustc_hash::FxHashMap;

use super::Category;
use crate::profile::{Frame, FrameKind, Module, Profile, Unobserved};
use crate::symbol::{Language, Symbols};

/// How frames become nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Naming {
    /// A node per call site, not per function.
    pub sites: bool,
    /// Functions that the compiler inlined are frames of their own.
    pub inlined: bool,
}

/// What a node stands for. Two nodes of one parent never have the same label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Label<'a> {
    /// Everything.
    Root,
    /// Code of a file.
    Code(Code<'a>),
    /// One or more frames in a row whose code no known file was mapped at.
    Unmapped,
    /// A stack without frames.
    NoStack,
    /// Memory of a mapping without a stack.
    NotObserved(&'a str, Unobserved),
    /// Children that count less than the threshold, together.
    BelowThreshold,
    /// Children for which there was no room, together.
    OverLimit,
}

/// A function, or a call site in one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Code<'a> {
    /// Demangled name; `None` where the file has no symbol.
    pub function: Option<&'a str>,
    /// Base name of the file.
    pub file: &'a str,
    /// Path of the file as the target's mappings show it.
    pub path: &'a Path,
    /// File offset of the call site in bytes; `None` for a function.
    pub offset: Option<u64>,
    /// It was inlined into the next outer frame.
    pub inlined: bool,
    /// Whose code it is.
    pub category: Category,
}

impl Label<'_> {
    /// Whether it sums up what was dropped.
    pub fn is_rest(&self) -> bool {
        matches!(self, Label::BelowThreshold | Label::OverLimit)
    }
}

/// As people read it. Names are as their file has them: whoever prints them makes them
/// [`printable`](crate::export::printable).
impl fmt::Display for Label<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Label::Root => f.write_str("all"),
            Label::Code(code) => code.fmt(f),
            Label::Unmapped => f.write_str("[no known code]"),
            Label::NoStack => f.write_str("[no stack]"),
            Label::NotObserved(mapping, reason) => write!(f, "{mapping} ({})", reason.label()),
            Label::BelowThreshold => f.write_str("[smaller ones]"),
            Label::OverLimit => f.write_str("[smaller ones, for want of room]"),
        }
    }
}

impl fmt::Display for Code<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let function = self.function.unwrap_or("[no symbol]");
        let inlined = if self.inlined { ", inlined" } else { "" };
        match self.offset {
            None => write!(f, "{function} ({}{inlined})", self.file),
            Some(offset) => write!(f, "{function} ({}+{offset:#x}{inlined})", self.file),
        }
    }
}

/// Index of a [`Label`] in [`Labels`].
pub type LabelId = u32;

/// Every label once, those of several profiles in one numbering.
#[derive(Debug)]
pub struct Labels<'a> {
    all: Vec<Label<'a>>,
    ids: FxHashMap<Label<'a>, LabelId>,
}

impl Default for Labels<'_> {
    fn default() -> Self {
        let mut labels = Labels {
            all: Vec::new(),
            ids: FxHashMap::default(),
        };
        labels.id(Label::Root);
        labels
    }
}

impl<'a> Labels<'a> {
    /// The root's label.
    pub const ROOT: LabelId = 0;

    /// The label's number.
    pub fn id(&mut self, label: Label<'a>) -> LabelId {
        let all = &mut self.all;
        *self.ids.entry(label).or_insert_with(|| {
            all.push(label);
            (all.len() - 1) as LabelId
        })
    }

    /// The label of that number.
    pub fn get(&self, id: LabelId) -> &Label<'a> {
        &self.all[id as usize]
    }

    /// Every label, in the order of their numbers.
    pub fn all(&self) -> &[Label<'a>] {
        &self.all
    }
}

/// Labels of one profile's frames, each looked up once.
pub(super) struct FrameLabels<'a> {
    profile: &'a Profile,
    symbols: &'a Symbols,
    naming: Naming,
    /// Where the labels of a frame lie in `found`, innermost first.
    at: FxHashMap<Frame, (u32, u32)>,
    found: Vec<LabelId>,
}

impl<'a> FrameLabels<'a> {
    pub(super) fn new(profile: &'a Profile, symbols: &'a Symbols, naming: Naming) -> Self {
        FrameLabels {
            profile,
            symbols,
            naming,
            at: FxHashMap::default(),
            found: Vec::new(),
        }
    }

    /// The frame's labels, innermost first; more than one only where functions were inlined.
    pub(super) fn of(&mut self, frame: Frame, labels: &mut Labels<'a>) -> &[LabelId] {
        let (start, end) = match self.at.get(&frame) {
            Some(range) => *range,
            None => {
                let range = self.look_up(frame, labels);
                self.at.insert(frame, range);
                range
            }
        };
        &self.found[start as usize..end as usize]
    }

    fn look_up(&mut self, frame: Frame, labels: &mut Labels<'a>) -> (u32, u32) {
        let start = self.found.len() as u32;
        match self.code(frame) {
            None => self.found.push(labels.id(Label::Unmapped)),
            Some((code, inlined)) => {
                let inlined = inlined.iter().map(|name| Code {
                    function: Some(name),
                    inlined: true,
                    ..code
                });
                let outer = std::iter::once(code);
                let ids = inlined
                    .chain(outer)
                    .map(|code| labels.id(Label::Code(code)));
                self.found.extend(ids);
            }
        }
        (start, self.found.len() as u32)
    }

    /// The frame's own function, and the names of those inlined there, innermost first.
    fn code(&self, frame: Frame) -> Option<(Code<'a>, Vec<&'a str>)> {
        let FrameKind::Code(module, offset) = frame.kind() else {
            return None;
        };
        let module: &'a Module = self.profile.module(module)?;
        let function = self.symbols.function(frame);
        let inlined = function.filter(|_| self.naming.inlined);
        let inlined = inlined.map_or_else(Vec::new, |f| {
            f.inlined.iter().map(|i| i.name.as_str()).collect()
        });
        let code = Code {
            function: function.map(|f| f.name.as_str()),
            file: &module.name,
            path: &module.path,
            offset: self.naming.sites.then_some(offset),
            inlined: false,
            category: Category::of(module, function.map(|f| f.language)),
        };
        Some((code, inlined))
    }
}

impl Category {
    /// Whose code it is: of that file, in that language where the function is known.
    pub(super) fn of(module: &Module, language: Option<Language>) -> Category {
        match language {
            _ if !module.own_executable => Category::Library,
            Some(Language::Rust) => Category::OwnRust,
            Some(Language::Other) | None => Category::OwnOther,
        }
    }
}
