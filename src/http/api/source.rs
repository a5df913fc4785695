//! `/v2/source`: the source file of a function, its lines with their bytes. Only local clients get a reply, because it
//! contains the program's source code.

use std::collections::HashSet;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;
use tokio::sync::Semaphore;

use super::common::{ReportInfo, counted};
use super::memory::must_live;
use super::memory_budget::Roomed;
use super::query::bad;
use super::reply::{JSON, internal};
use super::request::RequestContext;
use super::shape::{function, kind};
use super::view::{ReportPart, ReportSelector};
use super::{Api, ApiError, BoxFuture, Endpoint, Reply, Request};
use memprof_profile::tree::{FileLines, FunctionId, processes_with};
use memprof_profile::{Kind, Report};
use memprof_sys::ids::Pid;
use memprof_sys::target_file::TargetFile;

/// Parameters of `/v2/source`.
pub(super) const PARAMETERS: &[&str] = &[
    "function", "path", "kind", "frames", "mark", "at", "pid", "cgroup",
];

/// Maximum size of a source file, in bytes.
const LARGEST: u64 = 4 << 20;

/// Maximum length of a line in the reply, in characters.
const WIDEST: usize = 500;

/// Numbers of lines before the first and after the last line of the function with bytes, and of all lines in the reply.
const AROUND: usize = 30;
const MOST: usize = 1000;

/// Maximum number of processes whose files are tried.
const TRIED: usize = 8;

/// Admits one request at a time: a reply may take a few seconds if the file system does not answer.
static TURN: Semaphore = Semaphore::const_new(1);

#[derive(Clone, Debug)]
struct Source {
    which: ReportSelector,
    kind: Kind,
    function: FunctionId,
}

/// `/v2/source`.
pub(super) fn read(asked: &RequestContext<'_>) -> Result<Request, ApiError> {
    if !asked.local {
        let message = "this reply contains source code, so only clients on this machine may request it: use a loopback address, without a proxy";
        return Err(ApiError::Forbidden(message.to_owned()));
    }
    let query = &asked.query;
    Ok(Arc::new(Source {
        which: ReportSelector::read(query)?,
        kind: kind(query)?,
        function: function(query)?.ok_or_else(|| {
            bad("parameter path is missing: the path of the function's file, which /v2/functions lists".to_owned())
        })?,
    }))
}

/// The lines of a source file with their bytes, and the text of those around the function.
#[derive(JsonSchema, Serialize)]
#[schemars(rename = "Source")]
pub(super) struct SourceReply {
    report: ReportInfo,
    #[schemars(with = "Kind")]
    kind: &'static str,
    /// Path of the source file, as debug information or the interpreter names it.
    file: String,
    /// The first and the last line of the function with bytes.
    function: (u32, u32),
    /// All lines of the file with bytes, in ascending order.
    lines: Vec<Line>,
    /// The text, as the file is now; null if it cannot be shown.
    text: Option<Text>,
    /// Why there is no text; null if there is.
    no_text: Option<String>,
}

/// A line with bytes.
#[derive(JsonSchema, Serialize)]
#[schemars(rename = "LineBytes")]
struct Line {
    /// The line, counted from 1.
    line: u32,
    /// Bytes of stacks whose innermost frame is on the line.
    #[serde(rename = "self")]
    own: u64,
    /// Bytes of stacks that go through the line, each byte counted once.
    total: u64,
    /// Standard error of self, in bytes, where bytes by stack are estimates.
    self_error: u64,
    /// Standard error of total.
    total_error: u64,
}

/// A part of the text of a source file.
#[derive(JsonSchema, Serialize)]
#[schemars(rename = "SourceText")]
struct Text {
    /// Number of the first line in `lines`.
    first: u32,
    /// The lines, without line ends. Lines of more than 500 characters are cut off, with an ellipsis.
    lines: Vec<String>,
    /// When the file was last modified, in milliseconds since 1970-01-01 UTC; null if unknown. If the program was started or
    /// compiled before, the lines may have moved.
    modified: Option<u64>,
}

impl Endpoint for Source {
    fn answer<'a>(&'a self, api: &'a Api) -> BoxFuture<'a, Result<Reply, ApiError>> {
        Box::pin(async {
            // Requests that wait keep no reports alive.
            let turn = TURN.acquire().await.map_err(internal)?;
            let report = self.which.report(api).await?;
            counted(self.kind, &report.profile)?;
            let report = api.provider().with_lines(report).await?;
            let living = living(api).await?;
            let (asked, part) = (self.clone(), self.which.shown());
            // The thread holds the permit: it continues even if the client has disconnected.
            let made = tokio::task::spawn_blocking(move || {
                let made = asked.make(&report, &part, &living);
                (made, turn)
            });
            let (made, _turn) = made.await.map_err(internal)?;
            let (body, read_from) = made?;
            // A process may have ended and its id may have been reused. If the process lives now, the text is its own.
            if let Some(pid) = read_from {
                must_live(api, pid).await?;
            }
            let held = api.reply_builder.room(body.len())?;
            Ok(Reply::new(JSON, Roomed::bytes(body, held)))
        })
    }
}

/// The processes that are followed now. A saved profile has none: the ids in it may be other processes here.
async fn living(api: &Api) -> Result<HashSet<Pid>, ApiError> {
    if api.provider().opened().is_some() {
        return Ok(HashSet::new());
    }
    let newest = api.provider().profile().await?;
    let target = &newest.profile.target;
    let pids = target.pids.iter().filter(|_| target.alive);
    Ok(pids.copied().collect())
}

impl Source {
    /// The reply, and the process through which the text was read.
    fn make(
        &self,
        report: &Report,
        part: &ReportPart,
        living: &HashSet<Pid>,
    ) -> Result<(Vec<u8>, Option<Pid>), ApiError> {
        let report = part.select(report)?;
        let found = FileLines::around(report.side(), self.kind, self.function.clone());
        let found = found.ok_or_else(|| {
            ApiError::NotFound(Some(
                "no frame of this function has a source line in this report".to_owned(),
            ))
        })?;
        // Another process may have another file of this name.
        let mut processes = processes_with(report.side(), &self.function);
        processes.retain(|pid| living.contains(pid));
        let (text, read_from, no_text) = match text(&processes, &found) {
            Ok((text, pid)) => (Some(text), Some(pid), None),
            Err(why) => (None, None, Some(why)),
        };
        let lines = found.lines.iter().map(|line| Line {
            line: line.line,
            own: line.own,
            total: line.total,
            self_error: line.errors[0],
            total_error: line.errors[1],
        });
        let reply = SourceReply {
            report: (&*report).into(),
            kind: self.kind.name(),
            file: found.file.display().to_string(),
            function: found.function,
            lines: lines.collect(),
            text,
            no_text,
        };
        Ok((serde_json::to_vec(&reply).map_err(internal)?, read_from))
    }
}

/// The text around a function, read through the first process that can.
fn text(processes: &[Pid], found: &FileLines) -> Result<(Text, Pid), String> {
    let file = &found.file;
    let mut first_error = None;
    for pid in processes.iter().take(TRIED) {
        match contents(*pid, file) {
            Ok((text, modified)) => return Ok((window(&text, found, modified), *pid)),
            Err(e) => drop(first_error.get_or_insert(e)),
        }
    }
    let none = "no process runs any more through which the file could be read".to_owned();
    Err(first_error.map_or(none, |e| match e.kind() {
        io::ErrorKind::PermissionDenied => "the process's user may not read this file".to_owned(),
        io::ErrorKind::NotFound => {
            "there is no such file in the file tree of the process".to_owned()
        }
        _ => e.to_string(),
    }))
}

/// The whole text of a file, and when it was modified.
fn contents(pid: Pid, path: &Path) -> io::Result<(String, Option<u64>)> {
    let file = TargetFile::permitted(pid, path)?;
    let mut bytes = Vec::new();
    file.contents().take(LARGEST + 1).read_to_end(&mut bytes)?;
    let refused = |why: &str| Err(io::Error::new(io::ErrorKind::InvalidData, why));
    if bytes.len() as u64 > LARGEST {
        return refused("the file is larger than 4 MiB");
    }
    if bytes.contains(&0) {
        return refused("the file is not text");
    }
    let modified = file.about().modified().map(super::common::millis);
    Ok((String::from_utf8_lossy(&bytes).into_owned(), modified))
}

fn window(text: &str, found: &FileLines, modified: Option<u64>) -> Text {
    let (first, last) = found.function;
    let start = (first as usize).saturating_sub(1 + AROUND);
    let end = (last as usize).saturating_add(AROUND).min(start + MOST);
    let lines = text.lines().take(end).skip(start);
    Text {
        first: start as u32 + 1,
        lines: lines.map(shortened).collect(),
        modified,
    }
}

fn shortened(line: &str) -> String {
    match line.char_indices().nth(WIDEST) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}
