//! The JSON of messages: bytes in hexadecimal, text that may not be UTF-8, times in RFC 3339, and previews of bounded size.

use std::fmt::{self, Write as _};
use std::io::{self, Write};

use serde::{Serialize, Serializer};

use super::read::{Cursor, Decode, DecodeError};

/// Bytes, in hexadecimal.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Hex<'a>(pub &'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = [0; 128];
        for part in self.0.chunks(text.len() / 2) {
            for (digits, byte) in text.chunks_exact_mut(2).zip(part) {
                digits[0] = DIGITS[usize::from(byte >> 4)];
                digits[1] = DIGITS[usize::from(byte & 15)];
            }
            let text = text.get(..2 * part.len()).unwrap_or_default();
            f.write_str(str::from_utf8(text).map_err(|_| fmt::Error)?)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Hex<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The bytes up to the end.
impl<'a> Decode<'a> for Hex<'a> {
    fn decode(cursor: &mut Cursor<'a>) -> Result<Self, DecodeError> {
        Ok(Self(cursor.rest()))
    }
}

/// Text that should be UTF-8; what is not is replaced.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Text<'a>(pub &'a [u8]);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in self.0.utf8_chunks() {
            f.write_str(part.valid())?;
            if !part.invalid().is_empty() {
                f.write_char(char::REPLACEMENT_CHARACTER)?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Text<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The text with its length before it.
impl<'a> Decode<'a> for Text<'a> {
    fn decode(cursor: &mut Cursor<'a>) -> Result<Self, DecodeError> {
        cursor.dynamic(|c| Ok(Self(c.rest())))
    }
}

/// Seconds since 1970 (UTC).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seconds(pub i64);

/// Writes RFC 3339, or the number of seconds outside of the years 0 to 9999, which RFC 3339 cannot express.
impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const YEAR_0: i64 = -62_167_219_200;
        const YEAR_10000: i64 = 253_402_300_800;
        if !(YEAR_0..YEAR_10000).contains(&self.0) {
            return self.0.fmt(f);
        }
        let (days, second) = (self.0.div_euclid(86_400), self.0.rem_euclid(86_400));
        let (year, month, day) = civil(days);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z"
        )
    }
}

/// Year, month and day of a number of days since 1970, counted in eras of 400 years that begin on 1 March.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + i64::from(month <= 2), month, day)
}

impl Serialize for Seconds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'a> Decode<'a> for Seconds {
    fn decode(cursor: &mut Cursor<'a>) -> Result<Self, DecodeError> {
        i64::decode(cursor).map(Self)
    }
}

/// A writer that refuses what exceeds its limit.
struct Limited {
    text: Vec<u8>,
    limit: usize,
}

impl Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(self.limit - self.text.len());
        self.text.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// JSON that may be cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Json {
    /// The text.
    pub text: String,
    /// True if the text is cut.
    pub cut: bool,
}

/// The JSON of a value, cut after at most `limit` bytes. The work is bounded by the limit, too.
pub fn json(value: &impl Serialize, limit: usize) -> Json {
    let text = Vec::new();
    let mut limited = Limited { text, limit };
    let cut = serde_json::to_writer(&mut limited, value).is_err();
    let mut text = limited.text;
    if let Err(error) = str::from_utf8(&text) {
        text.truncate(error.valid_up_to());
    }
    let text = String::from_utf8(text).unwrap_or_default();
    Json { text, cut }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        let text = |seconds| Seconds(seconds).to_string();
        assert_eq!(text(0), "1970-01-01T00:00:00Z");
        assert_eq!(text(1_767_323_045), "2026-01-02T03:04:05Z");
        assert_eq!(text(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(text(951_868_799), "2000-02-29T23:59:59Z");
        assert_eq!(text(-1), "1969-12-31T23:59:59Z");
        assert_eq!(text(-62_167_219_200), "0000-01-01T00:00:00Z");
        assert_eq!(text(253_402_300_799), "9999-12-31T23:59:59Z");
        assert_eq!(text(253_402_300_800), "253402300800");
        assert_eq!(text(i64::MIN), i64::MIN.to_string());
    }

    #[test]
    fn bytes_are_hexadecimal_beyond_one_part() {
        let bytes: Vec<u8> = (0..=255).collect();
        let expected: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(Hex(&bytes).to_string(), expected);
    }

    #[test]
    fn json_is_cut_between_characters() {
        let whole = json(&Text("aéz".as_bytes()), 6);
        assert_eq!((whole.text.as_str(), whole.cut), ("\"aéz\"", false));
        let cut = json(&Text("aéz".as_bytes()), 3);
        assert_eq!((cut.text.as_str(), cut.cut), ("\"a", true));
        let replaced = json(&Text(b"a\xffz"), 9);
        assert_eq!(replaced.text, "\"a\u{fffd}z\"");
    }
}
