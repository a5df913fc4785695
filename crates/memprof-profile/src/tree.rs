//! The call tree: the stacks of a profile with the names of their frames, merged from the root.
//!
//! All code here is pure. All views and exporters share these four steps:
//!
//! 1. Frames become `Label`s (`frame_label`). `Naming` defines which frames form a node.
//! 2. Stacks become `Paths` of labels with one or more columns of bytes: one profile, the two sides of a diff, or several
//!    figures of one profile (`Paths::columns`).
//! 3. `Layout` merges the paths into a tree. `Descent` yields the rows of a tree without storing them. `Table` counts
//!    functions instead.
//! 4. The text of a label always comes from `Label`'s `Display`.
//!
//! Samples of zero bytes produce no node. All other samples are in the tree: the root's bytes are the profile's total.

mod descent;
pub mod errors;
mod label;
mod layout;
mod lines;
mod names;
mod paths;
#[cfg(test)]
mod properties;
mod search;
mod sweep;
mod table;

pub use descent::Descent;
pub use label::{
    Beside, CHAIN, Category, Code, Label, LabelId, Labels, Merge, NO_FUNCTION, NO_SYMBOL, Naming,
    SELF, SourceLine,
};
pub use layout::{Cut, Layout, Limits, Order};
pub use lines::{FileLines, LineBytes, processes_with};
pub use names::{OwnCode, frame_label, frame_labels};
pub use paths::{Paths, Reading};
pub use search::{Find, FunctionId, Search};
pub use sweep::LayoutRow;
pub use table::{Table, TableRow};

/// The end of a stack at the root of the tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Direction {
    /// The innermost function is at the root, and its callers are below it.
    #[default]
    InnermostFirst,
    /// The outermost function is at the root, and its callees are below it.
    OutermostFirst,
}

impl Direction {
    /// Both directions, in display order.
    pub const ALL: [Direction; 2] = [Direction::InnermostFirst, Direction::OutermostFirst];

    /// The name on the command line and in URLs, after the children of a function.
    pub fn name(self) -> &'static str {
        match self {
            Direction::InnermostFirst => "callers",
            Direction::OutermostFirst => "callees",
        }
    }

    /// Looks up a direction by name.
    pub fn by_name(name: &str) -> Option<Direction> {
        Direction::ALL.into_iter().find(|d| d.name() == name)
    }
}
