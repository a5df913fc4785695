//! A tree as rows, with one or two amounts each: what the `/v2` replies are made of.
//!
//! Paths are sorted, then [swept over](super::sweep()) once, as [`CallTree`](super::CallTree) does.

use std::cmp::Reverse;

use super::label::{Label, LabelId, Labels};
use super::paths::{Paths, add};
use super::sweep::{Row, sweep};

/// What is left out of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// A node is kept when it counts at least so many bytes on any side; 0 keeps all.
    pub threshold: u64,
    /// So many nodes are kept, the root and the sums of what is left out not counted.
    pub max_nodes: usize,
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
        let (rows, below_threshold) = sweep(paths.iter(), Labels::ROOT, rest, limits.threshold);
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
