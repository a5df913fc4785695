//! Text that is safe to display. Names come from untrusted files: characters that could control a terminal are replaced, and long
//! names are truncated.

use std::borrow::Cow;
use std::time::Duration;

/// Length, in characters, beyond which [`printable`] truncates a text. Nearly all C++ names are shorter.
pub const LONGEST: usize = 1024;

/// Whether a character must be replaced or escaped: control characters, line separators, and format
/// characters (category Cf), which reorder the text around them or are invisible.
pub fn is_control_or_format(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{8e2}' | '\u{180e}' | '\u{feff}'
            | '\u{600}'..='\u{605}' | '\u{890}'..='\u{891}'
            // Zero width, direction, line and paragraph separators, embeddings, overrides, isolates.
            | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{fff9}'..='\u{fffb}' | '\u{110bd}' | '\u{110cd}' | '\u{13430}'..='\u{1343f}'
            | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
            // Tags: invisible text.
            | '\u{e0000}'..='\u{e007f}')
}

/// Splits a text into its first `LONGEST` characters and the number of characters after them.
pub fn cut(text: &str) -> (&str, usize) {
    // A character takes at least one byte.
    if text.len() <= LONGEST {
        return (text, 0);
    }
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => (&text[..end], text[end..].chars().count()),
        None => (text, 0),
    }
}

/// The suffix of a truncated text, with the number of missing characters.
pub fn missing(characters: usize) -> String {
    format!("… ({characters} more characters)")
}

/// Replaces every control or format character by U+FFFD. A text longer than `LONGEST` characters is truncated and ends with the
/// number of missing characters.
pub fn printable(text: &str) -> Cow<'_, str> {
    let (shown, more) = cut(text);
    if more == 0 && !shown.contains(is_control_or_format) {
        return Cow::Borrowed(text);
    }
    let mut out = shown.replace(is_control_or_format, "\u{fffd}");
    if more > 0 {
        out.push_str(&missing(more));
    }
    Cow::Owned(out)
}

/// A number with commas between groups of three digits.
///
/// # Examples
///
/// ```
/// use memprof_sys::text::grouped;
///
/// assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
/// ```
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Bytes in the largest unit in which they are at least 1, for people: `9.1 MiB`.
///
/// # Examples
///
/// ```
/// use memprof_sys::text::size;
///
/// assert_eq!([0, 900, 4096, 9_542_042, 3 << 30].map(size), ["0 KiB", "0.9 KiB", "4 KiB", "9.1 MiB", "3.0 GiB"]);
/// ```
pub fn size(bytes: u64) -> String {
    let in_unit = |shift: u32| bytes as f64 / f64::from(1 << shift);
    match bytes {
        0 => "0 KiB".to_owned(),
        1..1024 => format!("{:.1} KiB", in_unit(10)),
        1024..0x10_0000 => format!("{} KiB", bytes >> 10),
        // 1023.95 MiB would be shown as 1024.0 MiB.
        0x10_0000..0x3fff_0000 => format!("{:.1} MiB", in_unit(20)),
        0x3fff_0000.. => format!("{:.1} GiB", in_unit(30)),
    }
}

/// A duration in one unit, for people: `3.2 s`, `42 min`, `2 h`, `3 days`.
pub fn duration(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    match time.as_secs() {
        0..10 => format!("{seconds:.1} s"),
        10..120 => format!("{seconds:.0} s"),
        120..7200 => format!("{:.0} min", seconds / 60.0),
        7200..172_800 => format!("{:.0} h", seconds / 3600.0),
        172_800.. => format!("{:.0} days", seconds / 86400.0),
    }
}

/// Bytes as lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_lose_their_teeth() {
        assert_eq!(
            printable("a\x1b[2Jb\nc\u{9b}d\u{202e}"),
            "a\u{fffd}[2Jb\u{fffd}c\u{fffd}d\u{fffd}"
        );
        assert!(matches!(printable("std::vec<T, …>"), Cow::Borrowed(_)));
    }

    #[test]
    fn nothing_reorders_or_hides() {
        let invisible = "\u{ad}\u{61c}\u{180e}\u{200b}\u{200d}\u{200e}\u{2028}\u{202a}\u{202e}\u{2060}\
                         \u{2066}\u{2069}\u{206f}\u{feff}\u{fff9}\u{e0001}\u{e0041}";
        for c in invisible.chars() {
            assert_eq!(printable(&c.to_string()), "\u{fffd}", "{c:?}");
        }
    }

    #[test]
    fn a_long_text_is_cut_and_says_so() {
        let whole = "é".repeat(LONGEST);
        assert!(matches!(printable(&whole), Cow::Borrowed(_)));
        let long = whole.clone() + "\x1b[2J";
        assert_eq!(printable(&long), whole + "… (4 more characters)");
    }
}
