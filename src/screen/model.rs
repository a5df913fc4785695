//! What a report shows: functions and the call tree, of one kind of bytes, beside those of a mark.
//!
//! A difference needs no second tree. A profile is made in which each sample's bytes now stand as
//! anonymous memory and its bytes at the mark as page cache: the tree keeps the two apart in every
//! node, [`Amount::resident`] being now and [`Amount::cache`] then.

use std::collections::HashSet;
use std::sync::Arc;

use crate::api::Report;
use crate::profile::{Kind, NotObserved, Profile, Sample, Usage};
use crate::symbol::Symbols;
use crate::tree::{Amount, CallTree, Direction, Names, NodeId, Options, functions};

/// A model to be made.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) report: Arc<Report>,
    /// What it is compared with.
    pub(super) mark: Option<Arc<Report>>,
    pub(super) kind: Kind,
    pub(super) direction: Direction,
    /// Case does not matter.
    pub(super) filter: String,
}

/// Bytes now, and at the mark; then is 0 where nothing is compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) now: u64,
    pub(super) then: u64,
}

impl Pair {
    /// By how much it grew, in bytes.
    pub(super) fn change(self) -> i128 {
        i128::from(self.now) - i128::from(self.then)
    }
}

impl From<Amount> for Pair {
    fn from(amount: Amount) -> Pair {
        Pair {
            now: amount.resident(),
            then: amount.cache,
        }
    }
}

/// A function with the bytes it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FunctionLine {
    /// `None` gathers a file's code without a symbol.
    pub(super) function: Option<String>,
    pub(super) executable: String,
    pub(super) own: Pair,
    pub(super) total: Pair,
}

/// What is shown of a report.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) job: Job,
    pub(super) functions: Vec<FunctionLine>,
    /// Bytes that no function holds.
    pub(super) unknown: Pair,
    pub(super) whole: Pair,
    pub(super) tree: CallTree,
    /// The nodes that the filter names, and those on the way to them; `None` without a filter.
    pub(super) found: Option<Found>,
    /// The names of both reports.
    symbols: Arc<Symbols>,
    /// The mark is of other files, so that nothing can be compared.
    pub(super) foreign_mark: bool,
}

/// Nodes that a filter leaves.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) named: HashSet<NodeId>,
    pub(super) on_the_way: HashSet<NodeId>,
}

impl Model {
    pub(super) fn new(job: Job) -> Model {
        let now = &job.report;
        let mark = job.mark.as_ref().filter(|mark| comparable(mark, now));
        let profile = side_by_side(now, mark.map(Arc::as_ref), job.kind);
        let symbols = match mark {
            Some(mark) => Arc::new(both_names(mark, now)),
            None => Arc::clone(&now.symbols),
        };
        let options = Options {
            direction: job.direction,
            threshold: 0,
        };
        let tree = CallTree::new(&profile, &symbols, options);
        let table = functions(&profile, &symbols);
        let lines = table.rows.iter().map(|row| FunctionLine {
            function: row.function.map(str::to_owned),
            executable: row.executable.to_owned(),
            own: row.own.into(),
            total: row.total.into(),
        });
        let mut model = Model {
            functions: lines.collect(),
            unknown: table.unknown.into(),
            whole: tree.node(tree.root()).amount.into(),
            foreign_mark: job.mark.is_some() && mark.is_none(),
            tree,
            found: None,
            symbols,
            job,
        };
        model.found = model.find();
        model
    }

    /// The names of the tree's frames.
    pub(super) fn names(&self) -> Names<'_> {
        Names::new(&self.job.report.profile, &self.symbols)
    }

    /// Whether bytes now are shown beside those of a mark.
    pub(super) fn is_difference(&self) -> bool {
        self.job.mark.is_some() && !self.foreign_mark
    }

    /// Whether the filter leaves a function.
    pub(super) fn keeps(&self, function: Option<&str>, executable: &str) -> bool {
        let filter = &self.job.filter;
        filter.is_empty()
            || function.is_some_and(|f| contains(f, filter))
            || contains(executable, filter)
    }

    fn find(&self) -> Option<Found> {
        if self.job.filter.is_empty() {
            return None;
        }
        let names = self.names();
        let mut found = Found::default();
        // Children first: (node, its parents' place in the path is implied by the second visit).
        let mut todo = vec![(self.tree.root(), false)];
        while let Some((id, seen)) = todo.pop() {
            if seen {
                let below = self.tree.children(id).iter();
                let mut below = below.copied();
                if below.any(|c| found.named.contains(&c) || found.on_the_way.contains(&c)) {
                    found.on_the_way.insert(id);
                }
                continue;
            }
            let name = self.tree.node(id).frame.and_then(|f| names.get(f));
            if name.is_some_and(|n| self.keeps(n.function, n.executable)) {
                found.named.insert(id);
            }
            todo.push((id, true));
            todo.extend(self.tree.children(id).iter().map(|c| (*c, false)));
        }
        Some(found)
    }
}

/// Whether `text` contains `part`, which is lower-case, in any case.
fn contains(text: &str, part: &str) -> bool {
    text.to_lowercase().contains(part)
}

/// Frames of two reports mean the same if the files of one are the first files of the other.
fn comparable(mark: &Report, now: &Report) -> bool {
    let (then, now) = (&mark.profile.modules, &now.profile.modules);
    then.len() <= now.len() && then.iter().zip(now.iter()).all(|(a, b)| Arc::ptr_eq(a, b))
}

fn side_by_side(now: &Report, mark: Option<&Report>, kind: Kind) -> Profile {
    let mut both = Profile {
        samples: Vec::new(),
        not_observed: Vec::new(),
        ..now.profile.as_ref().clone()
    };
    let current = |usage: &Usage| Usage {
        anon: kind.of(usage),
        ..Usage::default()
    };
    let former = |usage: &Usage| Usage {
        cache: kind.of(usage),
        ..Usage::default()
    };
    add(&mut both, &now.profile, current);
    if let Some(mark) = mark {
        add(&mut both, &mark.profile, former);
    }
    both
}

fn add(to: &mut Profile, from: &Profile, usage: impl Fn(&Usage) -> Usage) {
    to.samples.extend(from.samples.iter().map(|s| Sample {
        stack: Arc::clone(&s.stack),
        usage: usage(&s.usage),
    }));
    let rows = from.not_observed.iter().map(|row| NotObserved {
        usage: usage(&row.usage),
        ..row.clone()
    });
    to.not_observed.extend(rows);
}

fn both_names(mark: &Report, now: &Report) -> Symbols {
    let mut names = now.symbols.as_ref().clone();
    names.add_missing(&mark.symbols);
    names
}
