//! Stacks as paths of labels, from the root on, with what they count.

use super::label::{FrameLabels, Label, LabelId, Labels, Naming};
use super::{Direction, Search};
use crate::profile::{Kind, Profile};
use crate::symbol::Symbols;

/// One path and what it counts, in bytes, on each of `N` sides.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path<const N: usize> {
    start: u32,
    end: u32,
    pub(super) bytes: [u64; N],
}

/// The paths of `N` profiles: one for a tree, two for a difference.
#[derive(Debug)]
pub struct Paths<'a, const N: usize> {
    labels: Labels<'a>,
    steps: Vec<LabelId>,
    paths: Vec<Path<N>>,
}

/// How stacks become paths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Reading {
    /// Which end of a stack stands at the root.
    pub direction: Direction,
    /// What a node is.
    pub naming: Naming,
    /// Which bytes count.
    pub kind: Kind,
}

impl<'a, const N: usize> Paths<'a, N> {
    /// The paths of these profiles' stacks, and of their memory without one. What counts nothing
    /// is left out.
    pub fn new(sides: [(&'a Profile, &'a Symbols); N], reading: Reading) -> Paths<'a, N> {
        let mut paths = Paths {
            labels: Labels::default(),
            steps: Vec::new(),
            paths: Vec::new(),
        };
        for (side, (profile, symbols)) in sides.into_iter().enumerate() {
            paths.add_stacks(side, profile, symbols, reading);
            paths.add_not_observed(side, profile, reading.kind);
        }
        paths
    }

    fn add_stacks(
        &mut self,
        side: usize,
        profile: &'a Profile,
        symbols: &'a Symbols,
        reading: Reading,
    ) {
        let mut names = FrameLabels::new(profile, symbols, reading.naming);
        let unmapped = self.labels.id(Label::Unmapped);
        for sample in &profile.samples {
            let bytes = reading.kind.of(&sample.usage);
            if bytes == 0 {
                continue;
            }
            let start = self.steps.len();
            for frame in &sample.stack.frames {
                for &id in names.of(*frame, &mut self.labels) {
                    let again = self.steps[start..].last() == Some(&id);
                    if id != unmapped || !again {
                        self.steps.push(id);
                    }
                }
            }
            if self.steps.len() == start {
                self.steps.push(self.labels.id(Label::NoStack));
            }
            if reading.direction == Direction::OutermostFirst {
                self.steps[start..].reverse();
            }
            self.finish(start, side, bytes);
        }
    }

    fn add_not_observed(&mut self, side: usize, profile: &'a Profile, kind: Kind) {
        for row in &profile.not_observed {
            let bytes = kind.of(&row.usage);
            if bytes > 0 {
                let start = self.steps.len();
                let label = Label::NotObserved(&row.mapping, row.reason);
                self.steps.push(self.labels.id(label));
                self.finish(start, side, bytes);
            }
        }
    }

    fn finish(&mut self, start: usize, side: usize, bytes: u64) {
        let mut path = Path {
            start: start as u32,
            end: self.steps.len() as u32,
            bytes: [0; N],
        };
        path.bytes[side] = bytes;
        self.paths.push(path);
    }

    /// What the steps are called.
    pub fn labels(&self) -> &Labels<'a> {
        &self.labels
    }

    /// Numbers a label that is no step of any path.
    pub(super) fn label(&mut self, label: Label<'a>) -> LabelId {
        self.labels.id(label)
    }

    /// Every path with what it counts.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[LabelId], [u64; N])> {
        self.paths.iter().map(|path| (self.steps(path), path.bytes))
    }

    fn steps(&self, path: &Path<N>) -> &[LabelId] {
        &self.steps[path.start as usize..path.end as usize]
    }

    /// Puts paths with a common beginning side by side.
    pub(super) fn sort(&mut self) {
        let steps = &self.steps;
        let of = |path: &Path<N>| &steps[path.start as usize..path.end as usize];
        self.paths.sort_unstable_by(|a, b| of(a).cmp(of(b)));
    }

    /// Which labels match, by their numbers, and the bytes of the paths with at least one of them.
    pub fn search(&self, search: &Search) -> (Vec<bool>, [u64; N]) {
        let matches: Vec<bool> = self
            .labels
            .all()
            .iter()
            .map(|l| search.matches(l))
            .collect();
        let mut bytes = [0; N];
        for (steps, amount) in self.iter() {
            if steps.iter().any(|id| matches[*id as usize]) {
                add(&mut bytes, &amount);
            }
        }
        (matches, bytes)
    }
}

/// Adds up, side by side.
pub(super) fn add<const N: usize>(sum: &mut [u64; N], more: &[u64; N]) {
    sum.iter_mut()
        .zip(more)
        .for_each(|(sum, more)| *sum += more);
}
