//! Headers of syslog datagrams: RFC 5424, RFC 3164, and the variants of both that programs send.

use super::text::{self, Text};
use super::times::{self, Clock, Short};
use crate::store::{Level, LogEntry};
use crate::time::Timestamp;

/// The largest priority: facility 23, severity 7.
const MAX_PRIORITY: u8 = 191;

/// Maximum size of a tag that is taken for one, in bytes. RFC 3164 permits 32, Octez adds a process id.
const MAX_TAG: usize = 64;

/// A datagram as it was understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// The line.
    pub entry: LogEntry,
    /// Whether it was UTF-8 with a valid header. The entry of others has what could be read.
    pub well_formed: bool,
}

/// Reads a datagram. The time of its header comes before that of its text, the level of its text before that of its header.
pub fn read(bytes: &[u8], clock: &Clock) -> Datagram {
    let clean = text::clean(bytes);
    let header = Header::split(&clean, clock);
    let well_formed = header.as_ref().is_some_and(|(header, _)| header.valid);
    let (header, rest) = header.unwrap_or((Header::default(), &clean));
    let mut text = text::read(rest, clock);
    if text.time.is_none() && text.section.is_empty() {
        text.section = header.section.unwrap_or_default().to_owned();
    }
    Datagram {
        entry: entry(text, header.time, header.level, clock.now),
        well_formed: well_formed && std::str::from_utf8(bytes).is_ok(),
    }
}

/// The line of a text whose sender gave a time and a level.
pub fn entry(
    text: Text<'_>,
    time: Option<Timestamp>,
    level: Option<Level>,
    now: Timestamp,
) -> LogEntry {
    LogEntry {
        time: time.or(text.time).unwrap_or(now),
        level: text.level.or(level).unwrap_or(Level::Info),
        section: text.section,
        message: text.message.into_owned(),
    }
}

/// What a header says.
#[derive(Default)]
struct Header<'a> {
    level: Option<Level>,
    time: Option<Timestamp>,
    section: Option<&'a str>,
    /// Whether all of it could be read.
    valid: bool,
}

impl<'a> Header<'a> {
    /// The header and the text behind it; `None` if it does not begin with a priority.
    fn split(datagram: &'a str, clock: &Clock) -> Option<(Self, &'a str)> {
        let (number, rest) = datagram.strip_prefix('<')?.split_once('>')?;
        let digits = number.len() <= 3 && number.bytes().all(|c| c.is_ascii_digit());
        let priority = digits.then(|| number.parse::<u8>().ok()).flatten()?;
        let level = (priority <= MAX_PRIORITY).then_some(text::level_of_severity(priority % 8))?;
        let (header, rest) = match rest.strip_prefix("1 ") {
            Some(rest) => Self::rfc5424(rest),
            None => Self::rfc3164(rest.trim_start(), clock),
        };
        let level = Some(level);
        Some((Self { level, ..header }, rest))
    }

    /// `2026-01-02T03:04:05.123456+00:00 host application process message-id [structured data] text`.
    fn rfc5424(after_version: &'a str) -> (Self, &'a str) {
        let mut rest = after_version;
        let mut field = || -> Option<&'a str> {
            let (field, after) = rest.split_once(' ')?;
            rest = after;
            Some(field)
        };
        let time = field();
        let fields = (field(), field(), field(), field());
        let read = time.and_then(times::full);
        let data = matches!(fields, (Some(_), Some(_), Some(_), Some(_))).then(|| after_data(rest));
        let header = Self {
            time: read,
            valid: (read.is_some() || time == Some("-")) && data.flatten().is_some(),
            ..Self::default()
        };
        let text = data.flatten().unwrap_or(rest);
        (header, text.strip_prefix('\u{feff}').unwrap_or(text))
    }

    /// `Jan  2 03:04:05 host tag[process]: text`, or with a time of RFC 3339; time, host and process may be absent.
    fn rfc3164(rest: &'a str, clock: &Clock) -> (Self, &'a str) {
        let short = Short::split(rest).filter(|(time, _)| !time.fraction);
        let full = || {
            rest.split_once(' ')
                .and_then(|(t, r)| Some((times::full(t)?, r)))
        };
        let (time, rest) = match short {
            Some((time, rest)) => (time.resolve(clock), rest),
            // A text of Octez may also begin so, and keeps its time.
            None => match full().filter(|(_, rest)| !rest.starts_with('[')) {
                Some((time, rest)) => (Some(time), rest),
                None => (None, rest),
            },
        };
        let rest = rest.trim_start();
        let host = |c: u8| c.is_ascii_alphanumeric() || b"._-:".contains(&c);
        let after_host = rest
            .split_once(' ')
            .filter(|(word, _)| word.bytes().all(host));
        // Without a time, the first of several words is rather text than a host.
        let after_host = after_host.filter(|_| time.is_some());
        let tagged = tag(rest).or_else(|| tag(after_host?.1));
        let (section, text) = tagged.unwrap_or((None, rest));
        let header = Self {
            time,
            section,
            valid: short.is_none() || time.is_some(),
            level: None,
        };
        (header, text)
    }
}

/// The text behind the structured data, which is `-` or some `[id name="value"]`; `None` if there is neither.
fn after_data(rest: &str) -> Option<&str> {
    if let Some(rest) = rest.strip_prefix('-') {
        return rest.strip_prefix(' ').or(rest.is_empty().then_some(rest));
    }
    let (mut quoted, mut escaped, mut open) = (false, false, false);
    for (at, byte) in rest.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' if open => quoted = !quoted,
            b'[' if !open => open = true,
            b']' if !quoted => open = false,
            b' ' if !open => return (at > 0).then_some(&rest[at + 1..]),
            _ if !open => return None,
            _ => {}
        }
    }
    (!open && !rest.is_empty()).then_some("")
}

/// Splits `tag[process]: text` or `tag: text`. Only a tag without a process is a section, as Octez sends it.
fn tag(rest: &str) -> Option<(Option<&str>, &str)> {
    let (word, text) = match rest.split_once(' ') {
        Some((word, text)) => (word, text),
        None => (rest, ""),
    };
    let word = word
        .strip_suffix(':')
        .filter(|w| (1..=MAX_TAG).contains(&w.len()))?;
    let section = (!word.ends_with(']')).then_some(word);
    let (name, _) = word.split_once('[').unwrap_or((word, ""));
    let plain = |c: u8| c.is_ascii_alphanumeric() || b"._-/".contains(&c);
    name.bytes().all(plain).then_some((section, text))
}
