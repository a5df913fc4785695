//! The flags for pushing profiles to a store.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::values::parse_seconds;
use crate::export::push::{Credentials, Destination, Options, parse_label};

/// Default interval between two profiles.
const INTERVAL: Duration = Duration::from_secs(60);
/// Minimum interval: each profile takes a page scan.
const SHORTEST: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub(super) struct PushArgs {
    /// Push profiles to a store: `otlp+https://HOST:4318` (OTLP over HTTP), `pyroscope+https://HOST:4040` or
    /// `parca+https://HOST:7070`; `http` instead of `https` is unencrypted. memprof pushes every --push-interval
    /// seconds and at the end
    #[arg(long, value_name = "PROTOCOL+URL", value_parser = Destination::parse)]
    push: Option<Destination>,
    /// Interval between pushed profiles in seconds, 1 or more [default: 60]
    #[arg(long, value_name = "SECS", requires = "push", value_parser = parse_interval)]
    push_interval: Option<Duration>,
    /// Add or replace an attribute of the pushed profiles: `service.name=shop`. May be repeated
    #[arg(long, value_name = "NAME=VALUE", requires = "push", value_parser = parse_label)]
    push_label: Vec<(String, String)>,
    /// Authenticate with the bearer token in this file, which is re-read for each profile
    #[arg(
        long,
        value_name = "FILE",
        requires = "push",
        conflicts_with = "push_user"
    )]
    push_token_file: Option<PathBuf>,
    /// Authenticate as this user, with the password in --push-password-file
    #[arg(long, value_name = "NAME", requires_all = ["push", "push_password_file"], value_parser = parse_user)]
    push_user: Option<String>,
    /// File with the password, which is re-read for each profile
    #[arg(long, value_name = "FILE", requires = "push_user")]
    push_password_file: Option<PathBuf>,
    /// Trust the certificate authorities in this PEM file instead of the system's
    #[arg(long, value_name = "FILE", requires = "push")]
    push_ca: Option<PathBuf>,
}

fn parse_interval(seconds: &str) -> Result<Duration, String> {
    let interval = parse_seconds(seconds)?;
    match interval >= SHORTEST {
        true => Ok(interval),
        false => Err("expected a number of seconds, 1 or more".into()),
    }
}

fn parse_user(name: &str) -> Result<String, String> {
    // The server would take the text after a colon for the password.
    match name.is_empty() || name.contains(|c: char| c == ':' || c.is_control()) {
        true => Err("expected a name without `:`".into()),
        false => Ok(name.to_owned()),
    }
}

impl PushArgs {
    pub(super) fn options(self) -> Option<Options> {
        let password = self.push_user.zip(self.push_password_file);
        let password = password.map(|(user, file)| Credentials::Password(user, file));
        let token = self.push_token_file.map(Credentials::Token);
        Some(Options {
            destination: self.push?,
            interval: self.push_interval.unwrap_or(INTERVAL),
            labels: self.push_label,
            credentials: token.or(password),
            authorities: self.push_ca,
        })
    }
}
