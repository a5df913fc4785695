//! The grammar of `--fail-if`:
//!
//! ```text
//! GATE    = [SUBJECT] "growth" (">" | ">=") LIMIT
//!         | SUBJECT (">" | ">=") SIZE
//! SUBJECT = "total" | "peak" | KIND | "function:" NAME
//! LIMIT   = SIZE | NUMBER "%"
//! ```

use super::values::parse_size;
use crate::app::config::RateGate;
use memprof_profile::Kind;
use memprof_profile::gate::{Figure, Gate, Limit, Subject};

const FUNCTION: &str = "function:";
const EXAMPLES: &str = "such as `growth > 5%`, `anon growth > 10MiB`, `function:NAME growth > 64KiB`, `total > 1GiB` or `peak > 512MiB`";

pub(super) fn parse_gate(text: &str) -> Result<Gate, String> {
    // Names of functions may contain `>`; limits do not.
    let (left, limit) = text
        .rsplit_once('>')
        .ok_or_else(|| format!("expected `>` or `>=` and a limit, {EXAMPLES}"))?;
    let (or_equal, limit) = match limit.strip_prefix('=') {
        Some(limit) => (true, limit),
        None => (false, limit),
    };
    let left = left.trim();
    let before_growth = left.strip_suffix("growth");
    let growth =
        before_growth.filter(|rest| rest.is_empty() || rest.ends_with(char::is_whitespace));
    let (figure, subject) = match growth {
        Some(rest) => (Figure::Growth, rest.trim()),
        None => (Figure::Size, left),
    };
    Ok(Gate {
        text: text.to_owned(),
        subject: parse_subject(subject, figure)?,
        figure,
        or_equal,
        limit: parse_limit(limit.trim(), figure)?,
    })
}

/// Parses a gate of a single profile, which has no earlier one to grow from.
pub(super) fn parse_gate_of_one(text: &str) -> Result<Gate, String> {
    match parse_gate(text) {
        Ok(gate) if gate.figure == Figure::Growth => Err(
            "growth needs two profiles: `memprof diff`; here, use a size such as `peak > 512MiB` or `anon > 1GiB`"
                .to_owned(),
        ),
        parsed => parsed,
    }
}

/// Parses a gate of `memprof growth`: `[function:NAME] growth_rate > SIZE/UNIT`.
pub(super) fn parse_rate_gate(text: &str) -> Result<RateGate, String> {
    const EXPECTED: &str =
        "expected `[function:NAME] growth_rate > SIZE/UNIT`, such as `growth_rate > 1MiB/h`";
    let (left, limit) = text.rsplit_once('>').ok_or(EXPECTED)?;
    let (or_equal, limit) = match limit.strip_prefix('=') {
        Some(limit) => (true, limit),
        None => (false, limit),
    };
    let subject = left
        .trim()
        .strip_suffix("growth_rate")
        .ok_or(EXPECTED)?
        .trim();
    let function = match subject.strip_prefix(FUNCTION).map(str::trim) {
        Some("") => {
            return Err(format!(
                "expected the name of a function after `{FUNCTION}`"
            ));
        }
        Some(name) => Some(name.to_owned()),
        None if matches!(subject, "" | "total") => None,
        None => return Err(EXPECTED.to_owned()),
    };
    let (size, unit) = limit.trim().split_once('/').ok_or(EXPECTED)?;
    let per_hour = match unit.trim() {
        "s" => 3600.0,
        "min" => 60.0,
        "h" => 1.0,
        "d" => 1.0 / 24.0,
        other => return Err(format!("expected s, min, h or d after `/`, got `{other}`")),
    };
    Ok(RateGate {
        text: text.to_owned(),
        function,
        or_equal,
        limit: parse_size(size.trim())? as f64 * per_hour,
    })
}

fn parse_subject(text: &str, figure: Figure) -> Result<Subject, String> {
    match text {
        "" if figure == Figure::Growth => return Ok(Subject::Kind(Kind::All)),
        "" => return Err(format!("expected what to check before `>`, {EXAMPLES}")),
        "total" => return Ok(Subject::Kind(Kind::All)),
        "peak" => return Ok(Subject::Peak),
        _ => {}
    }
    if let Some(name) = text.strip_prefix(FUNCTION) {
        return match name.trim() {
            "" => Err(format!(
                "expected the name of a function after `{FUNCTION}`"
            )),
            name => Ok(Subject::Function(name.to_owned())),
        };
    }
    Kind::by_name(text).map(Subject::Kind).ok_or_else(|| {
        let kinds = Kind::ALL.map(Kind::name).join(", ");
        format!("expected total, peak, a kind of memory ({kinds}) or {FUNCTION}NAME, got `{text}`")
    })
}

fn parse_limit(text: &str, figure: Figure) -> Result<Limit, String> {
    let Some(percent) = text.strip_suffix('%') else {
        let size = parse_size(text).map(Limit::Amount);
        return size.map_err(|e| format!("the limit `{text}` is neither per cent nor a size: {e}"));
    };
    if figure == Figure::Size {
        return Err("only growth has a limit in per cent: `total growth > 5%`".to_owned());
    }
    let percent = percent.trim_end();
    let plain = percent.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    match percent.parse() {
        Ok(number) if plain => Ok(Limit::Percent(number)),
        _ => Err(format!(
            "expected a number before `%`, such as `5%` or `0.5%`, got `{percent}`"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates() {
        let total = || Subject::Kind(Kind::All);
        let function = |name: &str| Subject::Function(name.to_owned());
        let (growth, size) = (Figure::Growth, Figure::Size);
        for (text, subject, figure, or_equal, limit) in [
            ("growth > 5%", total(), growth, false, Limit::Percent(5.0)),
            ("growth>0.5 %", total(), growth, false, Limit::Percent(0.5)),
            (
                "total growth >= 10MiB",
                total(),
                growth,
                true,
                Limit::Amount(10 << 20),
            ),
            (
                "anon growth > 0",
                Subject::Kind(Kind::Anon),
                growth,
                false,
                Limit::Amount(0),
            ),
            (
                "cache > 64KiB",
                Subject::Kind(Kind::Cache),
                size,
                false,
                Limit::Amount(64 << 10),
            ),
            (
                "peak >= 512MiB",
                Subject::Peak,
                size,
                true,
                Limit::Amount(512 << 20),
            ),
            (
                "peak growth > 1%",
                Subject::Peak,
                growth,
                false,
                Limit::Percent(1.0),
            ),
            (
                "function:main growth > 1%",
                function("main"),
                growth,
                false,
                Limit::Percent(1.0),
            ),
            (
                "function:a::B<C, D>::operator>> growth > 1GiB",
                function("a::B<C, D>::operator>>"),
                growth,
                false,
                Limit::Amount(1 << 30),
            ),
            (
                "function:outgrowth > 5B",
                function("outgrowth"),
                size,
                false,
                Limit::Amount(5),
            ),
        ] {
            let wanted = Gate {
                text: text.to_owned(),
                subject,
                figure,
                or_equal,
                limit,
            };
            assert_eq!(parse_gate(text), Ok(wanted), "{text}");
        }
    }

    #[test]
    fn one_profile_has_no_growth() {
        assert!(parse_gate_of_one("peak > 1MiB").is_ok());
        let why = parse_gate_of_one("peak growth > 1MiB").unwrap_err();
        assert!(why.contains("memprof diff"), "{why}");
        assert!(
            parse_gate_of_one("growth")
                .unwrap_err()
                .contains("expected `>`")
        );
    }

    #[test]
    fn errors_say_what_is_expected() {
        for (text, wanted) in [
            ("", "expected `>`"),
            ("growth", "expected `>`"),
            ("growth < 5%", "expected `>`"),
            ("> 5%", "expected what to check"),
            ("growth >", "neither per cent nor a size"),
            ("growth > 5", ""),
            ("growth > -5%", "expected a number before `%`"),
            ("growth > 1e3%", "expected a number before `%`"),
            ("growth > inf%", "expected a number before `%`"),
            ("growth > 5 apples", "neither per cent nor a size"),
            ("total > 5%", "only growth"),
            ("heap growth > 5%", "got `heap`"),
            ("function: growth > 5%", "name of a function"),
        ] {
            match parse_gate(text) {
                Ok(gate) => assert_eq!(wanted, "", "{gate:?}"),
                Err(why) => assert!(!wanted.is_empty() && why.contains(wanted), "{text}: {why}"),
            }
        }
    }
}
