//! `/v2/allocations`: the sampled allocations in memory, grouped, with averages and their course over time.

use std::cmp::Ordering;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use super::common::millis;
use super::functions::{Name, Page, PageReply, Sorting};
use super::query::{Query, bad};
use super::request::RequestContext;
use super::{Api, ApiError, BoxFuture, Endpoint, Reply, Request, reply};
use memprof_profile::Estimate;
use memprof_profile::allocations::{
    Average, Course, Filter, Group, GroupBy, Groups, Key, MarkTime, NamedAllocations,
};
use memprof_profile::tree::Label;
use memprof_sys::ids::Pid;

/// Parameters of `/v2/allocations`.
pub(super) const PARAMETERS: &[&str] = &[
    "by", "sort", "order", "filter", "pid", "offset", "limit", "parts",
];

/// Default and maximum number of time slices that each row has figures for.
const PARTS: u64 = 32;
const MAX_PARTS: u64 = 120;
/// Maximum number of rows.
const MAX_ROWS: u64 = 500;
/// Maximum number of frames in a row for a stack.
const MAX_FRAMES: usize = 64;

#[derive(Clone, Copy, Debug)]
enum By {
    Allocated,
    Objects,
    Live,
    Temporary,
    Size,
    Lifetime,
    Age,
    Key,
}

#[derive(Clone, Debug)]
struct AllocationsRequest {
    by: GroupBy,
    name: &'static str,
    sorting: Sorting<By>,
    filter: Option<Filter>,
    pid: Option<Pid>,
    page: Page,
    parts: usize,
}

/// `/v2/allocations`.
pub(super) fn read(asked: &RequestContext<'_>) -> Result<Request, ApiError> {
    Ok(Arc::new(AllocationsRequest::read(&asked.query)?))
}

impl AllocationsRequest {
    fn read(query: &Query) -> Result<AllocationsRequest, ApiError> {
        let groups = [
            ("function", GroupBy::Function),
            ("stack", GroupBy::Stack),
            ("thread", GroupBy::Thread),
            ("size", GroupBy::Size),
            ("lifetime", GroupBy::Lifetime),
        ];
        let words = [
            ("allocated", By::Allocated, false),
            ("objects", By::Objects, false),
            ("live", By::Live, false),
            ("temporary", By::Temporary, false),
            ("size", By::Size, false),
            ("lifetime", By::Lifetime, false),
            ("age", By::Age, false),
            ("key", By::Key, true),
        ];
        let named = query.word("by", groups.map(|group| (group.0, group)))?;
        let (name, by) = named.unwrap_or(groups[0]);
        let filter = query.text("filter").filter(|text| !text.is_empty());
        let pid = query.number("pid", "", i32::MAX as u64)?;
        let parts = query.number("parts", "", MAX_PARTS)?;
        Ok(AllocationsRequest {
            by,
            name,
            sorting: Sorting::read(query, words)?,
            filter: filter
                .map(Filter::parse)
                .transpose()
                .map_err(|e| bad(e.to_string()))?,
            pid: pid.map(|pid| Pid(pid as u32)),
            page: Page::read_at_most(query, MAX_ROWS)?,
            parts: parts.unwrap_or(PARTS).max(1) as usize,
        })
    }

    /// Builds the reply. Slow: call it on a blocking thread.
    fn reply(&self, named: &NamedAllocations, marks: &[MarkTime]) -> Result<Reply, ApiError> {
        let chosen = match &self.filter {
            Some(filter) => filter
                .indices(named, self.pid, marks)
                .map_err(|e| bad(e.to_string()))?,
            None => named.of_process(self.pid),
        };
        let groups = Groups::new(named, &chosen, self.by);
        let order = self.order(&groups);
        let shown = self.page.part(&order);
        let (course, courses) = groups.courses(shown, self.parts);
        let rows = shown
            .iter()
            .zip(&courses)
            .map(|(&at, course)| AllocationRow {
                key: KeyReply::from(&groups.keys[at]),
                figures: AllocationFigures::new(&groups.groups[at], course),
            });
        let all = &*named.allocations;
        let seconds = |ns: u64| ns as f64 / 1e9;
        reply::json(&AllocationsReply {
            report: named.report.sequence,
            taken: millis(named.report.profile.taken),
            by: self.name,
            sort: self.sorting.name,
            order: self.sorting.order(),
            seconds: seconds(all.now_ns),
            parts: self.parts,
            temporary: seconds(all.temporary_ns),
            missing: all.missing,
            missing_until: all.missing_until_ns.map(seconds),
            without_stack: all.without_stack,
            total: AllocationFigures::new(&groups.total, &course),
            page: self.page.about(order.len()),
            rows: rows.collect(),
        })
    }

    /// The indices of the groups, in the requested order.
    fn order(&self, groups: &Groups<'_>) -> Vec<usize> {
        let mut order: Vec<usize> = (0..groups.keys.len()).collect();
        let average = |average: Option<Average>| average.map_or(-1.0, |a| a.value);
        let figure = |group: &Group| match self.sorting.by {
            By::Allocated => group.all.space,
            By::Objects => group.all.objects,
            By::Live => group.live.space,
            By::Temporary => group.temporary.space,
            By::Size => average(group.average_size()),
            By::Lifetime => average(group.average_lifetime()),
            By::Age => average(group.average_age()),
            By::Key => 0.0,
        };
        let keys = |a: usize, b: usize| compare(&groups.keys[a], &groups.keys[b]);
        order.sort_by(|&a, &b| {
            let ascending = match self.sorting.by {
                By::Key => keys(a, b),
                _ => figure(&groups.groups[a]).total_cmp(&figure(&groups.groups[b])),
            };
            self.sorting.turned(ascending).then_with(|| keys(a, b))
        });
        order
    }
}

/// Compares keys; live allocations come after all lifetimes.
fn compare(a: &Key<'_>, b: &Key<'_>) -> Ordering {
    match (a, b) {
        (Key::Function(a), Key::Function(b)) => a.cmp(b),
        (Key::Stack(a), Key::Stack(b)) => a.cmp(b),
        (Key::Thread(a), Key::Thread(b)) => a.cmp(b),
        (Key::Size(a), Key::Size(b)) => a.cmp(b),
        (Key::Lifetime(a), Key::Lifetime(b)) => {
            let last = |of: &Option<u64>| of.unwrap_or(u64::MAX);
            last(a).cmp(&last(b))
        }
        // All keys of a reply have the same variant.
        _ => Ordering::Equal,
    }
}

impl Endpoint for AllocationsRequest {
    fn answer<'a>(&'a self, api: &'a Api) -> BoxFuture<'a, Result<Reply, ApiError>> {
        Box::pin(async move {
            let _turn = api.filtering.turn().await?;
            let named = api.allocations_with(self.pid).await?;
            let (asked, marks) = (self.clone(), api.mark_times());
            let made = tokio::task::spawn_blocking(move || asked.reply(&named, &marks)).await;
            made.map_err(|e| ApiError::Failed(e.to_string()))?
        })
    }
}

/// Times are in seconds; times within the recording count from its first sample.
#[derive(JsonSchema, Serialize)]
#[schemars(rename = "Allocations")]
pub(super) struct AllocationsReply<'a> {
    /// Number of the report at whose time the samples were read.
    report: u64,
    /// When this report was taken, in milliseconds since 1970-01-01 UTC.
    taken: u64,
    #[schemars(extend("enum" = ["function", "stack", "thread", "size", "lifetime"]))]
    by: &'static str,
    #[schemars(extend("enum" = ["allocated", "objects", "live", "temporary", "size", "lifetime", "age", "key"]))]
    sort: &'static str,
    #[schemars(extend("enum" = ["asc", "desc"]))]
    order: &'static str,
    /// Time from the first sample to now.
    seconds: f64,
    /// Number of equal parts of `seconds` for which each row has figures.
    parts: usize,
    /// Allocations that were freed within this time, in seconds, are temporary.
    temporary: f64,
    /// Number of samples that are missing, because newer ones took their room.
    missing: u64,
    /// The time until which the missing samples were freed, in seconds since the first sample; null if none is missing.
    missing_until: Option<f64>,
    /// Number of samples that are in no row, because their stack was lost.
    without_stack: u64,
    /// All rows together.
    total: AllocationFigures,
    #[serde(flatten)]
    page: PageReply,
    rows: Vec<AllocationRow<'a>>,
}

#[derive(JsonSchema, Serialize)]
#[schemars(rename = "AllocationsRow")]
struct AllocationRow<'a> {
    #[serde(flatten)]
    key: KeyReply<'a>,
    #[serde(flatten)]
    figures: AllocationFigures,
}

#[derive(JsonSchema, Serialize)]
#[serde(untagged)]
enum KeyReply<'a> {
    Function(Name<'a>),
    /// A frame without a known function.
    Frame {
        /// By function: a frame without a known function.
        frame: String,
    },
    Stack {
        /// By stack: its functions, innermost first.
        frames: Vec<String>,
        /// By stack: number of outer frames that are left out.
        frames_left_out: usize,
    },
    Thread {
        /// By thread: its id in the initial pid namespace.
        thread: u32,
    },
    Size {
        /// By size: the least size in bytes.
        size_from: u64,
        /// By size: all sizes are below this one.
        size_to: u64,
    },
    Lifetime {
        /// By lifetime: the least lifetime in seconds.
        lifetime_from: f64,
        /// By lifetime: all lifetimes are below this one, in seconds.
        lifetime_to: f64,
    },
    Live {
        /// By lifetime: the row of live allocations.
        live_now: bool,
    },
}

impl<'a> From<&Key<'a>> for KeyReply<'a> {
    fn from(key: &Key<'a>) -> KeyReply<'a> {
        let seconds = |ns: u64| ns as f64 / 1e9;
        match key {
            Key::Function(Label::Code(code)) => KeyReply::Function(code.into()),
            Key::Function(other) => KeyReply::Frame {
                frame: other.to_string(),
            },
            Key::Stack(labels) => KeyReply::Stack {
                frames: labels
                    .iter()
                    .take(MAX_FRAMES)
                    .map(Label::to_string)
                    .collect(),
                frames_left_out: labels.len().saturating_sub(MAX_FRAMES),
            },
            Key::Thread(thread) => KeyReply::Thread { thread: *thread },
            Key::Size(from) => KeyReply::Size {
                size_from: *from,
                size_to: from.saturating_mul(2),
            },
            Key::Lifetime(Some(from)) => KeyReply::Lifetime {
                lifetime_from: seconds(*from),
                lifetime_to: seconds(from.saturating_mul(10).max(1_000)),
            },
            Key::Lifetime(None) => KeyReply::Live { live_now: true },
        }
    }
}

/// Bytes, numbers of allocations and seconds; estimates have their standard errors.
#[derive(JsonSchema, Serialize)]
#[schemars(rename = "AllocationsFigures")]
struct AllocationFigures {
    /// Number of samples; the other figures are estimates from these.
    samples: u64,
    /// Bytes allocated (without those that a forked child has from its parent).
    alloc_space: u64,
    /// Standard error of alloc_space.
    alloc_space_error: u64,
    /// Number of allocations (without those that a forked child has from its parent).
    alloc_objects: u64,
    /// Standard error of alloc_objects.
    alloc_objects_error: u64,
    /// Bytes of live allocations.
    inuse_space: u64,
    /// Standard error of inuse_space.
    inuse_space_error: u64,
    /// Number of live allocations.
    inuse_objects: u64,
    /// Standard error of inuse_objects.
    inuse_objects_error: u64,
    /// Bytes of temporary allocations.
    temporary_space: u64,
    /// Standard error of temporary_space.
    temporary_space_error: u64,
    /// Number of temporary allocations.
    temporary_objects: u64,
    /// Standard error of temporary_objects.
    temporary_objects_error: u64,
    /// Average size in bytes; null if there are none.
    average_size: Option<f64>,
    /// Standard error of average_size.
    average_size_error: Option<f64>,
    /// Average lifetime of freed allocations, in seconds; null if there are none.
    average_lifetime: Option<f64>,
    /// Standard error of average_lifetime.
    average_lifetime_error: Option<f64>,
    /// Average age of live allocations, in seconds; null if there are none.
    average_age: Option<f64>,
    /// Standard error of average_age.
    average_age_error: Option<f64>,
    /// Bytes allocated in each part of the time.
    allocated: Vec<u64>,
    /// Live bytes at the end of each part.
    live: Vec<u64>,
}

impl AllocationFigures {
    fn new(group: &Group, course: &Course) -> AllocationFigures {
        let whole = |figure: f64| figure.max(0.0).round() as u64;
        let error = |variance: f64| whole(variance.max(0.0).sqrt());
        let space = |of: &Estimate| (whole(of.space), error(of.space_variance));
        let objects = |of: &Estimate| (whole(of.objects), error(of.objects_variance));
        let (all, live, temporary) = (&group.all, &group.live, &group.temporary);
        let size = group.average_size();
        let (lifetime, age) = (group.average_lifetime(), group.average_age());
        let value = |of: Option<Average>, unit: f64| of.map(|a| a.value / unit);
        let spread = |of: Option<Average>, unit: f64| of.map(|a| a.error / unit);
        AllocationFigures {
            samples: group.samples,
            alloc_space: space(all).0,
            alloc_space_error: space(all).1,
            alloc_objects: objects(all).0,
            alloc_objects_error: objects(all).1,
            inuse_space: space(live).0,
            inuse_space_error: space(live).1,
            inuse_objects: objects(live).0,
            inuse_objects_error: objects(live).1,
            temporary_space: space(temporary).0,
            temporary_space_error: space(temporary).1,
            temporary_objects: objects(temporary).0,
            temporary_objects_error: objects(temporary).1,
            average_size: value(size, 1.0),
            average_size_error: spread(size, 1.0),
            average_lifetime: value(lifetime, 1e9),
            average_lifetime_error: spread(lifetime, 1e9),
            average_age: value(age, 1e9),
            average_age_error: spread(age, 1e9),
            allocated: course.allocated.iter().copied().map(whole).collect(),
            live: course.live.iter().copied().map(whole).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::{Value, json};

    use super::*;
    use crate::http::api::OPENAPI_V2;
    use memprof_profile::tree::{Beside, Category, Code};

    #[test]
    fn rows_of_every_group_are_of_the_document() {
        let document: Value = serde_json::from_str(&OPENAPI_V2).unwrap();
        let schema = json!({"$ref": "#/components/schemas/AllocationsRow", "components": document["components"]});
        let schema = jsonschema::validator_for(&schema).unwrap();
        let code = Code {
            function: None,
            file: "program",
            path: Path::new("/program"),
            offset: None,
            first_line: None,
            inlined: false,
            source: Beside(None),
            category: Beside(Category::OwnOther),
            module: None,
        };
        let course = Course {
            allocated: vec![1.0],
            live: vec![0.0],
        };
        for key in [
            Key::Function(Label::Code(code)),
            Key::Function(Label::NoStack),
            Key::Stack(vec![Label::Code(code)]),
            Key::Thread(1),
            Key::Size(16),
            Key::Lifetime(Some(1000)),
            Key::Lifetime(None),
        ] {
            let row = AllocationRow {
                key: KeyReply::from(&key),
                figures: AllocationFigures::new(&Group::default(), &course),
            };
            let mut row = serde_json::to_value(&row).unwrap();
            assert!(schema.is_valid(&row), "{row}");
            row["further"] = 1.into();
            assert!(!schema.is_valid(&row), "{row}");
        }
    }
}
