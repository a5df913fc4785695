//! The text of a line, in the forms in which nodes print it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::times::{self, Clock, Short};
use crate::store::Level;
use crate::time::Timestamp;

/// The parts of a line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text<'a> {
    /// The line's own time.
    pub time: Option<Timestamp>,
    /// The line's own level.
    pub level: Option<Level>,
    /// The part of the node, or nothing.
    pub section: String,
    /// The rest.
    pub message: Cow<'a, str>,
}

/// Reads a line. A line in no known form is all message.
pub fn read<'a>(text: &'a str, clock: &Clock) -> Text<'a> {
    let text = text.trim_matches(|c: char| c.is_ascii_whitespace() || c == '\0');
    json(text)
        .or_else(|| bracketed(text))
        .or_else(|| short(text, clock))
        .unwrap_or_else(|| Text {
            message: text.into(),
            ..Text::default()
        })
}

/// The text without colour codes, and with invalid bytes replaced.
pub fn clean(bytes: &[u8]) -> Cow<'_, str> {
    let text = String::from_utf8_lossy(bytes);
    if !text.contains('\x1b') {
        return text;
    }
    let mut parts = text.split('\x1b');
    let mut clean = parts.next().unwrap_or_default().to_owned();
    parts.for_each(|part| clean.push_str(after_code(part)));
    clean.into()
}

/// What follows the rest of a control sequence, `[1;31m`.
fn after_code(part: &str) -> &str {
    let Some(code) = part.strip_prefix('[') else {
        return part;
    };
    let end = code.find(|c: char| !matches!(c, ' '..='?'));
    match end.map(|end| code.split_at(end).1) {
        // The last character of a sequence.
        Some(rest) => rest
            .strip_prefix(|c: char| matches!(c, '@'..='~'))
            .unwrap_or(rest),
        None => "",
    }
}

/// Level of a severity of syslog, which is also the number that Octez prints.
pub fn level_of_severity(severity: u8) -> Level {
    match severity {
        0..=2 => Level::Fatal,
        3 => Level::Error,
        4 => Level::Warning,
        5 => Level::Notice,
        6 => Level::Info,
        _ => Level::Debug,
    }
}

/// Level of a word, including the short ones of TezEdge.
fn level_of_word(word: &str) -> Option<Level> {
    match word {
        "CRIT" | "CRITICAL" => Some(Level::Fatal),
        "ERRO" => Some(Level::Error),
        "DEBG" => Some(Level::Debug),
        "TRCE" => Some(Level::Trace),
        _ => Level::of_name(word),
    }
}

/// Octez, `pp-rfc5424`: `<004> 2026-01-02T03:04:05.123-00:00 [section.event] text`, the number only with `advertise-levels`.
fn bracketed(text: &str) -> Option<Text<'_>> {
    let (severity, rest) = match text.strip_prefix('<') {
        Some(rest) => {
            let (number, rest) = rest.split_once("> ")?;
            (Some(number.parse::<u8>().ok()?), rest)
        }
        None => (None, text),
    };
    let (time, rest) = rest.split_once(' ')?;
    let time = times::full(time)?;
    let section = rest.strip_prefix('[').and_then(|r| r.split_once(']'));
    let (section, message) = section.unwrap_or(("", rest));
    Some(Text {
        time: Some(time),
        level: severity.map(level_of_severity),
        section: section.to_owned(),
        message: message.trim_start().into(),
    })
}

/// Lines that begin with a time without a year:
/// - Octez, `pp-short`: `Jan 02 03:04:05.123: text`, and with `advertise-levels` `Jan 02 03:04:05.123   NOTICE │ text`
/// - Octez before v18: `Jan  2 03:04:05.123 - section: text`
/// - TezEdge: `Jun 24 08:32:37.026 INFO text`
fn short<'a>(text: &'a str, clock: &Clock) -> Option<Text<'a>> {
    let (time, rest) = Short::split(text).filter(|(time, _)| time.fraction)?;
    let time = time.resolve(clock);
    if let Some(message) = rest.strip_prefix(':') {
        return Some(Text {
            time,
            message: message.trim_start().into(),
            ..Text::default()
        });
    }
    let rest = rest.strip_prefix(' ')?.trim_start();
    if let Some(rest) = rest.strip_prefix("- ") {
        let section = rest.split_once(':').filter(|(name, _)| !name.contains(' '));
        let (section, message) = section.unwrap_or(("", rest));
        return Some(Text {
            time,
            section: section.to_owned(),
            message: message.trim_start().into(),
            level: None,
        });
    }
    let (word, after) = rest.split_once(' ').unwrap_or((rest, ""));
    let level = level_of_word(word);
    let message = match level {
        Some(_) => after.trim_start(),
        None => rest,
    };
    let message = message.strip_prefix('│').unwrap_or(message);
    Some(Text {
        time,
        level,
        section: String::new(),
        message: message.trim_start().into(),
    })
}

/// An event of Octez as JSON, `{"fd-sink-item.v0": …}`, one per line.
#[derive(Deserialize)]
struct Item<'a> {
    level: Option<String>,
    /// Seconds since 1970.
    time_stamp: Option<f64>,
    #[serde(default)]
    section: Vec<String>,
    #[serde(borrow)]
    event: &'a RawValue,
}

fn json(text: &str) -> Option<Text<'static>> {
    if !text.starts_with('{') {
        return None;
    }
    let items: BTreeMap<String, Item<'_>> = serde_json::from_str(text).ok()?;
    let (name, item) = items.into_iter().next()?;
    name.starts_with("fd-sink-item.").then_some(())?;
    let time = item
        .time_stamp
        .and_then(|s| Duration::try_from_secs_f64(s).ok());
    Some(Text {
        time: time.map(|time| Timestamp::default().after(time)),
        level: item.level.and_then(|level| Level::of_name(&level)),
        section: item.section.join("."),
        message: event(item.event.get()).into(),
    })
}

/// An event with one name as `name {…}`; others as they are.
fn event(json: &str) -> String {
    let named: Option<BTreeMap<String, &RawValue>> = serde_json::from_str(json).ok();
    match named.map(|named| named.into_iter().collect::<Vec<_>>()) {
        Some(named) if named.len() == 1 => format!("{} {}", named[0].0, named[0].1.get()),
        _ => json.to_owned(),
    }
}
