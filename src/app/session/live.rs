//! The live view in addition to the server: shows reports, and holds messages back while it owns the terminal.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::http::api::{ApiError, Provider};
use crate::tui::{News, Screen, ScreenOptions, Step};
use memprof_heap::{Approach, HeapOptions};
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
        let mut screen = Screen::start(options)?;
        let news = screen.news();
        messages::hold(move |message| news.message(message));
        let heaps = screen.heaps.take();
        let taking_heaps = heaps
            .map(|wanted| tokio::spawn(take_heaps(Arc::clone(&reports), screen.news(), wanted)));
        let steps = screen.steps.take();
        let stepping =
            steps.map(|wanted| tokio::spawn(step(Arc::clone(&reports), screen.news(), wanted)));
        let feeding = tokio::spawn(feed(reports, screen.news(), options.interval));
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

async fn feed(reports: Arc<dyn Provider>, news: News, interval: Duration) {
    let mut advised = false;
    loop {
        let begun = Instant::now();
        match reports.profile().await {
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
        let took = begun.elapsed();
        tokio::time::sleep(interval.max(took * SHARE).saturating_sub(took)).await;
    }
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

/// Fetches the recorded moments that the user steps to.
async fn step(reports: Arc<dyn Provider>, news: News, mut wanted: mpsc::Receiver<Step>) {
    while let Some(Step { shown, forward }) = wanted.recv().await {
        let stepped = match reports.recorded() {
            Some(recorded) => recorded.step(&shown, forward).await,
            None => Err(ApiError::Failed("no moments are recorded".to_owned())),
        };
        news.stepped(stepped.map_err(|e| e.to_string())).await;
    }
}
