//! What is to be seen of a model, line by line.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::model::{FunctionLine, Model, Pair};
use super::state::Sort;
use crate::tree::NodeId;

/// Rows that are listed at most; what is beyond is said.
pub(super) const MOST_ROWS: usize = 20_000;

/// A row of the functions' table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FunctionRow {
    /// A function, by its place in the model.
    Function(usize),
    /// Memory without a stack.
    Unknown,
}

impl FunctionRow {
    pub(super) fn pairs(self, model: &Model) -> (Pair, Pair) {
        match self {
            FunctionRow::Function(at) => (model.functions[at].own, model.functions[at].total),
            FunctionRow::Unknown => (model.unknown, model.unknown),
        }
    }

    pub(super) fn line(self, model: &Model) -> Option<&FunctionLine> {
        match self {
            FunctionRow::Function(at) => Some(&model.functions[at]),
            FunctionRow::Unknown => None,
        }
    }
}

/// The functions that the filter leaves, sorted; with a mark by how much they changed.
pub(super) fn functions(model: &Model, sort: Sort) -> Vec<FunctionRow> {
    let kept = |line: &FunctionLine| model.keeps(line.function.as_deref(), &line.executable);
    let mut rows: Vec<FunctionRow> = (0..model.functions.len())
        .filter(|at| kept(&model.functions[*at]))
        .map(FunctionRow::Function)
        .collect();
    if model.job.filter.is_empty() && model.unknown != Pair::default() {
        rows.push(FunctionRow::Unknown);
    }
    let weight = |pair: Pair| match model.is_difference() {
        true => pair.change().unsigned_abs(),
        false => u128::from(pair.now),
    };
    let name = |row: &FunctionRow| {
        let line = row.line(model);
        line.map(|l| (l.function.as_deref(), l.executable.as_str()))
    };
    rows.sort_by(|a, b| {
        let (a_pairs, b_pairs) = (a.pairs(model), b.pairs(model));
        let by_own = weight(b_pairs.0).cmp(&weight(a_pairs.0));
        let by_total = weight(b_pairs.1).cmp(&weight(a_pairs.1));
        match sort {
            Sort::Own => by_own.then(by_total).then_with(|| name(a).cmp(&name(b))),
            Sort::Total => by_total.then(by_own).then_with(|| name(a).cmp(&name(b))),
            Sort::Name => name(a).cmp(&name(b)).then(by_own),
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
    pub(super) node: NodeId,
    /// The bytes of stacks that end in the node, rather than the node.
    pub(super) ends: bool,
    pub(super) pair: Pair,
    /// Whether it has something below it, and whether that is listed.
    pub(super) open: Option<bool>,
}

/// The root's key.
pub(super) const ROOT: u64 = 0;

fn key(parent: u64, of: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    (parent, of).hash(&mut hasher);
    hasher.finish()
}

/// A node that is still to be listed.
struct Todo {
    node: NodeId,
    key: u64,
    depth: usize,
    above: usize,
    /// Everything below a node that the filter names is kept.
    below_named: bool,
}

/// The tree as far as it is unfolded, and whether that is all of it.
pub(super) fn tree(model: &Model, unfolded: &HashSet<u64>) -> (Vec<TreeRow>, bool) {
    let mut rows = Vec::new();
    let mut todo = vec![Todo {
        node: model.tree.root(),
        key: ROOT,
        depth: 0,
        above: 0,
        below_named: false,
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
    let node = model.tree.node(next.node);
    let named = next.below_named
        || model
            .found
            .as_ref()
            .is_none_or(|f| f.named.contains(&next.node));
    let children = children(model, next.node, named);
    let is_root = next.node == model.tree.root();
    // On the way to what the filter names everything is unfolded.
    let open = is_root || !named || unfolded.contains(&next.key);
    let place = rows.len();
    rows.push(TreeRow {
        key: next.key,
        depth: next.depth,
        above: next.above,
        node: next.node,
        ends: false,
        pair: node.amount.into(),
        open: (!children.is_empty()).then_some(open),
    });
    if !open || children.is_empty() {
        return;
    }
    let ends: Pair = node.unknown.into();
    let shows_ends = named && ends != Pair::default();
    // A chain that does not branch is not indented.
    let branches = is_root || shows_ends || children.len() > 1;
    let depth = next.depth + usize::from(branches);
    if shows_ends {
        rows.push(TreeRow {
            key: key(next.key, "ends"),
            depth,
            above: place,
            node: next.node,
            ends: true,
            pair: ends,
            open: None,
        });
    }
    todo.extend(children.into_iter().rev().map(|child| Todo {
        node: child,
        key: key(next.key, model.tree.node(child).frame),
        depth,
        above: place,
        below_named: named && !is_root,
    }));
}

/// The children that the filter leaves, largest first; with a mark by how much they changed.
fn children(model: &Model, id: NodeId, all: bool) -> Vec<NodeId> {
    let mut children = model.tree.children(id).to_vec();
    if let Some(found) = model.found.as_ref().filter(|_| !all) {
        children.retain(|c| found.named.contains(c) || found.on_the_way.contains(c));
    }
    if model.is_difference() {
        let change = |c: &NodeId| Pair::from(model.tree.node(*c).amount).change();
        children.sort_by_key(|c| Reverse(change(c).unsigned_abs()));
    }
    children
}

/// The keys to unfold so that what a row stands for is seen: its own, and those of what follows as
/// long as it does not branch.
pub(super) fn chain(model: &Model, row: &TreeRow) -> Vec<u64> {
    let mut keys = vec![row.key];
    let mut node = row.node;
    while let [only] = model.tree.children(node)
        && keys.len() < MOST_ROWS
    {
        let parent = keys.last().copied().unwrap_or(ROOT);
        keys.push(key(parent, model.tree.node(*only).frame));
        node = *only;
    }
    keys
}

/// The keys of everything below a row, at most [`MOST_ROWS`].
pub(super) fn everything(model: &Model, row: &TreeRow) -> Vec<u64> {
    let mut keys = Vec::new();
    let mut todo = std::collections::VecDeque::from([(row.node, row.key)]);
    // By levels, so that the limit cuts off what lies deepest.
    while let Some((node, at)) = todo.pop_front() {
        if keys.len() >= MOST_ROWS {
            break;
        }
        keys.push(at);
        let children = model.tree.children(node).iter();
        todo.extend(children.map(|c| (*c, key(at, model.tree.node(*c).frame))));
    }
    keys
}
