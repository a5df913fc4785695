//! Building the tree: sort the paths, then sweep over them once, keeping only the path the sweep is
//! on. A node is complete as soon as the sweep leaves it.

use std::ops::Range;

use super::labels::{FrameLabels, Labels};
use super::{Bytes, Node, Paths};
use crate::export::{ExportOptions, Report};
use crate::tree::{Direction, Names};

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
    lines: Vec<(Range<usize>, Bytes)>,
}

pub(super) fn build(report: &Report, options: &ExportOptions, threshold: u64) -> Paths {
    let mut lines = Lines::default();
    lines.add(report, options, |now| Bytes { now, before: 0 });
    if let Some(baseline) = &options.baseline {
        lines.add(baseline, options, |before| Bytes { now: 0, before });
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
    let mut sweep = Sweep::new(places[all as usize], places[under as usize], threshold);
    let mut before = 0..0;
    for (range, bytes) in lines {
        let shared = path(&before).iter().zip(path(&range));
        let shared = shared.take_while(|(a, b)| a == b).count();
        sweep.close_to(shared);
        path(&range)[shared..].iter().for_each(|l| sweep.open(*l));
        sweep.end_here(bytes);
        before = range;
    }
    let (nodes, edges) = sweep.finish();
    Paths {
        labels,
        nodes,
        edges,
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
    fn add(&mut self, report: &Report, options: &ExportOptions, bytes: impl Fn(u64) -> Bytes) {
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

/// A node that the sweep has not left yet.
struct Open {
    label: u32,
    own: Bytes,
    below: Bytes,
    under_threshold: Bytes,
    kept: Vec<u32>,
}

struct Sweep {
    nodes: Vec<Node>,
    edges: Vec<u32>,
    path: Vec<Open>,
    under: u32,
    threshold: u64,
}

impl Sweep {
    fn new(all: u32, under: u32, threshold: u64) -> Sweep {
        let mut sweep = Sweep {
            nodes: Vec::new(),
            edges: Vec::new(),
            path: Vec::new(),
            under,
            threshold,
        };
        sweep.open(all);
        sweep
    }

    fn open(&mut self, label: u32) {
        self.path.push(Open {
            label,
            own: Bytes::default(),
            below: Bytes::default(),
            under_threshold: Bytes::default(),
            kept: Vec::new(),
        });
    }

    fn end_here(&mut self, bytes: Bytes) {
        if let Some(open) = self.path.last_mut() {
            open.own += bytes;
        }
    }

    /// Leaves every node deeper than `depth` (the root has depth 0).
    fn close_to(&mut self, depth: usize) {
        while self.path.len() > depth + 1
            && let Some(open) = self.path.pop()
        {
            let Some(parent) = self.path.len().checked_sub(1) else {
                return;
            };
            let mut total = open.own;
            total += open.below;
            self.path[parent].below += total;
            if total.now.max(total.before) >= self.threshold {
                let id = self.keep(open, total);
                self.path[parent].kept.push(id);
            } else {
                self.path[parent].under_threshold += total;
            }
        }
    }

    /// Moves a complete node into the arena.
    fn keep(&mut self, mut open: Open, total: Bytes) -> u32 {
        if !open.under_threshold.is_zero() {
            let id = self.push(self.under, open.under_threshold, open.under_threshold, &[]);
            open.kept.push(id);
        }
        self.push(open.label, open.own, total, &open.kept)
    }

    fn push(&mut self, label: u32, own: Bytes, total: Bytes, children: &[u32]) -> u32 {
        let start = self.edges.len() as u32;
        self.edges.extend(children);
        self.nodes.push(Node {
            label,
            own,
            total,
            children: start..self.edges.len() as u32,
        });
        self.nodes.len() as u32 - 1
    }

    /// Leaves the root, which no threshold drops.
    fn finish(mut self) -> (Vec<Node>, Vec<u32>) {
        self.close_to(0);
        if let Some(root) = self.path.pop() {
            let mut total = root.own;
            total += root.below;
            self.keep(root, total);
        }
        (self.nodes, self.edges)
    }
}
