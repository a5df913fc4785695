//! Building the tree: stacks become paths of numbered names, which are sorted and swept over.

use std::ops::Range;

use super::labels::{FrameLabels, Labels};
use super::{Node, Paths};
use crate::export::{ExportOptions, Report};
use crate::tree::{Direction, Names, sweep};

/// Name of the root.
const ALL: &str = "all";
/// Name of what the threshold summed up.
const UNDER_THRESHOLD: &str = "[under threshold]";

/// The stacks of one or two reports.
#[derive(Default)]
struct Lines {
    labels: Labels,
    /// The numbers of every path's names, one path after the other, root first.
    frames: Vec<u32>,
    /// The places of a path, and its bytes: before, now.
    lines: Vec<(Range<usize>, [u64; 2])>,
}

pub(super) fn build(report: &Report, options: &ExportOptions, threshold: u64) -> Paths {
    let mut lines = Lines::default();
    lines.add(report, options, |now| [0, now]);
    if let Some(baseline) = &options.baseline {
        lines.add(baseline, options, |before| [before, 0]);
    }
    let (all, under) = (
        lines.labels.number(ALL),
        lines.labels.number(UNDER_THRESHOLD),
    );
    let (labels, places) = in_order(lines.labels.into_texts());
    let mut frames = lines.frames;
    frames
        .iter_mut()
        .for_each(|label| *label = places[*label as usize]);
    let path = |range: &Range<usize>| &frames[range.clone()];
    let mut lines = lines.lines;
    lines.sort_unstable_by(|(a, _), (b, _)| path(a).cmp(path(b)));
    let (all, under) = (places[all as usize], places[under as usize]);
    let paths = lines.iter().map(|(range, bytes)| (path(range), *bytes));
    let (rows, _) = sweep(paths, all, under, threshold);
    Paths {
        labels,
        nodes: rows.iter().map(Node::from).collect(),
        is_difference: options.baseline.is_some(),
    }
}

/// The names in order, and the place that each number now has.
fn in_order(mut texts: Vec<String>) -> (Vec<String>, Vec<u32>) {
    let mut order: Vec<usize> = (0..texts.len()).collect();
    order.sort_unstable_by_key(|number| texts[*number].as_str());
    let mut places = vec![0; texts.len()];
    let mut sorted = Vec::with_capacity(texts.len());
    for (place, number) in order.into_iter().enumerate() {
        places[number] = place as u32;
        sorted.push(std::mem::take(&mut texts[number]));
    }
    (sorted, places)
}

impl Lines {
    fn add(&mut self, report: &Report, options: &ExportOptions, bytes: impl Fn(u64) -> [u64; 2]) {
        let kind = options.kind;
        let direction = options.direction.unwrap_or(Direction::OutermostFirst);
        let mut names = FrameLabels::new(Names::new(&report.profile, &report.symbols));
        for sample in &report.profile.samples {
            let count = kind.of(&sample.usage);
            if count == 0 {
                continue;
            }
            let start = self.frames.len();
            let stack = sample.stack.frames.iter();
            let numbers = stack.map(|frame| names.number(*frame, &mut self.labels));
            self.frames.extend(numbers);
            if direction == Direction::OutermostFirst {
                self.frames[start..].reverse();
            }
            if self.frames.len() == start {
                let nothing = self.labels.no_stack();
                self.frames.push(nothing);
            }
            self.lines.push((start..self.frames.len(), bytes(count)));
        }
        for row in &report.profile.not_observed {
            let count = kind.of(&row.usage);
            if count > 0 {
                let start = self.frames.len();
                self.frames.push(self.labels.not_observed(row));
                self.lines.push((start..start + 1, bytes(count)));
            }
        }
    }
}
