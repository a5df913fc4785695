//! Counts of pushed profiles by outcome.

use schemars::JsonSchema;
use serde::Serialize;

use super::{Options, Protocol};

/// The status of a push.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[schemars(rename = "PushStatus")]
pub struct Status {
    /// The store's protocol.
    pub protocol: Protocol,
    /// The URL of the push endpoint.
    pub url: String,
    /// Time between two profiles, in milliseconds.
    pub interval_ms: u64,
    /// Number of queued profiles.
    pub queued: u64,
    /// Size of the queued profiles, in bytes.
    pub queued_bytes: u64,
    /// Number of profiles that the store has accepted.
    pub delivered: u64,
    /// Size of the accepted profiles, in bytes.
    pub delivered_bytes: u64,
    /// Number of profiles that the store has rejected, at least in part.
    pub refused: u64,
    /// Number of dropped profiles: the queue was full, the profile could not be created, or it was not delivered before the
    /// end.
    pub dropped: u64,
    /// Number of failed attempts after which a retry was due.
    pub retries: u64,
    /// Whether the last attempt failed.
    pub failing: bool,
    /// The error of the newest failed attempt.
    pub error: Option<String>,
}

impl Status {
    pub(super) fn new(options: &Options) -> Status {
        Status {
            protocol: options.destination.protocol,
            url: options.destination.url(),
            interval_ms: u64::try_from(options.interval.as_millis()).unwrap_or(u64::MAX),
            queued: 0,
            queued_bytes: 0,
            delivered: 0,
            delivered_bytes: 0,
            refused: 0,
            dropped: 0,
            retries: 0,
            failing: false,
            error: None,
        }
    }

    /// A one-line summary for the end of a session.
    pub fn line(&self) -> String {
        let profiles = |n: u64| match n {
            1 => "1 profile".to_owned(),
            n => format!("{n} profiles"),
        };
        let kib = self.delivered_bytes.div_ceil(1024);
        let mut line = format!("push: delivered {} ({kib} KiB)", profiles(self.delivered));
        if self.refused > 0 {
            line += &format!("; the store refused {}", profiles(self.refused));
        }
        if self.dropped > 0 {
            line += &format!("; {} not delivered", profiles(self.dropped));
        }
        if let Some(why) = self
            .error
            .as_ref()
            .filter(|_| self.refused + self.dropped > 0)
        {
            line += &format!("; the last failure: {why}");
        }
        line
    }
}
