//! A flame graph: one self-contained SVG file to view in a browser.
//!
//! Widths are bytes, or objects for kinds that count objects. The outermost function is at the bottom. If the innermost
//! function comes first, it is on top, and its callers are below. By default, nodes smaller than 1/12,000 of the total (at
//! most a fifth of a pixel) are aggregated, so that widths add up. In a browser, a click zooms, and names can be searched.
//! Without the script, the image shows the complete graph.
//!
//! In a diff, widths are current bytes. Red nodes grew, blue nodes shrank. Nodes without current bytes have no width, and
//! the heading shows their sum.

mod colour;
mod frame;

use std::io::{self, Write};

use self::colour::Colours;
use self::frame::{CHAR_WIDTH, FRAME_HEIGHT, Frame, amount};
use super::names::NameTree;
use super::{ExportOptions, Exporter, Supports};
use memprof_profile::measure::Unit;
use memprof_profile::tree::{Direction, LayoutRow};
use memprof_profile::{FrameFilter, Kind, Margin, Report};
use memprof_sys::text::printable;

/// Space on either side of the heading for buttons, in pixels.
const SIDE: f64 = 100.0;
/// Height of the heading and of the line below the frames, in pixels.
const HEAD: usize = 64;
const FOOT: usize = 24;
/// Minimum and maximum width of the image, in pixels.
const WIDTHS: [f64; 2] = [800.0, 2400.0];
/// Frames of at least 1/`NAMED` of the total determine the width.
const NAMED: u64 = 50;
/// By default, nodes smaller than 1/`NARROW` of the total (a fifth of a pixel at most) are aggregated.
const NARROW: u64 = 12_000;

const STYLE: &str = include_str!("svg/flame.css");
const SCRIPT: &str = include_str!("svg/flame.js");

pub(super) const FORMAT: Exporter = Exporter {
    name: "svg",
    about: "a flame graph to open in a browser: click to zoom, search",
    extension: "svg",
    content_type: "image/svg+xml",
    supports: Supports::EVERYTHING,
    usual_frames: Some(FrameFilter::Source),
    has_addresses: false,
    write,
};

fn write(report: &Report, options: &ExportOptions, out: &mut dyn Write) -> io::Result<()> {
    let whole = options.kind.figure(&report.profile.total);
    let threshold = options.threshold.unwrap_or(whole.div_ceil(NARROW));
    let tree = NameTree::new(report, options, threshold);
    let (title, notes) = (heading(report, options), notes(report, options.kind, &tree));
    let picture = Picture::new(&tree, options, [&title, &notes]);
    picture.write_head(&title, &notes, out)?;
    picture.write_frames(&Colours::new(report), out)?;
    out.write_all(b"</g>\n</svg>\n")
}

/// The title: the target, the kind of memory, and whether the graph is a diff.
fn heading(report: &Report, options: &ExportOptions) -> String {
    let target = &report.profile.target;
    let kind = match options.kind {
        Kind::All => "resident memory and page cache",
        Kind::Resident => "resident memory",
        Kind::Cache => "page cache",
        other => &report.profile.label(other),
    };
    let what = if options.baseline.is_some() {
        "difference of "
    } else {
        ""
    };
    format!("{} (pid {}): {what}{kind}", target.comm, target.pid)
}

/// Facts that the image does not show: totals, bytes gone since the baseline, and losses.
fn notes(report: &Report, kind: Kind, tree: &NameTree) -> String {
    let [before, now] = tree.root().total;
    let amount = |figure: u64| amount(kind.unit(), figure);
    let mut notes = amount(now);
    let margin = Margin::from_standard_error(now, report.profile.total_error(kind));
    if margin != Margin::Exact {
        let unit = kind.unit();
        let (margin, symbol) = (margin.shown(unit), unit.symbol());
        notes += &format!(", {margin} {symbol} with 95 % confidence");
    }
    if tree.is_difference {
        let mut gone = 0;
        // The closure never fails.
        let _ = tree.visit(|_, row| {
            if row.total[1] == 0 {
                gone += row.own[0];
            }
            Ok(())
        });
        notes += &format!(
            ", before {}; not drawn: {}, in call paths that hold nothing now",
            amount(before),
            amount(gone)
        );
    }
    if let Some(estimates) = report.profile.estimates() {
        notes += &format!("; {estimates}");
    }
    for (what, count) in report.profile.losses.lost() {
        notes += &format!("; lost: {count} {what}");
    }
    notes
}

/// The layout of the frames.
struct Picture<'a> {
    tree: &'a NameTree,
    /// Whether the root is on top.
    hanging: bool,
    levels: usize,
    /// The unit of the figures.
    unit: Unit,
    /// Width in pixels, which represents the total.
    width: usize,
    /// The largest change of a node, in bytes; colours are relative to it.
    largest: u64,
}

impl<'a> Picture<'a> {
    fn new(tree: &'a NameTree, options: &ExportOptions, lines: [&str; 2]) -> Picture<'a> {
        let (mut levels, mut largest) = (1, 0);
        let text = |text: &str| text.chars().count() as f64 * CHAR_WIDTH;
        let whole = tree.root().total[1];
        // For each larger frame, the image width at which its full name fits.
        let mut named = Vec::new();
        // The closure never fails.
        let _ = tree.visit(|depth, row| {
            let [before, now] = row.total;
            if now > 0 {
                levels = levels.max(depth + 2);
            }
            if now > whole / NAMED {
                named.push((text(tree.name(row)) + 6.0) * whole as f64 / now as f64);
            }
            largest = largest.max(now.abs_diff(before));
            Ok(())
        });
        // Wide enough for half of the names and for the heading. Letters of the title are larger.
        named.sort_by(f64::total_cmp);
        let names = named.get(named.len() / 2).copied().unwrap_or_default();
        let [title, notes] = lines;
        let heading = f64::max(text(title) * 1.4, text(notes)) + 2.0 * SIDE;
        let [least, most] = WIDTHS;
        Picture {
            tree,
            width: f64::max(names, heading).clamp(least, most) as usize,
            hanging: options.direction == Some(Direction::InnermostFirst),
            levels,
            unit: options.kind.unit(),
            largest,
        }
    }

    fn write_head(&self, title: &str, notes: &str, out: &mut dyn Write) -> io::Result<()> {
        let (width, middle) = (self.width, self.width / 2);
        let height = HEAD + self.levels * FRAME_HEIGHT + FOOT;
        let (title, notes) = (escaped(title), escaped(notes));
        write!(
            out,
            r#"<?xml version="1.0" encoding="UTF-8"?>
<svg xmlns="http://www.w3.org/2000/svg" version="1.1" width="{width}" height="{height}" viewBox="0 0 {width} {height}">
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
<g id="frames" data-unit="{unit}">
"#,
            right = width - 10,
            details = height - 8,
            unit = self.unit.name(),
        )
    }

    fn write_frames(&self, colours: &Colours<'_>, out: &mut dyn Write) -> io::Result<()> {
        let root = self.tree.root();
        let whole = root.total[1];
        let mut frame = |depth: usize, row: &LayoutRow<2>, start| {
            let level = match self.hanging {
                true => depth,
                false => self.levels - 1 - depth,
            };
            let frame = Frame {
                name: self.tree.name(row),
                unit: self.unit,
                total: row.total,
                whole,
                width: self.width,
                colour: colours.for_name(self.tree.name(row)),
                start,
                top: HEAD + level * FRAME_HEIGHT,
                change: self.tree.is_difference.then_some(self.largest),
            };
            frame.write(out)
        };
        frame(0, root, 0)?;
        // For each open level, the left edge of its next child, in bytes.
        let mut next = vec![0];
        self.tree.visit(|depth, row| {
            next.truncate(depth + 1);
            let start = next[depth];
            next[depth] += row.total[1];
            next.push(start);
            match row.total[1] {
                0 => Ok(()),
                _ => frame(depth + 1, row, start),
            }
        })
    }
}

/// Escapes a text for XML, which allows neither control characters nor U+FFFE and U+FFFF.
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
