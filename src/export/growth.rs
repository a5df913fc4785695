//! What grew over a recorded span, as text and as JSON: the total, then functions or stacks, largest certain growth first.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{self, Write};
use std::time::SystemTime;

use schemars::JsonSchema;
use serde::Serialize;

use super::label_text::readable;
use super::overview;
use memprof_profile::saved::unix_ms;
use memprof_profile::tree::{Label, Merge, OwnCode, frame_label};
use memprof_profile::{Kind, Report};
use memprof_recording::{Grown, Growth, MomentInfo, Owner, Recording, RecordingError, Shape};
use memprof_sys::text::size;

/// What is summed up in a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GrowthBy {
    /// Functions of the program: the innermost one of each stack.
    #[default]
    Function,
    /// Whole stacks.
    Stack,
}

impl GrowthBy {
    /// All of them, by the names of the command line and of the API.
    pub const ALL: [(&str, GrowthBy); 2] =
        [("function", GrowthBy::Function), ("stack", GrowthBy::Stack)];

    /// Looks one up by its name.
    pub fn by_name(name: &str) -> Option<GrowthBy> {
        let found = GrowthBy::ALL.into_iter().find(|(known, _)| *known == name);
        found.map(|(_, by)| by)
    }
}

/// What grew over a span of a recording.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct GrowthTable {
    /// The first recorded moment of the span, in ms since 1970. Absent if nothing is recorded yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<u64>,
    /// The last recorded moment of the span, in ms since 1970. Absent if nothing is recorded yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<u64>,
    /// The number of recorded moments in the span. Absent if they are too few for a trend, which needs ten.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub moments: Option<usize>,
    /// Length of the intervals of `values`, in seconds of the time in which memprof was running. The youngest tenth of the span
    /// is in none of them.
    pub interval_s: f64,
    /// The kind of the figures.
    pub kind: &'static str,
    /// All memory of the kind, whether or not it grew. Absent if there are too few moments for a trend.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<GrowthRow>,
    /// What certainly grew: steady growth first, by the rate that is certain, then what has stopped growing.
    pub rows: Vec<GrowthRow>,
}

/// How one figure grew.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct GrowthRow {
    /// The function or the stack, innermost function first.
    pub name: String,
    /// The source line in the function that its largest stack goes through, as `FILE:LINE`. Absent if it is not known, and for
    /// stacks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
    /// `steady`: growing until the end; `stopped`: it grew, and stopped a sixth of the span before the end or earlier; `jump`:
    /// it grew at once. Absent if no growth is certain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shape: Option<&'static str>,
    /// Slope of a straight line through `values` from `since` on, per hour of the time in which memprof was running.
    pub per_hour: f64,
    /// Standard error of `per_hour`; two of them cover the slope in 95 of 100 cases.
    pub error: f64,
    /// Part of the total's slope that it explains. Absent if the total does not certainly grow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
    /// When it began to grow, in ms since 1970.
    pub since: u64,
    /// Share of the intervals in which it was larger than in the one before.
    pub rises: f64,
    /// The mean in each interval.
    pub values: Vec<u64>,
}

impl GrowthRow {
    fn new<K>(
        growth: &Growth,
        grown: &Grown<K>,
        total: Option<f64>,
        (name, place): (String, Option<String>),
    ) -> GrowthRow {
        let since = growth.starts.get(grown.trend.since);
        GrowthRow {
            name,
            place,
            shape: grown.trend.shape.map(Shape::name),
            per_hour: grown.trend.slope * 3600.0,
            error: grown.trend.error * 3600.0,
            share: total.map(|slope| grown.trend.slope / slope),
            since: unix_ms(since.map_or(SystemTime::UNIX_EPOCH, |moment| moment.taken)),
            rises: grown.trend.rises,
            values: grown.means.iter().map(|mean| mean.round() as u64).collect(),
        }
    }

    /// The rate of steady growth that is certain, in bytes per hour; `None` if it does not grow steadily.
    pub fn steady_rate(&self) -> Option<f64> {
        let is_steady = self.shape == Some(Shape::Steady.name());
        is_steady.then_some(self.per_hour - 2.0 * self.error)
    }
}

impl GrowthTable {
    /// What grew from one moment to another. Without a total, the span is too short for a trend.
    ///
    /// # Errors
    /// The recording cannot be read.
    pub fn between(
        recording: &Recording,
        span: [MomentInfo; 2],
        by: GrowthBy,
        kind: Kind,
    ) -> Result<GrowthTable, RecordingError> {
        let growth = recording.growth(span, kind)?;
        let table = growth.and_then(|growth| GrowthTable::new(&growth, by, kind));
        Ok(table.unwrap_or_else(|| {
            let [from, to] = span.map(|moment| Some(unix_ms(moment.taken)));
            GrowthTable {
                from,
                to,
                ..GrowthTable::of_nothing(kind)
            }
        }))
    }

    /// The table while nothing is recorded.
    pub fn of_nothing(kind: Kind) -> GrowthTable {
        GrowthTable {
            from: None,
            to: None,
            moments: None,
            interval_s: 0.0,
            kind: kind.name(),
            total: None,
            rows: Vec::new(),
        }
    }

    /// The table of a span; `None` if the span is too short for a trend.
    fn new(growth: &Growth, by: GrowthBy, kind: Kind) -> Option<GrowthTable> {
        let total = growth.total()?;
        let slope = Some(total.trend.slope).filter(|_| total.trend.certain() > 0.0);
        let own = RefCell::new(OwnCode::new(growth.end.side()));
        let name = |owner| Some(name_of(&growth.end, &own, owner, by));
        let rows = growth.by(name);
        let places: HashMap<String, String> = match by {
            GrowthBy::Function => {
                let functions = overview::own_functions(&growth.end);
                let functions = functions.iter().filter(|f| f.code.source.0.is_some());
                functions.map(|f| (f.key(), f.place())).collect()
            }
            GrowthBy::Stack => HashMap::new(),
        };
        let rows = rows.iter().map(|grown| {
            let place = places.get(&grown.key).cloned();
            GrowthRow::new(growth, grown, slope, (grown.key.clone(), place))
        });
        Some(GrowthTable {
            from: Some(unix_ms(growth.from.taken)),
            to: Some(unix_ms(growth.to.taken)),
            moments: Some(growth.moments),
            interval_s: growth.interval,
            kind: kind.name(),
            rows: rows.collect(),
            total: Some(GrowthRow::new(
                growth,
                &total,
                slope,
                ("total".to_owned(), None),
            )),
        })
    }

    /// Writes the table as text; `limit` is the maximum number of rows, `time` formats a moment.
    ///
    /// # Errors
    /// If writing to `out` fails.
    pub fn write_text(
        &self,
        limit: usize,
        time: impl Fn(u64) -> String,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let (Some(total), Some(from), Some(to), Some(moments)) =
            (&self.total, self.from, self.to, self.moments)
        else {
            return writeln!(out, "There are too few moments for a trend.");
        };
        let seconds = self.interval_s * total.values.len() as f64;
        let length = match seconds {
            s if s < 120.0 => format!("{s:.0} s"),
            s if s < 7200.0 => format!("{:.0} min", s / 60.0),
            s => format!("{:.1} h", s / 3600.0),
        };
        writeln!(
            out,
            "{} to {}: {moments} moments, {length} without the youngest tenth\n",
            time(from),
            time(to)
        )?;
        writeln!(
            out,
            "{:>10} {:>10} {:>6}  {:<7} {:<20} {:>10}  {:<20}",
            "per hour", "±", "share", "", "since", "now", "over time"
        )?;
        total.write_text(&time, out)?;
        if self.rows.is_empty() {
            return writeln!(out, "\nNothing certainly grew.");
        }
        for row in self.rows.iter().take(limit) {
            row.write_text(&time, out)?;
        }
        match self.rows.len().saturating_sub(limit) {
            0 => Ok(()),
            more => writeln!(out, "and {more} more; -n sets another limit"),
        }
    }
}

impl GrowthRow {
    fn write_text(&self, time: &impl Fn(u64) -> String, out: &mut dyn Write) -> io::Result<()> {
        let signed = |bytes: f64| {
            let sign = if bytes <= -1.0 { "\u{2212}" } else { "" };
            format!("{sign}{}", size(bytes.abs() as u64))
        };
        let share = self.share.map(|share| format!("{:.0} %", share * 100.0));
        writeln!(
            out,
            "{:>10} {:>10} {:>6}  {:<7} {:<20} {:>10}  {:<20} {}",
            signed(self.per_hour),
            size((2.0 * self.error) as u64),
            share.unwrap_or_default(),
            self.shape.unwrap_or("-"),
            self.shape.map(|_| time(self.since)).unwrap_or_default(),
            size(self.values.last().copied().unwrap_or(0)),
            sparkline(&self.values, PICTURE),
            match &self.place {
                Some(place) => format!("{}  {place}", self.name),
                None => self.name.clone(),
            }
        )
    }
}

/// Width of the picture of a table's values, in characters.
const PICTURE: usize = 20;

/// A small picture of values, in at most so many characters.
pub(crate) fn sparkline(values: &[u64], width: usize) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let (low, high) = (values.iter().min(), values.iter().max());
    let (Some(low), Some(high)) = (low.copied(), high.copied()) else {
        return String::new();
    };
    let bar = |some: &[u64]| {
        let highest = some.iter().max().map_or(0, |value| value - low);
        let range = (high - low).max(1);
        BARS[(u128::from(highest) * 7 / u128::from(range)) as usize]
    };
    values
        .chunks(values.len().div_ceil(width.max(1)))
        .map(bar)
        .collect()
}

fn name_of(report: &Report, own: &RefCell<OwnCode<'_>>, owner: Owner, by: GrowthBy) -> String {
    let profile = &report.profile;
    let stack = match owner {
        Owner::Sample(at) => &profile.samples[at].stack,
        Owner::NotObserved(at) => {
            let row = &profile.not_observed[at];
            return readable(&Label::NotObserved(&row.mapping, row.reason));
        }
    };
    if stack.frames.is_empty() {
        return readable(&Label::NoStack);
    }
    match by {
        GrowthBy::Function => own
            .borrow_mut()
            .innermost(stack)
            .map_or_else(|| readable(&Label::Unmapped), overview::key),
        GrowthBy::Stack => {
            let label = |frame| readable(&frame_label(report.side(), frame, Merge::Function));
            let names: Vec<String> = stack.frames.iter().map(|frame| label(*frame)).collect();
            names.join(" ← ")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_of_values() {
        assert_eq!(sparkline(&[0, 1, 2, 3, 4, 5, 6, 7], 4), "▂▄▆█");
        assert_eq!(sparkline(&[0, 1, 2, 3, 4, 5, 6, 7], 7), "▂▄▆█");
        assert_eq!(sparkline(&[5; 6], 3), "▁▁▁");
        assert_eq!(sparkline(&[0, u64::MAX], 9), "▁█");
        assert_eq!(sparkline(&[], 9), "");
    }
}
