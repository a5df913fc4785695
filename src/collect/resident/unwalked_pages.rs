//! Pages whose fault was not walked: divided among the stacks of the mapping's walked faults.
//!
//! A fault is walked with probability 1/n, so its record stands for itself and n − 1 unwalked faults (Horvitz and Thompson). A
//! fault that would have been walked in any case (n = 1) stands for itself alone. The unwalked pages of a mapping are divided in
//! proportion to these weights, so that the sum is the kernel's. The position of a page in the mapping does not matter: the records
//! of an early function may be dense, and be next to the unwalked pages of a later function.
//!
//! The error follows from the same weights, for any arrangement of pages. A walked fault of weight n − 1 contributes n(n − 1) to
//! the variance of the sum of weights. The excess of the sum of all weights is scaled away; see
//! [`Uncertainty`](memprof_profile::Uncertainty).
//!
//! Huge pages are separate from small pages, and so are pages of each kind. If none of their own faults was walked, the mapping's
//! other walked faults stand for them. Without any walked fault, the pages go to their range's owner, or count as not walked.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::{Owner, Sink, recorded};
use crate::probe::source::{Divided, Group, StackPart};
use memprof_profile::measure::PSS;
use memprof_profile::{Amounts, UncertaintyOf};
use memprof_sys::ids::MmId;
use memprof_sys::residency::{PageKind, Vma, figure_of};
use memprof_sys::usage::Usage;

/// The sampled faults of one mapping, and the pages that they stand for.
#[derive(Debug, Default)]
pub(super) struct Sampled {
    strata: BTreeMap<(PageKind, bool), Stratum>,
}

/// The pages of one kind, either huge or small.
#[derive(Debug, Default)]
struct Stratum {
    walked: FxHashMap<By, Walked>,
    /// Unwalked pages, by the owner that gets them if no walked fault stands for them.
    unwalked: FxHashMap<Owner, Amounts>,
}

/// The properties that walked faults are grouped by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct By {
    pub(super) stack: u32,
    /// The address space in which the faults were walked: this one, or an ancestor.
    pub(super) mm: MmId,
    /// The sampling interval: one fault in this many was walked.
    pub(super) interval: u32,
}

/// The walked faults of one stack and interval.
#[derive(Clone, Copy, Debug, Default)]
struct Walked {
    faults: u64,
    pages: u64,
}

impl Sampled {
    /// Adds pages that sampled faults brought in.
    pub(super) fn add_walked(
        &mut self,
        (kind, huge): (PageKind, bool),
        by: By,
        (faults, pages): (u64, u64),
    ) {
        let stratum = self.strata.entry((kind, huge)).or_default();
        let walked = stratum.walked.entry(by).or_default();
        walked.faults += faults;
        walked.pages += pages;
    }

    /// Adds unwalked pages. `fallback` owns them if no walked fault stands for them.
    pub(super) fn add_unwalked(
        &mut self,
        (kind, huge): (PageKind, bool),
        fallback: Owner,
        amounts: Amounts,
    ) {
        let stratum = self.strata.entry((kind, huge)).or_default();
        *stratum.unwalked.entry(fallback).or_default() += amounts;
    }

    /// Divides the unwalked pages of a mapping, once all of them have been added. `root` is the oldest ancestor.
    pub(super) fn divide(&mut self, vma: &Vma, root: MmId, page_size: u64, to: &mut Sink<'_>) {
        let strata = std::mem::take(&mut self.strata);
        for ((kind, huge), stratum) in &strata {
            if stratum.unwalked.is_empty() {
                continue;
            }
            let own = Weights::from_walked(&stratum.walked);
            let weights = match own.all > 0.0 {
                true => own,
                false => Weights::from_walked(strata.values().flat_map(|stratum| &stratum.walked)),
            };
            if weights.all > 0.0 {
                let group = Group {
                    root,
                    start: vma.start,
                    huge: *huge,
                };
                weights.divide(vma, (*kind, group), page_size, &stratum.unwalked, to);
            } else {
                for (fallback, amounts) in &stratum.unwalked {
                    to.give(vma, *fallback, *amounts);
                }
            }
        }
    }
}

/// The weights of the walked faults of each stack, in pages.
#[derive(Debug, Default)]
struct Weights {
    stacks: BTreeMap<(u32, MmId), Weight>,
    all: f64,
    /// The sum of the squared weights of single faults.
    squares: f64,
    variance: f64,
    faults: f64,
}

#[derive(Debug, Default)]
struct Weight {
    /// Number of unwalked pages that the faults stand for.
    pages: f64,
    /// The variance of `pages`, in pages².
    variance: f64,
    /// Number of faults that stand for others.
    faults: f64,
}

impl Weights {
    fn from_walked<'a>(walked: impl IntoIterator<Item = (&'a By, &'a Walked)>) -> Weights {
        let mut weights = Weights::default();
        for (by, walked) in walked {
            let n = f64::from(by.interval);
            // Even if the fault's own page is no longer in the mapping, one fault brought in the pages around it.
            let (faults, pages) = (walked.faults.max(1) as f64, walked.pages as f64);
            let squares = pages * pages / faults;
            let weight = weights.stacks.entry((by.stack, by.mm)).or_default();
            weight.pages += (n - 1.0) * pages;
            weight.variance += n * (n - 1.0) * squares;
            weights.variance += n * (n - 1.0) * squares;
            if by.interval > 1 {
                weight.faults += faults;
                weights.faults += faults;
            }
            weights.all += (n - 1.0) * pages;
            weights.squares += (n - 1.0) * (n - 1.0) * squares;
        }
        weights
    }

    fn divide(
        &self,
        vma: &Vma,
        (kind, group): (PageKind, Group),
        page_size: u64,
        unwalked: &FxHashMap<Owner, Amounts>,
        to: &mut Sink<'_>,
    ) {
        let mut all = Amounts::default();
        unwalked.values().for_each(|amounts| all += *amounts);
        let bytes = *figure_of(&mut all.usage, kind);
        let (mut before, mut given) = (0.0, Amounts::default());
        for ((stack, _), weight) in &self.stacks {
            before += weight.pages;
            let upto = before / self.all;
            // Whole pages, and whole bytes of proportional shares; the rounding remainder goes to the next stack.
            let mut usage = Usage::default();
            *figure_of(&mut usage, kind) = part_of(bytes / page_size, upto) * page_size;
            let mut amounts = Amounts::in_column(PSS, part_of(all.column(PSS), upto));
            amounts += Amounts::from(usage);
            let until = amounts;
            amounts -= given;
            given = until;
            to.give(vma, recorded(*stack), amounts);
        }
        for (of, amount) in [
            (UncertaintyOf::Pages(kind), bytes),
            (UncertaintyOf::Column(PSS), all.column(PSS)),
        ] {
            let divided = self.divided((of, group), amount as f64);
            to.totals.uncertainties.add(divided);
        }
    }

    /// The errors of a divided amount.
    fn divided(&self, (of, group): (UncertaintyOf, Group), amount: f64) -> Divided {
        let scale = (amount / self.all).powi(2);
        // The mean of the weights is itself estimated, so the variance is scaled by n/(n - 1), as for any sample.
        let number = self.all * self.all / self.squares;
        let scale = scale * (1.0 + 1.0 / (number - 1.0).max(1.0));
        let part = |((stack, mm), weight): (&(u32, MmId), &Weight)| StackPart {
            stack: match recorded(*stack) {
                Owner::Stack(id) => Some(id),
                Owner::Nobody(_) => None,
            },
            mm: *mm,
            share: weight.pages / self.all,
            variance: weight.variance * scale,
            // A stack whose faults were all walked so far may also have unwalked faults.
            single: match weight.faults > 0.0 {
                true => weight.variance / weight.faults * scale,
                false => self.variance / self.faults * scale,
            },
        };
        Divided {
            of,
            group,
            amount,
            parts: self.stacks.iter().map(part).collect(),
        }
    }
}

/// A share of an amount, rounded.
fn part_of(amount: u64, share: f64) -> u64 {
    ((amount as f64 * share).round() as u64).min(amount)
}
