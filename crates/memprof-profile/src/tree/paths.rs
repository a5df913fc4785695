//! Stacks as paths of labels from the root, with their bytes.

use std::cmp::Reverse;

use super::label::{Label, LabelId, Labels, Merge, Naming};
use super::names::FrameLabels;
use super::{Direction, Find};
use crate::symbol::Symbols;
use crate::{Amounts, Kind, Profile, Sample};

/// One path and its bytes in each of `N` columns.
#[derive(Clone, Copy, Debug)]
pub struct Path<const N: usize> {
    /// Number of the profile.
    side: u8,
    /// Index of the sample in its profile; `None` for memory without a stack.
    sample: Option<u32>,
    start: u32,
    end: u32,
    bytes: [u64; N],
}

/// The paths of one profile or of several, with `N` columns of bytes.
#[derive(Debug)]
pub struct Paths<'a, const N: usize> {
    labels: Labels<'a>,
    steps: Vec<LabelId>,
    paths: Vec<Path<N>>,
    focused: bool,
}

impl<const N: usize> Default for Paths<'_, N> {
    fn default() -> Self {
        Paths {
            labels: Labels::default(),
            steps: Vec::new(),
            paths: Vec::new(),
            focused: false,
        }
    }
}

/// The rules by which stacks become paths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Reading {
    /// The end of a stack at the root.
    pub direction: Direction,
    /// The frames that form a node.
    pub naming: Naming,
    /// The kind of bytes to count.
    pub kind: Kind,
}

impl<'a, const N: usize> Paths<'a, N> {
    /// The paths of these profiles, with one column per profile: one for a tree, two for a diff. Samples of zero bytes are
    /// omitted.
    pub fn new(sides: [(&'a Profile, &'a Symbols); N], reading: Reading) -> Paths<'a, N> {
        let mut paths = Paths::default();
        // The newest profile comes first: labels have its source lines.
        for (side, of) in sides.into_iter().enumerate().rev() {
            paths.add((side, of), reading.direction, reading.naming, |amounts| {
                let mut bytes = [0; N];
                bytes[side] = reading.kind.figure(amounts);
                bytes
            });
        }
        paths
    }

    /// The paths of one profile, with several columns of figures. Stacks with zeros in all columns are omitted.
    pub fn columns(
        of: (&'a Profile, &'a Symbols),
        direction: Direction,
        naming: Naming,
        columns: impl Fn(&Amounts) -> [u64; N],
    ) -> Paths<'a, N> {
        let mut paths = Paths::default();
        paths.add((0, of), direction, naming, columns);
        paths
    }

    fn add(
        &mut self,
        (side, of): (usize, (&'a Profile, &'a Symbols)),
        direction: Direction,
        naming: Naming,
        columns: impl Fn(&Amounts) -> [u64; N],
    ) {
        let side = side as u8;
        let mut names = FrameLabels::new(of, naming);
        let every_frame = naming.merge == Merge::Name;
        let mut samples: Vec<(u32, &Sample, [u64; N])> = (0..)
            .zip(&of.0.samples)
            .map(|(index, sample)| (index, sample, columns(&sample.amounts)))
            .filter(|(_, _, bytes)| *bytes != [0; N])
            .collect();
        // A label has the source line of the stack that it is first seen in: of the largest one.
        samples.sort_by_key(|(_, _, bytes)| Reverse(*bytes));
        for (index, sample, bytes) in samples {
            let start = self.steps.len();
            for frame in &sample.stack.frames {
                for &id in names.get(*frame, &mut self.labels) {
                    let again = self.steps[start..].last() == Some(&id);
                    if id != Labels::UNMAPPED || !again || every_frame {
                        self.steps.push(id);
                    }
                }
            }
            // The missing callers become the outermost step of the stack. Stacks that were cut off for the same reason then
            // share one node, instead of one node for each function that happens to be outermost.
            if let Some(reason) = sample.stack.outcome.cut_off()
                && self.steps.len() > start
                && naming.merge != Merge::Frame
            {
                self.steps.push(self.labels.id(Label::CutOff(reason)));
            }
            if direction == Direction::OutermostFirst {
                self.steps[start..].reverse();
            }
            if naming.merge == Merge::Frame {
                self.cut_at_unknown(start);
            } else if self.steps.len() == start {
                self.steps.push(self.labels.id(Label::NoStack));
            }
            self.finish((side, Some(index)), start, bytes);
        }
        for row in &of.0.not_observed {
            let bytes = columns(&row.amounts);
            if bytes == [0; N] {
                continue;
            }
            let start = self.steps.len();
            if naming.merge != Merge::Frame {
                let label = Label::NotObserved(&row.mapping, row.reason);
                self.steps.push(self.labels.id(label));
            }
            self.finish((side, None), start, bytes);
        }
    }

    /// Shortens every path to at most `depth` steps. The bytes of the paths do not change.
    pub fn cut_below(&mut self, depth: usize) {
        let depth = u32::try_from(depth).unwrap_or(u32::MAX);
        for path in &mut self.paths {
            path.end = path.end.min(path.start.saturating_add(depth));
        }
    }

    fn cut_at_unknown(&mut self, start: usize) {
        let steps = self.steps[start..].iter();
        if let Some(known) = steps.copied().position(|id| id == Labels::UNMAPPED) {
            self.steps.truncate(start + known);
        }
    }

    fn finish(&mut self, (side, sample): (u8, Option<u32>), start: usize, bytes: [u64; N]) {
        self.paths.push(Path {
            side,
            sample,
            start: start as u32,
            end: self.steps.len() as u32,
            bytes,
        });
    }

    /// The labels of the steps.
    pub fn labels(&self) -> &Labels<'a> {
        &self.labels
    }

    /// Replaces each label by what `new` returns for it. Steps whose labels become equal are one node then.
    pub(super) fn relabelled(mut self, new: impl Fn(&Label<'a>) -> Label<'a>) -> Self {
        let mut labels = Labels::default();
        let old = self.labels.all().iter();
        let ids: Vec<LabelId> = old.map(|label| labels.id(new(label))).collect();
        for step in &mut self.steps {
            *step = ids[*step as usize];
        }
        Paths { labels, ..self }
    }

    /// Assigns an id to a label that no path contains.
    pub(super) fn label(&mut self, label: Label<'a>) -> LabelId {
        self.labels.id(label)
    }

    /// Every path with its bytes.
    pub fn iter(&self) -> impl Iterator<Item = (&[LabelId], [u64; N])> {
        self.paths.iter().map(|path| (self.steps(path), path.bytes))
    }

    /// Number of paths.
    pub(super) fn len(&self) -> usize {
        self.paths.len()
    }

    /// One path and its bytes.
    pub(super) fn at(&self, index: usize) -> (&[LabelId], [u64; N]) {
        let path = &self.paths[index];
        (self.steps(path), path.bytes)
    }

    /// The paths of one profile's samples, each with the index of its sample.
    pub(crate) fn of_samples(&self, side: usize) -> impl Iterator<Item = (u32, &[LabelId])> {
        let paths = self.paths.iter();
        let paths = paths.filter(move |path| usize::from(path.side) == side);
        paths.filter_map(|path| Some((path.sample?, self.steps(path))))
    }

    fn steps(&self, path: &Path<N>) -> &[LabelId] {
        &self.steps[path.start as usize..path.end as usize]
    }

    /// Sorts the paths, so that paths with a common prefix are adjacent.
    pub(super) fn sort(&mut self) {
        let steps = &self.steps;
        let of = |path: &Path<N>| &steps[path.start as usize..path.end as usize];
        self.paths.sort_unstable_by(|a, b| of(a).cmp(of(b)));
    }

    /// Whether each label matches, indexed by id, and the bytes of the paths with at least one match.
    pub fn find(&self, find: &Find) -> (Vec<bool>, [u64; N]) {
        let labels = self.labels.all().iter();
        let matches: Vec<bool> = labels.map(|label| find.matches(label)).collect();
        let mut bytes = [0; N];
        for (steps, amount) in self.iter() {
            if steps.iter().any(|id| matches[*id as usize]) {
                add(&mut bytes, &amount);
            }
        }
        (matches, bytes)
    }

    /// Restricts the paths to those with a matching label, and shortens each to the part behind its outermost matching
    /// frame. This part is the frame's callees or, if the innermost frame comes first, its callers. The root represents the
    /// matching frame. A recursive function is cut only once, so each byte stays in one path.
    pub fn focus(&mut self, matches: &[bool], direction: Direction) {
        let Paths { steps, paths, .. } = self;
        paths.retain_mut(|path| {
            let range = path.start as usize..path.end as usize;
            let mut frames = steps[range].iter();
            let is_match = |id: &LabelId| matches[*id as usize];
            let outermost = match direction {
                Direction::OutermostFirst => frames.position(is_match),
                Direction::InnermostFirst => frames.rposition(is_match),
            };
            if let Some(at) = outermost {
                path.start += at as u32 + 1;
            }
            outermost.is_some()
        });
        self.focused = true;
    }

    /// Whether the paths are only a part of the profiles' memory.
    pub(super) fn is_focused(&self) -> bool {
        self.focused
    }

    /// The sum of all paths, per column.
    pub fn total(&self) -> [u64; N] {
        let mut total = [0; N];
        self.iter().for_each(|(_, bytes)| add(&mut total, &bytes));
        total
    }
}

/// Adds `more` to `sum`, column by column.
pub(super) fn add<const N: usize>(sum: &mut [u64; N], more: &[u64; N]) {
    sum.iter_mut()
        .zip(more)
        .for_each(|(sum, more)| *sum += more);
}
