//! Moments by name: `FILE@peak`, `FILE@14:05`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rusqlite::OptionalExtension;

use crate::RecordingError;
use crate::read::{MomentInfo, Recording};

/// A moment of a recording, as people name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum At {
    /// The last one: `end`.
    End,
    /// The one with the highest total: `peak`.
    Peak,
    /// So long before the last one: `-10m`.
    Ago(Duration),
    /// A time of day, by the clock here, of the last day on which the recording reaches it: `14:05`, `14:05:30`.
    Clock(String),
    /// Milliseconds since 1970, as in the HTTP API: `1795770300000`. A time before the first moment means that one.
    UnixMs(u64),
    /// A date and time: `2026-11-27T14:05:00Z`. Without a zone, by the clock here.
    Time(String),
}

/// Separates `FILE@MOMENT` at the last `@`. A path that exists is not separated. `None` if the path names no moment.
///
/// # Errors
/// The text after the last `@` names no moment, and there is a file before it.
pub fn cut_off(path: &Path) -> Result<Option<(PathBuf, At)>, String> {
    if path.symlink_metadata().is_ok() {
        return Ok(None);
    }
    let bytes = path.as_os_str().as_bytes();
    let Some(at) = bytes.iter().rposition(|byte| *byte == b'@') else {
        return Ok(None);
    };
    let file = PathBuf::from(OsStr::from_bytes(&bytes[..at]));
    if file.as_os_str().is_empty() || file.symlink_metadata().is_err() {
        return Ok(None);
    }
    let name = String::from_utf8_lossy(&bytes[at + 1..]);
    let moment = name.parse()?;
    Ok(Some((file, moment)))
}

impl std::str::FromStr for At {
    type Err = String;

    fn from_str(name: &str) -> Result<At, String> {
        let ago = name.strip_prefix('-').and_then(ago);
        let digit = |at: usize| name.as_bytes().get(at).is_some_and(u8::is_ascii_digit);
        match name {
            "end" => Ok(At::End),
            "peak" => Ok(At::Peak),
            _ if name.len() >= 12 && name.bytes().all(|byte| byte.is_ascii_digit()) => name
                .parse()
                .map(At::UnixMs)
                .map_err(|_| format!("{name} is too large for a time")),
            _ if ago.is_some() => Ok(At::Ago(ago.unwrap_or_default())),
            _ if digit(0) && is_clock(name) => Ok(At::Clock(name.to_owned())),
            _ if name.len() >= 16 && digit(0) && name.as_bytes().get(4) == Some(&b'-') => {
                Ok(At::Time(name.to_owned()))
            }
            _ => Err(format!(
                "{name:?} names no moment: use `end`, `peak`, a time of day such as `14:05`, a time before the end such as \
                 `-10m`, or a date and time such as `2026-11-27T14:05:00Z`"
            )),
        }
    }
}

/// `HH:MM` or `HH:MM:SS`.
fn is_clock(name: &str) -> bool {
    let parts: Vec<&str> = name.split(':').collect();
    let number = |part: &&str, below: u32| {
        let digits = part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_digit());
        digits && part.parse::<u32>().is_ok_and(|number| number < below)
    };
    match &parts[..] {
        [hour, rest @ ..] if matches!(rest.len(), 1 | 2) => {
            number(hour, 24) && rest.iter().all(|part| number(part, 60))
        }
        _ => false,
    }
}

/// A number with a unit: `90s`, `10m`, `2h`, `1d`.
fn ago(text: &str) -> Option<Duration> {
    let unit = match text.chars().last()? {
        's' => 1.0,
        'm' => 60.0,
        'h' => 3600.0,
        'd' => 86_400.0,
        _ => return None,
    };
    let digits = &text[..text.len() - 1];
    let plain = digits
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.');
    let number: f64 = digits.parse().ok().filter(|_| plain)?;
    Duration::try_from_secs_f64(number * unit).ok()
}

impl Recording {
    /// The moment of a name: the last one that is not after it.
    ///
    /// # Errors
    /// The recording does not reach the moment, or cannot be read.
    pub fn find(&self, at: &At) -> Result<MomentInfo, RecordingError> {
        let end = self.first("ORDER BY id DESC LIMIT 1", [])?;
        let Some(end) = end else {
            let message = "it has no moment yet".to_owned();
            return Err(RecordingError::NoMoment(message));
        };
        let found = match at {
            At::End => Some(end),
            At::Peak => self.first("ORDER BY total DESC, id LIMIT 1", [])?,
            At::Ago(before) => {
                let at = end.elapsed.checked_sub(*before);
                match at.and_then(|at| i64::try_from(at.as_millis()).ok()) {
                    Some(at) => {
                        self.first("WHERE elapsed_ms <= ?1 ORDER BY id DESC LIMIT 1", [at])?
                    }
                    None => None,
                }
            }
            At::UnixMs(ms) => {
                let ns = i64::try_from(ms.saturating_add(1)).unwrap_or(i64::MAX);
                let ns = ns.saturating_mul(1_000_000);
                match self.first("WHERE unix_ns < ?1 ORDER BY id DESC LIMIT 1", [ns])? {
                    None => Some(self.first_moment()?),
                    found => found,
                }
            }
            At::Clock(clock) => self.at_clock(clock, &end)?,
            At::Time(text) => {
                let seconds = self.seconds(text)?;
                if seconds > unix_seconds(&end) {
                    return Err(self.outside("it ends", "ORDER BY id DESC LIMIT 1"));
                }
                self.before(seconds)?
            }
        };
        found.ok_or_else(|| self.outside("it begins", "ORDER BY id LIMIT 1"))
    }

    /// The first moment.
    ///
    /// # Errors
    /// The recording has none, or cannot be read.
    fn first_moment(&self) -> Result<MomentInfo, RecordingError> {
        let first = self.first("ORDER BY id LIMIT 1", [])?;
        first.ok_or_else(|| RecordingError::NoMoment("it has no moment yet".to_owned()))
    }

    /// The moment at which a span begins: the first one of all by default.
    ///
    /// # Errors
    /// As for [`Recording::find`].
    pub fn begin(&self, at: Option<&At>) -> Result<MomentInfo, RecordingError> {
        match at {
            None => self.first_moment(),
            Some(at) => self.find(at),
        }
    }

    /// The moment before or after the moment `id`, or else before or after a time; `None` if there is none.
    ///
    /// # Errors
    /// The recording cannot be read.
    pub fn next_to(
        &self,
        id: Option<i64>,
        taken: SystemTime,
        forward: bool,
    ) -> Result<Option<MomentInfo>, RecordingError> {
        let since = taken.duration_since(UNIX_EPOCH).unwrap_or_default();
        let ns = i64::try_from(since.as_nanos()).unwrap_or(i64::MAX);
        match (id, forward) {
            (Some(id), true) => self.first("WHERE id > ?1 ORDER BY id LIMIT 1", [id]),
            (Some(id), false) => self.first("WHERE id < ?1 ORDER BY id DESC LIMIT 1", [id]),
            (None, true) => self.first("WHERE unix_ns > ?1 ORDER BY id LIMIT 1", [ns]),
            (None, false) => self.first("WHERE unix_ns < ?1 ORDER BY id DESC LIMIT 1", [ns]),
        }
    }

    fn first(
        &self,
        condition: &str,
        values: impl rusqlite::Params,
    ) -> Result<Option<MomentInfo>, RecordingError> {
        Ok(self.select(condition, values)?.into_iter().next())
    }

    /// The last moment in this second or before it.
    fn before(&self, seconds: i64) -> Result<Option<MomentInfo>, RecordingError> {
        let ns = seconds.saturating_add(1).saturating_mul(1_000_000_000);
        self.first("WHERE unix_ns < ?1 ORDER BY id DESC LIMIT 1", [ns])
    }

    fn at_clock(
        &self,
        clock: &str,
        end: &MomentInfo,
    ) -> Result<Option<MomentInfo>, RecordingError> {
        let end = unix_seconds(end);
        for day in ["+0 days", "-1 days"] {
            let sql =
                "SELECT unixepoch(date(?1, 'unixepoch', 'localtime', ?2) || ' ' || ?3, 'utc')";
            let seconds: Option<i64> = self
                .db
                .query_row(sql, (end, day, clock), |row| row.get(0))?;
            if let Some(seconds) = seconds.filter(|seconds| *seconds <= end) {
                return self.before(seconds);
            }
        }
        Ok(None)
    }

    /// Seconds since 1970 of a date and time.
    fn seconds(&self, text: &str) -> Result<i64, RecordingError> {
        let zoned = text.ends_with('Z')
            || text
                .get(11..)
                .is_some_and(|clock| clock.contains(['+', '-']));
        let sql = match zoned {
            true => "SELECT unixepoch(?1)",
            false => "SELECT unixepoch(?1, 'utc')",
        };
        let seconds = self
            .db
            .query_row(sql, [text], |row| row.get::<_, Option<i64>>(0));
        let seconds = seconds.optional()?.flatten();
        seconds.ok_or_else(|| {
            let message =
                format!("{text:?} is not a date and time, such as `2026-11-27T14:05:00Z`");
            RecordingError::NoMoment(message)
        })
    }

    /// The time of a moment, in UTC.
    ///
    /// # Errors
    /// The time is none.
    pub fn time(&self, moment: &MomentInfo) -> Result<String, RecordingError> {
        self.utc(unix_seconds(moment))
    }

    /// A time in ms since 1970, in UTC.
    ///
    /// # Errors
    /// The time is none.
    pub fn time_of(&self, unix_ms: u64) -> Result<String, RecordingError> {
        self.utc((unix_ms / 1000).cast_signed())
    }

    fn utc(&self, seconds: i64) -> Result<String, RecordingError> {
        let sql = "SELECT strftime('%Y-%m-%dT%H:%M:%SZ', ?1, 'unixepoch')";
        Ok(self.db.query_row(sql, [seconds], |row| row.get(0))?)
    }

    fn outside(&self, what: &str, condition: &str) -> RecordingError {
        let moment = self.first(condition, []).ok().flatten();
        let time = moment.and_then(|moment| self.time(&moment).ok());
        let time = time.unwrap_or_default();
        RecordingError::NoMoment(format!("it has no such moment: {what} at {time}"))
    }
}

fn unix_seconds(moment: &MomentInfo) -> i64 {
    let since = moment.taken.duration_since(UNIX_EPOCH);
    i64::try_from(since.unwrap_or_default().as_secs()).unwrap_or(i64::MAX)
}
