//! Stacks as paths of names, laid over each other: what folded stacks and flame graphs show.
//!
//! Unlike in the [call tree](crate::tree::CallTree), frames of one name are one node, and a path
//! goes on behind a frame that resolves to nothing. Each distinct name is kept once, and four bytes
//! for each frame of each stack.

mod build;
pub(super) mod labels;

use std::io;
use std::ops::{AddAssign, Range};

use super::{ExportOptions, Report};

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

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Bytes) {
        self.before += other.before;
        self.now += other.now;
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
    children: Range<u32>,
}

/// A tree of names. For every node `total = own + the sum of its children's totals`.
#[derive(Debug)]
pub(super) struct Paths {
    labels: Vec<String>,
    nodes: Vec<Node>,
    edges: Vec<u32>,
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
        &self.nodes[self.nodes.len() - 1]
    }

    /// A node's name, as it stands in the file.
    pub fn label(&self, node: &Node) -> &str {
        &self.labels[node.label as usize]
    }

    /// Visits every node but the root, parents first, siblings by name, with its depth: 0 for what
    /// stands right under the root. Depth costs no stack.
    pub fn visit<'a>(
        &'a self,
        mut visit: impl FnMut(usize, &'a Node) -> io::Result<()>,
    ) -> io::Result<()> {
        let below = |node: &Node| {
            let Range { start, end } = node.children;
            self.edges[start as usize..end as usize].iter().rev()
        };
        let mut todo: Vec<(usize, u32)> = below(self.root()).map(|id| (0, *id)).collect();
        while let Some((depth, id)) = todo.pop() {
            let node = &self.nodes[id as usize];
            visit(depth, node)?;
            todo.extend(below(node).map(|id| (depth + 1, *id)));
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
            for node in &paths.nodes {
                let mut sum = node.own;
                for id in &paths.edges[node.children.start as usize..node.children.end as usize] {
                    let child = &paths.nodes[*id as usize];
                    sum += child.total;
                    let kept = child.total.now.max(child.total.before) >= threshold;
                    prop_assert!(kept || paths.label(child) == "[under threshold]");
                }
                prop_assert_eq!(sum, node.total);
            }
            let root = paths.root().total;
            prop_assert_eq!(root.now, options.kind.of(&report.profile.total));
            let before = options.baseline.map(|b| options.kind.of(&b.profile.total));
            prop_assert_eq!(root.before, before.unwrap_or_default());
            let mut own = paths.root().own;
            paths.visit(|_, node| {
                own += node.own;
                Ok(())
            }).unwrap();
            prop_assert_eq!(own, root);
        }
    }
}
