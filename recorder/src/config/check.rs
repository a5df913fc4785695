//! Values at the top of the file, which the command line has too.

use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;

use toml::{Spanned, Value};

use super::{ConfigError, DEFAULT_RING, Text, values};
use crate::capture::Source;

/// Checks the size of the ring buffer in bytes: BPF demands a power of two.
///
/// # Errors
/// The value is not allowed; the text says which are.
pub fn ring(bytes: u64) -> Result<u64, String> {
    let fits = bytes.is_power_of_two() && (128 << 10..=1 << 30).contains(&bytes);
    fits.then_some(bytes)
        .ok_or_else(|| "expected a power of two from 128KiB to 1GiB, such as `32MiB`".into())
}

/// Checks the origin of a page.
///
/// # Errors
/// The value is not allowed; the text says which are.
pub fn origin(origin: &str) -> Result<String, String> {
    let host = origin.split_once("://").map(|(_, host)| host);
    let plain = host.is_some_and(|host| !host.is_empty() && !host.contains(['/', ' ', ',']));
    let fits = origin == "*" || (plain && origin.bytes().all(|c| c.is_ascii_graphic()));
    fits.then(|| origin.to_owned()).ok_or_else(|| {
        "expected scheme, host and port, such as `http://192.168.1.2:8080`, or `*` for any".into()
    })
}

/// Reads an address.
///
/// # Errors
/// The value is not allowed; the text says which are.
pub fn address(text: &str) -> Result<IpAddr, String> {
    text.parse()
        .map_err(|_| "expected an IP address without a port, such as `127.0.0.1` or `::`".into())
}

impl Text<'_> {
    /// A value that was parsed from a text.
    pub(super) fn parsed<T>(
        &self,
        span: Range<usize>,
        key: &str,
        value: Result<T, String>,
    ) -> Result<T, ConfigError> {
        value
            .map_err(|expected| self.error(Some(span), format!("wrong value of `{key}`"), expected))
    }

    pub(super) fn size(
        &self,
        value: Option<Spanned<Value>>,
        key: &str,
    ) -> Result<Option<u64>, ConfigError> {
        let Some(value) = value else { return Ok(None) };
        let span = value.span();
        let size = match value.into_inner() {
            Value::Integer(bytes) => {
                u64::try_from(bytes).map_err(|_| "expected a number of bytes, 0 or more".into())
            }
            Value::String(text) => values::size(&text),
            _ => Err("expected a number of bytes, or a text such as \"64MiB\"".into()),
        };
        self.parsed(span, key, size).map(Some)
    }

    pub(super) fn ring(&self, value: Option<Spanned<Value>>) -> Result<u64, ConfigError> {
        let Some(span) = value.as_ref().map(Spanned::span) else {
            return Ok(DEFAULT_RING);
        };
        let bytes = self.size(value, "ring")?.unwrap_or(DEFAULT_RING);
        self.parsed(span, "ring", ring(bytes))
    }

    pub(super) fn addresses(
        &self,
        value: Option<Spanned<Value>>,
    ) -> Result<Vec<IpAddr>, ConfigError> {
        let Some(value) = value else {
            return Ok(vec![Ipv4Addr::LOCALHOST.into()]);
        };
        let span = value.span();
        let list = match value.into_inner() {
            Value::Array(list) => list,
            one => vec![one],
        };
        let read = |value: &Value| address(value.as_str().unwrap_or_default());
        let all: Result<Vec<_>, _> = list.iter().map(read).collect();
        let all = all.and_then(|all| match all.is_empty() {
            true => address("").map(|one| vec![one]),
            false => Ok(all),
        });
        self.parsed(span, "listen", all)
    }

    pub(super) fn origins(&self, list: Vec<Spanned<String>>) -> Result<Vec<String>, ConfigError> {
        let check = |text: Spanned<String>| {
            self.parsed(text.span(), "cors_origins", origin(text.get_ref()))
        };
        list.into_iter().map(check).collect()
    }

    pub(super) fn capture_source(
        &self,
        value: Option<Spanned<String>>,
    ) -> Result<Source, ConfigError> {
        let Some(value) = value else {
            return Ok(Source::Auto);
        };
        let source = match &value.get_ref()[..] {
            "auto" => Ok(Source::Auto),
            "sockets" => Ok(Source::Sockets),
            "calls" => Ok(Source::Calls),
            _ => Err("expected \"auto\", \"sockets\" or \"calls\"".into()),
        };
        self.parsed(value.span(), "source", source)
    }
}
