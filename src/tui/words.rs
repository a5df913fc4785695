//! Formats numbers and times.

use std::cmp::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use memprof_profile::Margin;
use memprof_profile::measure::Unit;
use memprof_sys::text::grouped;

/// Bytes as whole KiB, in groups of three digits: `1,234`.
pub(super) fn kib(bytes: u64) -> String {
    figure(Unit::Bytes, bytes)
}

/// A figure in its display unit, in groups of three digits: `1,234`.
pub(super) fn figure(unit: Unit, figure: u64) -> String {
    grouped(unit.shown(figure))
}

/// A figure that may be an estimate ([`Margin::beside`]): `~1,234`.
pub(super) fn estimate(unit: Unit, figure: u64, standard_error: u64) -> String {
    Margin::from_standard_error(figure, standard_error).beside(
        figure,
        |figure| self::figure(unit, figure),
        |limit| grouped(unit.limit(limit)),
    )
}

/// A total with its unit and error: `1,234 ±56 KiB`, `<90 objects`.
pub(super) fn with_margin(unit: Unit, figure: u64, standard_error: u64) -> String {
    let symbol = unit.symbol();
    let shown = self::figure(unit, figure);
    match Margin::from_standard_error(figure, standard_error) {
        Margin::Exact => format!("{shown} {symbol}"),
        Margin::PlusMinus(most) => format!("{shown} ±{} {symbol}", grouped(unit.limit(most))),
        Margin::Below(most) => format!("<{} {symbol}", grouped(unit.limit(most))),
    }
}

/// The change from `then` to `now` with its sign: `+1,234`.
pub(super) fn change(unit: Unit, then: u64, now: u64) -> String {
    let shown = unit.shown(now.abs_diff(then));
    let sign = match now.cmp(&then) {
        _ if shown == 0 => "",
        Ordering::Greater => "+",
        _ => "-",
    };
    format!("{sign}{}", grouped(shown))
}

/// A share in percent: `12.3`.
pub(super) fn percent(part: u64, whole: u64) -> String {
    format!("{:.1}", part as f64 * 100.0 / whole.max(1) as f64)
}

/// The time of day: `12:34:56 UTC`.
pub(super) fn clock(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()) % 86_400;
    let (h, m, s) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{h:02}:{m:02}:{s:02} UTC")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_small_estimate_is_a_limit() {
        let estimate = |figure: u64, error: u64| estimate(Unit::Bytes, figure * 1024, error * 1024);
        assert_eq!(estimate(5000, 0), "5,000");
        assert_eq!(estimate(5000, 100), "~5,000");
        assert_eq!(estimate(5000, 1000), "5,000±40%");
        assert_eq!(estimate(1000, 1000), "<2,960");
        let total = |figure, error| with_margin(Unit::Objects, figure, error);
        assert_eq!(total(5000, 0), "5,000 objects");
        assert_eq!(total(5000, 1000), "5,000 ±1,960 objects");
        assert_eq!(total(1000, 1000), "<2,960 objects");
        assert_eq!(with_margin(Unit::Bytes, 1 << 20, 1025), "1,024 ±2 KiB");
    }

    #[test]
    fn figures_are_easy_to_read() {
        let kibs = [0, 1023, 1024, 999 << 10, 1_234_567 << 10, u64::MAX];
        let words = kibs.map(kib);
        let wanted = ["0", "0", "1", "999", "1,234,567", "18,014,398,509,481,983"];
        assert_eq!(words, wanted);
        let pairs = [(5, 5), (0, 1023), (1023, 0), (1, 2049), (5_000_000, 0)];
        let changes = pairs.map(|(then, now)| change(Unit::Bytes, then, now));
        assert_eq!(changes, ["0", "0", "0", "+2", "-4,882"]);
        assert_eq!(figure(Unit::Objects, 1_234), "1,234");
        assert_eq!(change(Unit::Objects, 1_234, 0), "-1,234");
        assert_eq!(
            (percent(1, 3), percent(0, 0)),
            ("33.3".into(), "0.0".into())
        );
        let noon = UNIX_EPOCH + Duration::from_secs(86_400 + 12 * 3600 + 61);
        assert_eq!(clock(noon), "12:01:01 UTC");
    }
}
