//! A table of the functions of one or two profiles, at any depth of a stack.

use super::label::{Code, Label, Merge, Naming};
use super::paths::{Paths, Reading, add};
use super::{Direction, errors};
use crate::symbol::Symbols;
use crate::{Kind, Profile, Uncertainty};

/// A function and its bytes in each profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableRow<'a, const N: usize> {
    /// The function; its `offset` is `None`.
    pub code: Code<'a>,
    /// Bytes of stacks whose innermost frame is in the function.
    pub own: [u64; N],
    /// Bytes of stacks that contain the function; a recursive function counts each byte once.
    pub total: [u64; N],
    /// The standard errors of `own` and `total`, in the unit of the table's kind: of one profile, or of the difference of
    /// two. 0 if no figure is estimated.
    pub errors: [u64; 2],
}

/// All functions. The `own` of all rows and the bytes in `others` add up to `total`.
#[derive(Clone, Debug)]
pub struct Table<'a, const N: usize> {
    /// The functions, unordered.
    pub rows: Vec<TableRow<'a, N>>,
    /// Bytes outside functions, by label: [`Label::NotObserved`], [`Label::NoStack`] and [`Label::Unmapped`], for stacks
    /// whose innermost frame has no known code.
    pub others: Vec<(Label<'a>, [u64; N])>,
    /// The sum of all bytes.
    pub total: [u64; N],
}

impl<'a, const N: usize> Table<'a, N> {
    /// Merges these profiles by (file, function). With `inlined`, inlined functions have separate rows.
    pub fn new(sides: [(&'a Profile, &'a Symbols); N], kind: Kind, inlined: bool) -> Table<'a, N> {
        let naming = Naming {
            merge: Merge::Function,
            inlined,
        };
        let direction = Direction::InnermostFirst;
        let reading = Reading {
            direction,
            naming,
            kind,
        };
        let paths = Paths::new(sides, reading);
        let uncertainties = sides.map(|(profile, _)| &*profile.uncertainties);
        let mut table = Table {
            rows: Vec::new(),
            others: Vec::new(),
            total: paths.total(),
        };
        let labels = paths.labels().all().iter();
        for (label, sum) in labels.zip(by_label(&paths, &uncertainties, kind)) {
            match *label {
                _ if sum.total == [0; N] => {}
                Label::Code(code) => table.rows.push(TableRow {
                    code,
                    own: sum.own,
                    total: sum.total,
                    errors: sum.errors,
                }),
                other if sum.own != [0; N] => table.others.push((other, sum.own)),
                _ => {}
            }
        }
        table
    }

    /// Bytes without a stack.
    pub fn not_observed(&self) -> [u64; N] {
        self.sum(|label| matches!(label, Label::NotObserved(..)))
    }

    /// Bytes of stacks without frames.
    pub fn no_stack(&self) -> [u64; N] {
        self.sum(|label| *label == Label::NoStack)
    }

    /// Bytes of stacks whose innermost frame has no known code.
    pub fn unmapped(&self) -> [u64; N] {
        self.sum(|label| *label == Label::Unmapped)
    }

    fn sum(&self, which: impl Fn(&Label<'_>) -> bool) -> [u64; N] {
        let mut sum = [0; N];
        let others = self.others.iter().filter(|(label, _)| which(label));
        others.for_each(|(_, bytes)| add(&mut sum, bytes));
        sum
    }
}

/// The bytes of a label in each profile, as in a [`TableRow`].
#[derive(Clone, Copy, Debug)]
pub(super) struct LabelSum<const N: usize> {
    pub(super) own: [u64; N],
    pub(super) total: [u64; N],
    pub(super) errors: [u64; 2],
}

/// The bytes of each label of these paths, in the order of ids.
pub(super) fn by_label<const N: usize>(
    paths: &Paths<'_, N>,
    uncertainties: &[&[Uncertainty]],
    kind: Kind,
) -> Vec<LabelSum<N>> {
    let none = LabelSum {
        own: [0; N],
        total: [0; N],
        errors: [0; 2],
    };
    let mut sums = vec![none; paths.labels().all().len()];
    // For each label, the last path that its total includes.
    let mut counted = vec![usize::MAX; sums.len()];
    for (number, (steps, bytes)) in paths.iter().enumerate() {
        if let Some(first) = steps.first() {
            add(&mut sums[*first as usize].own, &bytes);
        }
        for &label in steps {
            if std::mem::replace(&mut counted[label as usize], number) != number {
                add(&mut sums[label as usize].total, &bytes);
            }
        }
    }
    let errors = errors::of_labels(paths, uncertainties, kind);
    for (sum, errors) in sums.iter_mut().zip(errors) {
        sum.errors = errors;
    }
    sums
}
