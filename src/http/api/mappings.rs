//! `/v2/maps`: the address space, mapping by mapping. Only local clients get a reply, because addresses defeat address
//! space layout randomisation.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use super::common::{Kinds, ReportInfo};
use super::functions::{Page, PageReply, Sorting};
use super::memory_budget::Out;
use super::reply::internal;
use super::request::RequestContext;
use super::shape::search;
use super::view::{View, view};
use super::{ApiError, Request};
use memprof_profile::tree::Search;
use memprof_profile::{MappedBytes, Mapping, Profile, Report};
use memprof_sys::residency::Category;
use memprof_sys::usage::Usage;

/// Parameters of `/v2/maps`.
pub(super) const PARAMETERS: &[&str] = &[
    "sort", "order", "search", "offset", "limit", "mark", "at", "pid", "cgroup",
];

#[derive(Clone, Copy, Debug)]
enum By {
    Address,
    Size,
    Resident,
    Swap,
    NotObserved,
}

/// Words for `sort`, the default first.
const SORTS: [(&str, By, bool); 5] = [
    ("address", By::Address, true),
    ("size", By::Size, false),
    ("resident", By::Resident, false),
    ("swap", By::Swap, false),
    ("not_observed", By::NotObserved, false),
];

/// The view of `/v2/maps`. It contains addresses.
#[derive(Debug)]
pub(in crate::http) struct Maps {
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
    let maps = Maps {
        sorting: Sorting::read(&asked.query, SORTS)?,
        search: search(&asked.query)?,
        page: Page::read(&asked.query)?,
    };
    view(asked, maps)
}

#[derive(JsonSchema, Serialize)]
#[schemars(rename = "Maps")]
pub(super) struct MapsReply<'a> {
    report: ReportInfo,
    #[schemars(extend("enum" = ["address", "size", "resident", "swap", "not_observed"]))]
    sort: &'static str,
    #[schemars(extend("enum" = ["asc", "desc"]))]
    order: &'static str,
    #[serde(flatten)]
    sums: Sums,
    /// The matching rows by category; the sums of the categories add up to those of the reply.
    categories: Vec<CategoryRow>,
    #[serde(flatten)]
    page: PageReply,
    rows: Vec<MappingRow<'a>>,
}

/// Sums over mappings: over all matching rows, those of a category, or one mapping.
#[derive(JsonSchema, Serialize)]
struct Sums {
    /// Size of the address ranges, in bytes.
    size: u64,
    /// Memory by kind, in bytes.
    bytes: Kinds,
    /// Bytes of anon + shmem with a stack: the memory that is in the totals. Mapped files, huge pages and swap are in
    /// `bytes` only.
    attributed: u64,
    /// Bytes of anon + shmem without a stack, also because its frames were lost; over all mappings
    /// report.not_observed.resident.
    not_observed: u64,
    /// Bytes in huge pages.
    huge: u64,
}

#[derive(JsonSchema, Serialize)]
#[schemars(rename = "MappingCategoryRow")]
struct CategoryRow {
    #[schemars(with = "MappingCategory")]
    category: &'static str,
    /// Number of mappings.
    mappings: u64,
    #[serde(flatten)]
    sums: Sums,
}

// The names of `memprof_sys::residency::Category`.
/// The kind of memory in a mapping. Stacks of threads and arenas of a process that has ended are `anon`, and so can be the
/// stack of a running thread, which does not show where its stack is.
#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
#[expect(dead_code, reason = "only the schema is used")]
enum MappingCategory {
    /// Memory that grows by brk.
    Heap,
    /// The heap of one of glibc's arenas, which serve all threads but the first, with its reserve for growth.
    Arena,
    /// The stack of the main thread.
    MainStack,
    /// Anonymous memory that contains a thread's stack pointer and has guard pages.
    ThreadStack,
    /// The guard pages below a thread's stack.
    StackGuard,
    /// Anonymous memory that the program named.
    NamedAnon,
    /// Anonymous memory that may not be accessed.
    Reserved,
    /// Other anonymous memory.
    Anon,
    /// Executable anonymous memory: JIT code.
    Code,
    /// The program's own file.
    Executable,
    /// Files that are mapped as code or named like shared libraries.
    Library,
    /// Other files.
    File,
    /// Shared anonymous memory.
    SharedAnon,
    /// Shared anonymous memory that the program named.
    NamedShared,
    /// Files made by memfd_create.
    Memfd,
    /// System V shared memory.
    Sysv,
    /// Files on tmpfs, including POSIX shared memory.
    Tmpfs,
    /// Huge pages of hugetlbfs.
    Hugetlb,
    /// Devices.
    Device,
    /// The kernel's own mappings: vdso, vvar, vsyscall.
    Kernel,
}

/// Accumulates mappings.
#[derive(Default)]
struct Sum {
    mappings: u64,
    size: u64,
    bytes: MappedBytes,
}

impl Sum {
    fn add(&mut self, mapping: &Mapping) {
        self.mappings += 1;
        self.size += size(mapping);
        self.bytes.attributed += mapping.bytes.attributed;
        self.bytes.not_observed += mapping.bytes.not_observed;
        self.bytes.huge += mapping.bytes.huge;
    }
}

impl From<&Sum> for Sums {
    fn from(sum: &Sum) -> Sums {
        Sums {
            size: sum.size,
            bytes: Kinds(bytes(&sum.bytes).into()),
            // Only the kinds in the totals, so that the sums match those of the report.
            attributed: sum.bytes.attributed.resident(),
            not_observed: sum.bytes.not_observed.resident(),
            huge: sum.bytes.huge,
        }
    }
}

#[derive(JsonSchema, Serialize)]
#[schemars(rename = "Mapping")]
struct MappingRow<'a> {
    pid: u32,
    /// First address, hexadecimal.
    start: String,
    /// End address, exclusive, hexadecimal.
    end: String,
    /// As in /proc/PID/maps, for example rw-p.
    permissions: &'a str,
    /// Path, `[heap]`, `[stack]` or `[anon:NAME]`; `[anon]` if the mapping has no name.
    name: &'a str,
    /// Of the program's own file, the name under which it runs, if the kernel reports another name of the same file;
    /// else null.
    runs_as: Option<&'a str>,
    #[schemars(with = "MappingCategory")]
    category: &'static str,
    #[serde(flatten)]
    sums: Sums,
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

impl<'a> From<&'a Mapping> for MappingRow<'a> {
    fn from(mapping: &'a Mapping) -> MappingRow<'a> {
        let mut sum = Sum::default();
        sum.add(mapping);
        MappingRow {
            pid: mapping.pid.0,
            start: format!("{:x}", mapping.start),
            end: format!("{:x}", mapping.end),
            permissions: &mapping.permissions,
            name: &mapping.name,
            runs_as: None,
            category: mapping.category.name(),
            sums: (&sum).into(),
        }
    }
}

impl Maps {
    /// The mappings in the order of their addresses.
    pub(in crate::http) fn by_address() -> Maps {
        Maps {
            sorting: Sorting::by(SORTS[0]),
            search: None,
            page: Page::LONGEST,
        }
    }

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

/// The name under which the executable at this path runs, if it differs from the file name.
fn runs_as<'a>(profile: &'a Profile, path: &str) -> Option<&'a str> {
    let mut modules = profile.modules.iter();
    let own = modules.find(|m| m.own_executable && m.path.as_os_str() == path)?;
    let other = own.path.file_name().is_none_or(|name| *name != *own.name);
    other.then_some(&own.name)
}

/// The sums of each category, in display order.
fn categories(mappings: &[&Mapping]) -> Vec<CategoryRow> {
    // Keyed by category first, because the category defines the order.
    let mut sums = BTreeMap::<(Category, &'static str), Sum>::new();
    for mapping in mappings {
        let name = mapping.category.name();
        let first = sums.keys().find(|(_, known)| *known == name);
        let key = first.copied().unwrap_or((mapping.category, name));
        sums.entry(key).or_default().add(mapping);
    }
    let row = |((_, category), sum): (&(Category, &'static str), &Sum)| CategoryRow {
        category,
        mappings: sum.mappings,
        sums: sum.into(),
    };
    sums.iter().map(row).collect()
}

impl View for Maps {
    fn write(&self, report: &Report, out: &mut Out) -> Result<(), ApiError> {
        let search = self.search.as_ref();
        let matches = |m: &&Mapping| search.is_none_or(|s| s.text(&m.name));
        let mappings = &report.profile.places.mappings;
        let mut rows: Vec<&Mapping> = mappings.iter().filter(matches).collect();
        rows.sort_by(|a, b| self.order(a, b));
        let mut sum = Sum::default();
        rows.iter().for_each(|mapping| sum.add(mapping));
        let executable = Category::OwnBinary.name();
        let mut reply = MapsReply {
            report: report.into(),
            sort: self.sorting.name,
            order: self.sorting.order(),
            sums: (&sum).into(),
            categories: categories(&rows),
            page: self.page.about(rows.len()),
            rows: self.page.convert(&rows),
        };
        for row in reply
            .rows
            .iter_mut()
            .filter(|row| row.category == executable)
        {
            row.runs_as = runs_as(&report.profile, row.name);
        }
        serde_json::to_writer(out, &reply).map_err(internal)
    }
}
