//! Merges sorted paths into rows in one pass, with only the current path as state.
//!
//! The rows of a subtree directly follow its root, so a node below the threshold is dropped by truncating the rows. There
//! is no recursion, so memprof's own stack does not limit the depth.

use super::label::LabelId;
use super::paths::add;

/// A node of the tree, with a reference to its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayoutRow<const N: usize> {
    /// Row of the parent, which always comes before this one. 0 for the root, which is row 0.
    pub parent: u32,
    /// The node's label.
    pub label: LabelId,
    /// Bytes of the node and everything below it, in each column.
    pub total: [u64; N],
    /// Bytes of stacks that end in the node, in each column: `total` minus the `total` of its children.
    pub own: [u64; N],
}

impl<const N: usize> LayoutRow<N> {
    /// The largest column, which decides whether the node is retained. No node weighs more than its parent.
    pub(super) fn weight(&self) -> u64 {
        self.total.into_iter().max().unwrap_or(0)
    }
}

/// Merges sorted paths. Returns the rows depth first, with siblings in the order of the paths, and the number of nodes that
/// the threshold dropped. A row `rest`, the last child of a node, aggregates the dropped children. The root is never
/// dropped.
pub(super) fn sweep<'p, const N: usize>(
    paths: impl Iterator<Item = (&'p [LabelId], [u64; N])>,
    root: LabelId,
    rest: LabelId,
    threshold: u64,
) -> (Vec<LayoutRow<N>>, u64) {
    let mut sweep = Sweep::new(root, rest, threshold);
    let mut before: &[LabelId] = &[];
    for (steps, bytes) in paths {
        sweep.add(before, steps, bytes);
        before = steps;
    }
    sweep.finish()
}

/// A node on the current path.
struct Open<const N: usize> {
    row: u32,
    below: [u64; N],
}

struct Sweep<const N: usize> {
    rows: Vec<LayoutRow<N>>,
    path: Vec<Open<N>>,
    threshold: u64,
    rest: LabelId,
    dropped: u64,
}

impl<const N: usize> Sweep<N> {
    fn new(root: LabelId, rest: LabelId, threshold: u64) -> Sweep<N> {
        let mut sweep = Sweep {
            rows: Vec::new(),
            path: Vec::new(),
            threshold,
            rest,
            dropped: 0,
        };
        sweep.open(root);
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
        self.rows.push(LayoutRow {
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

    /// Closes every node deeper than `depth` (the root has depth 0).
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
                // None of the node's descendants was retained either.
                add(&mut parent.below, &total);
                self.rows.truncate(open.row as usize);
                self.dropped += 1;
            }
            add(&mut self.rows[parent_row].total, &total);
        }
    }

    /// Adds the row that aggregates the dropped children of a node.
    fn sum_up(&mut self, open: &Open<N>) {
        if open.below.iter().any(|bytes| *bytes > 0) {
            self.push(open.row, self.rest, open.below);
        }
    }

    /// Closes the root, which is never dropped.
    fn finish(mut self) -> (Vec<LayoutRow<N>>, u64) {
        self.close_to(0);
        if let Some(root) = self.path.pop() {
            let own = self.rows[0].own;
            add(&mut self.rows[0].total, &own);
            self.sum_up(&root);
        }
        (self.rows, self.dropped)
    }
}
