//! Times in logs, which may lack the year and the zone.

use std::time::{Duration, SystemTime};

use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use crate::time::Timestamp;

/// How far a time without a year may lie in the future, because clocks differ. One that is later is of an earlier year.
const AHEAD: Duration = Duration::from_secs(86_400);

/// Years to look back for a date: 29 February exists at least once in so many.
const YEARS: i16 = 8;

/// The time and the zone in which lines are read that lack them.
#[derive(Clone, Debug)]
pub struct Clock {
    /// The present time.
    pub now: Timestamp,
    /// The zone of times that name none.
    pub zone: TimeZone,
}

impl Clock {
    /// The system's time and zone.
    pub fn system() -> Self {
        Self {
            now: now(),
            zone: TimeZone::system(),
        }
    }

    /// A time, and UTC.
    pub fn utc(now: Timestamp) -> Self {
        let zone = TimeZone::UTC;
        Self { now, zone }
    }
}

/// The system's time.
pub fn now() -> Timestamp {
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    Timestamp::default().after(since)
}

/// Reads a time of RFC 3339: `2026-01-02T03:04:05.123-00:00`.
pub fn full(text: &str) -> Option<Timestamp> {
    // The parser reads more forms, such as names of zones in brackets.
    let plain = |c: u8| c.is_ascii_digit() || b"-+:.TtZz".contains(&c);
    let time = text.bytes().all(plain).then(|| text.parse().ok())?;
    timestamp(time?)
}

fn timestamp(time: jiff::Timestamp) -> Option<Timestamp> {
    u64::try_from(time.as_nanosecond()).ok().map(Timestamp)
}

/// A time without a year and a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Short {
    month: i8,
    day: i8,
    hour: i8,
    minute: i8,
    second: i8,
    /// Nanoseconds; a whole second where a fraction was rounded up to it.
    nanos: u32,
    /// Whether the time had a fraction of a second.
    pub fraction: bool,
}

impl Short {
    /// Reads `Jan  2 03:04:05` with or without a fraction of a second from the beginning of a text; also returns the rest.
    pub fn split(text: &str) -> Option<(Self, &str)> {
        const MONTHS: [&str; 12] = [
            "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
        ];
        let (name, rest) = text.split_at_checked(3)?;
        let month = MONTHS.iter().position(|month| *month == name)? as i8 + 1;
        let rest = rest.strip_prefix(' ')?;
        let (day, rest) = number(rest.strip_prefix(' ').unwrap_or(rest))?;
        let (hour, rest) = number(rest.strip_prefix(' ')?)?;
        let (minute, rest) = number(rest.strip_prefix(':')?)?;
        let (second, rest) = number(rest.strip_prefix(':')?)?;
        let digits = |rest: &str| rest.bytes().take_while(u8::is_ascii_digit).count();
        let fraction = rest.strip_prefix('.').filter(|rest| digits(rest) > 0);
        let (nanos, rest) = match fraction {
            Some(rest) => (nanos(&rest[..digits(rest)]), &rest[digits(rest)..]),
            None => (0, rest),
        };
        let time = Self {
            month,
            day,
            hour,
            minute,
            second: second.min(59),
            nanos,
            fraction: fraction.is_some(),
        };
        Some((time, rest))
    }

    /// The last time with this date that is not in the future. `None` if there is no such date.
    pub fn resolve(self, clock: &Clock) -> Option<Timestamp> {
        let now = jiff::Timestamp::from_nanosecond(clock.now.0.into()).ok()?;
        let year = clock.zone.to_datetime(now).year();
        let latest = clock.now.after(AHEAD);
        let mut years = (year.checked_sub(YEARS)?..=year.checked_add(1)?).rev();
        years.find_map(|year| self.in_year(year, clock).filter(|time| *time <= latest))
    }

    fn in_year(self, year: i16, clock: &Clock) -> Option<Timestamp> {
        let (hour, minute, second) = (self.hour, self.minute, self.second);
        let time = DateTime::new(year, self.month, self.day, hour, minute, second, 0).ok()?;
        let time = clock.zone.to_ambiguous_timestamp(time).compatible().ok()?;
        Some(timestamp(time)?.after(Duration::from_nanos(self.nanos.into())))
    }
}

/// A number of one or two digits at the beginning of a text, and the rest.
fn number(text: &str) -> Option<(i8, &str)> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let number = text[..digits].parse().ok().filter(|_| digits <= 2)?;
    Some((number, &text[digits..]))
}

/// The nanoseconds of the digits behind the point.
fn nanos(digits: &str) -> u32 {
    // Octez rounds 999.6 ms to four digits.
    if digits == "1000" {
        return 1_000_000_000;
    }
    let digits = digits.bytes().chain(std::iter::repeat(b'0')).take(9);
    digits.fold(0, |nanos, digit| 10 * nanos + u32::from(digit - b'0'))
}
