//! Functions of one or two profiles, wherever they stand.

use super::label::{Code, Label};
use super::paths::{Paths, Reading, add};
use super::{Direction, Naming};
use crate::profile::{Kind, Profile};
use crate::symbol::Symbols;

/// A function with the bytes it owns, on each side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableRow<'a, const N: usize> {
    /// The function; its `offset` is `None`.
    pub code: Code<'a>,
    /// Bytes of stacks whose innermost frame is in the function.
    pub own: [u64; N],
    /// Bytes of stacks that pass through the function; a recursive one counts each byte once.
    pub total: [u64; N],
}

/// Every function. The `own` of all rows and the other sums add up to `total`.
#[derive(Clone, Debug)]
pub struct Table<'a, const N: usize> {
    /// The functions, in no order.
    pub rows: Vec<TableRow<'a, N>>,
    /// Bytes of everything.
    pub total: [u64; N],
    /// Bytes without a stack.
    pub not_observed: [u64; N],
    /// Bytes of stacks without frames.
    pub no_stack: [u64; N],
    /// Bytes of stacks whose innermost frame lies in no known file.
    pub unmapped: [u64; N],
}

impl<'a, const N: usize> Table<'a, N> {
    /// Merges these profiles by (file, function); with `inlined`, inlined functions have rows of
    /// their own.
    pub fn new(sides: [(&'a Profile, &'a Symbols); N], kind: Kind, inlined: bool) -> Table<'a, N> {
        let naming = Naming {
            sites: false,
            inlined,
        };
        let direction = Direction::InnermostFirst;
        let reading = Reading {
            direction,
            naming,
            kind,
        };
        Table::merge(&Paths::new(sides, reading))
    }

    fn merge(paths: &Paths<'a, N>) -> Table<'a, N> {
        let labels = paths.labels().all();
        let mut own = vec![[0; N]; labels.len()];
        let mut totals = vec![[0; N]; labels.len()];
        // Per label, the last path that was counted in its total.
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
            total,
            not_observed: [0; N],
            no_stack: [0; N],
            unmapped: [0; N],
        };
        for ((label, own), total) in labels.iter().zip(own).zip(totals) {
            table.take(label, own, total);
        }
        table
    }

    fn take(&mut self, label: &Label<'a>, own: [u64; N], total: [u64; N]) {
        match label {
            Label::Code(code) if total.iter().any(|bytes| *bytes > 0) => {
                let code = *code;
                self.rows.push(TableRow { code, own, total });
            }
            Label::NotObserved(..) => add(&mut self.not_observed, &own),
            Label::NoStack => add(&mut self.no_stack, &own),
            Label::Unmapped => add(&mut self.unmapped, &own),
            _ => {}
        }
    }
}
