//! The invariants of `/v1` trees ([`Merge::Frame`]), on random profiles.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::symbol::{Language, Symbols};
use crate::testing::{KIB, any_profile, at, kib, profile, symbols};
use crate::{Amounts, Frame, FrameKind, Kind, Profile};
use memprof_sys::usage::Usage;

fn names() -> Symbols {
    symbols(&[
        (at(0, 0), "main", Language::Other),
        (at(0, 1), "node::run::h0123456789abcdef", Language::Rust),
        (at(0, 2), "node::run::hfedcba9876543210", Language::Rust),
        (at(1, 3), "malloc", Language::Other),
    ])
}

pub(super) fn direction() -> impl Strategy<Value = Direction> {
    prop_oneof![
        Just(Direction::InnermostFirst),
        Just(Direction::OutermostFirst)
    ]
}

/// The same sums by a slower method: the bytes of every prefix of every resolved path.
fn paths(profile: &Profile, direction: Direction) -> BTreeMap<Vec<Frame>, [u64; 2]> {
    let mut paths: BTreeMap<Vec<Frame>, [u64; 2]> = BTreeMap::new();
    for sample in profile
        .samples
        .iter()
        .filter(|s| s.amounts.usage.value() > 0)
    {
        let mut frames = sample.stack.frames.to_vec();
        if direction == Direction::OutermostFirst {
            frames.reverse();
        }
        let known = |f: &&Frame| matches!(f.kind(), FrameKind::Code(m, _) if m.0 < 2);
        let frames: Vec<Frame> = frames.iter().take_while(known).copied().collect();
        for end in 1..=frames.len() {
            let path = paths.entry(frames[..end].to_vec()).or_default();
            path[0] += sample.amounts.usage.value();
            path[1] += sample.amounts.usage.cache;
        }
    }
    paths
}

/// Every node by its path of frames, and the rows that aggregate dropped nodes.
struct Nodes {
    by_path: BTreeMap<Vec<Frame>, LayoutRow<2>>,
    rests: Vec<LayoutRow<2>>,
    /// The own bytes of each row plus those of all rows below it.
    sums: Vec<[u64; 2]>,
    totals: Vec<[u64; 2]>,
}

fn nodes(profile: &Profile, direction: Direction, threshold: u64) -> Nodes {
    let names = names();
    let naming = Naming {
        merge: Merge::Frame,
        inlined: false,
    };
    let columns = |of: &Amounts| [of.usage.value(), of.usage.cache];
    let mut paths = Paths::columns((profile, &names), direction, naming, columns);
    let rows = Descent::new(&mut paths, threshold);
    let labels = rows.labels();
    let rows: Vec<_> = rows.collect();
    let mut sums: Vec<[u64; 2]> = rows.iter().map(|row| row.own).collect();
    let mut frames: Vec<Vec<Frame>> = vec![Vec::new()];
    let (mut by_path, mut rests) = (BTreeMap::from([(Vec::new(), rows[0])]), Vec::new());
    let mut keys: Vec<Vec<_>> = vec![Vec::new(); rows.len()];
    for row in &rows[1..] {
        let parent = row.parent as usize;
        (0..2).for_each(|column| sums[parent][column] += row.total[column]);
        let mut path = frames[parent].clone();
        match labels.get(row.label) {
            Label::Code(code) => {
                path.push(Frame::code(code.module.unwrap(), code.offset.unwrap()));
                assert_eq!(by_path.insert(path.clone(), *row), None);
                let order = (code.offset, code.file, code.function, code.category.0);
                keys[parent].push((false, Reverse(row.total[0]), Some(order)));
            }
            rest => {
                assert_eq!(*rest, Label::BelowThreshold);
                rests.push(*row);
                keys[parent].push((true, Reverse(row.total[0]), None));
            }
        }
        frames.push(path);
    }
    assert!(keys.iter().all(|keys| keys.is_sorted()), "{keys:?}");
    Nodes {
        by_path,
        rests,
        sums,
        totals: rows.iter().map(|row| row.total).collect(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn every_node_is_the_sum_of_its_parts(
        profile in any_profile(), direction in direction(), threshold in 0u64..80_000,
    ) {
        let nodes = nodes(&profile, direction, threshold);
        prop_assert_eq!(&nodes.sums, &nodes.totals);
        for row in nodes.by_path.values().chain(&nodes.rests) {
            for [value, cache] in [row.total, row.own] {
                prop_assert!(cache <= value);
            }
        }
        let root = nodes.by_path[&Vec::new()].total;
        prop_assert_eq!(root, [profile.total.usage.value(), profile.total.usage.cache]);
    }

    #[test]
    fn nodes_are_the_paths_that_reach_the_threshold(
        profile in any_profile(), direction in direction(), threshold in 0u64..80_000,
    ) {
        let wanted: BTreeMap<_, _> = paths(&profile, direction)
            .into_iter()
            .filter(|(_, [value, _])| *value >= threshold)
            .collect();
        let found: BTreeMap<_, _> = nodes(&profile, direction, threshold)
            .by_path
            .into_iter()
            .filter(|(path, _)| !path.is_empty())
            .map(|(path, row)| (path, row.total))
            .collect();
        prop_assert_eq!(found, wanted);
    }
}

mod cases {
    use super::*;

    #[test]
    fn unmapped_frames_end_a_path() {
        let frames = [at(1, 3), Frame::unmapped(9), at(0, 0)];
        let profile = profile(&[(&frames, kib(8, 4))], &[kib(16, 0)]);
        for (direction, first) in [
            (Direction::InnermostFirst, at(1, 3)),
            (Direction::OutermostFirst, at(0, 0)),
        ] {
            let nodes = nodes(&profile, direction, 0).by_path;
            assert_eq!(nodes.len(), 2);
            assert_eq!(nodes[&vec![]].own, [16 * KIB, 0]);
            assert_eq!(nodes[&vec![first]].own, [12 * KIB, 4 * KIB]);
        }
    }

    /// Two files have the same path if a file was replaced, or in two containers.
    #[test]
    fn files_of_one_path_are_told_apart_by_frame_only() {
        let stacks = [[at(0, 1)], [at(1, 1)]];
        let samples = stacks.each_ref().map(|stack| (&stack[..], kib(4, 0)));
        let mut profile = profile(&samples, &[]);
        profile.modules = [0, 0].map(|m| Arc::clone(&profile.modules[m])).into();
        for (merge, nodes) in [
            (Merge::Function, 2),
            (Merge::Site, 2),
            (Merge::Name, 2),
            (Merge::Frame, 3),
        ] {
            let found = rows(&profile, &Symbols::default(), merge);
            assert_eq!(found, nodes, "{merge:?}");
        }
    }

    /// The number of nodes of the whole tree.
    fn rows(profile: &Profile, names: &Symbols, merge: Merge) -> usize {
        let inlined = false;
        let reading = Reading {
            naming: Naming { merge, inlined },
            ..Reading::default()
        };
        let limits = Limits {
            threshold: 0,
            max_nodes: usize::MAX,
        };
        let mut paths = Paths::new([(profile, names)], reading);
        Layout::new(&mut paths, limits).rows.len()
    }

    #[test]
    fn recursion_counts_each_byte_once() {
        let recursive = [at(0, 1), at(0, 2), at(0, 1), at(0, 0)];
        let profile = profile(&[(&recursive, kib(8, 0))], &[]);
        let names = names();
        let table = Table::new([(&profile, &names)], Kind::All, false);
        assert_eq!(table.rows.len(), 2);
        let run = Some("node::run");
        let run = table.rows.iter().find(|row| row.code.function == run);
        let run = run.unwrap();
        assert_eq!((run.own, run.total), ([8 * KIB], [8 * KIB]));
        assert_eq!(run.code.category.0, Category::OwnRust);
    }

    #[test]
    fn an_empty_profile_has_a_root() {
        let nodes = nodes(&profile(&[], &[]), Direction::InnermostFirst, 0);
        assert_eq!(nodes.totals, [[0, 0]]);
    }

    #[test]
    fn deep_and_wide_trees_are_no_trouble() {
        let deep: Vec<Frame> = (0..200_000).map(|n| at(0, n)).collect();
        let wide: Vec<[Frame; 2]> = (0..50_000).map(|n| [at(1, n), at(0, n)]).collect();
        let mut samples: Vec<(&[Frame], Usage)> = vec![(&deep, kib(4, 0))];
        samples.extend(wide.iter().map(|s| (s.as_slice(), kib(4, 0))));
        let profile = profile(&samples, &[]);
        let found = rows(&profile, &names(), Merge::Site);
        assert_eq!(found, 1 + 200_000 + 100_000);
    }
}
