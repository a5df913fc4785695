//! Stacks as paths of names, laid over each other: what folded stacks and flame graphs show.
//!
//! Unlike in the [call tree](crate::tree::CallTree), frames of one name are one node, and a path
//! goes on behind a frame that resolves to nothing. Each distinct name is kept once, and four bytes
//! for each frame of each stack.

mod build;
pub(super) mod labels;

use std::io;

use super::{ExportOptions, Report};
use crate::tree::Row;

/// Bytes at two moments. Without a baseline `before` is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bytes {
    /// In the baseline, in bytes.
    pub before: u64,
    /// In the report, in bytes.
    pub now: u64,
}

impl Bytes {
    pub fn is_zero(self) -> bool {
        self == Bytes::default()
    }
}

impl From<[u64; 2]> for Bytes {
    fn from([before, now]: [u64; 2]) -> Bytes {
        Bytes { before, now }
    }
}

/// A name under a certain path.
#[derive(Clone, Debug, Default)]
pub(super) struct Node {
    label: u32,
    /// Of stacks that end here.
    pub own: Bytes,
    /// Of stacks that end here or below.
    pub total: Bytes,
    /// Place of the node above it; the root's is its own.
    parent: u32,
}

impl From<&Row<2>> for Node {
    fn from(row: &Row<2>) -> Node {
        Node {
            label: row.label,
            own: row.own.into(),
            total: row.total.into(),
            parent: row.parent,
        }
    }
}

/// A tree of names. For every node `total = own + the sum of its children's totals`.
#[derive(Debug)]
pub(super) struct Paths {
    labels: Vec<String>,
    /// Depth first, the root first, siblings by name.
    nodes: Vec<Node>,
    /// Whether there is a baseline.
    pub is_difference: bool,
}

impl Paths {
    /// Lays out what the options ask for; nodes below `threshold` bytes, both now and before, are
    /// summed up in one node of their parent. The outermost function stands first unless the
    /// options say otherwise.
    pub fn new(report: &Report, options: &ExportOptions, threshold: u64) -> Paths {
        build::build(report, options, threshold)
    }

    /// The node that everything stands under.
    pub fn root(&self) -> &Node {
        &self.nodes[0]
    }

    /// A node's name, as it stands in the file.
    pub fn label(&self, node: &Node) -> &str {
        &self.labels[node.label as usize]
    }

    /// Visits every node but the root, parents first, siblings by name, with its depth: 0 for what
    /// stands right under the root.
    pub fn visit<'a>(
        &'a self,
        mut visit: impl FnMut(usize, &'a Node) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut depths = vec![0; self.nodes.len()];
        for (at, node) in self.nodes.iter().enumerate().skip(1) {
            let parent = node.parent as usize;
            depths[at] = depths[parent] + usize::from(parent > 0);
            visit(depths[at], node)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::export::testing::report;
    use crate::profile::Kind;
    use crate::tree::Direction;
    use crate::tree::properties::any_profile;

    fn any_report() -> impl Strategy<Value = Report> {
        any_profile().prop_map(|profile| report(profile, &[]))
    }

    fn any_options() -> impl Strategy<Value = ExportOptions> {
        let kind = proptest::sample::select(Kind::ALL.as_slice());
        let direction = proptest::sample::select(Direction::ALL.as_slice());
        let baseline = proptest::option::of(any_report());
        (kind, direction, baseline).prop_map(|(kind, direction, baseline)| ExportOptions {
            kind,
            direction: Some(direction),
            baseline: baseline.map(Arc::new),
            threshold: None,
        })
    }

    proptest! {
        #[test]
        fn every_node_is_the_sum_of_its_parts(
            report in any_report(), options in any_options(), threshold in 0u64..80_000,
        ) {
            let paths = Paths::new(&report, &options, threshold);
            let add = |sum: &mut Bytes, more: Bytes| {
                sum.before += more.before;
                sum.now += more.now;
            };
            let mut sums: Vec<Bytes> = paths.nodes.iter().map(|node| node.own).collect();
            for node in &paths.nodes[1..] {
                add(&mut sums[node.parent as usize], node.total);
                let kept = node.total.now.max(node.total.before) >= threshold;
                prop_assert!(kept || paths.label(node) == "[under threshold]");
            }
            for (node, sum) in paths.nodes.iter().zip(sums) {
                prop_assert_eq!(sum, node.total);
            }
            let root = paths.root().total;
            prop_assert_eq!(root.now, options.kind.of(&report.profile.total));
            let before = options.baseline.map(|b| options.kind.of(&b.profile.total));
            prop_assert_eq!(root.before, before.unwrap_or_default());
            let mut own = paths.root().own;
            paths.visit(|_, node| {
                add(&mut own, node.own);
                Ok(())
            }).unwrap();
            prop_assert_eq!(own, root);
        }
    }
}
