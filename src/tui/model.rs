//! The content of a report: functions and the call tree for one kind of bytes, beside the figures of a mark.
//!
//! A model owns its data, so that it can be drawn while the next model is built.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use super::past::Past;
use crate::export::overview::Overview;
use memprof_profile::measure::Unit;
use memprof_profile::symbol::Symbols;
use memprof_profile::tree::{
    Direction, Find, Label, LabelId, Labels, Layout, LayoutRow, Limits, Naming, Paths, Reading,
    Search, Table, errors,
};
use memprof_profile::{FrameFilter, Kind, Profile, Report, Subset};

/// Maximum number of nodes; the largest ones are kept, and the rest are aggregated.
const MAX_NODES: usize = 200_000;

/// A request to build a model.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) report: Arc<Report>,
    /// The report to compare with.
    pub(super) mark: Option<Arc<Report>>,
    /// The selected processes of the report; `None` for all.
    pub(super) subset: Option<Subset>,
    pub(super) kind: Kind,
    pub(super) direction: Direction,
    pub(super) naming: Naming,
    pub(super) frames: FrameFilter,
    pub(super) filter: String,
    pub(super) past: Past,
    /// Whether the overview is visible, which needs the mappings of a part.
    pub(super) needs_places: bool,
}

/// Bytes now and at the mark; `then` is 0 without a mark.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) now: u64,
    pub(super) then: u64,
}

impl Pair {
    fn from_sides<const N: usize>(sides: [u64; N]) -> Pair {
        let side = |at: usize| sides.get(at).copied().unwrap_or(0);
        Pair {
            now: side(0),
            then: side(1),
        }
    }

    /// The growth, in bytes.
    pub(super) fn change(self) -> i128 {
        i128::from(self.now) - i128::from(self.then)
    }

    fn add(&mut self, other: Pair) {
        self.now += other.now;
        self.then += other.then;
    }
}

/// A function with its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FunctionLine {
    pub(super) name: String,
    pub(super) own: Pair,
    pub(super) total: Pair,
    /// The standard errors of `own` and `total`, in bytes.
    pub(super) errors: [u64; 2],
}

/// A node of the tree. The descendants follow the node, up to `end`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    /// Identifies the node among all others, also in later models.
    pub(super) key: u64,
    pub(super) end: usize,
    /// Index of the node's name in `Model::names`.
    name: usize,
    pub(super) total: Pair,
    /// Bytes of stacks that end in the node.
    pub(super) own: Pair,
    /// The standard errors of `own` and `total`.
    pub(super) errors: [u64; 2],
    /// Whether the filter matches the node.
    pub(super) named: bool,
    /// Whether the filter matches a descendant.
    pub(super) on_the_way: bool,
}

/// The visible content of a report.
#[derive(Debug)]
pub(super) struct Model {
    /// The functions that match the filter.
    pub(super) functions: Vec<FunctionLine>,
    /// Bytes outside functions.
    pub(super) unknown: Pair,
    pub(super) whole: Pair,
    /// The unit of the figures.
    pub(super) unit: Unit,
    /// Depth first, the root at 0.
    pub(super) tree: Vec<Node>,
    names: Vec<String>,
    pub(super) filtered: bool,
    /// Whether the report is compared with a mark.
    pub(super) is_difference: bool,
    /// The selected processes; `None` for all.
    pub(super) subset: Option<Subset>,
    /// The report restricted to these processes.
    pub(super) report: Arc<Report>,
    /// The cards of the overview.
    pub(super) overview: Overview,
}

impl Job {
    /// The selected part of a report, without places. For a mark, the part is empty if the processes did not exist
    /// then.
    fn part_of(&self, report: &Arc<Report>) -> Arc<Report> {
        let profile = &report.profile;
        match &self.subset {
            Some(subset) if !profile.is_only(subset) => Arc::new(Report {
                profile: Arc::new(
                    profile
                        .figures(subset)
                        .unwrap_or_else(|| profile.figures_of(&[])),
                ),
                ..Report::clone(report)
            }),
            _ => Arc::clone(report),
        }
    }

    /// What the part says. Like the page, it names functions of the source.
    fn overview(&self, part: &Report) -> Overview {
        let places = self.subset.as_ref().filter(|_| self.needs_places);
        let profile = places.and_then(|subset| self.report.profile.part(subset));
        let with_places = profile.map(|profile| Report {
            profile: Arc::new(profile),
            ..part.clone()
        });
        let part = with_places.as_ref().unwrap_or(part);
        let at_peak = self.past.at_peak.as_deref();
        let at_peak = at_peak.map(|report| report.showing(FrameFilter::default()));
        Overview::new(
            &part.showing(FrameFilter::default()),
            at_peak.as_deref(),
            self.past.growth.as_deref(),
        )
    }
}

impl Model {
    pub(super) fn new(job: Job) -> Model {
        let part = job.part_of(&job.report);
        let report = part.showing(job.frames);
        match &job.mark {
            None => Model::build([report.side()], &job, &part),
            Some(mark) => {
                let mark = job.part_of(mark);
                let mark = mark.showing(job.frames);
                Model::build([report.side(), mark.side()], &job, &part)
            }
        }
    }

    fn build<const N: usize>(
        sides: [(&Profile, &Symbols); N],
        job: &Job,
        report: &Arc<Report>,
    ) -> Model {
        let search = Search::new(&job.filter);
        let reading = Reading {
            direction: job.direction,
            naming: job.naming,
            kind: job.kind,
        };
        let limits = Limits {
            threshold: 0,
            max_nodes: MAX_NODES,
        };
        let mut paths = Paths::new(sides, reading);
        let layout = Layout::new(&mut paths, limits);
        let (named, _) = paths.find(&Find::Search(search.clone()));
        // The profile's errors do not apply to a difference.
        let errors = match &sides[..] {
            [(profile, _)] => {
                errors::of_rows(&paths, &layout.rows, &[&profile.uncertainties], job.kind)
            }
            _ => Vec::new(),
        };
        let labels = paths.labels();
        let table = Table::new(sides, job.kind, job.naming.inlined);
        let mut unknown = Pair::default();
        for (_, bytes) in &table.others {
            unknown.add(Pair::from_sides(*bytes));
        }
        let kept = table.rows.iter();
        let kept = kept.filter(|row| search.matches(&Label::Code(row.code)));
        Model {
            functions: kept
                .map(|row| FunctionLine {
                    name: row.code.to_string(),
                    own: Pair::from_sides(row.own),
                    total: Pair::from_sides(row.total),
                    // The profile's errors do not apply to a difference.
                    errors: if N == 1 { row.errors } else { [0; 2] },
                })
                .collect(),
            unknown,
            whole: Pair::from_sides(table.total),
            unit: job.kind.unit(),
            tree: nodes(&layout.rows, &errors, labels, &named),
            names: labels.all().iter().map(Label::to_string).collect(),
            filtered: !job.filter.is_empty(),
            is_difference: N > 1,
            subset: job.subset.clone(),
            report: Arc::clone(report),
            overview: job.overview(report),
        }
    }

    /// The name of a node.
    pub(super) fn name(&self, node: usize) -> &str {
        &self.names[self.tree[node].name]
    }

    /// The children of a node, largest first.
    pub(super) fn children(&self, node: usize) -> impl Iterator<Item = usize> {
        let end = self.tree[node].end;
        let first = Some(node + 1).filter(|at| *at < end);
        std::iter::successors(first, move |at| {
            Some(self.tree[*at].end).filter(|next| *next < end)
        })
    }
}

fn nodes<const N: usize>(
    rows: &[LayoutRow<N>],
    errors: &[[u64; 2]],
    labels: &Labels<'_>,
    named: &[bool],
) -> Vec<Node> {
    let mut nodes: Vec<Node> = Vec::with_capacity(rows.len());
    for (at, row) in rows.iter().enumerate() {
        let above = nodes.get(row.parent as usize).map_or(0, |node| node.key);
        nodes.push(Node {
            key: key(above, labels.get(row.label)),
            end: at + 1,
            name: row.label as usize,
            total: Pair::from_sides(row.total),
            own: Pair::from_sides(row.own),
            errors: errors.get(at).copied().unwrap_or_default(),
            named: is_named(named, row.label),
            on_the_way: false,
        });
    }
    // In reverse order, all descendants are complete before their parent is visited.
    for at in (1..rows.len()).rev() {
        let below = nodes[at];
        let parent = &mut nodes[rows[at].parent as usize];
        parent.end = parent.end.max(below.end);
        parent.on_the_way |= below.named || below.on_the_way;
    }
    nodes
}

/// Whether the filter matches a label; labels that were added after the search never match.
fn is_named(named: &[bool], label: LabelId) -> bool {
    named.get(label as usize).copied().unwrap_or(false)
}

fn key(above: u64, label: &Label<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    (above, label).hash(&mut hasher);
    hasher.finish()
}
