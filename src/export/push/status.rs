//! What came of the profiles that are pushed.

use serde::Serialize;

use super::{Options, Protocol};

/// What was pushed so far.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Status {
    /// The store's protocol.
    pub protocol: Protocol,
    /// The URL that takes profiles.
    pub url: String,
    /// Time between two profiles, in milliseconds.
    pub interval_ms: u64,
    /// Number of profiles that wait.
    pub queued: u64,
    /// Their size, in bytes.
    pub queued_bytes: u64,
    /// Number of profiles that the store has taken.
    pub delivered: u64,
    /// Their size, in bytes.
    pub delivered_bytes: u64,
    /// Number of profiles that the store has refused, wholly or in part.
    pub refused: u64,
    /// Number of profiles that were dropped: no room, not made, or not delivered in time at the end.
    pub dropped: u64,
    /// Number of attempts that failed and were to be repeated.
    pub retries: u64,
    /// Whether the last attempt failed.
    pub failing: bool,
    /// Why the newest attempt of those that failed did.
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

    /// One line for the end of a session.
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
