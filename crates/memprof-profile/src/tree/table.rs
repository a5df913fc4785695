//! Functions of one or two profiles, at any depth of a stack.

use super::label::{Code, Label, Merge, Naming};
use super::paths::{Paths, Reading, add};
use super::{Direction, errors};
use crate::symbol::Symbols;
use crate::{Kind, Profile};

/// A function with its bytes on each side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableRow<'a, const N: usize> {
    /// The function; its `offset` is `None`.
    pub code: Code<'a>,
    /// Bytes of stacks whose innermost frame is in the function.
    pub own: [u64; N],
    /// Bytes of stacks that contain the function; a recursive function counts each byte once.
    pub total: [u64; N],
    /// The standard errors of `own` and `total`, in bytes: of a single profile, or of the difference of two; 0 if every
    /// stack was walked.
    pub errors: [u64; 2],
}

/// Every function. The `own` of all rows and the bytes in `others` add up to `total`.
#[derive(Clone, Debug)]
pub struct Table<'a, const N: usize> {
    /// The functions, unordered.
    pub rows: Vec<TableRow<'a, N>>,
    /// Bytes outside functions, by label: [`Label::NotObserved`], [`Label::NoStack`] and, for stacks whose
    /// innermost frame has no known code, [`Label::Unmapped`].
    pub others: Vec<(Label<'a>, [u64; N])>,
    /// The sum of all bytes.
    pub total: [u64; N],
}

impl<'a, const N: usize> Table<'a, N> {
    /// Merges these profiles by (file, function); with `inlined`, inlined functions have separate rows.
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
        let errors = errors::of_labels(&paths, &uncertainties, kind);
        Table::merge(&paths, &errors)
    }

    fn merge(paths: &Paths<'a, N>, errors: &[[u64; 2]]) -> Table<'a, N> {
        let labels = paths.labels().all();
        let mut own = vec![[0; N]; labels.len()];
        let mut totals = vec![[0; N]; labels.len()];
        // For each label, the last path that was counted in its total.
        let mut counted = vec![usize::MAX; labels.len()];
        let mut total = [0; N];
        for (number, (steps, bytes)) in paths.iter().enumerate() {
            add(&mut total, &bytes);
            if let Some(first) = steps.first() {
                add(&mut own[*first as usize], &bytes);
            }
            for &label in steps {
                if std::mem::replace(&mut counted[label as usize], number) != number {
                    add(&mut totals[label as usize], &bytes);
                }
            }
        }
        let mut table = Table {
            rows: Vec::new(),
            others: Vec::new(),
            total,
        };
        let errors = |id: usize| errors.get(id).copied().unwrap_or_default();
        for (id, ((label, own), total)) in labels.iter().zip(own).zip(totals).enumerate() {
            match *label {
                _ if total == [0; N] => {}
                Label::Code(code) => table.rows.push(TableRow {
                    code,
                    own,
                    total,
                    errors: errors(id),
                }),
                other if own != [0; N] => table.others.push((other, own)),
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
