//! Invariants of all trees, of one profile and of two.

use std::collections::{BTreeMap, HashSet};

use proptest::prelude::*;

use super::*;
use crate::symbol::{InlinedFunction, Language, Symbol, Symbols};
use crate::testing::{any_profile, at, ended, kib, profile, symbols};
use crate::tree::properties::direction;
use crate::tree::{Direction, Find, FunctionId, Merge, Naming, Reading, Search, Table};
use crate::{Frame, Kind, Outcome, PartialReason, Profile};
use memprof_sys::usage::Usage;

/// Symbols, one of them with inlined functions.
fn names() -> Symbols {
    let mut names = symbols(&[
        (at(0, 0), "main", Language::Other),
        (at(0, 1), "run::h0123456789abcdef", Language::Rust),
        (at(0, 2), "run::hfedcba9876543210", Language::Rust),
        (at(1, 3), "malloc", Language::Other),
    ]);
    if let Some(Symbol::Known(mut function)) = names.get(at(0, 2)).cloned() {
        let inlined = |name: &str| InlinedFunction {
            name: name.to_owned(),
            location: None,
        };
        function.inlined = vec![inlined("push::h0011223344556677"), inlined("run")];
        names.insert(at(0, 2), std::sync::Arc::new(Symbol::Known(function)));
    }
    names
}

fn reading() -> impl Strategy<Value = Reading> {
    (direction(), merge(), any::<bool>(), kind()).prop_map(|(direction, merge, inlined, kind)| {
        Reading {
            direction,
            naming: Naming { merge, inlined },
            kind,
        }
    })
}

fn kind() -> impl Strategy<Value = Kind> {
    proptest::sample::select(&Kind::ALL[..])
}

fn merge() -> impl Strategy<Value = Merge> {
    prop_oneof![
        Just(Merge::Function),
        Just(Merge::Site),
        Just(Merge::Name),
        Just(Merge::Frame)
    ]
}

fn limits() -> impl Strategy<Value = Limits> {
    let most = prop_oneof![Just(1usize), 0usize..30, Just(usize::MAX)];
    let threshold = prop_oneof![Just(0u64), 0u64..80_000];
    (threshold, most).prop_map(|(threshold, max_nodes)| Limits {
        threshold,
        max_nodes,
    })
}

const ALL: Limits = Limits {
    threshold: 0,
    max_nodes: usize::MAX,
};

/// Every node by its path of labels.
fn by_path<const N: usize>(
    layout: &Layout<N>,
    labels: &Labels<'_>,
) -> BTreeMap<Vec<String>, LayoutRow<N>> {
    let mut paths: Vec<Vec<String>> = Vec::new();
    let mut found = BTreeMap::new();
    for (at, row) in layout.rows.iter().enumerate() {
        let mut path = match at {
            0 => Vec::new(),
            _ => paths[row.parent as usize].clone(),
        };
        path.push(format!("{:?}", labels.get(row.label)));
        paths.push(path.clone());
        assert!(found.insert(path, *row).is_none(), "two nodes of one path");
    }
    found
}

fn check<const N: usize>(layout: &Layout<N>, labels: &Labels<'_>, limits: Limits) {
    let rows = &layout.rows;
    let mut sums: Vec<[u64; N]> = rows.iter().map(|row| row.own).collect();
    let mut siblings = HashSet::new();
    for (number, row) in rows.iter().enumerate().skip(1) {
        let parent = row.parent as usize;
        assert!(parent < number);
        assert!(siblings.insert((parent, row.label)));
        add(&mut sums[parent], &row.total);
        let is_rest = labels.get(row.label).is_rest();
        assert!(is_rest || row.weight() >= limits.threshold);
        for side in 0..N {
            assert!(row.total[side] <= rows[parent].total[side]);
        }
    }
    for (row, sum) in rows.iter().zip(sums) {
        assert_eq!(row.total, sum);
    }
    let is_rest = |row: &&LayoutRow<N>| labels.get(row.label).is_rest();
    let real = rows.len() - rows.iter().filter(is_rest).count();
    assert!(real - 1 <= limits.max_nodes);
    assert!(rows.len() <= 3 * real);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn sums_hold(profile in any_profile(), reading in reading(), limits in limits()) {
        let names = names();
        let mut paths = Paths::new([(&profile, &names)], reading);
        let layout = Layout::new(&mut paths, limits);
        check(&layout, paths.labels(), limits);
        prop_assert_eq!(layout.rows[0].total, [reading.kind.figure(&profile.total)]);
    }

    #[test]
    fn nothing_is_dropped_uncounted(
        profile in any_profile(), reading in reading(), limits in limits(),
    ) {
        let names = names();
        let mut paths = Paths::new([(&profile, &names)], reading);
        let all = Layout::new(&mut paths, ALL);
        let all = by_path(&all, paths.labels());
        let some = Layout::new(&mut paths, limits);
        let left = by_path(&some, paths.labels());
        let mut real = 0;
        for (path, row) in &left {
            if !paths.labels().get(row.label).is_rest() {
                real += 1;
                prop_assert_eq!(all[path].total, row.total);
                prop_assert_eq!(all[path].own, row.own);
            }
        }
        let dropped = some.cut.below_threshold + some.cut.over_limit;
        prop_assert_eq!(all.len() as u64, real + dropped);
    }

    #[test]
    fn a_difference_holds_both_sides(
        from in any_profile(), to in any_profile(), reading in reading(), limits in limits(),
    ) {
        let names = names();
        let mut paths = Paths::new([(&from, &names), (&to, &names)], reading);
        let cut = Layout::new(&mut paths, limits);
        check(&cut, paths.labels(), limits);
        let whole = Layout::new(&mut paths, ALL);
        let whole = by_path(&whole, paths.labels());
        for (side, profile) in [&from, &to].into_iter().enumerate() {
            let mut paths = Paths::new([(profile, &names)], reading);
            let alone = Layout::new(&mut paths, ALL);
            prop_assert_eq!(cut.rows[0].total[side], alone.rows[0].total[0]);
            let alone = by_path(&alone, paths.labels());
            for (path, row) in &whole {
                let (total, own) = alone.get(path).map_or((0, 0), |r| (r.total[0], r.own[0]));
                prop_assert_eq!((row.total[side], row.own[side]), (total, own));
            }
        }
    }

    #[test]
    fn tables_add_up(from in any_profile(), to in any_profile(), reading in reading()) {
        let names = names();
        let Reading { kind, naming, .. } = reading;
        let table = Table::new([(&from, &names), (&to, &names)], kind, naming.inlined);
        prop_assert_eq!(table.total, [kind.figure(&from.total), kind.figure(&to.total)]);
        let mut sum = [0; 2];
        for (label, bytes) in &table.others {
            prop_assert!(!matches!(label, Label::Code(_)));
            add(&mut sum, bytes);
        }
        let mut parts = table.not_observed();
        add(&mut parts, &table.no_stack());
        add(&mut parts, &table.unmapped());
        prop_assert_eq!(parts, sum);
        for row in &table.rows {
            add(&mut sum, &row.own);
            for side in 0..2 {
                prop_assert!(row.own[side] <= row.total[side]);
                prop_assert!(row.total[side] <= table.total[side]);
            }
        }
        prop_assert_eq!(sum, table.total);
    }

    #[test]
    fn a_search_counts_each_byte_once(profile in any_profile(), reading in reading()) {
        let names = names();
        let paths = Paths::new([(&profile, &names)], reading);
        let (matches, bytes) = paths.find(&Find::Search(Search::new("MAIN")));
        let slow: u64 = paths
            .iter()
            .filter(|(steps, _)| steps.iter().any(|id| matches[*id as usize]))
            .map(|(_, bytes)| bytes[0])
            .sum();
        prop_assert_eq!(bytes[0], slow);
        let (_, all) = paths.find(&Find::Search(Search::new("")));
        prop_assert!(bytes[0] <= all[0] && all[0] <= reading.kind.figure(&profile.total));
    }

    /// The callers and the callees of a function, recursive or not, add up to its total. Its self bytes are those without
    /// callees.
    #[test]
    fn a_focus_counts_each_byte_once(profile in any_profile(), kind in kind(), direction in direction()) {
        let names = names();
        let table = Table::new([(&profile, &names)], kind, false);
        for row in &table.rows {
            let id = FunctionId {
                name: row.code.function.map(str::to_owned),
                path: row.code.path.to_owned(),
            };
            let reading = Reading { direction, naming: Naming::default(), kind };
            let mut paths = Paths::new([(&profile, &names)], reading);
            let (matches, found) = paths.find(&Find::Function(id));
            prop_assert_eq!(found, row.total);
            paths.focus(&matches, direction);
            let rows = Layout::new(&mut paths, ALL).rows;
            prop_assert_eq!(rows[0].total, row.total);
            let own: u64 = rows.iter().map(|row| row.own[0]).sum();
            prop_assert_eq!(own, row.total[0]);
        }
    }
}

fn lay(profile: &Profile, reading: Reading) -> Vec<(String, u64, u64)> {
    let names = names();
    let mut paths = Paths::new([(profile, &names)], reading);
    let layout = Layout::new(&mut paths, ALL);
    let name = |row: &LayoutRow<1>| match paths.labels().get(row.label) {
        Label::Code(code) => code.function.unwrap_or("?").to_owned(),
        other => format!("{other:?}"),
    };
    let row = |row: &LayoutRow<1>| (name(row), row.total[0] >> 10, row.own[0] >> 10);
    layout.rows.iter().map(row).collect()
}

#[test]
fn both_directions_of_one_profile() {
    let stacks: [(&[Frame], Usage); 3] = [
        (&[at(1, 3), at(0, 1), at(0, 0)], kib(8, 0)),
        (&[at(1, 3), at(0, 2), at(0, 0)], kib(4, 4)),
        (
            &[Frame::unmapped(1), Frame::unmapped(2), at(0, 0)],
            kib(4, 0),
        ),
    ];
    let profile = profile(&stacks, &[kib(16, 0)]);
    let row = |name: &str, total, own| (name.to_owned(), total, own);
    let lost = row("NotObserved(\"[heap]\", BeforeAttach)", 16, 16);
    let mut reading = Reading::default();
    let callers = [
        row("Root", 36, 0),
        row("malloc", 16, 0),
        row("run", 16, 0),
        row("main", 16, 16),
        lost.clone(),
        row("Unmapped", 4, 0),
        row("main", 4, 4),
    ];
    assert_eq!(lay(&profile, reading), callers);
    reading.direction = Direction::OutermostFirst;
    reading.naming.inlined = true;
    reading.kind = Kind::Anon;
    let callees = [
        row("Root", 32, 0),
        row("main", 16, 0),
        row("run", 12, 0),
        row("malloc", 8, 8),
        row("run", 4, 0),
        row("push", 4, 0),
        row("malloc", 4, 4),
        row("Unmapped", 4, 4),
        lost,
    ];
    assert_eq!(lay(&profile, reading), callees);
}

/// Stacks that were cut off can begin in any function. They share one node per reason.
#[test]
fn cut_off_stacks_are_together() {
    let stacks: [(&[Frame], Usage); 5] = [
        (&[at(1, 3), at(0, 0)], kib(100, 0)),
        (&[at(1, 3), at(0, 1)], kib(8, 0)),
        (&[at(1, 3), at(0, 2)], kib(4, 4)),
        (&[at(1, 3)], kib(4, 0)),
        (&[], kib(1, 0)),
    ];
    let mut profile = profile(&stacks, &[]);
    let deep = Outcome::Partial(PartialReason::DepthLimit);
    for (at, outcome) in [
        (1, deep),
        (2, deep),
        (3, Outcome::Partial(PartialReason::NoTable)),
        (4, Outcome::NotTaken),
    ] {
        ended(&mut profile, at, outcome);
    }
    let row = |name: &str, total, own| (name.to_owned(), total, own);
    let mut reading = Reading::default();
    let callers = [
        row("Root", 121, 0),
        row("malloc", 120, 0),
        row("main", 100, 100),
        row("run", 16, 0),
        row("CutOff(DepthLimit)", 16, 16),
        row("CutOff(NoTable)", 4, 4),
        row("NoStack", 1, 1),
    ];
    reading.direction = Direction::OutermostFirst;
    let callees = [
        row("Root", 121, 0),
        row("main", 100, 0),
        row("malloc", 100, 100),
        row("CutOff(DepthLimit)", 16, 0),
        row("run", 16, 0),
        row("malloc", 16, 16),
        row("CutOff(NoTable)", 4, 0),
        row("malloc", 4, 4),
        row("NoStack", 1, 1),
    ];
    assert_eq!(lay(&profile, Reading::default()), callers);
    assert_eq!(lay(&profile, reading), callees);
    // The contract of `/v1` has no such node.
    reading.naming.merge = Merge::Frame;
    let v1 = lay(&profile, reading);
    assert!(
        v1.iter().all(|(name, ..)| !name.starts_with("CutOff")),
        "{v1:?}"
    );
}

#[test]
fn depth_is_no_trouble() {
    let deep: Vec<Frame> = (0..200_000).map(|n| at(0, n)).collect();
    let profile = profile(&[(&deep, kib(4, 0))], &[]);
    let mut reading = Reading::default();
    reading.naming.merge = Merge::Site;
    assert_eq!(lay(&profile, reading).len(), 200_001);
}
