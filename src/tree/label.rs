//! What the nodes of a tree are called: one vocabulary for everything that shows stacks.
//!
//! | label | `type` in `/v2` | text |
//! |---|---|---|
//! | [`Label::Root`] | `root` | `all` |
//! | [`Label::Code`] | `function`, `inlined` | `FUNCTION (FILE)`, of a call site `FUNCTION (FILE+0xOFFSET)` |
//! | [`Label::Name`] | none | `FUNCTION`, or `FILE+0xOFFSET` |
//! | [`Label::Unmapped`] | `unmapped` | `[unknown]`, as perf has it |
//! | [`Label::NoStack`] | `no_stack` | `[no stack]` |
//! | [`Label::NotObserved`] | `not_observed` | `[before attach: MAPPING]`, `[not observed: …]`, `[stack lost: …]` |
//! | [`Label::BelowThreshold`] | `below_threshold` | `[below threshold]` |
//! | [`Label::OverLimit`] | `over_limit` | `[over limit]` |
//!
//! Beside these, [`NO_SYMBOL`] is the name of a function without one, [`SELF`] a node's own bytes in a list of
//! its children, and [`NO_FUNCTION`] the sum of what is in no function.
//!
//! The one exception is `/v1`, whose contract with its clients fixes two pseudo-frames: `underThreshold`, which
//! is [`Label::BelowThreshold`], and `unknown`, which is everything that has no node there: stacks that end in the
//! parent, stacks whose next frame is [`Label::Unmapped`] and, in the root, [`Label::NotObserved`] and
//! [`Label::NoStack`]. Paths for it are made with [`Merge::Frame`].

use std::cmp::Ordering;
use std::fmt;
use std::path::Path;

use rustc_hash::FxHashMap;

use crate::profile::{Module, ModuleId, Unobserved};
use crate::symbol::Language;

/// The name of a function that its file has no symbol for.
pub const NO_SYMBOL: &str = "[no symbol]";
/// Bytes of stacks that end in a node, in a list of its children.
pub const SELF: &str = "[self]";
/// Bytes that are in no function, all together.
pub const NO_FUNCTION: &str = "[no function]";

/// Which frames are one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Merge {
    /// Those of one function of one file. Consecutive frames without known code are one.
    #[default]
    Function,
    /// Those of one call site. Consecutive frames without known code are one.
    Site,
    /// Those of one name, in whatever file, as folded stacks have it. Every frame is a step of the path.
    Name,
    /// Call sites as `/v1` has them: two files of one path are told apart, and a path ends in front of the
    /// first frame without known code. Memory without a stack has an empty path.
    Frame,
}

/// How frames become nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Naming {
    /// Which frames are one node.
    pub merge: Merge,
    /// Functions that the compiler inlined are frames of their own.
    pub inlined: bool,
}

/// Whose code a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Category {
    /// Of the profiled program's own executable, not known to be Rust.
    OwnOther,
    /// Of the profiled program's own executable, written in Rust.
    OwnRust,
    /// Of any other file.
    Library,
}

impl Category {
    /// The category of code in that file, in that language where the function is known.
    pub(super) fn of(module: &Module, language: Option<Language>) -> Category {
        match language {
            _ if !module.own_executable => Category::Library,
            Some(Language::Rust) => Category::OwnRust,
            Some(Language::Other) | None => Category::OwnOther,
        }
    }

    /// The category's name in the `/v1` contract.
    pub fn v1(self) -> &'static str {
        match self {
            Category::OwnOther => "nodeCpp",
            Category::OwnRust => "nodeRust",
            Category::Library => "systemLib",
        }
    }

    /// The category's name in `/v2`.
    pub fn name(self) -> &'static str {
        match self {
            Category::OwnOther => "own",
            Category::OwnRust => "own_rust",
            Category::Library => "library",
        }
    }
}

/// What a node stands for. Two nodes of one parent never have the same label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Label<'a> {
    /// Everything.
    Root,
    /// Code of a file.
    Code(Code<'a>),
    /// A function of any file; with an offset in bytes, code without a function's name in a file of this base
    /// name.
    Name(&'a str, Option<u64>),
    /// A frame whose code no known file was mapped at, or several in a row.
    Unmapped,
    /// A stack without frames.
    NoStack,
    /// Memory of a mapping without a stack.
    NotObserved(&'a str, Unobserved),
    /// Children that count less than the threshold, together.
    BelowThreshold,
    /// Children beyond the largest number of nodes, together.
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
    /// Which of several files of one path it is, with [`Merge::Frame`].
    pub module: Option<ModuleId>,
}

impl<'a> Code<'a> {
    /// The label where there is room for a name only.
    pub fn by_name(&self) -> Label<'a> {
        // An empty name would be no frame to those who read lines.
        match self.function.filter(|name| !name.is_empty()) {
            Some(function) => Label::Name(function, None),
            None => Label::Name(self.file, self.offset),
        }
    }

    /// The order in which `/v1` lists children of one size.
    pub(super) fn by_offset(&self, other: &Code<'_>) -> Ordering {
        fn key<'a>(code: &Code<'a>) -> impl Ord + use<'a> {
            (
                code.offset,
                code.file,
                code.function,
                code.category,
                code.module,
            )
        }
        key(self).cmp(&key(other))
    }
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
            Label::Name(name, None) => f.write_str(name),
            Label::Name(file, Some(offset)) => write!(f, "{file}+{offset:#x}"),
            Label::Unmapped => f.write_str("[unknown]"),
            Label::NoStack => f.write_str("[no stack]"),
            Label::NotObserved(mapping, reason) => write!(f, "[{}: {mapping}]", reason.label()),
            Label::BelowThreshold => f.write_str("[below threshold]"),
            Label::OverLimit => f.write_str("[over limit]"),
        }
    }
}

impl fmt::Display for Code<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let function = self.function.unwrap_or(NO_SYMBOL);
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
        labels.id(Label::Unmapped);
        labels
    }
}

impl<'a> Labels<'a> {
    /// The root's label.
    pub const ROOT: LabelId = 0;
    /// The number of [`Label::Unmapped`].
    pub const UNMAPPED: LabelId = 1;

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
