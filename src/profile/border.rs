//! How far figures by stack may be off, where not every stack was walked.

#[cfg(doc)]
use super::Sample;
use super::{Amounts, Kind, Profile, Usage};
use crate::measure::{ColumnId, Unit};
use crate::residency::{PageKind, figure_of};

/// Pages that may belong to one stack or to those beside it in memory, because no fault of them was walked. What one of
/// them has too much, the others have too little: the variance counts in each sum of stacks (a function, a node of a
/// tree) that contains the one and none of the others, or both others and not the one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Border {
    /// The index of the one in [`Profile::samples`]; `None` for memory outside of it.
    pub sample: Option<u32>,
    /// The two beside it; twice the same if only two stacks are involved.
    pub beside: [Option<u32>; 2],
    /// Of which figures.
    pub of: BorderOf,
    /// The variance, in bytes², or in the column's unit squared.
    pub variance: f64,
}

/// The figures that a [`Border`] concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BorderOf {
    /// Pages that count as this.
    Pages(PageKind),
    /// An estimate in a column, which is off by itself: no other stack has what this one has too much, and so the sum
    /// of all stacks is off, too.
    Column(ColumnId),
}

impl Border {
    /// Whether its pages are in the figures of this kind.
    pub(crate) fn is_in(&self, kind: Kind) -> bool {
        match self.of {
            BorderOf::Pages(pages) => {
                let mut usage = Usage::default();
                *figure_of(&mut usage, pages) = 1;
                kind.of(&Amounts::from(usage)) > 0
            }
            BorderOf::Column(column) => kind == Kind::Column(column),
        }
    }
}

impl Profile {
    /// The standard error of the total of a kind, in its unit. Totals of pages are exact.
    pub(crate) fn total_error(&self, kind: Kind) -> u64 {
        let own = |border: &&Border| matches!(border.of, BorderOf::Column(_)) && border.is_in(kind);
        let variance: f64 = self.borders.iter().filter(own).map(|b| b.variance).sum();
        variance.sqrt().round() as u64
    }

    /// Whether figures of this kind by stack may have errors.
    pub(crate) fn has_errors(&self, kind: Kind) -> bool {
        let concerns = |border: &Border| match border.of {
            BorderOf::Pages(_) => !matches!(kind, Kind::Column(_)),
            BorderOf::Column(column) => kind == Kind::Column(column),
        };
        self.borders.iter().any(concerns)
    }
}

/// In 95 % of all cases, an estimate is off by at most so many standard errors.
const IN_95_PERCENT: f64 = 1.96;

/// How an estimate's error is shown to people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Margin {
    /// It has none: every stack was walked.
    Exact,
    /// The true figure is this far away at most, with 95 % confidence.
    PlusMinus(u64),
    /// The figure is not larger than that; the true figure is below this one.
    Below(u64),
}

impl Margin {
    /// The margin of a figure that has this standard error; all in the same unit.
    pub(crate) fn of(figure: u64, standard_error: u64) -> Margin {
        let most = (IN_95_PERCENT * standard_error as f64).ceil() as u64;
        match most {
            0 => Margin::Exact,
            _ if figure > most => Margin::PlusMinus(most),
            _ => Margin::Below(figure + most),
        }
    }

    /// As text, in the unit in which figures are shown ([`Unit::symbol`]).
    pub(crate) fn shown(self, unit: Unit) -> String {
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
        assert_eq!(Margin::of(4096, 0), Margin::Exact);
        assert_eq!(Margin::of(1 << 20, 1000), Margin::PlusMinus(1960));
        assert_eq!(Margin::of(1960, 1000), Margin::Below(3920));
        assert_eq!(Margin::of(0, 1000), Margin::Below(1960));
        let shown = [Margin::Exact, Margin::PlusMinus(1960), Margin::Below(3920)];
        let texts = |unit| shown.map(|margin: Margin| margin.shown(unit));
        assert_eq!(texts(Unit::Bytes), ["", "±2", "<4"]);
        assert_eq!(texts(Unit::Objects), ["", "±1960", "<3920"]);
    }

    #[test]
    fn a_border_counts_in_the_kinds_that_contain_its_pages() {
        let border = |pages| Border {
            sample: None,
            beside: [Some(0); 2],
            of: BorderOf::Pages(pages),
            variance: 1.0,
        };
        let kinds = |pages| -> Vec<Kind> {
            let border = border(pages);
            Kind::ALL
                .into_iter()
                .filter(|kind| border.is_in(*kind))
                .collect()
        };
        assert_eq!(
            kinds(PageKind::Anon),
            [Kind::All, Kind::Resident, Kind::Anon]
        );
        assert_eq!(kinds(PageKind::Swap), [Kind::Swap]);
    }
}
