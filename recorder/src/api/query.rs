//! Parameters of requests: text, numbers, times in any unit, addresses, ids.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use super::failure::Failure;
use crate::side::Side;
use crate::store::{ConnectionId, Direction};
use crate::time::Timestamp;

/// The parameter whose words may begin with `+`.
const TEXT: &str = "query";

/// The parameters of a request.
#[derive(Debug, Default)]
pub(super) struct Query(Vec<(String, String)>);

/// Handling of unknown parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unknown {
    Ignored,
    Refused,
}

/// A moment, as exact as its unit: the first and the last nanosecond of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moment {
    pub(super) first: Timestamp,
    pub(super) last: Timestamp,
    /// Whether it was given in nanoseconds.
    pub(super) in_nanos: bool,
}

impl Query {
    /// Reads the query of a URL.
    pub(super) fn read(text: &str, known: &[&str], unknown: Unknown) -> Result<Self, Failure> {
        let mut found: Vec<(String, String)> = Vec::new();
        for part in text.split('&').filter(|part| !part.is_empty()) {
            let Some((name, value)) = decode(part) else {
                continue;
            };
            if !known.contains(&name.as_str()) {
                if unknown == Unknown::Ignored {
                    continue;
                }
                let known = known.join(", ");
                let message = format!("unknown parameter {name:?}: use one of {known}");
                return Err(Failure::Query(message));
            }
            if found.iter().any(|(other, _)| *other == name) {
                return Err(Failure::Query(format!("{name} is given twice")));
            }
            found.push((name, value));
        }
        Ok(Self(found))
    }

    /// The value of the first of these names that is given; empty values count as not given.
    fn given(&self, names: &[&'static str]) -> Option<(&'static str, &str)> {
        names.iter().find_map(|wanted| {
            let found = self.0.iter().find(|(name, _)| name == wanted);
            found
                .map(|(_, value)| (*wanted, value.as_str()))
                .filter(|(_, value)| !value.is_empty())
        })
    }

    pub(super) fn text(&self, names: &[&'static str]) -> Option<&str> {
        self.given(names).map(|(_, value)| value)
    }

    pub(super) fn number(&self, names: &[&'static str]) -> Result<Option<u64>, Failure> {
        let number = |(name, value): (_, &str)| {
            let wrong = |_| Failure::Query(format!("{name}: {value:?} is not a number"));
            value.parse().map_err(wrong)
        };
        self.given(names).map(number).transpose()
    }

    /// `true` or `false`.
    pub(super) fn flag(&self, names: &[&'static str]) -> Result<Option<bool>, Failure> {
        self.one_of(names, &[("true", true), ("false", false)])
    }

    /// `local` or `remote`.
    pub(super) fn side(&self, names: &[&'static str]) -> Result<Option<Side>, Failure> {
        self.one_of(names, &[("local", Side::Local), ("remote", Side::Remote)])
    }

    /// `forward` or `backward`.
    pub(super) fn direction(&self) -> Result<Option<Direction>, Failure> {
        let known = [
            ("forward", Direction::Forward),
            ("backward", Direction::Backward),
        ];
        self.one_of(&["direction"], &known)
    }

    fn one_of<T: Copy>(
        &self,
        names: &[&'static str],
        known: &[(&str, T)],
    ) -> Result<Option<T>, Failure> {
        let choose = |(name, value): (_, &str)| {
            let found = known.iter().find(|(text, _)| *text == value);
            found.map(|(_, meant)| *meant).ok_or_else(|| {
                let known: Vec<_> = known.iter().map(|(text, _)| *text).collect();
                let known = known.join(" or ");
                Failure::Query(format!("{name}: {value:?} is not {known}"))
            })
        };
        self.given(names).map(choose).transpose()
    }

    /// A time since 1970 in seconds, milliseconds, microseconds or nanoseconds, which its size tells.
    pub(super) fn moment(&self, name: &'static str) -> Result<Option<Moment>, Failure> {
        Ok(self.number(&[name])?.map(Moment::of_number))
    }

    /// The elements of a list with commas, each read by `read`.
    pub(super) fn list<T>(
        &self,
        names: &[&'static str],
        read: impl Fn(&str) -> Option<T>,
    ) -> Result<Vec<T>, Failure> {
        let Some((name, list)) = self.given(names) else {
            return Ok(Vec::new());
        };
        let items = list.split(',').map(str::trim).filter(|i| !i.is_empty());
        let read = |item| {
            let wrong = || Failure::Value(format!("{name}: unknown value {item:?}"));
            read(item).ok_or_else(wrong)
        };
        items.map(read).collect()
    }

    /// A value with a form of its own, such as an address.
    pub(super) fn value<T: FromStr>(&self, names: &[&'static str]) -> Result<Option<T>, Failure> {
        let read = |(name, value): (_, &str)| {
            let wrong = |_| Failure::Value(format!("{name}: {value:?} has another form"));
            value.parse().map_err(wrong)
        };
        self.given(names).map(read).transpose()
    }
}

/// Name and value of a parameter; nothing if the name is empty.
fn decode(part: &str) -> Option<(String, String)> {
    let literal = part.strip_prefix("query=").map(with_pluses);
    let part = literal.as_deref().unwrap_or(part);
    let (name, value) = form_urlencoded::parse(part.as_bytes()).next()?;
    (!name.is_empty()).then(|| (name.into_owned(), value.into_owned()))
}

/// The parameter `query` with each `+` encoded with which a word begins. Others are spaces, as in all parameters.
fn with_pluses(value: &str) -> String {
    let mut text = format!("{TEXT}=");
    let mut between_words = true;
    let mut rest = value;
    while let Some(first) = rest.chars().next() {
        let space = rest.starts_with("%20") || (first == '+' && !between_words);
        let length = if space && first == '%' {
            3
        } else {
            first.len_utf8()
        };
        match first {
            '+' if between_words => text.push_str("%2B"),
            _ => text.push_str(&rest[..length]),
        }
        between_words = space;
        rest = &rest[length..];
    }
    text
}

impl Moment {
    /// A number below 10^11 counts seconds, below 10^14 milliseconds, below 10^17 microseconds, else nanoseconds.
    fn of_number(number: u64) -> Self {
        const UNITS: [(u64, u64); 3] = [
            (100_000_000_000, 1_000_000_000),
            (100_000_000_000_000, 1_000_000),
            (100_000_000_000_000_000, 1_000),
        ];
        let unit = UNITS.iter().find(|(below, _)| number < *below);
        let nanos = unit.map_or(1, |(_, nanos)| *nanos);
        // At most 10^20 / 1.8, which is above the range of the type.
        let first = number.saturating_mul(nanos);
        Self {
            first: Timestamp(first),
            last: Timestamp(first.saturating_add(nanos - 1)),
            in_nanos: unit.is_none(),
        }
    }
}

/// An address with a port, or without: then it means any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Address {
    Socket(SocketAddr),
    Host(IpAddr),
}

impl FromStr for Address {
    type Err = std::net::AddrParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.parse::<SocketAddr>() {
            Ok(address) => Ok(Self::Socket(canonical(address))),
            Err(_) => Ok(Self::Host(text.parse::<IpAddr>()?.to_canonical())),
        }
    }
}

/// The address; of an IPv4-mapped one, the IPv4 address.
pub(super) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// `seconds.nanoseconds`, in nine digits or unpadded; or nanoseconds alone.
pub(super) fn connection_id(text: &str) -> Option<ConnectionId> {
    let digits = |t: &str| !t.is_empty() && t.bytes().all(|b| b.is_ascii_digit());
    let number = |t: &str| digits(t).then(|| t.parse::<u64>().ok()).flatten();
    let Some((seconds, nanos)) = text.split_once('.') else {
        return number(text).map(ConnectionId);
    };
    let nanos = number(nanos).filter(|nanos| *nanos < 1_000_000_000)?;
    let id = number(seconds)?
        .checked_mul(1_000_000_000)?
        .checked_add(nanos)?;
    Some(ConnectionId(id))
}

/// `seconds.nanoseconds`, in nine digits.
pub(super) fn seconds(ConnectionId(nanos): ConnectionId) -> String {
    format!("{}.{:09}", nanos / 1_000_000_000, nanos % 1_000_000_000)
}

#[cfg(test)]
mod tests;
