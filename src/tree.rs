//! The call tree: a profile's stacks laid over each other.
//!
//! Pure: a [`Profile`] and its [`Symbols`] go in, a [`CallTree`] in bytes comes out. What it
//! decides where more than one reading is open:
//!
//! - A node is a **call site**, (module, file offset): one function called from two places is two
//!   nodes. [`functions()`] merges by function.
//! - What a node counts is [`Usage::value`]: resident anonymous and shared memory and page cache.
//!   A sample without any of them (only swap, only file mappings) makes no node.
//! - A frame **resolves to nothing** when no known executable file was mapped at its address. The
//!   walk along a stack ends in front of such a frame, so that the bytes of the whole subtree stand
//!   in its parent's [`Node::unknown`]. Code of a file without a symbol is a real frame without a
//!   function name.
//! - Memory whose stack was not observed stands in the root's `unknown`.
//! - The threshold never drops the root. What it drops below a node is summed in
//!   [`Node::under_threshold`].

mod build;
mod functions;
mod label;
mod layout;
mod name;
mod paths;
#[cfg(test)]
pub(crate) mod properties;
mod search;
mod sweep;
mod table;
#[cfg(test)]
pub(crate) mod testing;

use std::ops::{AddAssign, Range};

use crate::profile::{Frame, Profile, Usage};
use crate::symbol::Symbols;

pub use functions::{FunctionRow, Functions, functions};
pub use label::{Code, Label, LabelId, Labels, Naming};
pub use layout::{Cut, Layout, Limits};
pub use name::{Category, FrameName, Names};
pub use paths::{Paths, Reading};
pub use search::Search;
pub use sweep::Row;
pub(crate) use sweep::sweep;
pub use table::{Table, TableRow};

/// Bytes of a node: what it counts, and how much of that is page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Resident anonymous and shared memory and page cache, in bytes.
    pub value: u64,
    /// Page cache alone, in bytes; never more than `value`.
    pub cache: u64,
}

impl Amount {
    /// Resident anonymous and shared memory, in bytes.
    pub fn resident(self) -> u64 {
        self.value - self.cache
    }
}

impl From<&Usage> for Amount {
    fn from(usage: &Usage) -> Amount {
        Amount {
            value: usage.value(),
            cache: usage.cache,
        }
    }
}

impl AddAssign for Amount {
    fn add_assign(&mut self, other: Amount) {
        self.value += other.value;
        self.cache += other.cache;
    }
}

/// Which end of a stack stands at the root.
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

    /// Its name on the command line and in addresses: what stands below a function.
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

/// How a tree is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Options {
    /// Which end of a stack stands at the root.
    pub direction: Direction,
    /// A node is kept when it counts at least so many bytes; 0 keeps all.
    pub threshold: u64,
}

/// Index of a [`Node`] in its [`CallTree`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodeId(u32);

/// A call site under a certain path.
#[derive(Clone, Debug)]
pub struct Node {
    /// The call site; `None` at the root.
    pub frame: Option<Frame>,
    /// Bytes of the node and everything below it.
    pub amount: Amount,
    /// Bytes of children that the threshold dropped.
    pub under_threshold: Amount,
    /// Bytes of stacks that end here, and of children that resolve to nothing.
    pub unknown: Amount,
    children: Range<u32>,
}

/// A tree of call sites, amounts in bytes.
///
/// Nodes live in one arena, so that depth costs no stack, neither to build nor to drop. For every
/// node `amount = unknown + under_threshold + the sum of its children`.
#[derive(Debug)]
pub struct CallTree {
    nodes: Vec<Node>,
    edges: Vec<NodeId>,
}

impl CallTree {
    /// Lays the profile's stacks over each other.
    ///
    /// Takes time in proportion to all frames of all stacks, and memory in proportion to the nodes
    /// that the threshold keeps.
    pub fn new(profile: &Profile, symbols: &Symbols, options: Options) -> CallTree {
        build::build(profile, symbols, options)
    }

    /// The root.
    pub fn root(&self) -> NodeId {
        NodeId(self.nodes.len() as u32 - 1)
    }

    /// A node.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize]
    }

    /// A node's children: by bytes descending, then offset, executable, function name, category.
    pub fn children(&self, id: NodeId) -> &[NodeId] {
        let Range { start, end } = self.node(id).children;
        &self.edges[start as usize..end as usize]
    }

    /// How many nodes the tree has, the root included.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether nothing stands under the root.
    pub fn is_empty(&self) -> bool {
        self.nodes.len() == 1
    }
}
