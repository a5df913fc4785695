//! A flame graph: one SVG file with everything in it, to look at in a browser.
//!
//! Widths are bytes. The outermost function stands at the bottom; with the innermost one first, that
//! one stands on top and its callers hang below. What is narrower than a tenth of a pixel is summed
//! up unless a threshold says otherwise, so that widths add up. In a browser a click zooms and the
//! names can be searched; without its script the picture shows the whole.
//!
//! Of a difference, widths are bytes now; red grew, blue shrank. What holds nothing now has no width:
//! its sum stands in the heading.

mod frame;

use std::io::{self, Write};

use self::frame::{FRAME_HEIGHT, Frame, WIDTH};
use super::paths::Paths;
use super::{ExportOptions, Exporter, Report, Supports, printable};
use crate::tree::Direction;

/// Height of the heading and of the line below the frames, in pixels.
const HEAD: usize = 64;
const FOOT: usize = 24;
/// Nodes narrower than this many parts of the whole are summed up: a tenth of a pixel.
const NARROW: u64 = WIDTH as u64 * 10;

const STYLE: &str = include_str!("svg/flame.css");
const SCRIPT: &str = include_str!("svg/flame.js");

pub(super) struct Svg;

impl Exporter for Svg {
    fn name(&self) -> &'static str {
        "svg"
    }

    fn about(&self) -> &'static str {
        "a flame graph to open in a browser: click to zoom, search"
    }

    fn extension(&self) -> &'static str {
        "svg"
    }

    fn content_type(&self) -> &'static str {
        "image/svg+xml"
    }

    fn supports(&self) -> Supports {
        Supports {
            direction: true,
            kind: true,
            threshold: true,
            difference: true,
            ..Supports::default()
        }
    }

    fn write(
        &self,
        report: &Report,
        options: &ExportOptions,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let whole = options.kind.of(&report.profile.total);
        let threshold = options.threshold.unwrap_or(whole.div_ceil(NARROW));
        let paths = Paths::new(report, options, threshold);
        let picture = Picture::new(&paths, options);
        picture.write_head(&heading(report, options), &notes(report, &paths), out)?;
        picture.write_frames(out)?;
        out.write_all(b"</g>\n</svg>\n")
    }
}

/// What is shown.
fn heading(report: &Report, options: &ExportOptions) -> String {
    let target = &report.profile.target;
    let kind = match options.kind.name() {
        "all" => "resident memory and page cache",
        "resident" => "resident memory",
        "cache" => "page cache",
        "kernel" => "kernel memory (approximate)",
        other => other,
    };
    let what = if options.baseline.is_some() {
        "difference of "
    } else {
        ""
    };
    format!("{} (pid {}): {what}{kind}", target.comm, target.pid)
}

/// What the picture does not show by itself.
fn notes(report: &Report, paths: &Paths) -> String {
    let total = paths.root().total;
    let mut notes = format!("{} bytes", total.now);
    if paths.is_difference {
        let mut gone = 0;
        // Nothing can fail here.
        let _ = paths.visit(|_, node| {
            if node.total.now == 0 {
                gone += node.own.before;
            }
            Ok(())
        });
        notes += &format!(
            ", before {}; in paths that hold nothing now, not drawn: {gone} bytes",
            total.before
        );
    }
    for (what, count) in &report.profile.losses.counters {
        notes += &format!("; lost: {count} {what}");
    }
    notes
}

/// How the frames stand.
struct Picture<'a> {
    paths: &'a Paths,
    /// Whether the root is on top.
    hanging: bool,
    levels: usize,
    /// The largest change of a node, in bytes; what colours are held against.
    largest: u64,
}

impl<'a> Picture<'a> {
    fn new(paths: &'a Paths, options: &ExportOptions) -> Picture<'a> {
        let (mut levels, mut largest) = (1, 0);
        // Nothing can fail here.
        let _ = paths.visit(|depth, node| {
            if node.total.now > 0 {
                levels = levels.max(depth + 2);
            }
            largest = largest.max(node.total.now.abs_diff(node.total.before));
            Ok(())
        });
        Picture {
            paths,
            hanging: options.direction == Some(Direction::InnermostFirst),
            levels,
            largest,
        }
    }

    fn write_head(&self, title: &str, notes: &str, out: &mut dyn Write) -> io::Result<()> {
        let (middle, height) = (WIDTH / 2, HEAD + self.levels * FRAME_HEIGHT + FOOT);
        let (title, notes) = (escaped(title), escaped(notes));
        write!(
            out,
            r#"<?xml version="1.0" encoding="UTF-8"?>
<svg xmlns="http://www.w3.org/2000/svg" version="1.1" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}">
<title>{title}</title>
<style>{STYLE}</style>
<rect class="paper" width="100%" height="100%"/>
<text class="title" x="{middle}" y="22">{title}</text>
<text class="notes" x="{middle}" y="40">{notes}</text>
<text class="button" id="reset" x="10" y="22" tabindex="0" role="button" visibility="hidden">Reset zoom</text>
<text class="button" id="search" x="{right}" y="22" tabindex="0" role="button" text-anchor="end">Search</text>
<text id="found" x="{right}" y="40" text-anchor="end"> </text>
<text id="details" x="10" y="{details}"> </text>
<script><![CDATA[
{SCRIPT}]]></script>
<g id="frames">
"#,
            right = WIDTH - 10,
            details = height - 8,
        )
    }

    fn write_frames(&self, out: &mut dyn Write) -> io::Result<()> {
        let root = self.paths.root();
        let whole = root.total.now;
        let mut frame = |depth: usize, label: &str, total, at| {
            let row = match self.hanging {
                true => depth,
                false => self.levels - 1 - depth,
            };
            let frame = Frame {
                label,
                total,
                whole,
                start: at,
                top: HEAD + row * FRAME_HEIGHT,
                change: self.paths.is_difference.then_some(self.largest),
            };
            frame.write(out)
        };
        frame(0, self.paths.label(root), root.total, 0)?;
        // For each open level, where its next child begins, in bytes.
        let mut next = vec![0];
        self.paths.visit(|depth, node| {
            next.truncate(depth + 1);
            let start = next[depth];
            next[depth] += node.total.now;
            next.push(start);
            match node.total.now {
                0 => Ok(()),
                _ => frame(depth + 1, self.paths.label(node), node.total, start),
            }
        })
    }
}

/// A text as it stands in XML, which has no place for control characters and two others.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in printable(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}
