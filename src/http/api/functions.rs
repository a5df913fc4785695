//! `/v2/functions`: functions with their memory, page by page.

use std::cmp::Ordering;

use schemars::JsonSchema;
use serde::Serialize;

use super::common::{ReportInfo, counted};
use super::memory_budget::Out;
use super::query::Query;
use super::reply::internal;
use super::request::RequestContext;
use super::shape::{kind, search};
use super::view::{View, view};
use super::{ApiError, Request};
use memprof_profile::tree::{Category, Code, Search, Table, TableRow};
use memprof_profile::{Kind, Report};

/// Parameters of `/v2/functions`.
pub(super) const PARAMETERS: &[&str] = &[
    "sort", "order", "kind", "inlined", "search", "offset", "limit", "mark", "at", "pid", "cgroup",
    "frames", "filter",
];

/// Default and maximum number of rows.
const ROWS: u64 = 100;
const MAX_ROWS: u64 = 10_000;

/// The requested range of rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Page {
    /// Index of the first row in the reply.
    offset: u64,
    /// Maximum number of rows in the reply.
    limit: u64,
}

impl Page {
    /// The longest page, from the first row.
    pub(super) const LONGEST: Page = Page {
        offset: 0,
        limit: MAX_ROWS,
    };

    pub(super) fn read(query: &Query) -> Result<Page, ApiError> {
        Page::read_at_most(query, MAX_ROWS)
    }

    /// Reads the page, with at most `most` rows.
    pub(super) fn read_at_most(query: &Query, most: u64) -> Result<Page, ApiError> {
        Ok(Page {
            offset: query.number("offset", "", u64::MAX)?.unwrap_or(0),
            limit: query.number("limit", "", most)?.unwrap_or(ROWS),
        })
    }

    /// The slice of all rows that the page covers.
    pub(super) fn part<'r, T>(&self, rows: &'r [T]) -> &'r [T] {
        let offset = usize::try_from(self.offset).unwrap_or(usize::MAX);
        let rest = rows.get(offset..).unwrap_or_default();
        &rest[..rest.len().min(self.limit as usize)]
    }

    /// The rows of the page, converted for the reply.
    pub(super) fn convert<'r, T, R: From<&'r T>>(&self, rows: &[&'r T]) -> Vec<R> {
        self.part(rows).iter().map(|row| R::from(*row)).collect()
    }

    /// The page's description in the reply; `count` is the number of all rows.
    pub(super) fn about(&self, count: usize) -> PageReply {
        PageReply {
            count: count as u64,
            offset: self.offset,
            limit: self.limit,
        }
    }
}

/// The range of rows in a reply.
#[derive(Debug, JsonSchema, Serialize)]
pub(super) struct PageReply {
    /// Number of matching rows; the reply contains up to limit of them, starting at offset.
    count: u64,
    offset: u64,
    limit: u64,
}

/// Sort key and direction of a list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sorting<K> {
    pub(super) by: K,
    pub(super) name: &'static str,
    ascending: bool,
}

impl<K: Copy> Sorting<K> {
    /// Reads `sort`, which is one of these words and by default the first, and `order`. The third item of a word is
    /// true if it sorts in ascending order by default.
    pub(super) fn read<const W: usize>(
        query: &Query,
        words: [(&'static str, K, bool); W],
    ) -> Result<Sorting<K>, ApiError> {
        let sort = query.word("sort", words.map(|word| (word.0, word)))?;
        let sorting = Sorting::by(sort.unwrap_or(words[0]));
        let order = query.word("order", [("asc", true), ("desc", false)])?;
        Ok(Sorting {
            ascending: order.unwrap_or(sorting.ascending),
            ..sorting
        })
    }

    /// Sorts by this word, in its default order.
    pub(super) fn by((name, by, ascending): (&'static str, K, bool)) -> Sorting<K> {
        Sorting {
            by,
            name,
            ascending,
        }
    }

    pub(super) fn order(&self) -> &'static str {
        if self.ascending { "asc" } else { "desc" }
    }

    /// Applies the sort direction to the result of an ascending comparison.
    pub(super) fn turned(&self, ascending: Ordering) -> Ordering {
        if self.ascending {
            ascending
        } else {
            ascending.reverse()
        }
    }
}

/// Sort key of functions.
#[derive(Clone, Copy, Debug)]
pub(super) enum By {
    Total,
    Own,
    Name,
}

/// Sorts functions by their own memory.
const BY_OWN: (&str, By, bool) = ("self", By::Own, false);

/// Parameters of a table of functions.
#[derive(Clone, Debug)]
pub(super) struct FunctionsParams {
    pub(super) kind: Kind,
    pub(super) inlined: bool,
    pub(super) sorting: Sorting<By>,
    pub(super) page: Page,
    search: Option<Search>,
}

impl FunctionsParams {
    pub(super) fn read(query: &Query) -> Result<FunctionsParams, ApiError> {
        let words = [
            ("total", By::Total, false),
            BY_OWN,
            ("name", By::Name, true),
        ];
        Ok(FunctionsParams {
            kind: kind(query)?,
            inlined: query.boolean("inlined")?.unwrap_or(true),
            sorting: Sorting::read(query, words)?,
            page: Page::read(query)?,
            search: search(query)?,
        })
    }

    /// The matching rows, sorted; `size` maps a row's amounts to the sort key.
    pub(super) fn rows<'t, 'a, const N: usize>(
        &self,
        table: &'t Table<'a, N>,
        size: impl Fn(&[u64; N]) -> u64,
    ) -> Vec<&'t TableRow<'a, N>> {
        let search = self.search.as_ref();
        let matches = |code: &Code<'_>| {
            search.is_none_or(|s| code.function.is_some_and(|f| s.text(f)) || s.text(code.file))
        };
        let mut rows: Vec<_> = table.rows.iter().filter(|r| matches(&r.code)).collect();
        let key = |row: &TableRow<'a, N>| match self.sorting.by {
            By::Total => (size(&row.total), size(&row.own)),
            By::Own => (size(&row.own), size(&row.total)),
            By::Name => (0, 0),
        };
        rows.sort_by(|a, b| {
            let turned = match self.sorting.by {
                By::Name => self.sorting.turned(a.code.cmp(&b.code)),
                _ => self.sorting.turned(key(a).cmp(&key(b))),
            };
            turned.then_with(|| a.code.cmp(&b.code))
        });
        rows
    }
}

/// `/v2/functions`.
pub(super) fn read(asked: &RequestContext<'_>) -> Result<Request, ApiError> {
    view(asked, Functions(FunctionsParams::read(&asked.query)?))
}

/// The view of `/v2/functions`.
#[derive(Debug)]
pub(in crate::http) struct Functions(FunctionsParams);

impl Functions {
    /// The functions with the most memory of their own.
    pub(in crate::http) fn largest(kind: Kind) -> Functions {
        Functions(FunctionsParams {
            kind,
            inlined: true,
            sorting: Sorting::by(BY_OWN),
            page: Page::LONGEST,
            search: None,
        })
    }
}

/// Name and origin of a function.
#[derive(JsonSchema, Serialize)]
#[schemars(inline)]
pub(super) struct Name<'a> {
    /// Demangled name; FILE+0xADDRESS, its start, for a function without a symbol; null for all code of the file that
    /// has neither a symbol nor unwind information.
    function: Option<&'a str>,
    /// Base name of the file; of an executable with several names, the one that it runs under.
    file: &'a str,
    /// Path of the file.
    path: String,
    /// First line of a function of an interpreted program; null for machine code.
    #[schemars(range(min = 1))]
    line: Option<u64>,
    #[schemars(with = "Category")]
    category: &'static str,
    /// Whether this row is for inlined copies (not with inlined=false).
    inlined: bool,
    /// The source line in the function that its largest stack goes through; null without debug information.
    source: Option<SourceLine<'a>>,
}

/// A source line.
#[derive(JsonSchema, Serialize)]
pub(super) struct SourceLine<'a> {
    /// Path of the source file, as debug information or the interpreter names it.
    file: &'a str,
    /// Line.
    #[schemars(range(min = 1))]
    line: u32,
}

impl<'a> From<&Code<'a>> for Name<'a> {
    fn from(code: &Code<'a>) -> Name<'a> {
        Name {
            function: code.function,
            file: code.file,
            path: code.path.to_string_lossy().into_owned(),
            line: code.line(),
            category: code.category.0.name(),
            inlined: code.inlined,
            source: code.source.0.map(|source| SourceLine {
                file: source.file,
                line: source.line,
            }),
        }
    }
}

#[derive(JsonSchema, Serialize)]
#[schemars(rename = "Function")]
struct FunctionRow<'a> {
    #[serde(flatten)]
    name: Name<'a>,
    /// Bytes of stacks whose innermost frame is in the function.
    #[serde(rename = "self")]
    own: u64,
    /// Bytes of stacks that contain the function, each byte counted once even if it is recursive.
    total: u64,
    /// Standard error of self, in bytes, where bytes by stack are estimates; else 0.
    self_error: u64,
    /// Standard error of total, in bytes, where bytes by stack are estimates; else 0.
    total_error: u64,
}

#[derive(JsonSchema, Serialize)]
#[schemars(rename = "Functions")]
pub(super) struct FunctionsReply<'a> {
    report: ReportInfo,
    #[schemars(with = "Kind")]
    kind: &'static str,
    #[schemars(extend("enum" = ["self", "total", "name"]))]
    sort: &'static str,
    #[schemars(extend("enum" = ["asc", "desc"]))]
    order: &'static str,
    /// Whether inlined copies of functions have rows of their own.
    inlined: bool,
    /// Bytes in total: the sum of self over all functions, not_observed, no_stack and unmapped.
    total: u64,
    /// Bytes without a stack.
    not_observed: u64,
    /// Bytes of stacks without frames.
    no_stack: u64,
    /// Bytes of stacks whose innermost frame is in no known file.
    unmapped: u64,
    #[serde(flatten)]
    page: PageReply,
    /// Sum of self over all matching rows.
    matched: u64,
    rows: Vec<FunctionRow<'a>>,
}

impl View for Functions {
    fn needs_lines(&self) -> bool {
        true
    }

    fn write(&self, report: &Report, out: &mut Out) -> Result<(), ApiError> {
        let wanted = &self.0;
        counted(wanted.kind, &report.profile)?;
        let table = Table::new([report.side()], wanted.kind, wanted.inlined);
        let rows = wanted.rows(&table, |[bytes]| *bytes);
        let row = |row: &&TableRow<'_, 1>| row.own[0];
        let reply = FunctionsReply {
            report: report.into(),
            kind: wanted.kind.name(),
            sort: wanted.sorting.name,
            order: wanted.sorting.order(),
            inlined: wanted.inlined,
            total: table.total[0],
            not_observed: table.not_observed()[0],
            no_stack: table.no_stack()[0],
            unmapped: table.unmapped()[0],
            page: wanted.page.about(rows.len()),
            matched: rows.iter().map(row).sum(),
            rows: wanted.page.convert(&rows),
        };
        serde_json::to_writer(out, &reply).map_err(internal)
    }
}

impl<'a> From<&TableRow<'a, 1>> for FunctionRow<'a> {
    fn from(row: &TableRow<'a, 1>) -> FunctionRow<'a> {
        FunctionRow {
            name: (&row.code).into(),
            own: row.own[0],
            total: row.total[0],
            self_error: row.errors[0],
            total_error: row.errors[1],
        }
    }
}
