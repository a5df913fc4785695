//! Exports one HTML file that shows a report without memprof: the page, together with the views that it would request.
//!
//! The page contacts nothing when it is opened from a file, because its policy allows no connections. Text from the
//! profiled program occurs only in the data, which is compressed and in base64, so no name can end or add an element of
//! the document. The page shows names as text, as it does when memprof serves it.

mod heap;
mod page;

use std::io::{self, Write};

use base64::engine::general_purpose::STANDARD;
use base64::write::EncoderWriter;
use flate2::Compression;
use flate2::write::GzEncoder;

use crate::export::tree::v2::Shape;
use crate::export::{ExportOptions, Exporter, Supports};
use crate::http::api::{
    self, Files, Functions, Maps, Out, OverviewView, Stacks, Summary, Tree, View,
};
use memprof_profile::tree::Direction;
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
    usual_frames: None,
    has_addresses: true,
    write,
};

fn write(report: &Report, options: &ExportOptions, out: &mut dyn Write) -> io::Result<()> {
    let kinds = kinds(report);
    write_page(page::of_a_report(), &kinds, out, |data| {
        write_views(report, &kinds, options.frames.unwrap_or_default(), data)
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

/// A view of the page, with the frames that it shows and the key under which the page looks for it (`js/offline.js`).
type KeyedView = (String, FrameFilter, Box<dyn View>);

fn views(report: &Report, kinds: &[Kind], frames: FrameFilter) -> Vec<KeyedView> {
    let usual = FrameFilter::default();
    let mut all: Vec<KeyedView> = vec![
        ("summary".to_owned(), usual, Box::new(Summary)),
        (
            "overview".to_owned(),
            usual,
            Box::new(OverviewView::default()),
        ),
        ("files".to_owned(), usual, Box::new(Files::largest())),
        ("maps".to_owned(), usual, Box::new(Maps::by_address())),
    ];
    let directions = [Direction::OutermostFirst, Direction::InnermostFirst];
    for kind in kinds {
        let key = format!("functions {}", kind.name());
        all.push((key, frames, Box::new(Functions::largest(*kind))));
        for direction in directions {
            let key = format!("tree {} {}", kind.name(), direction.name());
            let shape = Shape::whole(direction, *kind);
            all.push((key, frames, Box::new(Tree(shape))));
        }
    }
    let mut files: Vec<_> = report.profile.places.files.iter().collect();
    files.sort_by_key(|file| std::cmp::Reverse(file.cached()));
    for file in files.iter().take(MAX_FILES).map(|file| file.id) {
        for direction in directions {
            let key = format!("files/stacks {} {}", api::file_id(&file), direction.name());
            let shape = Shape::whole(direction, Kind::Cache);
            all.push((key, frames, Box::new(Stacks { file, shape })));
        }
    }
    all
}

/// Writes the views as one JSON object, one at a time.
fn write_views(
    report: &Report,
    kinds: &[Kind],
    frames: FrameFilter,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut before = "{";
    for (key, frames, view) in views(report, kinds, frames) {
        let body = view.body(&report.showing(frames), Out::alone());
        let body = body.map_err(|e| io::Error::other(e.to_string()))?;
        write!(out, "{before}{}:", serde_json::to_string(&key)?)?;
        out.write_all(&body)?;
        before = ",";
    }
    out.write_all(b"}")
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::Read;

    use base64::Engine;
    use flate2::read::GzDecoder;
    use serde_json::Value;

    use super::*;
    use crate::testing::report;
    use crate::testing::{at, kib, profile};

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
