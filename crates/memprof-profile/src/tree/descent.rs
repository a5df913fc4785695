//! An iterator over the rows of a tree, in the order of the `/v1` contract.
//!
//! The paths are sorted, so a node is a range of paths, and its children are the ranges that differ in the next step.
//! Memory is needed only for the paths and for the siblings along one path, regardless of the number of rows.

use std::cmp::{Ordering, Reverse};

use super::label::{Label, LabelId, Labels};
use super::paths::{Paths, add};
use super::sweep::LayoutRow;

/// An iterator over the rows, depth first. Siblings are sorted by bytes, descending, then by offset, file, function and
/// category. The row that aggregates siblings below the threshold comes last.
pub struct Descent<'p, 'a, const N: usize> {
    paths: &'p Paths<'a, N>,
    rest: LabelId,
    threshold: u64,
    /// Pending nodes; the next one is last.
    todo: Vec<Node<N>>,
    rows: u32,
}

/// A node: the paths `first..end`, which share their first `depth` steps.
#[derive(Clone, Copy)]
struct Node<const N: usize> {
    parent: u32,
    label: LabelId,
    first: usize,
    end: usize,
    depth: usize,
    total: [u64; N],
}

impl<'p, 'a, const N: usize> Descent<'p, 'a, N> {
    /// The tree of these paths. Nodes with fewer bytes than `threshold` in every column are aggregated, except the root.
    pub fn new(paths: &'p mut Paths<'a, N>, threshold: u64) -> Descent<'p, 'a, N> {
        paths.sort();
        let rest = paths.label(Label::BelowThreshold);
        let paths = &*paths;
        let root = Node {
            parent: 0,
            label: Labels::ROOT,
            first: 0,
            end: paths.len(),
            depth: 0,
            total: paths.total(),
        };
        Descent {
            paths,
            rest,
            threshold,
            todo: vec![root],
            rows: 0,
        }
    }

    /// The labels of the rows.
    pub fn labels(&self) -> &'p Labels<'a> {
        self.paths.labels()
    }

    /// Adds the children of a node to the pending nodes, and returns the bytes of the paths that end in the node.
    fn open(&mut self, node: &Node<N>, row: u32) -> [u64; N] {
        let (mut own, mut below) = ([0; N], [0; N]);
        let begin = self.todo.len();
        let mut first = node.first;
        while first < node.end {
            let (steps, bytes) = self.paths.at(first);
            let Some(label) = steps.get(node.depth).copied() else {
                add(&mut own, &bytes);
                first += 1;
                continue;
            };
            let child = self.child(node, row, first, label);
            first = child.end;
            match child.weight() >= self.threshold {
                true => self.todo.push(child),
                false => add(&mut below, &child.total),
            }
        }
        let labels = self.paths.labels();
        self.todo[begin..].sort_unstable_by(|a, b| order(labels, b, a));
        if below.iter().any(|bytes| *bytes > 0) {
            let rest = Node {
                parent: row,
                label: self.rest,
                end: node.first,
                total: below,
                ..*node
            };
            self.todo.insert(begin, rest);
        }
        own
    }

    /// The child of a node that begins with path `first`.
    fn child(&self, node: &Node<N>, row: u32, first: usize, label: LabelId) -> Node<N> {
        let mut child = Node {
            parent: row,
            label,
            first,
            end: first,
            depth: node.depth + 1,
            total: [0; N],
        };
        while child.end < node.end {
            let (steps, bytes) = self.paths.at(child.end);
            if steps.get(node.depth) != Some(&label) {
                break;
            }
            add(&mut child.total, &bytes);
            child.end += 1;
        }
        child
    }
}

impl<const N: usize> Node<N> {
    fn weight(&self) -> u64 {
        self.total.into_iter().max().unwrap_or(0)
    }
}

fn order<const N: usize>(labels: &Labels<'_>, a: &Node<N>, b: &Node<N>) -> Ordering {
    let sizes = Reverse(a.weight()).cmp(&Reverse(b.weight()));
    sizes.then_with(|| match (labels.get(a.label), labels.get(b.label)) {
        (Label::Code(a), Label::Code(b)) => a.by_offset(b),
        (a, b) => a.cmp(b),
    })
}

impl<const N: usize> Iterator for Descent<'_, '_, N> {
    type Item = LayoutRow<N>;

    fn next(&mut self) -> Option<LayoutRow<N>> {
        let node = self.todo.pop()?;
        let row = self.rows;
        self.rows += 1;
        let own = match node.label == self.rest {
            true => node.total,
            false => self.open(&node, row),
        };
        Some(LayoutRow {
            parent: node.parent,
            label: node.label,
            total: node.total,
            own,
        })
    }
}
