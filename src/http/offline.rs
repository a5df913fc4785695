//! Exports one HTML file that shows a report without memprof: the page, together with the replies that it would
//! request.
//!
//! The page contacts nothing when it is opened from a file, because its policy allows no connections. Text from the
//! profiled program occurs only in the data, which is compressed and in base64, so no name can end or add an element of
//! the document. The page shows names as text, as it does when memprof serves it.

mod heap;
mod page;

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread;

use base64::engine::general_purpose::STANDARD;
use base64::write::EncoderWriter;
use flate2::Compression;
use flate2::write::GzEncoder;

use crate::export::{ExportOptions, Exporter, Supports};
use crate::http::api::{self, Snapshot};
use memprof_profile::{FrameFilter, Kind, Report};

pub(crate) use heap::write as write_heap_html;

/// Maximum bytes of the document to write at once.
const PIECE: usize = 64 << 10;

/// Maximum number of files whose stacks the page shows: those with the most page cache.
const MAX_FILES: usize = 20;

pub(crate) const FORMAT: Exporter = Exporter {
    name: "html",
    about: "one page to open in a browser: the views of this page, without memprof",
    extension: "html",
    content_type: "text/html; charset=utf-8",
    supports: Supports {
        instead: "It always contains every kind of memory, in both directions.",
        ..Supports::NOTHING
    },
    wants_lines: false,
    keeps_all_frames: true,
    has_addresses: true,
    write,
};

fn write(report: &Report, options: &ExportOptions, out: &mut dyn Write) -> io::Result<()> {
    let kinds = kinds(report);
    write_page(page::of_a_report(), &kinds, out, |data| {
        write_replies(report, &kinds, options.frames, data)
    })
}

/// Writes a page with its data and the kinds of memory in the data.
fn write_page(
    (head, tail): &(String, String),
    kinds: &[Kind],
    out: &mut dyn Write,
    write_data: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    head.as_bytes()
        .chunks(PIECE)
        .try_for_each(|piece| out.write_all(piece))?;
    let names: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
    write!(
        out,
        "<script type=\"text/plain\" id=\"saved\" data-kinds=\"{}\">",
        names.join(" ")
    )?;
    let mut data = GzEncoder::new(
        EncoderWriter::new(&mut *out, &STANDARD),
        Compression::default(),
    );
    write_data(&mut data)?;
    data.finish()?.finish()?;
    write!(out, "</script>\n{tail}")
}

/// The kinds with nonzero memory, and always `all`.
fn kinds(report: &Report) -> Vec<Kind> {
    let profile = &report.profile;
    let holds = |kind: &Kind| *kind == Kind::All || kind.figure(&profile.total) > 0;
    let holds = |kind: &Kind| profile.counts(*kind) && holds(kind);
    Kind::ALL.into_iter().filter(holds).collect()
}

/// The page's requests: the key under which the page looks for the reply (`js/offline.js`), and the request.
fn requests(report: &Report, kinds: &[Kind], frames: FrameFilter) -> Vec<(String, String)> {
    let key = |name: &str, query: &str| (name.to_owned(), format!("/v2/{name}{query}"));
    let mut all = vec![
        key("summary", ""),
        key("files", "?limit=10000"),
        key("maps", "?limit=10000"),
    ];
    let frames = frames.name();
    for kind in kinds.iter().map(|kind| kind.name()) {
        let path = format!("/v2/functions?limit=10000&sort=self&kind={kind}&frames={frames}");
        all.push((format!("functions {kind}"), path));
        for direction in ["callees", "callers"] {
            let path = format!("/v2/tree?kind={kind}&direction={direction}&frames={frames}");
            all.push((format!("tree {kind} {direction}"), path));
        }
    }
    let mut files: Vec<_> = report.profile.places.files.iter().collect();
    files.sort_by_key(|file| std::cmp::Reverse(file.cached()));
    for id in files.iter().take(MAX_FILES).map(|file| api::file_id(file)) {
        for direction in ["callees", "callers"] {
            let path = format!("/v2/files/stacks?file={id}&direction={direction}&frames={frames}");
            all.push((format!("files/stacks {id} {direction}"), path));
        }
    }
    all
}

/// Writes the replies as one JSON object. A separate thread makes them, one at a time: the caller may be the API
/// itself, whose threads must not block on a reply.
fn write_replies(
    report: &Report,
    kinds: &[Kind],
    frames: FrameFilter,
    out: &mut dyn Write,
) -> io::Result<()> {
    let requests = requests(report, kinds, frames);
    let (paths, keys): (Vec<_>, Vec<_>) =
        requests.into_iter().map(|(key, path)| (path, key)).unzip();
    let snapshot = Snapshot::new(Arc::new(report.clone()))?;
    let (send, replies) = sync_channel(0);
    let maker = thread::Builder::new().name("memprof-html".into());
    let maker = maker.spawn(move || {
        for path in &paths {
            // The receiver is gone if writing failed.
            if send.send(snapshot.reply(path)).is_err() {
                return;
            }
        }
    })?;
    out.write_all(b"{")?;
    for (number, (reply, key)) in replies.into_iter().zip(&keys).enumerate() {
        let reply = reply.map_err(|e| io::Error::other(e.to_string()))?;
        let separator = if number > 0 { "," } else { "" };
        write!(out, "{separator}{}:", serde_json::to_string(key)?)?;
        out.write_all(&reply)?;
    }
    let panicked = |_| io::Error::other("the thread that makes the report's views ended early");
    maker.join().map_err(panicked)?;
    out.write_all(b"}")
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::Read;

    use base64::Engine;
    use flate2::read::GzDecoder;
    use serde_json::Value;

    use super::*;
    use memprof_profile::testing::report;
    use memprof_profile::testing::{at, kib, profile};

    pub(super) const NASTY: &str = "</script><script>alert(1)</script><!--<script>";

    fn written(report: &Report) -> String {
        let mut out = Vec::new();
        write(report, &ExportOptions::default(), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    fn nasty() -> Report {
        let mut profile = profile(&[(&[at(0, 1), at(1, 2)], kib(64, 8))], &[kib(4, 0)]);
        profile.target.comm = NASTY.to_owned();
        profile.not_observed[0].mapping = NASTY.to_owned();
        report(profile, &[(at(0, 1), NASTY)])
    }

    /// The data embedded in the page.
    pub(super) fn data(html: &str) -> Value {
        let (_, rest) = html.split_once("id=\"saved\"").unwrap();
        let (_, rest) = rest.split_once('>').unwrap();
        let (text, _) = rest.split_once('<').unwrap();
        let packed = STANDARD.decode(text).unwrap();
        let mut json = String::new();
        GzDecoder::new(&packed[..])
            .read_to_string(&mut json)
            .unwrap();
        serde_json::from_str(&json).unwrap()
    }

    #[test]
    fn names_are_in_the_data_only() {
        let html = written(&nasty());
        assert!(!html.contains("alert(1)"));
        let harmless = written(&report(profile(&[(&[at(0, 1)], kib(64, 8))], &[]), &[]));
        let tags = |html: &str| html.matches("<script").count() + html.matches("</script").count();
        assert_eq!(tags(&html), tags(&harmless));
        let data = data(&html);
        assert_eq!(data["summary"]["target"]["comm"], NASTY);
        assert_eq!(data["functions all"]["rows"][0]["function"], NASTY);
        for key in ["tree anon callees", "tree cache callers", "files", "maps"] {
            assert!(data[key].is_object(), "{key}");
        }
    }

    #[test]
    fn the_document_refers_to_nothing_outside() {
        let html = written(&nasty());
        let policy = "default-src 'none'";
        assert!(html.contains(policy));
        for outside in ["src=\"", "href=\"assets", "@import"] {
            assert!(!html.contains(outside), "{outside}");
        }
        // Equal reports give equal files.
        assert!(html == written(&nasty()));
    }
}
