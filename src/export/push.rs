//! Pushes profiles to a store of profiles: OTLP over HTTP, or pprof as Pyroscope and Parca take it.
//!
//! A profile is made every so many seconds ([`Pusher`]) and waits in a queue of bounded size. A thread of its own sends it
//! and tries again after failures. Nobody else waits for the store: if it is slow or gone, the oldest profiles are dropped,
//! and counted.
//!
//! The messages of OTLP are those of the crate `opentelemetry-proto`, which is generated from the protocol's own files and
//! brings two small crates. Pyroscope's and Parca's requests are a few fields around pprof, written here.

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
use memprof_profile::{Frames, Report};
use memprof_sys::freeze::now_ns;
use memprof_sys::privileges::{self, Role};
use memprof_sys::{console, http_client, priority};
use queue::{News, Queue};
use resource::Resources;

/// What is pushed, and where to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The store.
    pub destination: Destination,
    /// Time between two profiles.
    pub interval: Duration,
    /// Attributes that the user gives, by name.
    pub labels: Vec<(String, String)>,
    /// How memprof authenticates itself.
    pub credentials: Option<Credentials>,
    /// A PEM file with the authorities that are trusted instead of the system's.
    pub authorities: Option<PathBuf>,
}

/// What may wait, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Number of profiles that wait.
    pub profiles: usize,
    /// Their size, in bytes.
    pub bytes: usize,
    /// Time to connect.
    pub connect: Duration,
    /// Time for a request and its reply.
    pub request: Duration,
    /// The first pause after a failure.
    pub first_pause: Duration,
    /// The longest pause, unless the store asks for a longer one.
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

/// A handle to what is pushed.
#[derive(Clone)]
pub struct Pushing(Arc<Queue>);

impl Pushing {
    /// The status now.
    pub fn status(&self) -> Status {
        self.0.status()
    }

    /// Waits until everything is delivered, but not longer than this.
    pub fn finish(&self, limit: Duration) {
        self.0.finish(limit);
    }

    /// Says that no profile could be made.
    pub fn not_made(&self, why: String) {
        tell(&self.0, self.0.not_made(why));
    }
}

/// Makes profiles in the form that the store takes.
pub struct Pusher {
    protocol: Protocol,
    resources: Resources,
    intervals: Intervals,
    /// When the last profile was made, or memprof began, in ns of `CLOCK_MONOTONIC`.
    last_ns: u64,
    queue: Arc<Queue>,
}

/// Starts the thread that sends. It ends with [`Pushing::finish`].
///
/// # Errors
/// The credentials or the authorities cannot be read, or the thread cannot be started.
pub fn start(options: &Options, limits: Limits) -> Result<(Pusher, Pushing)> {
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
            privileges::reduce(Role::Push);
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
    Ok((pusher, Pushing(queue)))
}

/// Says the first failure and the first success after it; what follows is counted.
fn tell(queue: &Queue, news: Option<News>) {
    let status = || queue.status();
    match news {
        None => {}
        Some(News::Failing(why)) => console::print(&format!(
            "push: {}: {why}; memprof goes on, and says at its end what was not delivered",
            status().url
        )),
        Some(News::Recovered) => {
            console::print(&format!("push: {} takes profiles again", status().url));
        }
    }
}

impl Pusher {
    /// Makes a profile of this report, and queues it.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn push(&mut self, report: &Report) -> io::Result<()> {
        let report = &self.intervals.since_last(report);
        let report = &*report.showing(Frames::All);
        let profile = &report.profile;
        let lasted = Duration::from_nanos(profile.taken_ns.saturating_sub(self.last_ns));
        self.last_ns = profile.taken_ns;
        let attributes = self.resources.of(profile);
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
            // A store takes everything in a profile with a duration for sums over it.
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

/// A random part of the time until the first profile, so that a thousand machines that start together do not report together.
pub(crate) fn first_wait(interval: Duration) -> Duration {
    backoff::part(interval)
}

/// Tells a profile from others, also if a store gets it twice.
fn random_id() -> [u8; 16] {
    let random = |part: u8| RandomState::new().hash_one(part).to_le_bytes();
    let mut id = [0; 16];
    id[..8].copy_from_slice(&random(0));
    id[8..].copy_from_slice(&random(1));
    id
}
