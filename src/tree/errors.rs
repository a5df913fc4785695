//! Standard errors of nodes and functions, where not every stack was walked, or of estimates from samples.
//!
//! The error of a difference adds the variances of both states. That is not too small: what a later state kept of the pages
//! of an earlier one is off by the same in both, which cancels out.
//!
//! Pages that two stacks below a node may have confused are in the node's bytes in any case, so a [`Border`] between
//! them is not in the node's error.

use rustc_hash::FxHashMap;

use super::label::LabelId;
use super::paths::Paths;
use super::sweep::Row;
use crate::profile::{Border, BorderOf, Kind, Profile};

/// The standard errors of each row of a tree of these paths, in bytes: of its own bytes and of its total. Empty if all
/// stacks were walked. `sides` are the borders of each profile; the error of two is that of their difference.
pub fn of_rows<const N: usize>(
    paths: &Paths<'_, N>,
    rows: &[Row<N>],
    sides: &[&[Border]],
    kind: Kind,
) -> Vec<[u64; 2]> {
    if sides.iter().all(|borders| borders.is_empty()) {
        return Vec::new();
    }
    let children = rows.iter().enumerate().skip(1);
    let children: FxHashMap<_, _> = children
        .map(|(at, row)| ((row.parent, row.label), at as u32))
        .collect();
    let labels = paths.labels();
    let rests: Vec<LabelId> = (0..labels.all().len() as LabelId)
        .filter(|id| labels.get(*id).is_rest())
        .collect();
    // The last row of a path: its own, or the row that aggregates it. (If its parent has two such rows, for the threshold
    // and for the number of nodes, the first of them has the error of both.)
    let last = |steps: &[LabelId]| {
        let mut at = 0;
        for step in steps {
            let child = |label: &LabelId| children.get(&(at, *label)).copied();
            match child(step).or_else(|| rests.iter().find_map(child)) {
                Some(next) if labels.get(rows[next as usize].label).is_rest() => return next,
                Some(next) => at = next,
                None => return at,
            }
        }
        at
    };
    // Outside of all samples is only the root's, or nothing's where the root is not all memory.
    let all = (!paths.is_focused()).then_some(0);
    let mut variances = vec![[0.0; 2]; rows.len()];
    for (side, borders) in sides.iter().enumerate() {
        let ends: FxHashMap<u32, u32> = paths
            .of_samples(side)
            .map(|(sample, steps)| (sample, last(steps)))
            .collect();
        for border in borders.iter().filter(|border| border.is_in(kind)) {
            let outside = match border.of {
                BorderOf::Pages(_) => all,
                BorderOf::Column(_) => None,
            };
            let end = |sample: Option<u32>| sample.and_then(|s| ends.get(&s)).copied().or(outside);
            let (one, [a, b]) = (end(border.sample), border.beside.map(end));
            let with_one = meet(rows, one, a).max(meet(rows, one, b));
            let both = meet(rows, a, b);
            let with_both = meet(rows, one, both);
            for (from, to) in [(one, with_one), (both, with_both)] {
                let mut at = from;
                while at != to
                    && let Some(row) = at
                {
                    variances[row as usize][1] += border.variance;
                    at = parent(rows, row);
                }
            }
            let own = [(one, one != a && one != b), (a, a == b && a != one)];
            for (at, _) in own
                .into_iter()
                .filter(|(at, counts)| *counts && *at != outside)
            {
                if let Some(row) = at {
                    variances[row as usize][0] += border.variance;
                }
            }
        }
    }
    let rows = variances.into_iter();
    rows.map(|both| both.map(standard_error)).collect()
}

/// The innermost row that contains both; `None` is outside of the tree. (A parent comes before its children.)
fn meet<const N: usize>(rows: &[Row<N>], mut a: Option<u32>, mut b: Option<u32>) -> Option<u32> {
    while a != b {
        let lower = if a > b { &mut a } else { &mut b };
        *lower = lower.and_then(|row| parent(rows, row));
    }
    a
}

fn parent<const N: usize>(rows: &[Row<N>], row: u32) -> Option<u32> {
    (row > 0).then(|| rows[row as usize].parent)
}

/// The standard errors of each label, in bytes, indexed by its id: of the stacks whose innermost frame it is, and of
/// those that contain it. The paths begin with the innermost frame. Empty if all stacks were walked. `sides` as for
/// [`of_rows`].
pub fn of_labels<const N: usize>(
    paths: &Paths<'_, N>,
    sides: &[&[Border]],
    kind: Kind,
) -> Vec<[u64; 2]> {
    if sides.iter().all(|borders| borders.is_empty()) {
        return Vec::new();
    }
    let number = paths.labels().all().len();
    let mut variances = vec![[0.0; 2]; number];
    // For each label, which stacks of the border contain it and have it as their innermost frame.
    let mut seen = vec![[0u8; 2]; number];
    for (side, borders) in sides.iter().enumerate() {
        let steps: FxHashMap<u32, &[LabelId]> = paths.of_samples(side).collect();
        for border in borders.iter().filter(|border| border.is_in(kind)) {
            let [a, b] = border.beside;
            let stacks = [(border.sample, 1), (a, 2), (b, 4)].map(|(sample, bit)| {
                let steps = sample.and_then(|sample| steps.get(&sample).copied());
                (steps.unwrap_or_default(), bit)
            });
            for (steps, bit) in stacks {
                steps.iter().for_each(|id| seen[*id as usize][1] |= bit);
                steps
                    .iter()
                    .take(1)
                    .for_each(|id| seen[*id as usize][0] |= bit);
            }
            for id in stacks.iter().flat_map(|(steps, _)| *steps) {
                // Cleared, so that each label counts once.
                let seen = std::mem::take(&mut seen[*id as usize]);
                for (seen, sum) in seen.into_iter().zip(&mut variances[*id as usize]) {
                    if counts(seen) {
                        *sum += border.variance;
                    }
                }
            }
        }
    }
    let rows = variances.into_iter();
    rows.map(|both| both.map(standard_error)).collect()
}

/// The standard error of each sample, in bytes; zeros if all stacks were walked.
pub fn of_samples(profile: &Profile, kind: Kind) -> Vec<u64> {
    let mut variances = vec![0.0; profile.samples.len()];
    for border in profile.borders.iter().filter(|border| border.is_in(kind)) {
        let [a, b] = border.beside;
        let one = border.sample;
        let counting = [(one, one != a && one != b), (a, a == b && a != one)];
        for (sample, _) in counting.into_iter().filter(|(_, counts)| *counts) {
            if let Some(variance) = sample.and_then(|s| variances.get_mut(s as usize)) {
                *variance += border.variance;
            }
        }
    }
    variances.into_iter().map(standard_error).collect()
}

/// Whether a border counts in a sum that contains these of its stacks: the one (1) and those beside it (2 and 4).
fn counts(seen: u8) -> bool {
    seen == 1 || seen == 6
}

fn standard_error(variance: f64) -> u64 {
    variance.sqrt().round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::residency::PageKind;
    use crate::symbol::Language;
    use crate::tree::testing::{at, kib, profile, symbols};
    use crate::tree::{Direction, Layout, Limits, Naming, Reading, Table};

    fn border(one: u32, beside: [Option<u32>; 2], pages: PageKind, error: f64) -> Border {
        Border {
            sample: Some(one),
            beside,
            of: BorderOf::Pages(pages),
            variance: error * error,
        }
    }

    #[test]
    fn a_border_inside_a_sum_does_not_count() {
        // main calls read, which calls malloc, and parse, which calls malloc twice, one time through itself.
        let mut profile = profile(
            &[
                (&[at(1, 9), at(0, 2), at(0, 1)], kib(400, 0)),
                (&[at(1, 9), at(0, 3), at(0, 1)], kib(300, 0)),
                (&[at(1, 9), at(0, 3), at(0, 3), at(0, 1)], kib(200, 0)),
                (&[at(0, 4)], kib(0, 100)),
            ],
            &[],
        );
        let anon = PageKind::Anon;
        profile.borders = vec![
            border(0, [Some(1); 2], anon, 3000.0),
            border(1, [Some(2); 2], anon, 4000.0),
            border(2, [None; 2], anon, 12_000.0),
            border(0, [Some(3); 2], PageKind::File, 50_000.0),
            // Only in what parse calls directly: read is beside it, and so is what the inner parse calls.
            border(1, [Some(0), Some(2)], anon, 5000.0),
        ];
        let names = [
            (at(0, 1), "main", Language::Other),
            (at(0, 2), "read", Language::Other),
            (at(0, 3), "parse", Language::Other),
            (at(1, 9), "malloc", Language::Other),
        ];
        let names = symbols(&names);
        let sum = |errors: &[f64]| errors.iter().map(|e| e * e).sum::<f64>().sqrt().round() as u64;

        let reading = Reading {
            direction: Direction::OutermostFirst,
            naming: Naming::default(),
            kind: Kind::All,
        };
        let mut paths = Paths::new([(&profile, &names)], reading);
        let limits = |threshold| Limits {
            threshold,
            max_nodes: usize::MAX,
        };
        let errors = |paths: &mut Paths<'_, 1>, threshold| {
            let rows = Layout::new(paths, limits(threshold)).rows;
            let errors = of_rows(paths, &rows, &[&profile.borders], Kind::All);
            let labels = rows
                .iter()
                .map(|row| paths.labels().get(row.label).to_string());
            labels.zip(errors).collect::<Vec<_>>()
        };
        let own = |rows: &[(String, [u64; 2])], label: &str| {
            let rows = rows.iter().filter(|(found, _)| found == label);
            rows.map(|(_, [own, _])| *own).collect::<Vec<_>>()
        };
        let totals = |rows: &[(String, [u64; 2])]| -> Vec<(String, u64)> {
            let rows = rows.iter();
            rows.map(|(label, [_, all])| (label.clone(), *all))
                .collect()
        };
        let row = |label: &str, error| (label.to_owned(), error);
        let read = [row("read (node)", 3000), row("malloc (libc-2.31.so)", 3000)];
        let parse = sum(&[3000.0, 12_000.0]);
        let all = errors(&mut paths, 0);
        assert_eq!(own(&all, "main (node)"), [0]);
        let mut mallocs = own(&all, "malloc (libc-2.31.so)");
        mallocs.sort_unstable();
        assert_eq!(
            mallocs,
            [
                3000,
                sum(&[3000.0, 4000.0, 5000.0]),
                sum(&[4000.0, 12_000.0])
            ]
        );
        assert_eq!(of_samples(&profile, Kind::All)[1], mallocs[1]);
        assert_eq!(of_samples(&profile, Kind::Cache), [0; 4]);
        let all = totals(&all);
        assert_eq!(all[..2], [row("all", 0), row("main (node)", 12_000)]);
        assert_eq!(all[2], row("parse (node)", parse));
        assert!(all.windows(2).any(|two| two == read), "{all:?}");
        // The row that aggregates what is too small has the error of its stacks.
        let cut = totals(&errors(&mut paths, 350 * 1024));
        let rest = row("[below threshold]", parse);
        assert!(cut.contains(&rest), "{cut:?}");

        let table = Table::new([(&profile, &names)], Kind::All, false);
        let of = |name| {
            let mut rows = table.rows.iter();
            rows.find(|row| row.code.function == Some(name))
                .map(|row| row.errors)
        };
        assert_eq!(of("main"), Some([0, 12_000]));
        assert_eq!(of("malloc"), Some([12_000, 12_000]));
        assert_eq!(of("read"), Some([0, 3000]));
        assert_eq!(of("parse"), Some([0, parse]));
        // The variances of both states, in a table and in a tree.
        let both = Table::new([(&profile, &names), (&profile, &names)], Kind::All, false);
        let main = both
            .rows
            .iter()
            .find(|row| row.code.function == Some("main"));
        let doubled = sum(&[12_000.0, 12_000.0]);
        assert_eq!(main.unwrap().errors, [0, doubled]);
        let mut paths = Paths::new([(&profile, &names), (&profile, &names)], reading);
        let rows = Layout::new(&mut paths, limits(0)).rows;
        let borders = [&*profile.borders, &*profile.borders];
        assert_eq!(of_rows(&paths, &rows, &borders, Kind::All)[1], [0, doubled]);
        let files = Table::new([(&profile, &names)], Kind::File, false);
        assert!(files.rows.is_empty());
    }
}
