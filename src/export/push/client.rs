//! One request to the store.

use std::fs;
use std::io::Read;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceResponse;
use prost::Message;
use ureq::Agent;
use ureq::http::Response;
use ureq::http::header::{HeaderMap, RETRY_AFTER};

use super::queue::Outcome;
use super::{Destination, Limits, Protocol};
use memprof_sys::http_client::{self, Authorities};
use memprof_sys::text::printable;

/// Bytes of a reply that are read, and characters of it in a message.
const REPLY: u64 = 64 << 10;
const REPLY_SHOWN: usize = 200;
/// Maximum size of a file with a token or a password, in bytes.
const SECRET: u64 = 64 << 10;

/// How memprof authenticates itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credentials {
    /// A bearer token, in this file.
    Token(PathBuf),
    /// A user name, and a password in this file.
    Password(String, PathBuf),
}

impl Credentials {
    fn file(&self) -> &PathBuf {
        match self {
            Credentials::Token(file) | Credentials::Password(_, file) => file,
        }
    }

    /// The value of the header `Authorization`.
    fn header(&self) -> Result<String> {
        let file = self.file();
        let shown = file.display();
        let mut text = String::new();
        let opened = fs::File::open(file).with_context(|| format!("cannot read {shown}"))?;
        let mut bounded = opened.take(SECRET);
        let read = bounded.read_to_string(&mut text);
        read.with_context(|| format!("cannot read {shown}"))?;
        // A line, as editors and `echo` write it.
        let secret = text.trim_end_matches(['\r', '\n']);
        if secret.is_empty() {
            bail!("{shown} is empty; write the secret into it");
        }
        Ok(match self {
            Credentials::Token(_) => {
                if !secret.bytes().all(|b| b.is_ascii_graphic()) {
                    bail!("{shown} has spaces or other characters that a token cannot have");
                }
                format!("Bearer {secret}")
            }
            Credentials::Password(user, _) => {
                let pair = BASE64_STANDARD.encode(format!("{user}:{secret}"));
                format!("Basic {pair}")
            }
        })
    }
}

pub(super) struct Client {
    agent: Agent,
    protocol: Protocol,
    url: String,
    credentials: Option<Credentials>,
    /// The header that was read last: a file that is being replaced cannot be read for a moment.
    authorization: Option<String>,
}

impl Client {
    /// A client for a store; `authorities` are those of the system if there are none.
    ///
    /// # Errors
    /// The credentials cannot be read.
    pub fn new(
        destination: &Destination,
        credentials: Option<Credentials>,
        authorities: Option<Authorities>,
        limits: &Limits,
    ) -> Result<Client> {
        let url = destination.url();
        let authorization = credentials.as_ref().map(Credentials::header).transpose()?;
        let authorities = authorities.unwrap_or_else(|| http_client::authorities_for([&*url]));
        let config = http_client::settings(authorities)
            // A redirect would send the profile, and the credentials, to where the user did not say.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(Some(limits.connect))
            .timeout_global(Some(limits.request))
            .build();
        Ok(Client {
            agent: config.into(),
            protocol: destination.protocol,
            url,
            credentials,
            authorization,
        })
    }

    /// Reads the credentials again: tokens are replaced while memprof runs.
    fn read_credentials(&mut self) {
        if let Some(Ok(new)) = self.credentials.as_ref().map(Credentials::header) {
            self.authorization = Some(new);
        }
    }

    /// Sends a profile.
    pub fn send(&mut self, body: &[u8]) -> Outcome {
        self.read_credentials();
        let mut request = self.agent.post(&self.url);
        for (name, value) in headers(self.protocol) {
            request = request.header(*name, *value);
        }
        if let Some(authorization) = &self.authorization {
            request = request.header("Authorization", authorization);
        }
        match request.send(body) {
            Ok(response) => self.outcome(response),
            Err(e) => Outcome::Failed(reason(&e), None),
        }
    }

    fn outcome(&self, response: Response<ureq::Body>) -> Outcome {
        let status = response.status().as_u16();
        let after = pause(response.headers());
        let location = response.headers().get("location").cloned();
        let mut reply = Vec::new();
        let read = response
            .into_body()
            .into_reader()
            .take(REPLY)
            .read_to_end(&mut reply);
        let said = said(&reply);
        match status {
            // What the status says holds even if the rest does not arrive.
            200..=299 if read.is_err() => Outcome::Delivered,
            200..=299 => match self.protocol {
                Protocol::Otlp => accepted(&reply),
                Protocol::Pyroscope | Protocol::Parca => Outcome::Delivered,
            },
            300..=399 => {
                let to = location.as_ref().and_then(|to| to.to_str().ok());
                let to = to.map_or(String::new(), |to| format!(" to {}", printable(to)));
                Outcome::Refused(format!(
                    "the store redirects{to} (status {status}); give that URL with --push"
                ))
            }
            401 | 403 => Outcome::Refused(format!(
                "the store does not accept the credentials (status {status}{said}); see --push-token-file, --push-user \
                 and --push-password-file"
            )),
            404 | 405 | 415 => Outcome::Refused(format!(
                "this URL takes no profiles (status {status}{said}); see --push"
            )),
            408 | 429 | 502 | 503 | 504 => Outcome::Failed(
                format!("the store answered with status {status}{said}"),
                after,
            ),
            _ => Outcome::Refused(format!("the store answered with status {status}{said}")),
        }
    }
}

fn headers(protocol: Protocol) -> &'static [(&'static str, &'static str)] {
    match protocol {
        Protocol::Otlp => &[
            ("Content-Type", "application/x-protobuf"),
            ("Content-Encoding", "gzip"),
        ],
        // Profiles in it are compressed.
        Protocol::Pyroscope => &[
            ("Content-Type", "application/proto"),
            ("Connect-Protocol-Version", "1"),
        ],
        Protocol::Parca => &[("Content-Type", "application/json")],
    }
}

/// What an OTLP store says to a request that it accepted: maybe it did not take all of it.
fn accepted(reply: &[u8]) -> Outcome {
    let partial = ExportProfilesServiceResponse::decode(reply).ok();
    let partial = partial.and_then(|reply| reply.partial_success);
    match partial.filter(|partial| partial.rejected_profiles > 0) {
        None => Outcome::Delivered,
        Some(partial) => {
            let (n, why) = (partial.rejected_profiles, partial.error_message);
            let why = shortened(&why);
            Outcome::Refused(format!("the store did not take {n} of the profiles: {why}"))
        }
    }
}

/// The pause that a store asks for: seconds, or a date.
fn pause(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    match value.parse() {
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        Err(_) => {
            let at = httpdate::parse_http_date(value).ok()?;
            Some(at.duration_since(SystemTime::now()).unwrap_or_default())
        }
    }
}

/// The beginning of a reply in text, for messages.
fn said(reply: &[u8]) -> String {
    let text = std::str::from_utf8(reply).map(str::trim);
    match text {
        Ok(text) if !text.is_empty() => format!(": {}", shortened(text)),
        _ => String::new(),
    }
}

fn shortened(text: &str) -> String {
    let first: String = text.chars().take(REPLY_SHOWN).collect();
    printable(&first).into_owned()
}

/// Why there was no reply.
fn reason(error: &ureq::Error) -> String {
    match error {
        ureq::Error::HostNotFound => "the name of its host is not known".to_owned(),
        ureq::Error::Timeout(_) => "it did not answer in time".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_come_from_files() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("secret");
        let token = Credentials::Token(file.clone());
        let e = format!("{:#}", token.header().unwrap_err());
        assert!(e.contains("secret: No such file"), "{e}");
        fs::write(&file, "abc.DEF\n").unwrap();
        assert_eq!(token.header().unwrap(), "Bearer abc.DEF");
        let password = Credentials::Password("me".into(), file.clone());
        assert_eq!(password.header().unwrap(), "Basic bWU6YWJjLkRFRg==");
        for bad in ["", "\n", "a b", "a\nb"] {
            fs::write(&file, bad).unwrap();
            token.header().unwrap_err();
        }
        fs::write(&file, "a b ").unwrap();
        assert_eq!(password.header().unwrap(), "Basic bWU6YSBiIA==");
    }

    #[test]
    fn pauses_are_seconds_or_dates() {
        let of = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, value.parse().unwrap());
            pause(&headers)
        };
        assert_eq!(of("7"), Some(Duration::from_secs(7)));
        assert_eq!(of("Wed, 21 Oct 2015 07:28:00 GMT"), Some(Duration::ZERO));
        let soon = SystemTime::now() + Duration::from_secs(100);
        let left = of(&httpdate::fmt_http_date(soon)).unwrap();
        assert!(left > Duration::from_secs(90) && left <= Duration::from_secs(100));
        assert_eq!((of("-1"), of("soon")), (None, None));
        assert_eq!(pause(&HeaderMap::new()), None);
    }
}
