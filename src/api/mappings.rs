//! `/v2/maps`: the address space, mapping by mapping. Only local clients get a reply: addresses defeat address
//! space randomisation.

use std::cmp::Ordering;

use serde::Serialize;

use super::common::{Kinds, ReportInfo};
use super::functions::{Page, PageReply, Sorting};
use super::reply::internal;
use super::request::RequestContext;
use super::room::Out;
use super::shape::search;
use super::view::{View, view};
use super::{ApiError, Report, Request};
use crate::profile::{MappedBytes, Mapping, Usage};
use crate::tree::Search;

/// Parameters of `/v2/maps`.
pub(super) const PARAMETERS: &[&str] =
    &["sort", "order", "search", "offset", "limit", "mark", "pid"];

#[derive(Clone, Copy, Debug)]
enum By {
    Address,
    Size,
    Resident,
    Swap,
    NotObserved,
}

#[derive(Debug)]
struct Maps {
    sorting: Sorting<By>,
    search: Option<Search>,
    page: Page,
}

/// `/v2/maps`.
pub(super) fn read(asked: &RequestContext<'_>) -> Result<Request, ApiError> {
    if !asked.local {
        let message = "this reply contains addresses, so only clients on this machine may request it: use a loopback address, without a proxy";
        return Err(ApiError::Forbidden(message.to_owned()));
    }
    let words = [
        ("address", By::Address, true),
        ("size", By::Size, false),
        ("resident", By::Resident, false),
        ("swap", By::Swap, false),
        ("not_observed", By::NotObserved, false),
    ];
    let maps = Maps {
        sorting: Sorting::read(&asked.query, words)?,
        search: search(&asked.query)?,
        page: Page::read(&asked.query)?,
    };
    view(asked, maps)
}

#[derive(Serialize)]
struct MapsReply<'a> {
    report: ReportInfo,
    sort: &'static str,
    order: &'static str,
    size: u64,
    bytes: Kinds,
    #[serde(flatten)]
    page: PageReply,
    rows: Vec<Row<'a>>,
}

#[derive(Serialize)]
struct Row<'a> {
    pid: u32,
    start: String,
    end: String,
    size: u64,
    permissions: &'a str,
    name: &'a str,
    bytes: Kinds,
    attributed: u64,
    not_observed: u64,
    huge: u64,
}

fn bytes(mapped: &MappedBytes) -> Usage {
    let mut usage = mapped.attributed;
    usage += mapped.not_observed;
    usage
}

fn resident(usage: &Usage) -> u64 {
    usage.anon + usage.shmem + usage.file + usage.hugetlb
}

fn size(mapping: &Mapping) -> u64 {
    mapping.end - mapping.start
}

impl<'a> From<&'a Mapping> for Row<'a> {
    fn from(mapping: &'a Mapping) -> Row<'a> {
        Row {
            pid: mapping.pid.0,
            start: format!("{:x}", mapping.start),
            end: format!("{:x}", mapping.end),
            size: size(mapping),
            permissions: &mapping.permissions,
            name: &mapping.name,
            bytes: Kinds(bytes(&mapping.bytes).into()),
            // Of the kinds that are in the totals, so that their sums are those of the report.
            attributed: mapping.bytes.attributed.resident(),
            not_observed: mapping.bytes.not_observed.resident(),
            huge: mapping.bytes.huge,
        }
    }
}

impl Maps {
    fn order(&self, a: &Mapping, b: &Mapping) -> Ordering {
        let place = |m: &Mapping| (m.pid, m.start);
        let key = |m: &Mapping| match self.sorting.by {
            By::Address => 0,
            By::Size => size(m),
            By::Resident => resident(&bytes(&m.bytes)),
            By::Swap => bytes(&m.bytes).swap,
            By::NotObserved => m.bytes.not_observed.resident(),
        };
        let ascending = match self.sorting.by {
            By::Address => place(a).cmp(&place(b)),
            _ => key(a).cmp(&key(b)),
        };
        let turned = self.sorting.turned(ascending);
        turned.then_with(|| place(a).cmp(&place(b)))
    }
}

impl View for Maps {
    fn write(&self, report: &Report, out: &mut Out) -> Result<(), ApiError> {
        let search = self.search.as_ref();
        let matches = |m: &&Mapping| search.is_none_or(|s| s.text(&m.name));
        let mappings = &report.profile.places.mappings;
        let mut rows: Vec<&Mapping> = mappings.iter().filter(matches).collect();
        rows.sort_by(|a, b| self.order(a, b));
        let mut sum = Usage::default();
        rows.iter().for_each(|mapping| sum += bytes(&mapping.bytes));
        let reply = MapsReply {
            report: report.into(),
            sort: self.sorting.name,
            order: self.sorting.order(),
            size: rows.iter().map(|mapping| size(mapping)).sum(),
            bytes: Kinds(sum.into()),
            page: self.page.about(rows.len()),
            rows: self.page.of(&rows),
        };
        serde_json::to_writer(out, &reply).map_err(internal)
    }
}
