//! The errors of figures with a stack, collected while pages are joined with the ledger.

use rustc_hash::FxHashMap;

#[cfg(doc)]
use memprof_profile::Uncertainty;

use memprof_profile::UncertaintyOf;
use memprof_sys::ids::{Addr, MmId, StackId};

/// The errors of figures with a stack.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Uncertainties {
    divided: FxHashMap<(UncertaintyOf, Group), Divided>,
    parts: usize,
    /// Errors that did not fit, as if each stack had been estimated by itself, which overstates them. Each has the variance, and
    /// the largest contribution of a single sample to it.
    rest: FxHashMap<(Option<StackId>, UncertaintyOf), [f64; 2]>,
}

/// A mapping of an address space and of the address spaces forked from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Group {
    /// The oldest of these address spaces.
    pub root: MmId,
    /// First address of the mapping.
    pub start: Addr,
    /// Whether its pages are huge: huge pages are estimated separately from small pages.
    pub huge: bool,
}

/// An amount that was divided among stacks: an [`Uncertainty`] by stack id.
#[derive(Clone, Debug, PartialEq)]
pub struct Divided {
    /// The figures that contain the amount.
    pub of: UncertaintyOf,
    /// The pages of the amount.
    pub group: Group,
    /// The amount, in bytes.
    pub amount: f64,
    /// The parts of the stacks.
    pub parts: Vec<StackPart>,
}

/// One stack's part of an amount.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StackPart {
    /// `None` if the stack was lost.
    pub stack: Option<StackId>,
    /// The address space in which its faults were walked.
    pub mm: MmId,
    /// The share of the amount, from 0 to 1.
    pub share: f64,
    /// The variance of the stack's weight.
    pub variance: f64,
    /// The contribution of a single sample to the variance.
    pub single: f64,
}

impl Divided {
    /// Adds another amount of the same group. The same faults stand for pages of a process and of its children. Both amounts have
    /// the same error, so the standard deviations add up.
    fn merge(&mut self, other: Divided) {
        let amount = self.amount + other.amount;
        let mut parts: FxHashMap<_, StackPart> = FxHashMap::default();
        for (of, all) in [(self.amount, &self.parts), (other.amount, &other.parts)] {
            for part in all {
                let merged = parts.entry((part.stack, part.mm)).or_insert(StackPart {
                    share: 0.0,
                    variance: 0.0,
                    single: 0.0,
                    ..*part
                });
                merged.share += part.share * of / amount;
                merged.variance = (merged.variance.sqrt() + part.variance.sqrt()).powi(2);
                merged.single = (merged.single.sqrt() + part.single.sqrt()).powi(2);
            }
        }
        self.amount = amount;
        self.parts = parts.into_values().collect();
        self.parts
            .sort_unstable_by_key(|part| (part.stack, part.mm));
    }
}

impl Uncertainties {
    /// Maximum number of parts, 48 bytes each.
    const MAX_PARTS: usize = 1 << 18;

    /// Adds an amount that was divided.
    pub fn add(&mut self, divided: Divided) {
        if divided.parts.iter().all(|part| part.variance <= 0.0) {
            return;
        }
        if self.parts + divided.parts.len() > Uncertainties::MAX_PARTS {
            for part in divided.parts {
                self.add_rest((part.stack, divided.of), [part.variance, part.single]);
            }
            return;
        }
        let key = (divided.of, divided.group);
        if let Some(known) = self.divided.get_mut(&key) {
            self.parts -= known.parts.len();
            known.merge(divided);
            self.parts += known.parts.len();
        } else {
            self.parts += divided.parts.len();
            self.divided.insert(key, divided);
        }
    }

    fn add_rest(&mut self, of: (Option<StackId>, UncertaintyOf), [variance, single]: [f64; 2]) {
        let rest = self.rest.entry(of).or_default();
        rest[0] += variance;
        rest[1] = rest[1].max(single);
    }

    /// Adds the errors of other pages.
    pub fn merge(&mut self, other: Uncertainties) {
        other
            .divided
            .into_values()
            .for_each(|divided| self.add(divided));
        for (of, rest) in other.rest {
            self.add_rest(of, rest);
        }
    }

    /// The divided amounts, sorted, so that reports of the same state are identical.
    pub fn divided(&self) -> impl Iterator<Item = &Divided> {
        let mut all: Vec<&Divided> = self.divided.values().collect();
        all.sort_unstable_by_key(|divided| (divided.of, divided.group));
        all.into_iter()
    }

    /// The errors that did not fit, sorted: for each stack the variance, and the largest contribution of a single sample.
    pub fn rest(&self) -> impl Iterator<Item = (Option<StackId>, UncertaintyOf, [f64; 2])> {
        let rest = self.rest.iter();
        let mut rest: Vec<_> = rest
            .map(|(&(stack, of), &both)| (stack, of, both))
            .collect();
        rest.sort_unstable_by_key(|&(stack, of, _)| (of, stack));
        rest.into_iter()
    }
}
