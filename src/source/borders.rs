//! The errors of figures with a stack, added up while pages are joined with the ledger.

use std::collections::HashMap;

use crate::event::StackId;
#[cfg(doc)]
use crate::profile::Border;
use crate::residency::PageKind;

/// How far figures with a stack may be off; see [`Border`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Borders(HashMap<Between, f64>);

/// One stack, the two beside it, and what the pages count as.
type Between = (Option<StackId>, [Option<StackId>; 2], PageKind);

impl Borders {
    /// Maximum number of entries, about 80 bytes each.
    const MOST: usize = 1 << 18;

    /// Adds a variance, in pages², to the sums that contain `one` and none of the stacks beside it, or the reverse.
    pub fn add(
        &mut self,
        one: Option<StackId>,
        [a, b]: [Option<StackId>; 2],
        kind: PageKind,
        variance: f64,
    ) {
        if variance <= 0.0 || one == a || one == b {
            return;
        }
        // Between two stacks only, it does not matter which of them is the one.
        let key = match a == b {
            true => (one.max(a), [one.min(a); 2], kind),
            false => (one, [a.min(b), a.max(b)], kind),
        };
        if let Some(sum) = self.0.get_mut(&key) {
            *sum += variance;
        } else if self.0.len() < Borders::MOST || key.1 == [None; 2] {
            self.0.insert(key, variance);
        } else {
            // In every sum that contains the one, or one of the others: more than is due.
            self.add(one, [None; 2], kind, variance);
            self.add(a, [None; 2], kind, variance);
        }
    }

    /// One stack, the two beside it, what the pages count as, and the variance in pages².
    pub fn iter(&self) -> impl Iterator<Item = (Between, f64)> {
        self.0
            .iter()
            .map(|(between, variance)| (*between, *variance))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The variance of the sum of these stacks.
    fn variance(borders: &Borders, sum: &[u32]) -> f64 {
        let inside = |id: Option<StackId>| id.is_some_and(|id| sum.contains(&id.0));
        let counts =
            |(one, [a, b], _): &Between| inside(*one) != inside(*a) && inside(*a) == inside(*b);
        let counted = borders.iter().filter(|(between, _)| counts(between));
        counted.map(|(_, variance)| variance).sum()
    }

    #[test]
    fn what_does_not_fit_is_never_too_small() {
        let stack = |id| Some(StackId(id));
        let mut borders = Borders::default();
        for id in 0..Borders::MOST as u32 {
            borders.add(stack(id), [stack(id + 1); 2], PageKind::Anon, 1.0);
        }
        assert_eq!(borders.iter().count(), Borders::MOST);
        // Pairs that are known still add up.
        borders.add(stack(1), [stack(0); 2], PageKind::Anon, 1.0);
        assert_eq!(variance(&borders, &[0]), 2.0);
        assert_eq!(variance(&borders, &[0, 1]), 1.0);
        let last = Borders::MOST as u32 + 10;
        borders.add(
            stack(last),
            [stack(last + 1), stack(last + 2)],
            PageKind::Anon,
            4.0,
        );
        for sum in [&[last][..], &[last + 1, last + 2], &[last, last + 1]] {
            assert!(variance(&borders, sum) >= 4.0, "{sum:?}");
        }
        assert_eq!(borders.iter().count(), Borders::MOST + 2);
    }
}
