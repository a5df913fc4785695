//! A tree as rows, with one or two amounts each: what the `/v2` replies are made of.
//!
//! Paths are sorted, then swept over once, as [`CallTree`](super::CallTree) does. The rows of a
//! subtree stand side by side behind its root, so a node that the threshold drops is cut off the
//! end. Depth costs no stack.

use std::cmp::Reverse;

use super::label::{Label, LabelId, Labels};
use super::paths::{Paths, add};

/// What is left out of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// A node is kept when it counts at least so many bytes on any side; 0 keeps all.
    pub threshold: u64,
    /// So many nodes are kept, the root and the sums of what is left out not counted.
    pub max_nodes: usize,
}

/// A row: a node under its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row<const N: usize> {
    /// Row of the parent, always before this one; 0 at the root, which is row 0.
    pub parent: u32,
    /// What it stands for.
    pub label: LabelId,
    /// Bytes of the node and everything below it, on each side.
    pub total: [u64; N],
    /// Bytes of stacks that end here, on each side: `total` less the children's `total`.
    pub own: [u64; N],
}

impl<const N: usize> Row<N> {
    /// What decides whether it is kept: no node weighs more than its parent.
    fn weight(&self) -> u64 {
        self.total.into_iter().max().unwrap_or(0)
    }
}

/// How many nodes were left out; their bytes stand in rows of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// By the threshold.
    pub below_threshold: u64,
    /// For want of room.
    pub over_limit: u64,
}

/// A tree in depth-first order, siblings by bytes descending, what sums up the rest last.
#[derive(Debug)]
pub struct Layout<const N: usize> {
    /// The nodes.
    pub rows: Vec<Row<N>>,
    /// What was left out.
    pub cut: Cut,
}

impl<const N: usize> Layout<N> {
    /// Lays the paths over each other.
    pub fn new(paths: &mut Paths<'_, N>, limits: Limits) -> Layout<N> {
        paths.sort();
        let rest = paths.label(Label::BelowThreshold);
        let over = paths.label(Label::OverLimit);
        let mut sweep = Sweep::new(limits.threshold, rest);
        let mut before: &[LabelId] = &[];
        for (steps, bytes) in paths.iter() {
            sweep.add(before, steps, bytes);
            before = steps;
        }
        let (rows, below_threshold) = sweep.finish();
        let (rows, over_limit) = keep_largest(rows, limits.max_nodes, rest, over);
        Layout {
            rows: in_order(&rows, paths.labels()),
            cut: Cut {
                below_threshold,
                over_limit,
            },
        }
    }
}

/// A node that the sweep has not left yet.
struct Open<const N: usize> {
    row: u32,
    below: [u64; N],
}

struct Sweep<const N: usize> {
    rows: Vec<Row<N>>,
    path: Vec<Open<N>>,
    threshold: u64,
    rest: LabelId,
    dropped: u64,
}

impl<const N: usize> Sweep<N> {
    fn new(threshold: u64, rest: LabelId) -> Sweep<N> {
        let mut sweep = Sweep {
            rows: Vec::new(),
            path: Vec::new(),
            threshold,
            rest,
            dropped: 0,
        };
        sweep.open(Labels::ROOT);
        sweep
    }

    fn add(&mut self, before: &[LabelId], steps: &[LabelId], bytes: [u64; N]) {
        let shared = before.iter().zip(steps).take_while(|(a, b)| a == b).count();
        self.close_to(shared);
        steps[shared..].iter().for_each(|label| self.open(*label));
        if let Some(end) = self.path.last() {
            add(&mut self.rows[end.row as usize].own, &bytes);
        }
    }

    fn push(&mut self, parent: u32, label: LabelId, bytes: [u64; N]) -> u32 {
        self.rows.push(Row {
            parent,
            label,
            total: bytes,
            own: bytes,
        });
        (self.rows.len() - 1) as u32
    }

    fn open(&mut self, label: LabelId) {
        let parent = self.path.last().map_or(0, |open| open.row);
        let row = self.push(parent, label, [0; N]);
        let below = [0; N];
        self.path.push(Open { row, below });
    }

    /// Leaves every node deeper than `depth` (the root has depth 0).
    fn close_to(&mut self, depth: usize) {
        while self.path.len() > depth + 1
            && let Some(open) = self.path.pop()
            && let Some(parent) = self.path.last_mut()
        {
            let row = &mut self.rows[open.row as usize];
            let own = row.own;
            add(&mut row.total, &own);
            let (total, kept) = (row.total, row.weight() >= self.threshold);
            let parent_row = parent.row as usize;
            if kept {
                self.sum_up(&open);
            } else {
                // Nothing below it was kept either.
                add(&mut parent.below, &total);
                self.rows.truncate(open.row as usize);
                self.dropped += 1;
            }
            add(&mut self.rows[parent_row].total, &total);
        }
    }

    /// Adds the row of what was dropped below a node.
    fn sum_up(&mut self, open: &Open<N>) {
        if open.below.iter().any(|bytes| *bytes > 0) {
            self.push(open.row, self.rest, open.below);
        }
    }

    /// Leaves the root, which no threshold drops.
    fn finish(mut self) -> (Vec<Row<N>>, u64) {
        self.close_to(0);
        if let Some(root) = self.path.pop() {
            let own = self.rows[0].own;
            add(&mut self.rows[0].total, &own);
            self.sum_up(&root);
        }
        (self.rows, self.dropped)
    }
}

/// Keeps the root and the largest nodes; parents before children, as none weighs more.
fn keep_largest<const N: usize>(
    rows: Vec<Row<N>>,
    max_nodes: usize,
    rest: LabelId,
    over: LabelId,
) -> (Vec<Row<N>>, u64) {
    let real = |row: &Row<N>| row.label != rest;
    let mut order: Vec<u32> = (1..rows.len() as u32)
        .filter(|at| real(&rows[*at as usize]))
        .collect();
    if order.len() <= max_nodes {
        return (rows, 0);
    }
    let key = |at: &u32| (Reverse(rows[*at as usize].weight()), *at);
    order.select_nth_unstable_by_key(max_nodes, key);
    let mut keep = vec![false; rows.len()];
    keep[0] = true;
    order[..max_nodes]
        .iter()
        .for_each(|at| keep[*at as usize] = true);
    let dropped = (order.len() - max_nodes) as u64;
    // Where the kept rows go, and what their dropped children sum up to.
    let mut place = vec![0u32; rows.len()];
    let mut kept: Vec<Row<N>> = Vec::with_capacity(2 * max_nodes);
    let mut lost: Vec<[u64; N]> = Vec::with_capacity(max_nodes);
    for (at, row) in rows.iter().enumerate() {
        let parent = row.parent as usize;
        if keep[at] || (!real(row) && keep[parent]) {
            place[at] = kept.len() as u32;
            kept.push(Row {
                parent: place[parent],
                ..*row
            });
            lost.push([0; N]);
        } else if keep[parent] {
            add(&mut lost[place[parent] as usize], &row.total);
        }
    }
    for (parent, bytes) in lost.into_iter().enumerate() {
        if bytes.iter().any(|bytes| *bytes > 0) {
            kept.push(Row {
                parent: parent as u32,
                label: over,
                total: bytes,
                own: bytes,
            });
        }
    }
    (kept, dropped)
}

/// The rows depth first, siblings by weight descending, then by label.
fn in_order<const N: usize>(rows: &[Row<N>], labels: &Labels<'_>) -> Vec<Row<N>> {
    let mut children: Vec<u32> = (1..rows.len() as u32).collect();
    let key = |at: &u32| {
        let row = &rows[*at as usize];
        let label = labels.get(row.label);
        (row.parent, label.is_rest(), Reverse(row.weight()), label)
    };
    children.sort_unstable_by(|a, b| key(a).cmp(&key(b)));
    // Where each row's children begin in `children`.
    let mut first = vec![0u32; rows.len() + 1];
    for row in &rows[1..] {
        first[row.parent as usize + 1] += 1;
    }
    for at in 1..first.len() {
        first[at] += first[at - 1];
    }
    let mut out = Vec::with_capacity(rows.len());
    let mut todo = vec![(0u32, 0u32)];
    while let Some((at, parent)) = todo.pop() {
        let place = out.len() as u32;
        let at = at as usize;
        out.push(Row { parent, ..rows[at] });
        let own = &children[first[at] as usize..first[at + 1] as usize];
        todo.extend(own.iter().rev().map(|child| (*child, place)));
    }
    out
}

#[cfg(test)]
mod tests;
