//! One frame of the flame graph.

use std::io::{self, Write};

use super::escaped;
use memprof_profile::measure::Unit;

/// Height of a frame with the gap above the next one, in pixels.
pub(super) const FRAME_HEIGHT: usize = 17;
/// Width of a character and baseline of the text in a frame, in pixels. The script has the same values.
pub(super) const CHAR_WIDTH: f64 = 7.0;
const BASELINE: usize = 12;

pub(super) struct Frame<'a> {
    pub name: &'a str,
    /// What its figures count.
    pub unit: Unit,
    /// Bytes before (0 without a baseline) and now.
    pub total: [u64; 2],
    /// Bytes that the full width represents.
    pub whole: u64,
    /// Width of the image in pixels.
    pub width: usize,
    /// Its colour, unless it is in a diff.
    pub colour: String,
    /// Left edge, in bytes.
    pub start: u64,
    /// Upper edge, in pixels.
    pub top: usize,
    /// In a diff: the largest change of any node, in bytes.
    pub change: Option<u64>,
}

impl Frame<'_> {
    /// Writes it. Position and size are in pixels and, for the script, also in bytes.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let pixels = |bytes: u64| bytes as f64 * self.width as f64 / self.whole.max(1) as f64;
        let [_, bytes] = self.total;
        let (start, top) = (self.start, self.top);
        let (x, width) = (pixels(start), pixels(bytes));
        let name = escaped(self.name);
        let percent = bytes as f64 * 100.0 / self.whole.max(1) as f64;
        write!(
            out,
            "<g class=\"f\" data-s=\"{start}\" data-b=\"{bytes}\"><title>{name}: {}, {percent:.2} %{}</title>\
             <rect x=\"{x:.3}\" y=\"{top}\" width=\"{width:.3}\" height=\"{}\" fill=\"{}\"/>",
            amount(self.unit, bytes),
            self.change_in_words(),
            FRAME_HEIGHT - 1,
            self.colour(),
        )?;
        writeln!(
            out,
            "<text x=\"{:.3}\" y=\"{}\">{}</text></g>",
            x + 3.0,
            top + BASELINE,
            escaped(&fitting(self.name, width))
        )
    }

    fn change_in_words(&self) -> String {
        let [before, now] = self.total;
        match self.change {
            None => String::new(),
            Some(_) if now >= before => format!(", change +{}", short(self.unit, now - before)),
            Some(_) => format!(", change -{}", short(self.unit, before - now)),
        }
    }

    /// The colour of its file; in a diff, by its change.
    fn colour(&self) -> String {
        let [before, now] = self.total;
        let Some(largest) = self.change else {
            return self.colour.clone();
        };
        let share = now.abs_diff(before) as f64 / largest.max(1) as f64;
        // No change is white, the largest change has the full colour.
        let rest = 230 - (share * 150.0) as u8;
        match now.cmp(&before) {
            std::cmp::Ordering::Equal => "rgb(240,240,240)".to_owned(),
            std::cmp::Ordering::Greater => format!("rgb(255,{rest},{rest})"),
            std::cmp::Ordering::Less => format!("rgb({rest},{rest},255)"),
        }
    }
}

/// The text, truncated to the width.
fn fitting(text: &str, width: f64) -> String {
    let room = ((width - 6.0) / CHAR_WIDTH).max(0.0) as usize;
    match text.chars().count() {
        count if count <= room => text.to_owned(),
        _ if room < 3 => String::new(),
        _ => text.chars().take(room - 2).chain("..".chars()).collect(),
    }
}

/// A figure with its unit, and the exact one: `12.3 MiB (12897485 bytes)`, `1234 objects`.
pub(super) fn amount(unit: Unit, figure: u64) -> String {
    match unit {
        Unit::Bytes => format!("{} ({figure} bytes)", size(figure)),
        Unit::Objects => short(unit, figure),
    }
}

/// A figure with its unit: `12.3 MiB`, `1234 objects`.
pub(super) fn short(unit: Unit, figure: u64) -> String {
    match unit {
        Unit::Bytes => size(figure),
        Unit::Objects => format!("{figure} {}", unit.name()),
    }
}

/// Bytes with a unit, of three digits: `12.3 MiB`.
fn size(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"].into_iter();
    let mut unit = units.next().unwrap_or_default();
    while value >= 1024.0
        && let Some(larger) = units.next()
    {
        (value, unit) = (value / 1024.0, larger);
    }
    match value {
        _ if value.fract() == 0.0 => format!("{value:.0} {unit}"),
        _ if value < 10.0 => format!("{value:.2} {unit}"),
        _ if value < 1000.0 => format!("{value:.1} {unit}"),
        _ => format!("{value:.0} {unit}"),
    }
}
