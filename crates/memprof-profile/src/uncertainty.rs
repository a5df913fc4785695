//! Statistical errors of figures by stack, for sampled page faults and sampled allocations.

#[cfg(doc)]
use super::Sample;

use super::{Amounts, Kind, Profile};
use crate::measure::{ColumnId, Unit};
use memprof_sys::residency::{PageKind, figure_of};
use memprof_sys::usage::Usage;

/// An amount with a statistical error. Either the amount was divided among stacks by samples, because not every stack was
/// unwound, or it is estimated from samples of allocations, in a column.
///
/// The error of a sum of stacks (a function, a node of a tree) follows from its parts. With V the variance of these parts,
/// R their share, and A the variance of all parts, the error's variance is V - 2VR + AR². An excess in one part is a
/// deficit in the others, so a sum that contains all parts is exact. If the total is also an estimate from samples, shares
/// are 0, and variances simply add up.
#[derive(Clone, Debug, PartialEq)]
pub struct Uncertainty {
    /// The figures that have this error.
    pub of: UncertaintyOf,
    /// The part of each stack.
    pub parts: Vec<UncertainPart>,
}

/// The part of one stack in an [`Uncertainty`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UncertainPart {
    /// Index of the stack in [`Profile::samples`]; `None` for memory outside the samples.
    pub sample: Option<u32>,
    /// The share of the amount, from 0 to 1.
    pub share: f64,
    /// The variance of the part's weight, in bytes² or in the column's unit squared.
    pub variance: f64,
    /// The contribution of a single sample to `variance`.
    pub single: f64,
}

/// The figures that an [`Uncertainty`] concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum UncertaintyOf {
    /// Pages of this kind.
    Pages(PageKind),
    /// A column of a measure.
    Column(ColumnId),
}

/// A sum of parts of one [`Uncertainty`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Parts {
    share: f64,
    variance: f64,
    single: f64,
}

impl Parts {
    /// Adds a part of the figure.
    pub fn add(&mut self, part: &UncertainPart) {
        self.share += part.share;
        self.variance += part.variance;
        self.single = self.single.max(part.single);
    }

    /// The variance of this sum; `all` is the sum of all parts.
    fn variance(&self, all: &Parts) -> f64 {
        match self.share {
            // This is the sum of all parts, except for rounding.
            share if share > 1.0 - 1e-9 => 0.0,
            share => {
                let variance = self.variance * (1.0 - 2.0 * share) + all.variance * share * share;
                variance.max(0.0)
            }
        }
    }
}

/// The error of a figure, accumulated over uncertainties.
#[derive(Clone, Copy, Debug, Default)]
pub struct ErrorSum {
    variance: f64,
    single: f64,
}

/// Correction for small samples, in samples. The error of a figure with few samples is larger than these samples suggest,
/// because the events that sampling missed are not among them. With one and a half more samples, 95 % of the intervals
/// contain the true value, even with ten samples or fewer (simulated).
const UNSEEN: f64 = 1.5;

impl ErrorSum {
    /// Adds the parts of one figure; `all` is the sum of all parts of the uncertainty.
    pub fn add(&mut self, parts: &Parts, all: &Parts) {
        self.variance += parts.variance(all);
        self.single = self.single.max(parts.single);
    }

    /// Adds the error of another state's figure, for the error of the difference of both.
    pub(crate) fn add_state(&mut self, other: ErrorSum) {
        self.variance += other.variance;
        self.single += other.single;
    }

    /// The standard error of the figure, rounded.
    pub fn standard_error(self) -> u64 {
        (self.variance + UNSEEN * self.single).sqrt().round() as u64
    }
}

impl Uncertainty {
    /// The uncertainty of one stack's figure in a column, which is estimated independently of other stacks.
    pub fn in_column(column: ColumnId, sample: u32, variance: f64) -> Uncertainty {
        let part = UncertainPart {
            sample: Some(sample),
            share: 0.0,
            variance,
            single: 0.0,
        };
        Uncertainty {
            of: UncertaintyOf::Column(column),
            parts: vec![part],
        }
    }

    /// The uncertainty of pages that were divided evenly between two stacks; the figure of each has variance `variance`.
    pub fn between(pages: PageKind, samples: [Option<u32>; 2], variance: f64) -> Uncertainty {
        let part = |sample| UncertainPart {
            sample,
            share: 0.5,
            variance: 2.0 * variance,
            single: 0.0,
        };
        Uncertainty {
            of: UncertaintyOf::Pages(pages),
            parts: samples.map(part).into(),
        }
    }

    /// The sum of all parts.
    pub fn all(&self) -> Parts {
        let mut all = Parts::default();
        self.parts.iter().for_each(|part| all.add(part));
        all
    }

    /// Whether the uncertainty applies to the figures of this kind.
    pub fn is_in(&self, kind: Kind) -> bool {
        match self.of {
            UncertaintyOf::Pages(pages) => {
                let mut usage = Usage::default();
                *figure_of(&mut usage, pages) = 1;
                kind.figure(&Amounts::from(usage)) > 0
            }
            UncertaintyOf::Column(column) => kind == Kind::Column(column),
        }
    }
}

impl Profile {
    /// The standard error of a kind's total, in its unit. Totals of pages are exact.
    pub fn total_error(&self, kind: Kind) -> u64 {
        let in_kind = self.uncertainties.iter().filter(|uncertainty| {
            matches!(uncertainty.of, UncertaintyOf::Column(_)) && uncertainty.is_in(kind)
        });
        let variances = in_kind.map(|uncertainty| {
            let all = uncertainty.all();
            all.variance(&all)
        });
        variances.sum::<f64>().sqrt().round() as u64
    }

    /// Whether figures of this kind by stack can have errors.
    pub fn has_errors(&self, kind: Kind) -> bool {
        let concerns = |uncertainty: &Uncertainty| match uncertainty.of {
            UncertaintyOf::Pages(_) => !matches!(kind, Kind::Column(_)),
            UncertaintyOf::Column(column) => kind == Kind::Column(column),
        };
        self.uncertainties.iter().any(concerns)
    }
}

/// In 95 % of all cases, an estimate is off by at most 1.96 standard errors.
const IN_95_PERCENT: f64 = 1.96;

/// The error of an estimate, for display.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Margin {
    /// No error, because every stack was unwound.
    Exact,
    /// With 95 % confidence, the true figure differs by at most this amount.
    PlusMinus(u64),
    /// The figure does not exceed its margin, so only an upper limit for the true figure is known.
    Below(u64),
}

impl Margin {
    /// The margin of a figure with this standard error, all in the same unit.
    pub fn from_standard_error(figure: u64, standard_error: u64) -> Margin {
        let most = (IN_95_PERCENT * standard_error as f64).ceil() as u64;
        match most {
            0 => Margin::Exact,
            _ if figure > most => Margin::PlusMinus(most),
            _ => Margin::Below(figure + most),
        }
    }

    /// Formats a figure with its margin: an exact figure as it is, `~1234` for an estimate, `1234±20%` if the margin is
    /// more than a tenth of the figure, `<400` if the figure does not exceed its margin. `shown` and `limit` format a
    /// figure and a limit.
    pub fn beside(
        self,
        figure: u64,
        shown: impl Fn(u64) -> String,
        limit: impl Fn(u64) -> String,
    ) -> String {
        match self {
            Margin::Exact => shown(figure),
            Margin::PlusMinus(most) if most > figure / 10 => {
                let percent = (most as f64 * 100.0 / figure.max(1) as f64).ceil();
                format!("{}±{percent:.0}%", shown(figure))
            }
            Margin::PlusMinus(_) => format!("~{}", shown(figure)),
            Margin::Below(most) => format!("<{}", limit(most)),
        }
    }

    /// Formats the margin in the unit in which figures are shown ([`Unit::symbol`]).
    pub fn shown(self, unit: Unit) -> String {
        match self {
            Margin::Exact => String::new(),
            Margin::PlusMinus(most) => format!("±{}", unit.limit(most)),
            Margin::Below(most) => format!("<{}", unit.limit(most)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_not_larger_than_its_margin_has_only_a_limit() {
        assert_eq!(Margin::from_standard_error(4096, 0), Margin::Exact);
        assert_eq!(
            Margin::from_standard_error(1 << 20, 1000),
            Margin::PlusMinus(1960)
        );
        assert_eq!(Margin::from_standard_error(1960, 1000), Margin::Below(3920));
        assert_eq!(Margin::from_standard_error(0, 1000), Margin::Below(1960));
        let shown = [Margin::Exact, Margin::PlusMinus(1960), Margin::Below(3920)];
        let texts = |unit| shown.map(|margin: Margin| margin.shown(unit));
        assert_eq!(texts(Unit::Bytes), ["", "±2", "<4"]);
        assert_eq!(texts(Unit::Objects), ["", "±1960", "<3920"]);
        let beside = |figure, error| {
            Margin::from_standard_error(figure, error).beside(
                figure,
                |n| n.to_string(),
                |n| n.to_string(),
            )
        };
        let figures = [(5000, 0), (5000, 200), (5000, 500), (500, 500)];
        let texts = figures.map(|(figure, error)| beside(figure, error));
        assert_eq!(texts, ["5000", "~5000", "5000±20%", "<1480"]);
    }

    #[test]
    fn an_uncertainty_counts_in_the_kinds_that_contain_its_pages() {
        let kinds = |pages| -> Vec<Kind> {
            let uncertainty = Uncertainty {
                of: UncertaintyOf::Pages(pages),
                parts: Vec::new(),
            };
            Kind::ALL
                .into_iter()
                .filter(|kind| uncertainty.is_in(*kind))
                .collect()
        };
        assert_eq!(
            kinds(PageKind::Anon),
            [Kind::All, Kind::Resident, Kind::Anon]
        );
        assert_eq!(kinds(PageKind::Swap), [Kind::Swap]);
    }

    #[test]
    fn what_one_part_has_too_much_the_others_have_too_little() {
        let part = |share, variance| UncertainPart {
            sample: None,
            share,
            variance,
            single: 0.0,
        };
        let error = |uncertainty: &Uncertainty, of: &[usize]| {
            let mut parts = Parts::default();
            of.iter().for_each(|at| parts.add(&uncertainty.parts[*at]));
            let mut sum = ErrorSum::default();
            sum.add(&parts, &uncertainty.all());
            sum.standard_error()
        };
        // Two stacks with a hundred samples each, of variance 2500.
        let two = Uncertainty {
            of: UncertaintyOf::Pages(PageKind::Anon),
            parts: vec![part(0.5, 250_000.0), part(0.5, 250_000.0)],
        };
        assert_eq!(error(&two, &[0]), error(&two, &[1]));
        assert_eq!(error(&two, &[0]), 354);
        assert_eq!(error(&two, &[0, 1]), 0);
        // If the total is also an estimate, variances add up.
        let column = Uncertainty {
            parts: vec![part(0.0, 90_000.0), part(0.0, 160_000.0)],
            ..two
        };
        assert_eq!([&[0][..], &[0, 1]].map(|of| error(&column, of)), [300, 500]);
    }
}
