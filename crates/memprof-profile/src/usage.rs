//! The figures of one stack, mapping or report.

use std::ops::{AddAssign, SubAssign};

use crate::measure::{COLUMNS, ColumnId};
use memprof_sys::usage::Usage;

/// Resident bytes and the columns of all other measures: the figures of one stack, or a sum of such figures.
/// [`Kind::figure`](super::Kind::figure) reads one figure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    /// Resident and cached bytes.
    pub usage: Usage,
    columns: [u64; COLUMNS],
}

impl Amounts {
    /// An amount in one column of a measure, in the column's unit.
    pub fn in_column(id: ColumnId, amount: u64) -> Amounts {
        let mut amounts = Amounts::default();
        amounts.columns[id.index()] = amount;
        amounts
    }

    /// Sets a column to 0.
    pub fn clear(&mut self, id: ColumnId) {
        self.columns[id.index()] = 0;
    }

    /// The amount in a column of a measure, in the column's unit.
    pub fn column(&self, id: ColumnId) -> u64 {
        self.columns[id.index()]
    }
}

impl From<Usage> for Amounts {
    fn from(usage: Usage) -> Amounts {
        Amounts {
            usage,
            ..Amounts::default()
        }
    }
}

impl AddAssign for Amounts {
    fn add_assign(&mut self, o: Amounts) {
        self.usage += o.usage;
        self.columns
            .iter_mut()
            .zip(o.columns)
            .for_each(|(sum, more)| *sum += more);
    }
}

/// Subtracts a part of the same figures. No column drops below 0.
impl SubAssign for Amounts {
    fn sub_assign(&mut self, o: Amounts) {
        self.usage -= o.usage;
        self.columns
            .iter_mut()
            .zip(o.columns)
            .for_each(|(all, part)| *all = all.saturating_sub(part));
    }
}
