//! Sizes, ages and modes as people write them.

use std::time::Duration;

/// Reads a number of bytes, with or without a binary unit: `64MiB`.
///
/// # Errors
/// If it is another text: what is expected.
pub fn size(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text);
    let shift = match unit {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        "TiB" => 40,
        _ => {
            return Err("expected a number of bytes, KiB, MiB, GiB or TiB, such as `64MiB`".into());
        }
    };
    let bytes = number.and_then(|number| number.checked_mul(1 << shift));
    bytes.ok_or_else(|| "expected a whole number of bytes below 16 EiB, such as `64MiB`".into())
}

/// Reads a duration with a unit: `30d`.
///
/// # Errors
/// If it is another text: what is expected.
pub fn age(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text);
    let seconds = match unit {
        "s" => Some(1),
        "m" => Some(60),
        "h" => Some(3600),
        "d" => Some(86_400),
        _ => None,
    };
    let seconds = number.zip(seconds).and_then(|(n, s)| n.checked_mul(s));
    let age = seconds
        .filter(|seconds| *seconds > 0)
        .map(Duration::from_secs);
    age.ok_or_else(|| {
        "expected a whole number and a unit (s, m, h or d), such as `12h` or `30d`".into()
    })
}

/// Reads permissions in octal digits: `0660`.
///
/// # Errors
/// If it is another text: what is expected.
pub fn mode(text: &str) -> Result<u32, String> {
    let digits = !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
    let mode = digits.then(|| u32::from_str_radix(text, 8).ok()).flatten();
    let mode = mode.filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "expected permissions in octal digits, such as \"0660\"".into())
}

/// The number and the unit of a text. `parse` alone would accept a sign.
fn split(text: &str) -> (Option<u64>, &str) {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    (text[..digits].parse().ok(), &text[digits..])
}
