//! The tree for folded stacks and flame graphs: one node per name, siblings sorted by name.

use std::io;

use super::ExportOptions;
use memprof_profile::Report;
use memprof_profile::tree::{
    Direction, Label, Layout, LayoutRow, Limits, Merge, Naming, Order, Paths, Reading,
};

/// A tree of names with two columns of bytes: before (0 without a baseline) and now.
#[derive(Debug)]
pub(super) struct NameTree {
    names: Vec<String>,
    /// The nodes, depth first; the root comes first.
    rows: Vec<LayoutRow<2>>,
    /// Whether there is a baseline.
    pub is_difference: bool,
}

impl NameTree {
    /// Builds the tree with these options. Nodes with fewer than `threshold` bytes, both now and before, are aggregated in
    /// one child of their parent. By default, the outermost function is at the root.
    pub fn new(report: &Report, options: &ExportOptions, threshold: u64) -> NameTree {
        let (now, kind) = (report.side(), options.kind);
        let direction = options.direction.unwrap_or(Direction::OutermostFirst);
        let naming = Naming {
            merge: Merge::Name,
            inlined: !options.no_inline,
        };
        let mut paths = match &options.baseline {
            None => Paths::columns(now, direction, naming, |usage| [0, kind.figure(usage)]),
            Some(baseline) => {
                let reading = Reading {
                    direction,
                    naming,
                    kind,
                };
                Paths::new([baseline.side(), now], reading)
            }
        };
        let limits = Limits {
            threshold,
            max_nodes: usize::MAX,
        };
        NameTree {
            rows: Layout::ordered(&mut paths, limits, Order::Name).rows,
            names: paths.labels().all().iter().map(Label::to_string).collect(),
            is_difference: options.baseline.is_some(),
        }
    }

    /// The root node.
    pub fn root(&self) -> &LayoutRow<2> {
        &self.rows[0]
    }

    /// The name of a node.
    pub fn name(&self, row: &LayoutRow<2>) -> &str {
        &self.names[row.label as usize]
    }

    /// Visits every node except the root, parents first, with its depth: 0 for children of the root.
    pub fn visit<'a>(
        &'a self,
        mut visit: impl FnMut(usize, &'a LayoutRow<2>) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut depths = vec![0; self.rows.len()];
        for (at, row) in self.rows.iter().enumerate().skip(1) {
            let parent = row.parent as usize;
            depths[at] = depths[parent] + usize::from(parent > 0);
            visit(depths[at], row)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::testing::any_profile;
    use crate::testing::report;
    use memprof_profile::Kind;

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
            frames: None,
            no_inline: false,
        })
    }

    proptest! {
        #[test]
        fn every_node_is_the_sum_of_its_parts(
            report in any_report(), options in any_options(), threshold in 0u64..80_000,
        ) {
            let tree = NameTree::new(&report, &options, threshold);
            let add = |sum: &mut [u64; 2], more: [u64; 2]| {
                sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
            };
            let mut sums: Vec<[u64; 2]> = tree.rows.iter().map(|row| row.own).collect();
            let mut siblings: Vec<Vec<(bool, &str)>> = vec![Vec::new(); tree.rows.len()];
            for row in &tree.rows[1..] {
                add(&mut sums[row.parent as usize], row.total);
                let rest = tree.name(row) == "[below threshold]";
                prop_assert!(rest || row.total.into_iter().max() >= Some(threshold));
                siblings[row.parent as usize].push((rest, tree.name(row)));
            }
            prop_assert!(siblings.iter().all(|names| names.is_sorted()), "{siblings:?}");
            for (row, sum) in tree.rows.iter().zip(sums) {
                prop_assert_eq!(sum, row.total);
            }
            let before = options.baseline.map(|b| options.kind.figure(&b.profile.total));
            let now = options.kind.figure(&report.profile.total);
            prop_assert_eq!(tree.root().total, [before.unwrap_or_default(), now]);
            let mut own = tree.root().own;
            tree.visit(|_, row| {
                add(&mut own, row.own);
                Ok(())
            }).unwrap();
            prop_assert_eq!(own, tree.root().total);
        }
    }
}
