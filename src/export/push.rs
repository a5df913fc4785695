//! Pushes profiles to a profile store: OTLP over HTTP, or pprof for Pyroscope and Parca.
//!
//! [`Pusher`] creates a profile once per interval and adds it to a bounded queue. A separate thread sends it and retries
//! after failures. No other thread waits for the store: if the store is slow or unreachable, the oldest profiles are
//! dropped and counted.
//!
//! The messages of OTLP come from the crate `opentelemetry-proto`, which is generated from the protocol's own files and
//! adds two small crates. The requests of Pyroscope and Parca are a few fields around pprof, defined here.

mod backoff;
mod client;
mod destination;
mod interval;
mod otlp;
mod queue;
mod resource;
mod series;
mod status;

use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;

pub use self::client::Credentials;
pub use self::destination::{Destination, Protocol};
pub use self::resource::parse_label;
pub use self::status::Status;
use crate::export::pprof;
use client::Client;
use interval::Intervals;
use memprof_profile::{FrameFilter, Report};
use memprof_sys::freeze::now_ns;
use memprof_sys::privileges::{self, ThreadRole};
use memprof_sys::{http_client, messages, priority};
use queue::{News, Queue};
use resource::Resources;

/// Options of a push.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The store.
    pub destination: Destination,
    /// Time between two profiles.
    pub interval: Duration,
    /// Attributes from the user: (name, value).
    pub labels: Vec<(String, String)>,
    /// Credentials of memprof at the store.
    pub credentials: Option<Credentials>,
    /// A PEM file with certificate authorities to trust instead of the system's.
    pub authorities: Option<PathBuf>,
}

/// Limits of the queue and of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of queued profiles.
    pub profiles: usize,
    /// Maximum size of the queued profiles, in bytes.
    pub bytes: usize,
    /// Timeout of a connection attempt.
    pub connect: Duration,
    /// Timeout of a request including its reply.
    pub request: Duration,
    /// The first pause after a failure.
    pub first_pause: Duration,
    /// The maximum pause, unless the store requests a longer one.
    pub longest_pause: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            profiles: 16,
            bytes: 64 << 20,
            connect: Duration::from_secs(10),
            request: Duration::from_secs(30),
            first_pause: Duration::from_secs(1),
            longest_pause: Duration::from_secs(60),
        }
    }
}

/// A handle to the queue of profiles.
#[derive(Clone)]
pub struct PushHandle(Arc<Queue>);

impl PushHandle {
    /// The current status.
    pub fn status(&self) -> Status {
        self.0.status()
    }

    /// Waits until all profiles are delivered, but for at most `limit`.
    pub fn finish(&self, limit: Duration) {
        self.0.finish(limit);
    }

    /// Reports that a profile could not be created.
    pub fn not_made(&self, why: String) {
        tell(&self.0, self.0.not_made(why));
    }
}

/// Creates profiles in the format of the store.
pub struct Pusher {
    protocol: Protocol,
    resources: Resources,
    intervals: Intervals,
    /// Time of the last profile or of memprof's start, in ns of `CLOCK_MONOTONIC`.
    last_ns: u64,
    queue: Arc<Queue>,
}

/// Starts the sending thread, which [`PushHandle::finish`] ends.
///
/// # Errors
/// If the credentials or the authorities cannot be read, or the thread cannot be started.
pub fn start(options: &Options, limits: Limits) -> Result<(Pusher, PushHandle)> {
    let authorities = options.authorities.as_deref();
    let authorities = authorities.map(http_client::authorities_in).transpose();
    let authorities = authorities.context("cannot use --push-ca")?;
    let client = Client::new(
        &options.destination,
        options.credentials.clone(),
        authorities,
        &limits,
    );
    let mut client = client.context("cannot push profiles")?;
    let queue = Arc::new(Queue::new(limits, Status::new(options)));
    let worker = thread::Builder::new().name("memprof-push".into());
    let sends = Arc::clone(&queue);
    worker
        .spawn(move || {
            priority::restore();
            privileges::reduce(ThreadRole::Push);
            while let Some(body) = sends.next() {
                let outcome = client.send(&body);
                tracing::debug!(bytes = body.len(), ?outcome, "pushed a profile");
                tell(&sends, sends.settle(outcome));
            }
        })
        .context("cannot start the thread that pushes profiles")?;
    let pusher = Pusher {
        protocol: options.destination.protocol,
        resources: Resources::new(options.labels.clone()),
        intervals: Intervals::default(),
        last_ns: now_ns(),
        queue: Arc::clone(&queue),
    };
    Ok((pusher, PushHandle(queue)))
}

/// Prints the first failure and the first success after it. Later ones are only counted.
fn tell(queue: &Queue, news: Option<News>) {
    let status = || queue.status();
    match news {
        None => {}
        Some(News::Failing(why)) => messages::print(&format!(
            "push: {}: {why}; memprof goes on, and says at its end what was not delivered",
            status().url
        )),
        Some(News::Recovered) => {
            messages::print(&format!("push: {} takes profiles again", status().url));
        }
    }
}

impl Pusher {
    /// Creates a profile of this report and queues it.
    ///
    /// # Errors
    /// If the profile cannot be encoded.
    pub fn push(&mut self, report: &Report) -> io::Result<()> {
        let report = &self.intervals.since_last(report);
        let report = &*report.showing(FrameFilter::All);
        let profile = &report.profile;
        let lasted = Duration::from_nanos(profile.taken_ns.saturating_sub(self.last_ns));
        self.last_ns = profile.taken_ns;
        let attributes = self.resources.for_profile(profile);
        let values = pprof::all_values(profile).into_iter();
        let (interval, moment): (Vec<_>, Vec<_>) =
            values.partition(|(_, kind)| interval::is_cumulative(*kind));
        let body = match self.protocol {
            Protocol::Otlp => {
                let request = otlp::request(report, &attributes, &moment, &interval, lasted);
                let mut out = GzEncoder::new(Vec::new(), Compression::default());
                out.write_all(&request.encode_to_vec())?;
                out.finish()?
            }
            // Pyroscope and Parca sum all values of a profile with a duration, so values of the moment are in a separate
            // profile.
            Protocol::Pyroscope | Protocol::Parca => {
                let mut parts = vec![Vec::new()];
                pprof::write_values(report, moment, Duration::ZERO, &mut parts[0])?;
                if !interval.is_empty() {
                    let mut part = Vec::new();
                    pprof::write_values(report, interval, lasted, &mut part)?;
                    parts.push(part);
                }
                let labels = resource::labels(&attributes);
                match self.protocol {
                    Protocol::Parca => series::parca(labels, parts),
                    _ => series::pyroscope(labels, parts),
                }
            }
        };
        self.queue.push(body);
        Ok(())
    }
}

/// A random part of the interval as the delay before the first profile, so that many machines that start together do not
/// report at the same moment.
pub(crate) fn first_wait(interval: Duration) -> Duration {
    backoff::part(interval)
}

/// Identifies a profile, so that a store recognizes a duplicate.
fn random_id() -> [u8; 16] {
    let random = |part: u8| RandomState::new().hash_one(part).to_le_bytes();
    let mut id = [0; 16];
    id[..8].copy_from_slice(&random(0));
    id[8..].copy_from_slice(&random(1));
    id
}
