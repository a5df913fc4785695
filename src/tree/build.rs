//! Building a tree: sort the stacks, then sweep over them once.
//!
//! Sorted stacks that share a path stand side by side, so the sweep keeps only the path it is on.
//! A node is complete as soon as the sweep leaves it; what the threshold drops is dropped at once,
//! with nothing kept below it, because no node counts more than its parent.

use std::cmp::{Ordering, Reverse};

use super::{Amount, CallTree, Direction, Names, Node, NodeId, Options};
use crate::profile::{Frame, Profile};
use crate::symbol::Symbols;

/// A node that the sweep has not left yet.
#[derive(Default)]
struct Open {
    frame: Option<Frame>,
    amount: Amount,
    unknown: Amount,
    under_threshold: Amount,
    kept: Vec<NodeId>,
}

struct Builder<'a> {
    tree: CallTree,
    path: Vec<Open>,
    names: Names<'a>,
    threshold: u64,
}

pub(super) fn build(profile: &Profile, symbols: &Symbols, options: Options) -> CallTree {
    let names = Names::new(profile, symbols);
    let stacks = sorted(profile, names, options.direction);
    let mut builder = Builder {
        tree: CallTree {
            nodes: Vec::new(),
            edges: Vec::new(),
        },
        path: vec![Open::default()],
        names,
        threshold: options.threshold,
    };
    let mut before: &[Frame] = &[];
    for (frames, amount) in stacks {
        builder.add(before, frames, amount, options.direction);
        before = frames;
    }
    for row in &profile.not_observed {
        builder.path[0].unknown += Amount::from(&row.usage);
    }
    builder.finish()
}

/// The stacks that count something, up to what resolves to nothing, in path order.
fn sorted<'a>(
    profile: &'a Profile,
    names: Names<'_>,
    direction: Direction,
) -> Vec<(&'a [Frame], Amount)> {
    let mut stacks: Vec<_> = profile
        .samples
        .iter()
        .filter(|sample| sample.usage.value() > 0)
        .map(|sample| {
            let frames = resolved(&sample.stack.frames, names, direction);
            (frames, Amount::from(&sample.usage))
        })
        .collect();
    match direction {
        Direction::InnermostFirst => stacks.sort_unstable_by_key(|(frames, _)| *frames),
        Direction::OutermostFirst => {
            stacks.sort_unstable_by(|(a, _), (b, _)| a.iter().rev().cmp(b.iter().rev()));
        }
    }
    stacks
}

/// The frames from the root's end of the stack up to the first one that resolves to nothing.
fn resolved<'a>(frames: &'a [Frame], names: Names<'_>, direction: Direction) -> &'a [Frame] {
    let nothing = |frame: &Frame| !names.resolves(*frame);
    match direction {
        Direction::InnermostFirst => match frames.iter().position(nothing) {
            Some(at) => &frames[..at],
            None => frames,
        },
        Direction::OutermostFirst => match frames.iter().rposition(nothing) {
            Some(at) => &frames[at + 1..],
            None => frames,
        },
    }
}

/// How many frames two stacks share from the root on.
fn shared(a: &[Frame], b: &[Frame], direction: Direction) -> usize {
    match direction {
        Direction::InnermostFirst => a.iter().zip(b).take_while(|(a, b)| a == b).count(),
        Direction::OutermostFirst => {
            let pairs = a.iter().rev().zip(b.iter().rev());
            pairs.take_while(|(a, b)| a == b).count()
        }
    }
}

impl Builder<'_> {
    fn add(&mut self, before: &[Frame], frames: &[Frame], amount: Amount, direction: Direction) {
        let shared = shared(before, frames, direction);
        self.close_to(shared);
        match direction {
            Direction::InnermostFirst => frames[shared..].iter().for_each(|f| self.open(*f)),
            Direction::OutermostFirst => {
                let new = &frames[..frames.len() - shared];
                new.iter().rev().for_each(|f| self.open(*f));
            }
        }
        if let Some(end) = self.path.last_mut() {
            end.unknown += amount;
        }
    }

    fn open(&mut self, frame: Frame) {
        self.path.push(Open {
            frame: Some(frame),
            ..Open::default()
        });
    }

    /// Leaves every node deeper than `depth` (the root has depth 0).
    fn close_to(&mut self, depth: usize) {
        while self.path.len() > depth + 1
            && let Some(open) = self.path.pop()
        {
            let Some(parent) = self.path.len().checked_sub(1) else {
                return;
            };
            let mut amount = open.amount;
            amount += open.unknown;
            self.path[parent].amount += amount;
            if amount.value >= self.threshold {
                let id = self.keep(open);
                self.path[parent].kept.push(id);
            } else {
                self.path[parent].under_threshold += amount;
            }
        }
    }

    /// Moves a complete node into the arena.
    fn keep(&mut self, mut open: Open) -> NodeId {
        open.amount += open.unknown;
        open.kept.sort_by(|a, b| self.order(*a, *b));
        let start = self.tree.edges.len() as u32;
        self.tree.edges.append(&mut open.kept);
        self.tree.nodes.push(Node {
            frame: open.frame,
            amount: open.amount,
            under_threshold: open.under_threshold,
            unknown: open.unknown,
            children: start..self.tree.edges.len() as u32,
        });
        NodeId(self.tree.nodes.len() as u32 - 1)
    }

    /// Order among siblings. Names are looked up only between nodes of equal size.
    fn order(&self, a: NodeId, b: NodeId) -> Ordering {
        let (a, b) = (self.tree.node(a), self.tree.node(b));
        let name = |node: &Node| node.frame.and_then(|frame| self.names.get(frame));
        Reverse(a.amount.value)
            .cmp(&Reverse(b.amount.value))
            .then_with(|| name(a).cmp(&name(b)))
            .then_with(|| a.frame.cmp(&b.frame))
    }

    /// Leaves the root, which no threshold drops.
    fn finish(mut self) -> CallTree {
        self.close_to(0);
        let root = self.path.pop().unwrap_or_default();
        self.keep(root);
        self.tree
    }
}
