//! What a tree calls its frames.

use crate::profile::{Frame, FrameKind, Profile};
use crate::symbol::Symbols;

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

/// A code frame in words. Ordered by offset, executable, function name (none first), category.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrameName<'a> {
    /// Offset of the call in the file, in bytes.
    pub offset: u64,
    /// Base name of the file.
    pub executable: &'a str,
    /// Demangled name of the function; `None` where there is no symbol.
    pub function: Option<&'a str>,
    /// Whose code it is. Own code without a symbol is not known to be Rust.
    pub category: Category,
}

/// Looks frames up in a profile and its symbols.
#[derive(Clone, Copy, Debug)]
pub struct Names<'a> {
    profile: &'a Profile,
    symbols: &'a Symbols,
}

impl<'a> Names<'a> {
    /// Names of the frames of `profile`.
    pub fn new(profile: &'a Profile, symbols: &'a Symbols) -> Names<'a> {
        Names { profile, symbols }
    }

    /// What the frame is called; `None` when it resolves to nothing.
    pub fn get(&self, frame: Frame) -> Option<FrameName<'a>> {
        let FrameKind::Code(module, offset) = frame.kind() else {
            return None;
        };
        let module = self.profile.module(module)?;
        let function = self.symbols.function(frame);
        let category = Category::of(module, function.map(|f| f.language));
        Some(FrameName {
            offset,
            executable: &module.name,
            function: function.map(|f| f.name.as_str()),
            category,
        })
    }

    /// Whether the frame is code of a known file.
    pub fn resolves(&self, frame: Frame) -> bool {
        match frame.kind() {
            FrameKind::Code(module, _) => self.profile.module(module).is_some(),
            FrameKind::Unmapped(_) => false,
        }
    }
}
