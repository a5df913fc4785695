//! `/v2/diff`: the difference between two states, by stack or by function.

use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use super::common::{ReportInfo, counted, millis};
use super::functions::{FunctionsParams, Name, PageReply};
use super::marks::{Mark, NOW};
use super::memory_budget::Out;
use super::query::bad;
use super::reply::internal;
use super::request::RequestContext;
use super::shape::shape;
use super::view::{ReportSelector, View};
use super::{Api, ApiError, BoxFuture, Endpoint, Reply, Request};
use crate::export::tree::v2::{Drawn, Errors, Places, Shape};
use memprof_profile::tree::{Paths, Table, TableRow};
use memprof_profile::{Kind, Report};

/// Parameters of `/v2/diff`.
pub(super) const PARAMETERS: &[&str] = &[
    "from",
    "to",
    "by",
    "kind",
    "inlined",
    "frames",
    "search",
    "direction",
    "merge",
    "threshold",
    "max_nodes",
    "sort",
    "order",
    "offset",
    "limit",
    "pid",
    "cgroup",
];

/// Parameters that apply only to trees, and only to tables of functions.
const OF_TREES: &[&str] = &["direction", "merge", "threshold", "max_nodes"];
const OF_TABLES: &[&str] = &["sort", "order", "offset", "limit"];

#[derive(Clone, Debug)]
enum By {
    Stack(Shape),
    Function(FunctionsParams),
}

impl By {
    fn kind(&self) -> Kind {
        match self {
            By::Stack(shape) => shape.reading.kind,
            By::Function(wanted) => wanted.kind,
        }
    }
}

#[derive(Debug)]
struct Diff {
    from: String,
    to: String,
    which: ReportSelector,
    by: By,
}

/// `/v2/diff`.
pub(super) fn read(asked: &RequestContext<'_>) -> Result<Request, ApiError> {
    let query = &asked.query;
    let by_function = query.word("by", [("stack", false), ("function", true)])?;
    let (by, foreign) = match by_function {
        Some(true) => (By::Function(FunctionsParams::read(query)?), OF_TREES),
        _ => (By::Stack(shape(query)?), OF_TABLES),
    };
    if let Some(name) = foreign.iter().find(|name| query.text(name).is_some()) {
        let other = match by {
            By::Function(_) => "stack",
            By::Stack(_) => "function",
        };
        return Err(bad(format!(
            "parameter {name} is valid only with by={other}"
        )));
    }
    let from = query.text("from").ok_or_else(|| {
        bad("parameter from is missing: give the id of a mark; /v2/marks lists them".to_owned())
    })?;
    Ok(Arc::new(Diff {
        from: from.to_owned(),
        to: query.text("to").unwrap_or(NOW).to_owned(),
        which: ReportSelector::read(query)?,
        by,
    }))
}

impl Endpoint for Diff {
    fn answer<'a>(&'a self, api: &'a Api) -> BoxFuture<'a, Result<Reply, ApiError>> {
        Box::pin(async {
            let from = api.mark(&self.from, self.which.pid).await?;
            let to = api.mark_or_now(&self.to, self.which.pid).await?;
            let report = api.state(to.as_ref()).await?;
            let view = Between {
                from,
                to: to.clone(),
                by: self.by.clone(),
                which: self.which.clone(),
            };
            let again = api.state_again(to);
            let view = self.which.shown().in_view(Arc::new(view));
            api.show(report, &again, view).await
        })
    }
}

/// A difference between a mark and the shown report.
#[derive(Clone)]
struct Between {
    from: Mark,
    /// The mark whose report is shown; `None` for the newest report.
    to: Option<Mark>,
    by: By,
    which: ReportSelector,
}

/// Equal `Debug` forms mean equal differences, because marks never change.
impl fmt::Debug for Between {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let to = self.to.as_ref().map(|mark| mark.id);
        write!(f, "Between {} {to:?} {:?}", self.from.id, self.by)
    }
}

/// A side of a difference: a mark, or the state now.
#[derive(JsonSchema, Serialize)]
struct Side {
    /// Id of the mark, or now.
    id: String,
    /// Name of the mark.
    name: Option<String>,
    /// Number of the report.
    report: u64,
    /// When the report was taken, in milliseconds since 1970-01-01 UTC.
    taken: u64,
    /// Total of the root for this kind, in bytes.
    total: u64,
}

#[derive(JsonSchema, Serialize)]
#[schemars(rename = "Sides")]
struct Sides<T> {
    from: T,
    to: T,
}

impl<T: Copy> From<&[T; 2]> for Sides<T> {
    fn from(pair: &[T; 2]) -> Sides<T> {
        let [from, to] = *pair;
        Sides { from, to }
    }
}

/// The difference of two states as a call tree; the differences of all nodes' self add up to the difference of the
/// roots.
#[derive(JsonSchema, Serialize)]
#[schemars(rename = "DiffTree")]
pub(super) struct TreeHead {
    #[schemars(extend("enum" = ["stack"]))]
    by: &'static str,
    #[serde(flatten)]
    sides: Sides<Side>,
    matched: Option<Sides<u64>>,
}

#[derive(JsonSchema, Serialize)]
#[schemars(rename = "DiffNodes")]
pub(super) struct Nodes {
    #[serde(flatten)]
    at: Places,
    /// Bytes of the node and everything below it, before.
    from: Vec<u64>,
    /// The same, after; the difference is to - from.
    to: Vec<u64>,
    /// Bytes of stacks that end at this node, before.
    self_from: Vec<u64>,
    /// The same, after.
    self_to: Vec<u64>,
    #[serde(flatten)]
    errors: Errors,
}

#[derive(JsonSchema, Serialize)]
#[schemars(rename = "DiffFunction")]
struct StackRow<'a> {
    #[serde(flatten)]
    name: Name<'a>,
    self_from: u64,
    self_to: u64,
    /// `self_to` - `self_from`.
    #[serde(rename = "self")]
    #[schemars(with = "i64")]
    own: i128,
    total_from: u64,
    total_to: u64,
    /// `total_to` - `total_from`.
    #[schemars(with = "i64")]
    total: i128,
    /// Standard error of the self difference, in bytes, where bytes by stack of either state are estimates; else 0. The
    /// variances of both states are added.
    self_error: u64,
    /// Standard error of the total difference, likewise.
    total_error: u64,
}

/// The difference of two states by function. The self differences of all functions, not_observed, no_stack and unmapped
/// add up to to.total - from.total.
#[derive(JsonSchema, Serialize)]
#[schemars(rename = "DiffFunctions")]
pub(super) struct FunctionsReply<'a> {
    #[schemars(extend("enum" = ["function"]))]
    by: &'static str,
    report: ReportInfo,
    #[schemars(with = "Kind")]
    kind: &'static str,
    #[schemars(extend("enum" = ["self", "total", "name"]))]
    sort: &'static str,
    #[schemars(extend("enum" = ["asc", "desc"]))]
    order: &'static str,
    inlined: bool,
    #[serde(flatten)]
    sides: Sides<Side>,
    not_observed: Sides<u64>,
    no_stack: Sides<u64>,
    unmapped: Sides<u64>,
    #[serde(flatten)]
    page: PageReply,
    rows: Vec<StackRow<'a>>,
}

impl View for Between {
    fn needs_lines(&self) -> bool {
        true
    }

    fn baseline(&self) -> Option<Arc<Report>> {
        Some(Arc::clone(&self.from.report))
    }

    fn compared_with(&self, baseline: Arc<Report>) -> Option<Arc<dyn View>> {
        let mut view = self.clone();
        view.from.report = baseline;
        Some(Arc::new(view))
    }

    fn write(&self, report: &Report, out: &mut Out) -> Result<(), ApiError> {
        counted(self.by.kind(), &report.profile)?;
        match &self.by {
            By::Stack(shape) => self.write_tree(shape, report, out),
            By::Function(wanted) => self.write_table(wanted, report, out),
        }
    }
}

impl Between {
    fn sides(&self, report: &Report, [from, to]: [u64; 2]) -> Sides<Side> {
        let side = |mark: Option<&Mark>, report: &Report, total| Side {
            id: mark.map_or_else(|| NOW.to_owned(), Mark::shown_id),
            name: mark.and_then(|mark| mark.name.clone()),
            report: report.sequence,
            taken: millis(report.profile.taken),
            total,
        };
        Sides {
            from: side(Some(&self.from), &self.from.report, from),
            to: side(self.to.as_ref(), report, to),
        }
    }

    fn write_tree(&self, shape: &Shape, report: &Report, out: &mut Out) -> Result<(), ApiError> {
        let from = &*self.which.shown().select(&self.from.report)?;
        let mut paths = Paths::new([from.side(), report.side()], shape.reading);
        let uncertainties = [&*from.profile.uncertainties, &*report.profile.uncertainties];
        let mut drawn = Drawn::new(&mut paths, shape, &uncertainties);
        let head = TreeHead {
            by: "stack",
            sides: self.sides(report, drawn.rows[0].total),
            matched: drawn.matched.as_ref().map(Sides::from),
        };
        let column = |of: fn(&memprof_profile::tree::LayoutRow<2>) -> u64| {
            drawn.rows.iter().map(of).collect()
        };
        let nodes = Nodes {
            at: drawn.places(),
            from: column(|row| row.total[0]),
            to: column(|row| row.total[1]),
            self_from: column(|row| row.own[0]),
            self_to: column(|row| row.own[1]),
            errors: drawn.errors(),
        };
        let reply = drawn.reply(ReportInfo::from(report), shape, head, nodes);
        serde_json::to_writer(out, &reply).map_err(internal)
    }

    fn write_table(
        &self,
        wanted: &FunctionsParams,
        report: &Report,
        out: &mut Out,
    ) -> Result<(), ApiError> {
        let from = &*self.which.shown().select(&self.from.report)?;
        let sides = [from.side(), report.side()];
        let table = Table::new(sides, wanted.kind, wanted.inlined);
        let rows = wanted.rows(&table, |[from, to]| from.abs_diff(*to));
        let reply = FunctionsReply {
            by: "function",
            report: report.into(),
            kind: wanted.kind.name(),
            sort: wanted.sorting.name,
            order: wanted.sorting.order(),
            inlined: wanted.inlined,
            sides: self.sides(report, table.total),
            not_observed: (&table.not_observed()).into(),
            no_stack: (&table.no_stack()).into(),
            unmapped: (&table.unmapped()).into(),
            page: wanted.page.about(rows.len()),
            rows: wanted.page.convert(&rows),
        };
        serde_json::to_writer(out, &reply).map_err(internal)
    }
}

impl<'a> From<&TableRow<'a, 2>> for StackRow<'a> {
    fn from(row: &TableRow<'a, 2>) -> StackRow<'a> {
        let difference = |[from, to]: [u64; 2]| i128::from(to) - i128::from(from);
        StackRow {
            name: (&row.code).into(),
            self_from: row.own[0],
            self_to: row.own[1],
            own: difference(row.own),
            total_from: row.total[0],
            total_to: row.total[1],
            total: difference(row.total),
            self_error: row.errors[0],
            total_error: row.errors[1],
        }
    }
}
