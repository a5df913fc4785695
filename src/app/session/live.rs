//! The live view in addition to the server: shows reports with their past, and holds messages back while it owns the terminal.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::http::api::{ApiError, Provider, peak};
use crate::tui::{News, Past, Screen, ScreenOptions, Step, StepTo};
use memprof_heap::{Approach, HeapOptions};
use memprof_profile::Report;
use memprof_sys::ids::Pid;
use memprof_sys::messages;

/// memprof spends at most 1/`SHARE` of the time making reports.
const SHARE: u32 = 5;

/// A view that owns the terminal.
pub(super) struct Live {
    screen: Screen,
    feeding: JoinHandle<()>,
    taking_heaps: Option<JoinHandle<()>>,
    stepping: Option<JoinHandle<()>>,
}

impl Live {
    /// Takes over the terminal and starts to show reports. Needs a tokio runtime.
    ///
    /// # Errors
    /// The terminal cannot be used.
    pub(super) fn start(options: ScreenOptions, reports: Arc<dyn Provider>) -> Result<Live> {
        let mut screen = Screen::start(options, reports.opened().is_some())?;
        let news = screen.news();
        messages::hold(move |message| news.message(message));
        let heaps = screen.heaps.take();
        let taking_heaps = heaps
            .map(|wanted| tokio::spawn(take_heaps(Arc::clone(&reports), screen.news(), wanted)));
        let steps = screen.steps.take();
        let stepping =
            steps.map(|wanted| tokio::spawn(step(Arc::clone(&reports), screen.news(), wanted)));
        let alone = screen.alone.clone();
        let feeding = tokio::spawn(feed(reports, screen.news(), options.interval, alone));
        Ok(Live {
            screen,
            feeding,
            taking_heaps,
            stepping,
        })
    }

    /// Completes when the user quits.
    ///
    /// # Errors
    /// The terminal failed.
    pub(super) async fn ended(&mut self) -> Result<()> {
        let ended = (&mut self.screen.ended).await;
        ended.context("the screen thread ended early")?
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.feeding.abort();
        let tasks = [&self.taking_heaps, &self.stepping];
        tasks.into_iter().flatten().for_each(JoinHandle::abort);
        self.screen.end();
        messages::release();
    }
}

async fn feed(
    reports: Arc<dyn Provider>,
    news: News,
    interval: Duration,
    mut alone: watch::Receiver<Option<Pid>>,
) {
    let mut advised = false;
    let mut at_peak = None;
    loop {
        let begun = Instant::now();
        let report = match reports.profile().await {
            Ok(report) => reports.with_lines(report).await,
            Err(e) => Err(e),
        };
        // Sent first, so that one overview has both.
        show_past(&*reports, &news, &mut alone, &mut at_peak).await;
        match report {
            Ok(report) => {
                // Printed only once: the summary at the end repeats it.
                if let Some(advice) = report.symbols.advice().filter(|_| !advised) {
                    messages::print(advice);
                    advised = true;
                }
                news.report(report);
            }
            Err(e) => news.no_report(e.to_string()),
        }
        let next = begun + interval.max(begun.elapsed() * SHARE);
        // The peak of a process that is chosen meanwhile does not wait for the next report.
        while let Ok(Ok(())) = timeout_at(next, alone.changed()).await {
            show_past(&*reports, &news, &mut alone, &mut at_peak).await;
        }
        sleep_until(next).await;
    }
}

/// Shows the peak of the process that is shown alone, or of all together, and what grew lately. `at_peak` is the report of the
/// peak that was shown before, and becomes this one.
async fn show_past(
    reports: &dyn Provider,
    news: &News,
    alone: &mut watch::Receiver<Option<Pid>>,
    at_peak: &mut Option<Arc<Report>>,
) {
    let of = *alone.borrow_and_update();
    let newest = peak(reports, of).await.ok().flatten();
    let has_lines = |known: &&Arc<Report>, newest: &Report| {
        known.sequence == newest.sequence && known.symbols.has_lines()
    };
    *at_peak = match newest {
        None => None,
        Some(newest) => match at_peak.as_ref().filter(|known| has_lines(known, &newest)) {
            Some(known) => Some(Arc::clone(known)),
            None => reports.with_lines(newest).await.ok(),
        },
    };
    let growth = match reports.recorded() {
        Some(recorded) => recorded.growth_lately().await.ok(),
        None => None,
    };
    news.past(Past {
        of,
        at_peak: at_peak.clone(),
        growth,
    });
}

/// Takes the heap snapshots that the user requests, with the same stop limit as API requests.
async fn take_heaps(reports: Arc<dyn Provider>, news: News, mut wanted: mpsc::Receiver<Pid>) {
    let how = HeapOptions {
        max_stop: None,
        // Only the totals are shown.
        top: 1,
        stacks: 1,
        approach: Approach::Auto,
        limit: "--max-freeze",
        grown_by: false,
    };
    while let Some(pid) = wanted.recv().await {
        let taken = reports.heap(pid, how).await;
        news.heap(taken.map_err(|e| e.to_string())).await;
    }
}

/// Fetches the moments that the user steps to.
async fn step(reports: Arc<dyn Provider>, news: News, mut wanted: mpsc::Receiver<Step>) {
    while let Some(Step { shown, to }) = wanted.recv().await {
        let stepped = match (to, reports.recorded()) {
            (StepTo::Peak(of), _) => peak(&*reports, of).await,
            (to, Some(recorded)) => recorded.step(&shown, to == StepTo::After).await,
            (_, None) => Err(ApiError::Failed("no moments are recorded".to_owned())),
        };
        news.stepped(stepped.map_err(|e| e.to_string())).await;
    }
}
