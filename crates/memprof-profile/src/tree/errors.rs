//! Standard errors of nodes and functions, for estimates from sampled stacks or sampled allocations.
//!
//! The error of a difference adds the variances of both states. This does not underestimate it: for pages that the later
//! state retains from the earlier one, both states have the same error, which cancels out.
//!
//! If stacks below a node were confused with each other, the node's total includes all of them in any case. An
//! [`Uncertainty`] that is divided only among such stacks is therefore not part of the node's error.

use rustc_hash::FxHashMap;

use super::label::LabelId;
use super::paths::Paths;
use super::sweep::LayoutRow;
use crate::{ErrorSum, Kind, Parts, Profile, Uncertainty, UncertaintyOf};

/// The errors of numbered figures: for each figure, the error of its own bytes and of its total.
struct Errors {
    /// Sums over the finished states.
    states: Vec<[ErrorSum; 2]>,
    /// Sums over the uncertainties of the current state.
    sums: Vec<[ErrorSum; 2]>,
    /// The parts of the current uncertainty.
    parts: Vec<[Parts; 2]>,
    touched: Vec<u32>,
}

impl Errors {
    fn new(number: usize) -> Errors {
        Errors {
            states: vec![Default::default(); number],
            sums: vec![Default::default(); number],
            parts: vec![Default::default(); number],
            touched: Vec::new(),
        }
    }

    /// The parts of the current uncertainty that belong to figure `at`.
    fn parts(&mut self, at: u32) -> &mut [Parts; 2] {
        self.touched.push(at);
        &mut self.parts[at as usize]
    }

    fn end_uncertainty(&mut self, all: &Parts) {
        for at in self.touched.drain(..) {
            // `take` resets the parts, so that a figure in `touched` several times counts once.
            let parts = std::mem::take(&mut self.parts[at as usize]);
            for (sum, parts) in self.sums[at as usize].iter_mut().zip(&parts) {
                sum.add(parts, all);
            }
        }
    }

    fn end_state(&mut self) {
        for (states, sums) in self.states.iter_mut().zip(&mut self.sums) {
            for (state, sum) in states.iter_mut().zip(std::mem::take(sums)) {
                state.add_state(sum);
            }
        }
    }

    fn standard_errors(self) -> Vec<[u64; 2]> {
        let states = self.states.into_iter();
        states
            .map(|both| both.map(ErrorSum::standard_error))
            .collect()
    }
}

/// The standard errors of each row of a tree of these paths, in the unit of `kind`: of its own figure and of its total.
/// Empty if no figure is estimated. `sides` are the uncertainties of each profile; for two profiles, the error is that of
/// their difference.
pub fn of_rows<const N: usize>(
    paths: &Paths<'_, N>,
    rows: &[LayoutRow<N>],
    sides: &[&[Uncertainty]],
    kind: Kind,
) -> Vec<[u64; 2]> {
    if sides.iter().all(|uncertainties| uncertainties.is_empty()) {
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
    // The last row of a path: its own row, or the row that aggregates it. A parent may have two such rows, one for the
    // threshold and one for the number of nodes; the first of them then has the error of both.
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
    let mut errors = Errors::new(rows.len());
    for (side, uncertainties) in sides.iter().enumerate() {
        let ends: FxHashMap<u32, u32> = paths
            .of_samples(side)
            .map(|(sample, steps)| (sample, last(steps)))
            .collect();
        for uncertainty in uncertainties
            .iter()
            .filter(|uncertainty| uncertainty.is_in(kind))
        {
            // The root of all pages is exact.
            let exact = matches!(uncertainty.of, UncertaintyOf::Pages(_)) && !paths.is_focused();
            for part in &uncertainty.parts {
                let Some(end) = part.sample.and_then(|sample| ends.get(&sample)) else {
                    continue;
                };
                errors.parts(*end)[0].add(part);
                let above = std::iter::successors(Some(*end), |at| parent(rows, *at));
                for at in above.filter(|at| *at > 0 || !exact) {
                    errors.parts(at)[1].add(part);
                }
            }
            errors.end_uncertainty(&uncertainty.all());
        }
        errors.end_state();
    }
    errors.standard_errors()
}

fn parent<const N: usize>(rows: &[LayoutRow<N>], row: u32) -> Option<u32> {
    (row > 0).then(|| rows[row as usize].parent)
}

/// The standard errors of each label, in the unit of `kind`, indexed by the label's id: of stacks whose innermost frame has
/// the label, and of stacks that contain it. The paths begin with the innermost frame. Empty if no figure is estimated.
/// `sides` as for [`of_rows`].
pub fn of_labels<const N: usize>(
    paths: &Paths<'_, N>,
    sides: &[&[Uncertainty]],
    kind: Kind,
) -> Vec<[u64; 2]> {
    if sides.iter().all(|uncertainties| uncertainties.is_empty()) {
        return Vec::new();
    }
    let mut errors = Errors::new(paths.labels().all().len());
    for (side, uncertainties) in sides.iter().enumerate() {
        let steps: FxHashMap<u32, &[LabelId]> = paths.of_samples(side).collect();
        for uncertainty in uncertainties
            .iter()
            .filter(|uncertainty| uncertainty.is_in(kind))
        {
            for part in &uncertainty.parts {
                let steps = part.sample.and_then(|sample| steps.get(&sample).copied());
                let steps = steps.unwrap_or_default();
                if let Some(innermost) = steps.first() {
                    errors.parts(*innermost)[0].add(part);
                }
                // A recursive function counts once.
                for (at, id) in steps.iter().enumerate() {
                    if !steps[..at].contains(id) {
                        errors.parts(*id)[1].add(part);
                    }
                }
            }
            errors.end_uncertainty(&uncertainty.all());
        }
        errors.end_state();
    }
    errors.standard_errors()
}

/// The standard error of each sample, in the unit of `kind`; zeros if no figure is estimated.
pub fn of_samples(profile: &Profile, kind: Kind) -> Vec<u64> {
    let mut errors = Errors::new(profile.samples.len());
    let uncertainties = profile.uncertainties.iter();
    for uncertainty in uncertainties.filter(|uncertainty| uncertainty.is_in(kind)) {
        for part in &uncertainty.parts {
            if let Some(sample) = part.sample {
                errors.parts(sample)[0].add(part);
            }
        }
        errors.end_uncertainty(&uncertainty.all());
    }
    errors.end_state();
    let errors = errors.standard_errors().into_iter();
    errors.map(|[own, _]| own).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::symbol::Language;
    use crate::testing::{at, kib, profile, symbols};
    use crate::tree::{Direction, Layout, Limits, Naming, Reading, Table};
    use memprof_sys::residency::PageKind;

    fn between(one: u32, other: Option<u32>, pages: PageKind, error: f64) -> Uncertainty {
        Uncertainty::between(pages, [Some(one), other], error * error)
    }

    #[test]
    fn what_is_divided_inside_a_sum_does_not_count() {
        // main calls read, which calls malloc, and parse, which calls malloc twice, the second time through recursion.
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
        profile.uncertainties = vec![
            between(0, Some(1), anon, 3000.0),
            between(1, Some(2), anon, 4000.0),
            between(2, None, anon, 12_000.0),
            between(0, Some(3), PageKind::File, 50_000.0),
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
            let errors = of_rows(paths, &rows, &[&profile.uncertainties], Kind::All);
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
        assert_eq!(mallocs, [3000, 5000, sum(&[4000.0, 12_000.0])]);
        assert_eq!(of_samples(&profile, Kind::All)[1], mallocs[1]);
        assert_eq!(of_samples(&profile, Kind::Cache), [0; 4]);
        let all = totals(&all);
        assert_eq!(all[..2], [row("all", 0), row("main (node)", 12_000)]);
        assert_eq!(all[2], row("parse (node)", parse));
        assert!(all.windows(2).any(|two| two == read), "{all:?}");
        // The row that aggregates small nodes has the error of their stacks.
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
        // The variances of both states add up, in a table and in a tree.
        let both = Table::new([(&profile, &names), (&profile, &names)], Kind::All, false);
        let main = both
            .rows
            .iter()
            .find(|row| row.code.function == Some("main"));
        let doubled = sum(&[12_000.0, 12_000.0]);
        assert_eq!(main.unwrap().errors, [0, doubled]);
        let mut paths = Paths::new([(&profile, &names), (&profile, &names)], reading);
        let rows = Layout::new(&mut paths, limits(0)).rows;
        let uncertainties = [&*profile.uncertainties, &*profile.uncertainties];
        assert_eq!(
            of_rows(&paths, &rows, &uncertainties, Kind::All)[1],
            [0, doubled]
        );
        let files = Table::new([(&profile, &names)], Kind::File, false);
        assert!(files.rows.is_empty());
    }
}
