//! The call tree: a profile's stacks, with the names of their frames, merged from the root on.
//!
//! Pure, in four steps that everybody who shows stacks shares:
//!
//! 1. Frames become [`Label`]s ([`frame_label`]). [`Naming`] says what a node is.
//! 2. Stacks become [`Paths`] of labels with one or more columns of bytes: of one profile, of the two
//!    sides of a difference, or several figures of one profile ([`Paths::columns`]).
//! 3. [`Layout`] merges the paths into a tree; [`Table`] counts functions instead.
//! 4. Who shows a label takes its text from [`Label`]'s `Display`, the only vocabulary there is.
//!
//! Samples that count nothing make no node. Everything that counts is somewhere in the tree: the root's
//! bytes are the profile's.

mod label;
mod layout;
mod names;
mod paths;
#[cfg(test)]
pub(crate) mod properties;
mod search;
mod sweep;
mod table;
#[cfg(test)]
pub(crate) mod testing;

pub use label::{
    Category, Code, Label, LabelId, Labels, Merge, NO_FUNCTION, NO_SYMBOL, Naming, SELF,
};
pub use layout::{Cut, Layout, Limits, Order};
pub use names::frame_label;
pub use paths::{Paths, Reading};
pub use search::Search;
pub use sweep::Row;
pub use table::{Table, TableRow};

/// Which end of a stack is at the root.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Direction {
    /// The innermost function first, its callers below it.
    #[default]
    InnermostFirst,
    /// The outermost function first, what it calls below it.
    OutermostFirst,
}

impl Direction {
    /// Both, in the order in which they are offered.
    pub const ALL: [Direction; 2] = [Direction::InnermostFirst, Direction::OutermostFirst];

    /// Its name on the command line and in addresses: what is below a function.
    pub fn name(self) -> &'static str {
        match self {
            Direction::InnermostFirst => "callers",
            Direction::OutermostFirst => "callees",
        }
    }

    /// The direction of that name.
    pub fn by_name(name: &str) -> Option<Direction> {
        Direction::ALL.into_iter().find(|d| d.name() == name)
    }
}
