//! The labels of tree nodes, shared by all views and exporters.
//!
//! | label | `type` in `/v2` | text |
//! |---|---|---|
//! | [`Label::Root`] | `root` | `all` |
//! | [`Label::Code`] | `function`, `inlined` | `FUNCTION (FILE)`, `FUNCTION (FILE:LINE)`; call site also: `FUNCTION (FILE+0xOFFSET)` |
//! | [`Label::Name`] | none | `FUNCTION`, or `FILE+0xOFFSET` |
//! | [`Label::Unmapped`] | `unmapped` | `[unknown]`, as in perf |
//! | [`Label::CutOff`] | `cut_off` | `[cut off: REASON]` |
//! | [`Label::NoStack`] | `no_stack` | `[no stack]` |
//! | [`Label::NotObserved`] | `not_observed` | `[before attach: MAPPING]`, `[not observed: …]`, `[stack lost: …]` |
//! | [`Label::BelowThreshold`] | `below_threshold` | `[below threshold]` |
//! | [`Label::OverLimit`] | `over_limit` | `[over limit]` |
//!
//! In addition, [`NO_SYMBOL`] is the name of a function without a symbol, [`SELF`] is a node's own bytes in a list of its
//! children, and [`NO_FUNCTION`] is the sum of all bytes outside functions.
//!
//! The only exception is `/v1`, whose contract fixes two pseudo-frames. `underThreshold` is [`Label::BelowThreshold`].
//! `unknown` is everything without a node in `/v1`: stacks that end in the parent (cut off or not), stacks whose next frame
//! is [`Label::Unmapped`] and, in the root, [`Label::NotObserved`] and [`Label::NoStack`]. The paths of `/v1` use
//! [`Merge::Frame`].

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::path::Path;

use rustc_hash::FxHashMap;
use schemars::JsonSchema;

use crate::frame::source_origin::is_linked_library;
use crate::symbol::Language;
use crate::{Module, ModuleId, PartialReason, Unobserved};

/// The name of a function without a symbol in its file.
pub const NO_SYMBOL: &str = "[no symbol]";
/// Precedes a node that is the only child of the line above. Such a chain is not indented, so only this mark distinguishes
/// the node from a sibling.
pub const CHAIN: &str = "↳ ";
/// A node's own bytes, from stacks that end in the node, in a list of its children.
pub const SELF: &str = "[self]";
/// The sum of all bytes outside functions.
pub const NO_FUNCTION: &str = "[no function]";

/// The frames that are merged into one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Merge {
    /// Frames of the same function in the same file. Consecutive frames without known code form one node.
    #[default]
    Function,
    /// Frames of the same call site. Consecutive frames without known code form one node.
    Site,
    /// Frames with the same name in any file, as in folded stacks. Every frame is a separate step of the path.
    Name,
    /// Call sites as in `/v1`. Two files with the same path are different nodes, and a path ends before the first frame
    /// without known code. Memory without a stack has an empty path.
    Frame,
}

/// The rules by which frames become nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Naming {
    /// The frames that are merged into one node.
    pub merge: Merge,
    /// Whether inlined functions are separate frames.
    pub inlined: bool,
}

/// The category of code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, JsonSchema)]
#[schemars(rename = "CodeCategory", rename_all = "snake_case")]
pub enum Category {
    /// The executable of the profiled program, not known to be Rust, or a source file of an interpreted program.
    #[schemars(rename = "own")]
    OwnOther,
    /// The executable of the profiled program, Rust code.
    OwnRust,
    /// The executable of an interpreter, such as `python3`: no code of the program that it runs.
    Runtime,
    /// Any other file, such as a library or a source file of an interpreter's standard library or packages.
    Library,
}

/// A source line: of a call, or of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceLine<'a> {
    /// Path of the source file, as debug information or the interpreter names it.
    pub file: &'a str,
    /// Line, counted from 1.
    pub line: u32,
}

impl SourceLine<'_> {
    /// Base name of the source file.
    pub fn name(&self) -> &str {
        self.file.rsplit('/').next().unwrap_or(self.file)
    }
}

/// A value that is shown beside others and never compared: all are equal.
#[derive(Clone, Copy, Debug, Default)]
pub struct Beside<T>(pub T);

impl<T> PartialEq for Beside<T> {
    fn eq(&self, _: &Beside<T>) -> bool {
        true
    }
}

impl<T> Eq for Beside<T> {}

impl<T> Hash for Beside<T> {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl<T> PartialOrd for Beside<T> {
    fn partial_cmp(&self, other: &Beside<T>) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Beside<T> {
    fn cmp(&self, _: &Beside<T>) -> Ordering {
        Ordering::Equal
    }
}

impl Category {
    /// The category of code in this file; `language` is `None` if the function is unknown.
    pub(super) fn for_module(module: &Module, language: Option<Language>) -> Category {
        if module.is_own_source() {
            return Category::OwnOther;
        }
        if module.is_runtime() && language != Some(Language::Rust) {
            return Category::Runtime;
        }
        Category::by_file(module, language)
    }

    /// The same category, or [`Category::Library`] if the program's executable has the function from a library.
    pub(super) fn of_function(
        self,
        name: Option<&str>,
        source: Option<SourceLine<'_>>,
    ) -> Category {
        let file = source.map(|source| source.file);
        match self.is_own() && name.is_some_and(|name| is_linked_library(name, file)) {
            true => Category::Library,
            false => self,
        }
    }

    /// The category as in `/v1`, whose contract knows executables and libraries only.
    pub(super) fn by_file(module: &Module, language: Option<Language>) -> Category {
        match language {
            _ if !module.own_executable => Category::Library,
            Some(Language::Rust) => Category::OwnRust,
            Some(Language::Python | Language::Ruby | Language::JavaScript | Language::Other)
            | None => Category::OwnOther,
        }
    }

    /// The category's name in the `/v1` contract.
    pub fn v1(self) -> &'static str {
        match self {
            Category::OwnOther | Category::Runtime => "nodeCpp",
            Category::OwnRust => "nodeRust",
            Category::Library => "systemLib",
        }
    }

    /// Whether it is the program's own code.
    pub fn is_own(self) -> bool {
        matches!(self, Category::OwnOther | Category::OwnRust)
    }

    /// The category's name in `/v2`.
    pub fn name(self) -> &'static str {
        match self {
            Category::OwnOther => "own",
            Category::OwnRust => "own_rust",
            Category::Runtime => "runtime",
            Category::Library => "library",
        }
    }
}

/// The identity of a node among its siblings: two children of a node never have the same label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Label<'a> {
    /// The root of the tree.
    Root,
    /// Code in a file.
    Code(Code<'a>),
    /// A function name, in any file. With an offset in bytes: code without a function name, in the file with this base
    /// name.
    Name(&'a str, Option<u64>),
    /// One or several consecutive frames at addresses where no known file was mapped.
    Unmapped,
    /// The callers that are missing from a stack because the walk stopped.
    CutOff(PartialReason),
    /// A stack without frames.
    NoStack,
    /// Memory of a mapping without a stack.
    NotObserved(&'a str, Unobserved),
    /// The aggregate of children below the threshold.
    BelowThreshold,
    /// The aggregate of children over the maximum number of nodes.
    OverLimit,
}

/// A function, or a call site in a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Code<'a> {
    /// Demangled name; `None` if the file has no symbol.
    pub function: Option<&'a str>,
    /// Base name of the file.
    pub file: &'a str,
    /// Path of the file as in the target's mappings.
    pub path: &'a Path,
    /// File offset of the call site in bytes; `None` for a function. If there is a [`Code::first_line`], the line of the
    /// call site instead, or with [`Merge::Frame`] the position that [`Functions::at`](crate::Functions::at)
    /// decodes.
    pub offset: Option<u64>,
    /// First line of an interpreted function or of JIT code, 0 if unknown; `None` for machine code in a file.
    pub first_line: Option<u32>,
    /// Whether the function was inlined into the next outer frame.
    pub inlined: bool,
    /// The source line that views show beside the name, which is no part of the label's identity.
    pub source: Beside<Option<SourceLine<'a>>>,
    /// Category of the code, which is no part of the label's identity either.
    pub category: Beside<Category>,
    /// Distinguishes files with the same path; only with [`Merge::Frame`].
    pub module: Option<ModuleId>,
}

impl<'a> Code<'a> {
    /// The label for formats that have only a name.
    pub fn by_name(&self) -> Label<'a> {
        // Readers of folded stacks would not accept an empty name as a frame.
        match self.function.filter(|name| !name.is_empty()) {
            Some(function) => Label::Name(function, None),
            None => Label::Name(self.file, self.file_offset()),
        }
    }

    /// The line of the call site, otherwise the first line of the function. `None` for machine code in a file, or if the
    /// line is unknown.
    pub fn line(&self) -> Option<u64> {
        let first = self.first_line?;
        Some(self.offset.unwrap_or(first.into())).filter(|line| *line > 0)
    }

    /// The file offset of the call site, in bytes; `None` for a function, and for code outside files of machine code.
    pub fn file_offset(&self) -> Option<u64> {
        self.offset.filter(|_| self.first_line.is_none())
    }

    /// The source line of machine code, if debug information has it.
    pub fn native_source(&self) -> Option<SourceLine<'a>> {
        self.source.0.filter(|_| self.first_line.is_none())
    }

    /// The order of `/v1` among children of equal size.
    pub(super) fn by_offset(&self, other: &Code<'_>) -> Ordering {
        fn key<'a>(code: &Code<'a>) -> impl Ord + use<'a> {
            (
                code.offset,
                code.file,
                code.function,
                code.category.0,
                code.first_line,
                code.module,
            )
        }
        key(self).cmp(&key(other))
    }
}

impl Label<'_> {
    /// Whether the label aggregates dropped nodes.
    pub fn is_rest(&self) -> bool {
        matches!(self, Label::BelowThreshold | Label::OverLimit)
    }
}

/// The text of the label. Names are verbatim from their file, so callers that print them must make them
/// [`printable`](memprof_sys::text::printable).
impl fmt::Display for Label<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Label::Root => f.write_str("all"),
            Label::Code(code) => code.fmt(f),
            Label::Name(name, None) => f.write_str(name),
            Label::Name(file, Some(offset)) => write!(f, "{file}+{offset:#x}"),
            Label::Unmapped => f.write_str("[unknown]"),
            Label::CutOff(reason) => write!(f, "[cut off: {}]", reason.label()),
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
        if let Some(line) = self.line() {
            return write!(f, "{function} ({}:{line}{inlined})", self.file);
        }
        if let Some(source) = self.native_source() {
            return write!(f, "{function} ({}:{}{inlined})", source.name(), source.line);
        }
        match self.file_offset() {
            None => write!(f, "{function} ({}{inlined})", self.file),
            Some(offset) => write!(f, "{function} ({}+{offset:#x}{inlined})", self.file),
        }
    }
}

/// Index of a [`Label`] in [`Labels`].
pub type LabelId = u32;

/// All distinct labels. Several profiles share the ids.
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
    /// The id of [`Label::Root`].
    pub(crate) const ROOT: LabelId = 0;
    /// The id of [`Label::Unmapped`].
    pub(crate) const UNMAPPED: LabelId = 1;

    /// The id of a label, assigned on first use.
    pub fn id(&mut self, label: Label<'a>) -> LabelId {
        let all = &mut self.all;
        *self.ids.entry(label).or_insert_with(|| {
            all.push(label);
            (all.len() - 1) as LabelId
        })
    }

    /// The label with this id.
    pub fn get(&self, id: LabelId) -> &Label<'a> {
        &self.all[id as usize]
    }

    /// Every label, in the order of ids.
    pub fn all(&self) -> &[Label<'a>] {
        &self.all
    }
}
