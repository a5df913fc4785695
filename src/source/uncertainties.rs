//! The errors of figures with a stack, collected while pages are joined with the ledger.

use rustc_hash::FxHashMap;

use crate::event::StackId;
#[cfg(doc)]
use crate::profile::Uncertainty;
use crate::profile::UncertaintyOf;

/// How far figures with a stack may be off.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Uncertainties {
    divided: Vec<Divided>,
    parts: usize,
    /// What did not fit, as if each stack had been estimated by itself: more than is due. The variance, and that of a single
    /// sample.
    rest: FxHashMap<(Option<StackId>, UncertaintyOf), [f64; 2]>,
}

/// An amount that was divided among stacks: an [`Uncertainty`] by stack id.
#[derive(Clone, Debug, PartialEq)]
pub struct Divided {
    /// Of which figures.
    pub of: UncertaintyOf,
    /// The stacks.
    pub parts: Vec<Part>,
}

/// The part of one stack.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Part {
    /// `None` if the stack was lost.
    pub stack: Option<StackId>,
    /// The share of the amount, 0 to 1.
    pub share: f64,
    /// The variance of the stack's weight.
    pub variance: f64,
    /// What a single sample contributes to it.
    pub single: f64,
}

impl Uncertainties {
    /// Maximum number of parts, 40 bytes each.
    const MOST: usize = 1 << 18;

    /// Adds an amount that was divided.
    pub fn add(&mut self, divided: Divided) {
        if divided.parts.iter().all(|part| part.variance <= 0.0) {
            return;
        }
        if self.parts + divided.parts.len() <= Uncertainties::MOST {
            self.parts += divided.parts.len();
            self.divided.push(divided);
            return;
        }
        for part in divided.parts {
            let [variance, single] = self.rest.entry((part.stack, divided.of)).or_default();
            *variance += part.variance;
            *single = single.max(part.single);
        }
    }

    /// Adds those of other pages.
    pub fn merge(&mut self, other: Uncertainties) {
        other
            .divided
            .into_iter()
            .for_each(|divided| self.add(divided));
        for (key, [variance, single]) in other.rest {
            let rest = self.rest.entry(key).or_default();
            rest[0] += variance;
            rest[1] = rest[1].max(single);
        }
    }

    /// All of them, in an order of their own.
    pub fn iter(&self) -> impl Iterator<Item = Divided> {
        let rest = self.rest.iter().map(|((stack, of), [variance, single])| {
            let part = Part {
                stack: *stack,
                share: 0.0,
                variance: *variance,
                single: *single,
            };
            Divided {
                of: *of,
                parts: vec![part],
            }
        });
        self.divided.iter().cloned().chain(rest)
    }
}
