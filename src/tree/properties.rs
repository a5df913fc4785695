//! What holds for every tree of every profile.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::testing::{at, kib, profile, symbols};
use super::*;
use crate::symbol::Language;

fn frame() -> impl Strategy<Value = Frame> {
    prop_oneof![
        8 => (0u16..2, 0u64..6).prop_map(|(m, o)| at(m, o)),
        1 => (0u64..3).prop_map(Frame::unmapped),
        // A module the profile does not have.
        1 => Just(at(7, 1)),
    ]
}

fn pages() -> impl Strategy<Value = Usage> {
    (0u64..4, 0u64..4, 0u64..4, 0u64..4).prop_map(|(a, s, c, w)| Usage {
        shmem: s * 4096,
        swap: w * 4096,
        ..kib(a * 4, c * 4)
    })
}

pub(crate) fn any_profile() -> impl Strategy<Value = Profile> {
    let stack = proptest::collection::vec(frame(), 0..8);
    let samples = proptest::collection::vec((stack, pages()), 0..40);
    (samples, proptest::collection::vec(pages(), 0..3)).prop_map(|(samples, rest)| {
        let samples: Vec<_> = samples.iter().map(|(f, u)| (f.as_slice(), *u)).collect();
        profile(&samples, &rest)
    })
}

fn names() -> Symbols {
    symbols(&[
        (at(0, 0), "main", Language::Other),
        (at(0, 1), "node::run::h0123456789abcdef", Language::Rust),
        (at(0, 2), "node::run::h0123456789abcdef", Language::Rust),
        (at(1, 3), "malloc", Language::Other),
    ])
}

pub(super) fn direction() -> impl Strategy<Value = Direction> {
    prop_oneof![
        Just(Direction::InnermostFirst),
        Just(Direction::OutermostFirst)
    ]
}

/// The same sums by a slower way: every resolved path with the bytes that pass along it.
fn paths(profile: &Profile, direction: Direction) -> BTreeMap<Vec<Frame>, (u64, u64)> {
    let mut paths: BTreeMap<Vec<Frame>, (u64, u64)> = BTreeMap::new();
    for sample in profile.samples.iter().filter(|s| s.usage.value() > 0) {
        let mut frames = sample.stack.frames.to_vec();
        if direction == Direction::OutermostFirst {
            frames.reverse();
        }
        let known =
            |f: &&Frame| matches!(f.kind(), crate::profile::FrameKind::Code(m, _) if m.0 < 2);
        let frames: Vec<Frame> = frames.iter().take_while(known).copied().collect();
        for end in 1..=frames.len() {
            let path = paths.entry(frames[..end].to_vec()).or_default();
            path.0 += sample.usage.value();
            path.1 += sample.usage.cache;
        }
    }
    paths
}

/// Every path of the tree with its node.
fn nodes(tree: &CallTree) -> Vec<(Vec<Frame>, &Node)> {
    let mut found = Vec::new();
    let mut todo = vec![(Vec::new(), tree.root())];
    while let Some((path, id)) = todo.pop() {
        found.push((path.clone(), tree.node(id)));
        for child in tree.children(id) {
            let mut path = path.clone();
            path.push(tree.node(*child).frame.unwrap());
            todo.push((path, *child));
        }
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn every_node_is_the_sum_of_its_parts(
        profile in any_profile(), direction in direction(), threshold in 0u64..80_000,
    ) {
        let names = names();
        let tree = CallTree::new(&profile, &names, Options { direction, threshold });
        for id in (0..tree.len() as u32).map(NodeId) {
            let node = tree.node(id);
            let mut sum = node.unknown;
            sum += node.under_threshold;
            for child in tree.children(id) {
                let child = tree.node(*child);
                prop_assert!(child.amount.value >= threshold.max(1));
                sum += child.amount;
            }
            prop_assert_eq!(sum, node.amount);
            for amount in [node.amount, node.unknown, node.under_threshold] {
                prop_assert!(amount.cache <= amount.value);
            }
        }
    }

    #[test]
    fn root_is_the_total_in_both_directions(profile in any_profile(), threshold in 0u64..80_000) {
        for direction in [Direction::InnermostFirst, Direction::OutermostFirst] {
            let tree = CallTree::new(&profile, &names(), Options { direction, threshold });
            let root = tree.node(tree.root());
            prop_assert_eq!(root.amount, Amount::from(&profile.total));
            prop_assert_eq!(root.amount.resident(), profile.total.resident());
        }
    }

    #[test]
    fn nodes_are_the_paths_that_reach_the_threshold(
        profile in any_profile(), direction in direction(), threshold in 0u64..80_000,
    ) {
        let tree = CallTree::new(&profile, &names(), Options { direction, threshold });
        let wanted: BTreeMap<_, _> = paths(&profile, direction)
            .into_iter()
            .filter(|(_, (value, _))| *value >= threshold)
            .collect();
        let found: BTreeMap<_, _> = nodes(&tree)
            .into_iter()
            .filter(|(path, _)| !path.is_empty())
            .map(|(path, node)| (path, (node.amount.value, node.amount.cache)))
            .collect();
        prop_assert_eq!(found, wanted);
    }

    #[test]
    fn siblings_are_ordered(profile in any_profile(), direction in direction()) {
        let symbols = names();
        let tree = CallTree::new(&profile, &symbols, Options { direction, threshold: 0 });
        let names = Names::new(&profile, &symbols);
        for id in (0..tree.len() as u32).map(NodeId) {
            let keys: Vec<_> = tree.children(id).iter().map(|child| {
                let node = tree.node(*child);
                (std::cmp::Reverse(node.amount.value), names.get(node.frame.unwrap()).unwrap())
            }).collect();
            prop_assert!(keys.is_sorted(), "{keys:?}");
        }
    }

    #[test]
    fn functions_add_up(profile in any_profile()) {
        let names = names();
        let functions = functions(&profile, &names);
        let mut sum = functions.unknown;
        for row in &functions.rows {
            sum += row.own;
            prop_assert!(row.own.value <= row.total.value);
            prop_assert!(row.total.value <= profile.total.value());
        }
        prop_assert_eq!(sum, Amount::from(&profile.total));
    }
}

mod cases {
    use super::*;

    fn root(tree: &CallTree) -> &Node {
        tree.node(tree.root())
    }

    #[test]
    fn unmapped_frames_end_a_path() {
        let frames = [at(1, 3), Frame::unmapped(9), at(0, 0)];
        let profile = profile(&[(&frames, kib(8, 4))], &[kib(16, 0)]);
        for (direction, first) in [
            (Direction::InnermostFirst, at(1, 3)),
            (Direction::OutermostFirst, at(0, 0)),
        ] {
            let options = Options {
                direction,
                threshold: 0,
            };
            let tree = CallTree::new(&profile, &names(), options);
            assert_eq!(tree.len(), 2);
            assert_eq!(root(&tree).unknown.value, 16 * 1024);
            let child = tree.node(tree.children(tree.root())[0]);
            assert_eq!(child.frame, Some(first));
            assert_eq!(child.unknown.value, 12 * 1024);
            assert_eq!(child.unknown.cache, 4 * 1024);
        }
    }

    #[test]
    fn recursion_counts_each_byte_once() {
        let recursive = [at(0, 1), at(0, 2), at(0, 1), at(0, 0)];
        let profile = profile(&[(&recursive, kib(8, 0))], &[]);
        let names = names();
        let functions = functions(&profile, &names);
        assert_eq!(functions.rows.len(), 2);
        let run = functions
            .rows
            .iter()
            .find(|row| row.function == Some("node::run::h0123456789abcdef"));
        let run = run.unwrap();
        assert_eq!((run.own.value, run.total.value), (8 * 1024, 8 * 1024));
        assert_eq!(run.category, Category::OwnRust);
    }

    #[test]
    fn an_empty_profile_has_a_root() {
        let tree = CallTree::new(&profile(&[], &[]), &names(), Options::default());
        assert!(tree.is_empty());
        assert_eq!(root(&tree).amount, Amount::default());
    }

    #[test]
    fn deep_and_wide_trees_are_no_trouble() {
        let deep: Vec<Frame> = (0..200_000).map(|n| at(0, n)).collect();
        let wide: Vec<[Frame; 2]> = (0..50_000).map(|n| [at(1, n), at(0, n)]).collect();
        let mut samples: Vec<(&[Frame], Usage)> = vec![(&deep, kib(4, 0))];
        samples.extend(wide.iter().map(|s| (s.as_slice(), kib(4, 0))));
        let tree = CallTree::new(&profile(&samples, &[]), &names(), Options::default());
        assert_eq!(tree.len(), 1 + 200_000 + 100_000);
    }
}
