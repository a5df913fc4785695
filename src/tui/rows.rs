//! The listed rows of a model.

use std::cmp::Reverse;
use std::collections::{HashSet, VecDeque};

use super::model::{Model, Pair};
use super::view::Sort;
use memprof_profile::tree::NO_FUNCTION;

/// Maximum number of listed rows; the screen shows a note if there are more.
pub(super) const MAX_ROWS: usize = 20_000;

/// A row of the function table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FunctionRow {
    /// A function, by its index in the model.
    Function(usize),
    /// Memory outside functions.
    Unknown,
}

impl FunctionRow {
    /// The row's self and total bytes.
    pub(super) fn pairs(self, model: &Model) -> (Pair, Pair) {
        match self {
            FunctionRow::Function(at) => (model.functions[at].own, model.functions[at].total),
            FunctionRow::Unknown => (model.unknown, model.unknown),
        }
    }

    /// The standard errors of self and total, in bytes.
    pub(super) fn errors(self, model: &Model) -> [u64; 2] {
        match self {
            FunctionRow::Function(at) => model.functions[at].errors,
            FunctionRow::Unknown => [0; 2],
        }
    }

    pub(super) fn name(self, model: &Model) -> &str {
        match self {
            FunctionRow::Function(at) => &model.functions[at].name,
            FunctionRow::Unknown => NO_FUNCTION,
        }
    }
}

/// The sorted functions; with a mark, sorted by change.
pub(super) fn functions(model: &Model, sort: Sort) -> Vec<FunctionRow> {
    let mut rows: Vec<FunctionRow> = (0..model.functions.len())
        .map(FunctionRow::Function)
        .collect();
    if !model.filtered && model.unknown != Pair::default() {
        rows.push(FunctionRow::Unknown);
    }
    let weight = |pair: Pair| match model.is_difference {
        true => pair.change().unsigned_abs(),
        false => u128::from(pair.now),
    };
    rows.sort_by(|a, b| {
        let (a_pairs, b_pairs) = (a.pairs(model), b.pairs(model));
        let by_own = weight(b_pairs.0).cmp(&weight(a_pairs.0));
        let by_total = weight(b_pairs.1).cmp(&weight(a_pairs.1));
        // For equal changes, larger functions come first.
        let by_size = b_pairs.1.now.cmp(&a_pairs.1.now);
        let by_name = a.name(model).cmp(b.name(model));
        // The row for memory outside functions comes last.
        let last = (*a == FunctionRow::Unknown).cmp(&(*b == FunctionRow::Unknown));
        match sort {
            Sort::Own => last.then(by_own).then(by_total).then(by_size).then(by_name),
            Sort::Total => last.then(by_total).then(by_own).then(by_size).then(by_name),
            Sort::Name => by_name.then(by_own),
        }
    });
    rows
}

/// A row of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TreeRow {
    /// Identifies the row among all others, also in later models.
    pub(super) key: u64,
    pub(super) depth: usize,
    /// The parent's row; the root is its own parent.
    pub(super) above: usize,
    pub(super) node: usize,
    /// True for the row with the bytes of stacks that end in the node, false for the node itself.
    pub(super) ends: bool,
    pub(super) pair: Pair,
    /// The standard error of the current figure.
    pub(super) error: u64,
    /// `None` without children; otherwise whether they are listed.
    pub(super) open: Option<bool>,
}

/// A node that remains to be listed.
struct Todo {
    node: usize,
    depth: usize,
    above: usize,
    /// Whether to keep all descendants, because the filter matches an ancestor or is empty.
    kept: bool,
}

/// The unfolded part of the tree, at most `MAX_ROWS` rows, and whether it is complete.
pub(super) fn tree(model: &Model, unfolded: &HashSet<u64>) -> (Vec<TreeRow>, bool) {
    let mut rows = Vec::new();
    let mut todo = vec![Todo {
        node: 0,
        depth: 0,
        above: 0,
        kept: !model.filtered,
    }];
    while let Some(next) = todo.pop() {
        if rows.len() >= MAX_ROWS {
            return (rows, false);
        }
        list(model, unfolded, next, &mut rows, &mut todo);
    }
    (rows, true)
}

fn list(
    model: &Model,
    unfolded: &HashSet<u64>,
    next: Todo,
    rows: &mut Vec<TreeRow>,
    todo: &mut Vec<Todo>,
) {
    let node = &model.tree[next.node];
    let kept = next.kept || node.named;
    let children = children(model, next.node, kept);
    let is_root = next.node == 0;
    // Ancestors of matching nodes are always unfolded.
    let open = is_root || !kept || unfolded.contains(&node.key);
    let place = rows.len();
    rows.push(TreeRow {
        key: node.key,
        depth: next.depth,
        above: next.above,
        node: next.node,
        ends: false,
        pair: node.total,
        error: node.errors[1],
        open: (!children.is_empty()).then_some(open),
    });
    if !open || children.is_empty() {
        return;
    }
    let ends = kept && node.own != Pair::default();
    // A chain without branches is marked instead of indented.
    let branches = is_root || ends || children.len() > 1;
    let depth = next.depth + usize::from(branches);
    if ends {
        rows.push(TreeRow {
            // Another node has this key only by a hash collision, which would only select the wrong row.
            key: !node.key,
            depth,
            above: place,
            node: next.node,
            ends: true,
            pair: node.own,
            error: node.errors[0],
            open: None,
        });
    }
    todo.extend(children.into_iter().rev().map(|child| Todo {
        node: child,
        depth,
        above: place,
        kept,
    }));
}

/// The children that pass the filter, largest first; with a mark, sorted by change.
fn children(model: &Model, node: usize, all: bool) -> Vec<usize> {
    let left = |child: &usize| {
        let child = &model.tree[*child];
        all || child.named || child.on_the_way
    };
    let mut children: Vec<usize> = model.children(node).filter(left).collect();
    if model.is_difference {
        children.sort_by_key(|c| Reverse(model.tree[*c].total.change().unsigned_abs()));
    }
    children
}

/// The keys to unfold so that a row's content is visible: its own key, and those of its descendants up to the first
/// branch.
pub(super) fn chain(model: &Model, row: &TreeRow) -> Vec<u64> {
    let mut keys = vec![model.tree[row.node].key];
    let mut node = row.node;
    loop {
        let mut children = model.children(node);
        match (children.next(), children.next()) {
            (Some(only), None) => {
                keys.push(model.tree[only].key);
                node = only;
            }
            _ => return keys,
        }
    }
}

/// The keys of a row and all its descendants, at most [`MAX_ROWS`].
pub(super) fn everything(model: &Model, row: &TreeRow) -> Vec<u64> {
    let mut keys = Vec::new();
    let mut todo = VecDeque::from([row.node]);
    // Breadth first, so that the limit cuts off the deepest nodes.
    while let Some(node) = todo.pop_front() {
        if keys.len() >= MAX_ROWS {
            break;
        }
        keys.push(model.tree[node].key);
        todo.extend(model.children(node));
    }
    keys
}
