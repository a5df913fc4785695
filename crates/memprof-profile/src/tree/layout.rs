//! A tree as a list of rows, with one or more columns of bytes.
//!
//! The paths are sorted, then [merged](super::sweep::sweep) in one pass.

use std::cmp::Reverse;

use super::label::{Label, LabelId, Labels};
use super::paths::{Paths, add};
use super::sweep::{LayoutRow, sweep};

/// Limits on the size of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Minimum bytes of a node, in any column; smaller nodes are aggregated. 0 disables this limit.
    pub threshold: u64,
    /// Maximum number of nodes, without the root and the rows that aggregate dropped nodes.
    pub max_nodes: usize,
}

/// The order of siblings. Rows that aggregate dropped nodes always come last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// By bytes, descending, then by label.
    Size,
    /// By the text of the label.
    Name,
}

/// Numbers of dropped nodes. Separate rows contain the bytes of these nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// Nodes below the threshold.
    pub below_threshold: u64,
    /// Nodes beyond the maximum number of nodes.
    pub over_limit: u64,
}

/// A tree in depth-first order.
#[derive(Debug)]
pub struct Layout<const N: usize> {
    /// The nodes.
    pub rows: Vec<LayoutRow<N>>,
    /// Numbers of dropped nodes.
    pub cut: Cut,
}

impl<const N: usize> Layout<N> {
    /// Merges the paths, largest siblings first.
    pub fn new(paths: &mut Paths<'_, N>, limits: Limits) -> Layout<N> {
        Layout::ordered(paths, limits, Order::Size)
    }

    /// Merges the paths, with siblings in order `order`.
    pub fn ordered(paths: &mut Paths<'_, N>, limits: Limits, order: Order) -> Layout<N> {
        paths.sort();
        let rest = paths.label(Label::BelowThreshold);
        let over = paths.label(Label::OverLimit);
        let (rows, below_threshold) = sweep(paths.iter(), Labels::ROOT, rest, limits.threshold);
        let (rows, over_limit) = keep_largest(rows, limits.max_nodes, rest, over);
        Layout {
            rows: in_order(&rows, paths.labels(), order),
            cut: Cut {
                below_threshold,
                over_limit,
            },
        }
    }
}

/// Retains the root and the largest nodes. No child weighs more than its parent, so parents are retained as well.
fn keep_largest<const N: usize>(
    rows: Vec<LayoutRow<N>>,
    max_nodes: usize,
    rest: LabelId,
    over: LabelId,
) -> (Vec<LayoutRow<N>>, u64) {
    if rows.len() <= max_nodes {
        return (rows, 0);
    }
    let real = |row: &LayoutRow<N>| row.label != rest;
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
    // The new position of each retained row, and the sum of its dropped children.
    let mut place = vec![0u32; rows.len()];
    let mut kept: Vec<LayoutRow<N>> = Vec::with_capacity(2 * max_nodes);
    let mut lost: Vec<[u64; N]> = Vec::with_capacity(max_nodes);
    for (at, row) in rows.iter().enumerate() {
        let parent = row.parent as usize;
        if keep[at] || (!real(row) && keep[parent]) {
            place[at] = kept.len() as u32;
            kept.push(LayoutRow {
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
            kept.push(LayoutRow {
                parent: parent as u32,
                label: over,
                total: bytes,
                own: bytes,
            });
        }
    }
    (kept, dropped)
}

/// Sorts the rows depth first, with siblings in order `order`.
fn in_order<const N: usize>(
    rows: &[LayoutRow<N>],
    labels: &Labels<'_>,
    order: Order,
) -> Vec<LayoutRow<N>> {
    let ranks = match order {
        Order::Name => ranks(labels),
        Order::Size => Vec::new(),
    };
    let compare = |a: &LayoutRow<N>, b: &LayoutRow<N>| match order {
        Order::Name => ranks[a.label as usize].cmp(&ranks[b.label as usize]),
        Order::Size => {
            let sizes = Reverse(a.weight()).cmp(&Reverse(b.weight()));
            sizes.then_with(|| labels.get(a.label).cmp(labels.get(b.label)))
        }
    };
    let is_rest = |row: &LayoutRow<N>| labels.get(row.label).is_rest();
    let (first, mut children) = children(rows);
    for range in first.windows(2) {
        children[range[0] as usize..range[1] as usize].sort_unstable_by(|a, b| {
            let (a, b) = (&rows[*a as usize], &rows[*b as usize]);
            is_rest(a).cmp(&is_rest(b)).then_with(|| compare(a, b))
        });
    }
    let mut out = Vec::with_capacity(rows.len());
    let mut todo = vec![(0u32, 0u32)];
    while let Some((at, parent)) = todo.pop() {
        let place = out.len() as u32;
        let at = at as usize;
        out.push(LayoutRow { parent, ..rows[at] });
        let own = &children[first[at] as usize..first[at + 1] as usize];
        todo.extend(own.iter().rev().map(|child| (*child, place)));
    }
    out
}

/// An index of the children of all rows: the offset of each row's children in the list, and the list.
fn children<const N: usize>(rows: &[LayoutRow<N>]) -> (Vec<u32>, Vec<u32>) {
    let mut first = vec![0u32; rows.len() + 1];
    for row in &rows[1..] {
        first[row.parent as usize + 1] += 1;
    }
    for at in 1..first.len() {
        first[at] += first[at - 1];
    }
    let (mut next, mut children) = (first.clone(), vec![0; rows.len() - 1]);
    for (at, row) in (0..).zip(rows).skip(1) {
        let place = &mut next[row.parent as usize];
        children[*place as usize] = at;
        *place += 1;
    }
    (first, children)
}

/// The rank of each label by text.
fn ranks(labels: &Labels<'_>) -> Vec<u32> {
    let mut order: Vec<LabelId> = (0..labels.all().len() as LabelId).collect();
    order.sort_by_cached_key(|id| labels.get(*id).to_string());
    let mut ranks = vec![0; order.len()];
    for (rank, id) in (0..).zip(order) {
        ranks[id as usize] = rank;
    }
    ranks
}

#[cfg(test)]
mod tests;
