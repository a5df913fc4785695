//! What is to be seen of a model, line by line.

use std::cmp::Reverse;
use std::collections::{HashSet, VecDeque};

use super::model::{Model, Pair};
use super::state::Sort;
use crate::tree::NO_FUNCTION;

/// Rows that are listed at most; what is beyond is said.
pub(super) const MOST_ROWS: usize = 20_000;

/// A row of the functions' table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FunctionRow {
    /// A function, by its place in the model.
    Function(usize),
    /// Memory that is in no function.
    Unknown,
}

impl FunctionRow {
    /// What it holds itself and in all.
    pub(super) fn pairs(self, model: &Model) -> (Pair, Pair) {
        match self {
            FunctionRow::Function(at) => (model.functions[at].own, model.functions[at].total),
            FunctionRow::Unknown => (model.unknown, model.unknown),
        }
    }

    pub(super) fn name(self, model: &Model) -> &str {
        match self {
            FunctionRow::Function(at) => &model.functions[at].name,
            FunctionRow::Unknown => NO_FUNCTION,
        }
    }
}

/// The functions, sorted; with a mark by how much they changed.
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
        // Of those that did not change the large ones first.
        let by_size = b_pairs.1.now.cmp(&a_pairs.1.now);
        let by_name = a.name(model).cmp(b.name(model));
        match sort {
            Sort::Own => by_own.then(by_total).then(by_size).then(by_name),
            Sort::Total => by_total.then(by_own).then(by_size).then(by_name),
            Sort::Name => by_name.then(by_own),
        }
    });
    rows
}

/// A row of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TreeRow {
    /// What tells the row apart from all others, in later models too.
    pub(super) key: u64,
    pub(super) depth: usize,
    /// The row of the node above; the root's is its own.
    pub(super) above: usize,
    pub(super) node: usize,
    /// The bytes of stacks that end in the node, rather than the node.
    pub(super) ends: bool,
    pub(super) pair: Pair,
    /// Whether it has something below it, and whether that is listed.
    pub(super) open: Option<bool>,
}

/// A node that is still to be listed.
struct Todo {
    node: usize,
    depth: usize,
    above: usize,
    /// Below a node that the filter names everything is kept.
    kept: bool,
}

/// The tree as far as it is unfolded, and whether that is all of it.
pub(super) fn tree(model: &Model, unfolded: &HashSet<u64>) -> (Vec<TreeRow>, bool) {
    let mut rows = Vec::new();
    let mut todo = vec![Todo {
        node: 0,
        depth: 0,
        above: 0,
        kept: !model.filtered,
    }];
    while let Some(next) = todo.pop() {
        if rows.len() >= MOST_ROWS {
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
    // On the way to what the filter names everything is unfolded.
    let open = is_root || !kept || unfolded.contains(&node.key);
    let place = rows.len();
    rows.push(TreeRow {
        key: node.key,
        depth: next.depth,
        above: next.above,
        node: next.node,
        ends: false,
        pair: node.total,
        open: (!children.is_empty()).then_some(open),
    });
    if !open || children.is_empty() {
        return;
    }
    let ends = kept && node.own != Pair::default();
    // A chain that does not branch is not indented.
    let branches = is_root || ends || children.len() > 1;
    let depth = next.depth + usize::from(branches);
    if ends {
        rows.push(TreeRow {
            // No node has this key but by the rarest of chances, and then a row is selected wrongly.
            key: !node.key,
            depth,
            above: place,
            node: next.node,
            ends: true,
            pair: node.own,
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

/// The children that the filter leaves, largest first; with a mark by how much they changed.
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

/// The keys to unfold so that what a row stands for is seen: its own, and those of what follows as
/// long as it does not branch.
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

/// The keys of everything below a row, at most [`MOST_ROWS`].
pub(super) fn everything(model: &Model, row: &TreeRow) -> Vec<u64> {
    let mut keys = Vec::new();
    let mut todo = VecDeque::from([row.node]);
    // By levels, so that the limit cuts off what lies deepest.
    while let Some(node) = todo.pop_front() {
        if keys.len() >= MOST_ROWS {
            break;
        }
        keys.push(model.tree[node].key);
        todo.extend(model.children(node));
    }
    keys
}
