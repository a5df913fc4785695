//! The destination of a push: the protocol and the URL of the store.

use std::fmt;

use schemars::JsonSchema;
use serde::Serialize;
use ureq::http::Uri;

/// The protocol of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[schemars(rename = "PushProtocol")]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// OTLP over HTTP, with the profiles signal: OpenTelemetry collectors and stores that support it.
    Otlp,
    /// Pyroscope's push API, with pprof.
    Pyroscope,
    /// Parca's profile store, with pprof.
    Parca,
}

impl Protocol {
    /// All protocols.
    pub(crate) const ALL: [Protocol; 3] = [Protocol::Otlp, Protocol::Pyroscope, Protocol::Parca];

    /// The prefix of the protocol in front of a URL.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Protocol::Otlp => "otlp",
            Protocol::Pyroscope => "pyroscope",
            Protocol::Parca => "parca",
        }
    }

    /// The path of the push endpoint, relative to the user's URL.
    fn path(self) -> &'static str {
        match self {
            Protocol::Otlp => "/v1development/profiles",
            Protocol::Pyroscope => "/push.v1.PusherService/Push",
            Protocol::Parca => "/api/profiles/writeraw",
        }
    }
}

/// A profile store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    /// The protocol of the store.
    pub protocol: Protocol,
    /// The URL without the path of the protocol and without a trailing slash.
    base: String,
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.protocol.name(), self.base)
    }
}

impl Destination {
    /// Parses the value of `--push`, such as `otlp+https://collector:4318`.
    ///
    /// # Errors
    /// A message that describes the defect.
    pub fn parse(text: &str) -> Result<Destination, String> {
        let known = || {
            let names = Protocol::ALL.map(Protocol::name).join(", ");
            format!(
                "expected PROTOCOL+URL, such as `otlp+https://collector:4318`; the protocols are {names}"
            )
        };
        let (name, url) = text.split_once('+').ok_or_else(known)?;
        let protocol = Protocol::ALL.into_iter().find(|p| p.name() == name);
        let protocol = protocol.ok_or_else(known)?;
        let uri: Uri = url.parse().map_err(|e| format!("{url}: {e}"))?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) {
            return Err(known());
        }
        let authority = uri.authority().map(|a| a.as_str()).unwrap_or_default();
        if authority.contains('@') {
            return Err(
                "a URL with a password is visible to every user of this machine; use --push-user and \
                 --push-password-file"
                    .into(),
            );
        }
        if uri.query().is_some() || url.contains('#') {
            return Err(format!("{url}: expected a URL without `?` and `#`"));
        }
        Ok(Destination {
            protocol,
            base: url.trim_end_matches('/').to_owned(),
        })
    }

    /// The URL of the push endpoint.
    pub(crate) fn url(&self) -> String {
        format!("{}{}", self.base, self.protocol.path())
    }

    /// Whether the connection is unencrypted and leaves this machine, so that others may read the data.
    pub(crate) fn is_plain(&self) -> bool {
        let host = self.base.strip_prefix("http://");
        let local = |host: &str| {
            let name = host.split(['/', ':']).next().unwrap_or_default();
            name == "localhost" || name.starts_with("127.") || host.starts_with("[::1]")
        };
        host.is_some_and(|host| !local(host))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_protocol_has_its_path() {
        for (text, url) in [
            (
                "otlp+https://c:4318/",
                "https://c:4318/v1development/profiles",
            ),
            ("otlp+http://c/otlp", "http://c/otlp/v1development/profiles"),
            (
                "pyroscope+http://[::1]:4040",
                "http://[::1]:4040/push.v1.PusherService/Push",
            ),
            ("parca+http://p:7070", "http://p:7070/api/profiles/writeraw"),
        ] {
            let destination = Destination::parse(text).unwrap();
            assert_eq!(destination.url(), url);
            assert_eq!(destination.to_string(), text.trim_end_matches('/'));
        }
    }

    #[test]
    fn what_is_no_destination_is_refused() {
        for (text, why) in [
            ("", "PROTOCOL+URL"),
            ("https://c:4318", "PROTOCOL+URL"),
            ("jaeger+https://c", "otlp, pyroscope, parca"),
            ("otlp+ftp://c", "PROTOCOL+URL"),
            ("otlp+collector:4318", "PROTOCOL+URL"),
            ("otlp+https://", ""),
            ("otlp+https://me:secret@c", "--push-password-file"),
            ("otlp+https://c/?x", "without `?`"),
        ] {
            let e = Destination::parse(text).expect_err(text);
            assert!(e.contains(why), "{text}: {e}");
            assert!(!e.contains("secret"), "{e}");
        }
    }

    #[test]
    fn only_other_machines_are_reached_over_the_network() {
        let plain = |text| Destination::parse(text).unwrap().is_plain();
        assert!(plain("otlp+http://collector:4318"));
        for text in [
            "otlp+https://collector",
            "otlp+http://127.0.0.1:1/x",
            "otlp+http://localhost:1",
            "otlp+http://[::1]:1",
        ] {
            assert!(!plain(text), "{text}");
        }
    }
}
