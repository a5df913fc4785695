//! `/v2/files`: page cache by file, and the stacks that read a file into it.

use std::cmp::Ordering;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use super::common::{ReportInfo, millis};
use super::functions::{Page, PageReply, Sorting};
use super::memory_budget::Out;
use super::query::{Query, bad, quoted};
use super::reply::internal;
use super::request::RequestContext;
use super::shape::{search, shape};
use super::view::{View, view};
use super::{ApiError, Request};
use crate::export::tree::v2::{Shape, write_tree};
use memprof_profile::tree::Search;
use memprof_profile::{CachedFile, Kind, PathFrom, Report};
use memprof_sys::file_id::FileId;

/// Parameters of `/v2/files`.
pub(super) const PARAMETERS: &[&str] = &[
    "sort", "order", "search", "offset", "limit", "mark", "at", "pid", "cgroup",
];

/// Parameters of `/v2/files/stacks`.
pub(super) const OF_STACKS: &[&str] = &[
    "file",
    "direction",
    "merge",
    "inlined",
    "threshold",
    "max_nodes",
    "search",
    "frames",
    "mark",
    "at",
    "pid",
    "cgroup",
];

#[derive(Clone, Copy, Debug)]
enum By {
    Cached,
    Path,
}

/// Words for `sort`, the default first.
const SORTS: [(&str, By, bool); 2] = [("cached", By::Cached, false), ("path", By::Path, true)];

/// The view of `/v2/files`.
#[derive(Debug)]
pub(in crate::http) struct Files {
    sorting: Sorting<By>,
    search: Option<Search>,
    page: Page,
}

/// `/v2/files`.
pub(super) fn read(asked: &RequestContext<'_>) -> Result<Request, ApiError> {
    let files = Files {
        sorting: Sorting::read(&asked.query, SORTS)?,
        search: search(&asked.query)?,
        page: Page::read(&asked.query)?,
    };
    view(asked, files)
}

#[derive(JsonSchema, Serialize)]
#[schemars(rename = "Files")]
pub(super) struct FilesReply<'a> {
    report: ReportInfo,
    #[schemars(extend("enum" = ["cached", "path"]))]
    sort: &'static str,
    #[schemars(extend("enum" = ["asc", "desc"]))]
    order: &'static str,
    /// Page cache of all files, as total.cache in the summary.
    total: u64,
    /// Page cache of files that did not fit into the table.
    other: u64,
    #[serde(flatten)]
    page: PageReply,
    /// Sum of cached over all matching rows.
    matched: u64,
    rows: Vec<File<'a>>,
}

/// The page cache of a file.
#[derive(JsonSchema, Serialize)]
struct File<'a> {
    /// `major:minor:inode`, the parameter `file` of /v2/files/stacks.
    id: String,
    /// `major:minor`.
    device: String,
    inode: u64,
    /// Path of the file as the target sees it; null if unknown.
    path: Option<&'a str>,
    /// Source of the path. fd: /proc/PID/fd. maps: /proc/PID/maps. directory: a directory near files that the target
    /// uses, or where programs keep data on the same device, by device and inode. null: in no scan did the target have
    /// the file open or mapped, and no such directory has it.
    #[schemars(extend("enum" = ["fd", "maps", "directory", null]))]
    path_from: Option<&'static str>,
    /// When the path was last seen there, in milliseconds since 1970-01-01 UTC.
    path_seen: Option<u64>,
    /// Whether the path no longer referred to the file when it was last seen.
    deleted: bool,
    /// Bytes of page cache that the target's I/O brought in and that are still cached.
    cached: u64,
    /// Number of distinct stacks that brought them in.
    stacks: usize,
}

/// The id of a file in replies and requests.
pub(in crate::http) fn id(FileId { dev, ino }: &FileId) -> String {
    format!("{}:{}:{ino}", dev.0, dev.1)
}

impl<'a> From<&'a CachedFile> for File<'a> {
    fn from(file: &'a CachedFile) -> File<'a> {
        let FileId { dev, ino } = file.id;
        let path = file.path.as_ref();
        let from = |from| match from {
            PathFrom::OpenFile => "fd",
            PathFrom::Mapping => "maps",
            PathFrom::Directory => "directory",
        };
        File {
            id: id(&file.id),
            device: format!("{}:{}", dev.0, dev.1),
            inode: ino,
            path: path.map(|p| p.path.as_str()),
            path_from: path.map(|p| from(p.from)),
            path_seen: path.map(|p| millis(p.seen)),
            deleted: path.is_some_and(|p| p.deleted),
            cached: file.cached(),
            stacks: file.samples.len(),
        }
    }
}

impl Files {
    /// The files with the most page cache.
    pub(in crate::http) fn largest() -> Files {
        Files {
            sorting: Sorting::by(SORTS[0]),
            search: None,
            page: Page::LONGEST,
        }
    }

    fn order(&self, a: &CachedFile, b: &CachedFile) -> Ordering {
        let path = |file: &CachedFile| file.path.as_ref().map(|p| p.path.clone());
        let turned = self.sorting.turned(match self.sorting.by {
            By::Cached => a.cached().cmp(&b.cached()),
            // Files without a path come last.
            By::Path => (path(a).is_none(), path(a)).cmp(&(path(b).is_none(), path(b))),
        });
        turned.then_with(|| a.id.cmp(&b.id))
    }
}

impl View for Files {
    fn write(&self, report: &Report, out: &mut Out) -> Result<(), ApiError> {
        let places = &report.profile.places;
        let matches = |file: &&CachedFile| match (&self.search, &file.path) {
            (None, _) => true,
            (Some(search), Some(known)) => search.text(&known.path),
            (Some(_), None) => false,
        };
        let mut rows: Vec<&CachedFile> = places.files.iter().filter(matches).collect();
        rows.sort_by(|a, b| self.order(a, b));
        let reply = FilesReply {
            report: report.into(),
            sort: self.sorting.name,
            order: self.sorting.order(),
            total: report.profile.total.usage.cache,
            other: places.other_files,
            page: self.page.about(rows.len()),
            matched: rows.iter().map(|file| file.cached()).sum(),
            rows: self.page.convert(&rows),
        };
        serde_json::to_writer(out, &reply).map_err(internal)
    }
}

/// The view of `/v2/files/stacks`.
#[derive(Debug)]
pub(in crate::http) struct Stacks {
    pub(in crate::http) file: FileId,
    pub(in crate::http) shape: Shape,
}

/// `/v2/files/stacks`.
pub(super) fn stacks(asked: &RequestContext<'_>) -> Result<Request, ApiError> {
    let mut shape = shape(&asked.query)?;
    shape.reading.kind = Kind::Cache;
    let file = file(&asked.query)?;
    view(asked, Stacks { file, shape })
}

fn file(query: &Query) -> Result<FileId, ApiError> {
    let text = query.text("file").unwrap_or_default();
    let mut parts = text.split(':');
    let mut number = || parts.next().and_then(|part| part.parse::<u64>().ok());
    let device = |part| u32::try_from(part).ok();
    let (major, minor, ino) = (number(), number(), number());
    match (
        major.and_then(device),
        minor.and_then(device),
        ino,
        parts.next(),
    ) {
        (Some(major), Some(minor), Some(ino), None) => Ok(FileId {
            dev: (major, minor),
            ino,
        }),
        _ => Err(bad(format!(
            "parameter file must be the id of a file in /v2/files (MAJOR:MINOR:INODE), got {}",
            quoted(text)
        ))),
    }
}

impl View for Stacks {
    fn needs_lines(&self) -> bool {
        true
    }

    fn write(&self, report: &Report, out: &mut Out) -> Result<(), ApiError> {
        let files = &report.profile.places.files;
        let Ok(at) = files.binary_search_by_key(&self.file, |file| file.id) else {
            let message = "the target has no cached pages of this file now: /v2/files lists the files that it has";
            return Err(ApiError::NotFound(Some(message.to_owned())));
        };
        let part = Report {
            profile: Arc::new(report.profile.of_file(&files[at])),
            symbols: Arc::clone(&report.symbols),
            sequence: report.sequence,
        };
        // The totals and the comparison with the kernel are those of the target, not of the file.
        write_tree(&part, ReportInfo::from(report), &self.shape, out).map_err(internal)
    }
}
