//! Supplies the profiles to push to a store.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{MissedTickBehavior, interval_at, timeout};

use super::reports::Reports;
use crate::app::config::Config;
use crate::collect::ProviderError;
use crate::export::push::{self, Limits, PushHandle, Pusher};
use crate::http::api::Provider;
use memprof_profile::Report;
use memprof_sys::messages;

/// Maximum time to make the last profile, and again to deliver it.
const LAST: Duration = Duration::from_secs(5);

/// Starts the thread that sends profiles, if configured. Prints the destination.
///
/// # Errors
/// The credentials or certificate authorities cannot be read, or the thread cannot be started.
pub(super) fn start(config: &Config) -> Result<Option<(Pusher, PushHandle)>> {
    let Some(options) = &config.push else {
        return Ok(None);
    };
    let (seconds, to) = (options.interval.as_secs_f64(), &options.destination);
    messages::print(&format!("pushing a profile every {seconds} s to {to}"));
    if options.credentials.is_some() && to.is_plain() {
        messages::print(&format!(
            "warning: {to} is not encrypted: others on the way can read the credentials and the profiles; use https"
        ));
    }
    push::start(options, Limits::default()).map(Some)
}

/// Handle of the task that pushes profiles until the session ends.
pub(super) struct PushLoop {
    pushing: PushHandle,
    task: JoinHandle<()>,
    stop: watch::Sender<bool>,
}

impl PushLoop {
    /// Starts to push. Needs a tokio runtime.
    pub(super) fn start(
        reports: Arc<Reports>,
        pusher: Pusher,
        pushing: PushHandle,
        interval: Duration,
    ) -> PushLoop {
        let (stop, stopped) = watch::channel(false);
        let feeder = Feeder {
            reports,
            pusher: Some(pusher),
            pushing: pushing.clone(),
            last: None,
        };
        PushLoop {
            pushing,
            task: tokio::spawn(feeder.run(interval, stopped)),
            stop,
        }
    }

    /// Pushes the last profile and waits for the store for a bounded time. Returns a summary of all pushes for the
    /// user.
    pub(super) async fn finish(self) -> String {
        self.stop.send_replace(true);
        let _ = self.task.await;
        let pushing = self.pushing.clone();
        // `finish` returns in bounded time.
        let _ = spawn_blocking(move || pushing.finish(LAST)).await;
        self.pushing.status().line()
    }
}

struct Feeder {
    reports: Arc<Reports>,
    /// `None` while another thread makes a profile.
    pusher: Option<Pusher>,
    pushing: PushHandle,
    /// Sequence number of the last pushed report.
    last: Option<u64>,
}

impl Feeder {
    async fn run(mut self, interval: Duration, mut stopped: watch::Receiver<bool>) {
        let first = tokio::time::Instant::now() + push::first_wait(interval);
        let mut ticks = interval_at(first, interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                _ = stopped.changed() => break,
            }
            self.push().await;
        }
        if timeout(LAST, self.push()).await.is_err() {
            self.pushing
                .not_made("the last profile took too long".into());
        }
    }

    async fn push(&mut self) {
        let made = match self.reports.profile().await {
            // The last report of an ended target is pushed once: the target's memory is gone.
            Ok(report) if self.last == Some(report.sequence) && !report.profile.target.alive => {
                return;
            }
            Ok(report) => {
                self.last = Some(report.sequence);
                self.make(report).await
            }
            Err(ProviderError::NoTarget) => return,
            Err(e) => Err(e.to_string()),
        };
        if let Err(why) = made {
            self.pushing
                .not_made(format!("cannot make a profile: {why}"));
        }
    }

    async fn make(&mut self, report: Arc<Report>) -> Result<(), String> {
        let mut pusher = self.pusher.take().ok_or("an earlier one failed")?;
        let made = spawn_blocking(move || {
            let made = pusher.push(&report);
            (pusher, made)
        });
        let (pusher, made) = made.await.map_err(|e| e.to_string())?;
        self.pusher = Some(pusher);
        made.map_err(|e| e.to_string())
    }
}
