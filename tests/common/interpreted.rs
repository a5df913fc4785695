//! Programs that print their interpreter's own frames, and the frames that memprof shows of them.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde::Deserialize;

use super::memprof::Memprof;
use super::process::{LIMIT, cont, eventually, stop};
use super::workload::{Workload, program};
use memprof_sys::ids::Pid;
use memprof_sys::residency::figures;

/// A function of an interpreted program, as both sides name it: name, file, line.
pub type SourceFrame = (String, String, u32);

/// What a workload prints of one place.
#[derive(Deserialize)]
pub struct Mark {
    /// The callers of its function `mark`, innermost first.
    pub frames: Vec<SourceFrame>,
    /// Bytes that are allocated there.
    pub size: u64,
}

/// A saved profile, as far as it is read here.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Saved {
    pub frames: Vec<SavedFrame>,
    pub stacks: Vec<SavedStack>,
    not_observed: Vec<SavedRow>,
}

#[derive(Deserialize)]
struct SavedRow {
    bytes: SavedBytes,
    reason: String,
}

#[derive(Deserialize)]
pub struct SavedFrame {
    pub function: Option<String>,
    pub language: Option<String>,
    file: Option<String>,
    line: Option<u32>,
}

#[derive(Deserialize)]
pub struct SavedStack {
    pub bytes: SavedBytes,
    pub outcome: String,
    pub frames: Vec<usize>,
}

#[derive(Deserialize)]
pub struct SavedBytes {
    pub anon: u64,
}

impl Saved {
    /// Anonymous bytes whose stack was lost.
    pub fn lost(&self) -> u64 {
        let lost = self
            .not_observed
            .iter()
            .filter(|row| row.reason == "stack lost");
        lost.map(|row| row.bytes.anon).sum()
    }

    /// Anonymous bytes by the interpreted functions of their stack, innermost first.
    pub fn by_source(&self, language: &str) -> BTreeMap<Vec<SourceFrame>, u64> {
        let mut bytes = BTreeMap::new();
        for stack in &self.stacks {
            let source = stack.frames.iter().filter_map(|at| {
                let frame = &self.frames[*at];
                (frame.language.as_deref() == Some(language)).then(|| {
                    let name = frame.function.clone().unwrap_or_default();
                    let file = frame.file.clone().unwrap_or_default();
                    (name, file, frame.line.unwrap_or(0))
                })
            });
            *bytes.entry(source.collect()).or_default() += stack.bytes.anon;
        }
        bytes
    }
}

/// The profile of a program that waits; its sum is the kernel's.
pub fn saved_as_the_kernel_says(what: &str, m: &Memprof) -> Saved {
    let pid = m.followed();
    stop(pid);
    let kernel = figures::status(pid).unwrap();
    let reply = m.get("/v2/export/profile");
    let saved = serde_json::from_slice(&reply.body).unwrap_or_else(|e| {
        let start = reply.body.get(..200).unwrap_or(&reply.body);
        panic!("{what}: {e}: {}", String::from_utf8_lossy(start))
    });
    let shown = m.get("/v1/tree?short=true").json();
    cont(pid);
    let total = (shown["total"].as_u64().unwrap() - shown["cache"].as_u64().unwrap()) << 10;
    assert_eq!(total, kernel.rss_anon + kernel.rss_shmem, "{what}");
    saved
}

/// Each place's frames are those of one stack, which has the place's memory. `by_source` has the bytes by the frames that
/// the interpreter would print; `is_mark` says whether one is the workload's function `mark`.
pub fn compare(
    version: &str,
    m: &Memprof,
    marks: &[Mark],
    by_source: impl Fn(&Saved) -> BTreeMap<Vec<SourceFrame>, u64>,
    is_mark: impl Fn(&SourceFrame) -> bool,
) {
    let saved = saved_as_the_kernel_says(version, m);
    let by_source = by_source(&saved);
    let (mut wrong, mut missing) = (Vec::new(), 0);
    for mark in marks {
        let wanted = |frames: &[SourceFrame]| {
            let first = frames.split_first();
            first.is_some_and(|(first, callers)| is_mark(first) && callers == mark.frames)
        };
        let bytes = by_source
            .iter()
            .filter(|(frames, _)| wanted(frames))
            .map(|(_, bytes)| *bytes);
        // The whole pages of the memory that was allocated there. (malloc's first and last page may be another's.)
        let bytes: u64 = bytes.sum();
        let rest = mark.size.saturating_sub(bytes + 8192);
        if rest > 0 {
            missing += rest;
            // What has the rest, perhaps: stacks with as many bytes.
            let others = by_source
                .iter()
                .filter(|(_, other)| other.abs_diff(rest) <= 65536);
            let others: Vec<_> = others.map(|(frames, _)| frames).collect();
            wrong.push(format!(
                "{bytes} of {}: {:?}; the rest may be of {others:?}",
                mark.size, mark.frames
            ));
        }
    }
    // Stacks that did not fit the ring buffer, on a busy machine, are said to be lost. Nothing else may be missing.
    let (said, losses) = (saved.lost(), m.lost());
    assert!(
        missing <= said,
        "{version}: {} of {} places differ, by {missing} bytes, of which {said} are said to be lost ({losses:?}):\n{}",
        wrong.len(),
        marks.len(),
        wrong.join("\n"),
    );
    println!("{version}: the frames of {} places are equal", marks.len());
}

/// Every function has its place among the native frames.
pub fn all_merged(version: &str, m: &Memprof) {
    let losses = m.lost();
    let unmerged = losses.iter().find(|row| row.contains("not merged"));
    assert_eq!(unmerged, None, "{version}");
}

/// Walks of the thread that the interpreter does not know, before the interpreter's own thread has one.
const WALKS_OF_STRANGER: u64 = 1000;

/// Follows a running `strangers.py` or `strangers.rb`: a thread that the interpreter does not know has many page faults before
/// the interpreter's own thread has its first ones, in `calls_library`. They must have their functions.
pub fn a_stranger_hides_no_functions(
    version: &str,
    interpreter: &Path,
    language: &str,
    workload: &str,
) {
    const TOUCHED: u64 = 16 * 4096;
    let library = program("strangers");
    let mut target = Workload::start_as(Command::new(interpreter).arg(workload).arg(library));
    assert_eq!(target.lines.line(), "waits", "{version}");
    let m = Memprof::attach(target.pid(), &["--stacks", "all"]);
    m.said("following ");
    let walked = faults(target.pid()) + WALKS_OF_STRANGER;
    eventually(LIMIT, "the other thread has page faults", || {
        faults(target.pid()) >= walked
    });
    target.lines.send("touch");
    assert_eq!(target.lines.line(), "ready", "{version}");
    let saved = saved_as_the_kernel_says(version, &m);
    let calls = |(name, ..): &SourceFrame| name.ends_with("calls_library");
    let by_source = saved.by_source(language).into_iter();
    let found = by_source.filter(|(frames, _)| frames.iter().any(calls));
    let found: u64 = found.map(|(_, bytes)| bytes).sum();
    assert!(
        found + saved.lost() >= TOUCHED,
        "{version}: {found} of {TOUCHED} bytes"
    );
    target.end();
}

/// The page faults of all threads of a process that needed no disk.
fn faults(pid: Pid) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    fields.split(' ').nth(7).unwrap().parse().unwrap()
}
