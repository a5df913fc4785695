//! The recorded moments of the target: every view shows them, as marks named `@MOMENT`.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::ApiError;
use super::query::bad;
use super::reply::internal;
use crate::export::growth::{GrowthBy, GrowthTable};
use crate::http::series::{FIGURES, Sample};
use memprof_profile::saved::unix_ms;
use memprof_profile::{Kind, Report};
use memprof_recording::{At, MomentInfo, Place, Recording, RecordingError};

/// Numbers of the reports of recorded moments begin here. The range is separate from the target's reports and from opened files,
/// and a browser can represent it exactly.
const FIRST: u64 = super::open::FIRST + (1 << 51);
/// Maximum number of moments whose reports stay in memory.
const MAX_REPORTS: usize = 4;

/// The span of the growth that monitoring asks for, and how long one answer is given.
const LATELY: Duration = Duration::from_secs(3600);
const GROWTH_HOLDS: Duration = Duration::from_secs(60);

/// A recording that is asked for moments.
pub struct Recorded {
    state: Mutex<State>,
    lately: tokio::sync::Mutex<Option<(Instant, Arc<GrowthTable>)>>,
}

struct State {
    source: Source,
    reports: Reports,
}

/// The reports that were asked for last, by the ids of their moments; the newest is the last one.
type Reports = Vec<(i64, Arc<Report>)>;

enum Source {
    /// As it was when it was opened.
    Opened(Recording),
    /// As it is at each request.
    Live(Place),
}

impl State {
    /// Runs `work` with the recording.
    fn with<T>(
        &mut self,
        work: impl FnOnce(&Recording, &mut Reports) -> Result<T, RecordingError>,
    ) -> Result<T, RecordingError> {
        match &self.source {
            Source::Opened(recording) => work(recording, &mut self.reports),
            Source::Live(place) => work(&Recording::at(place)?, &mut self.reports),
        }
    }
}

/// The span of a request: from a moment to another.
#[derive(Clone, Debug)]
pub(super) struct Span {
    /// `None` for the first moment.
    pub from: Option<At>,
    pub to: At,
}

/// Parses the name of a moment, the value of a parameter.
pub(super) fn moment(parameter: &str, name: &str) -> Result<At, ApiError> {
    name.parse()
        .map_err(|why| bad(format!("parameter {parameter}: {why}")))
}

impl fmt::Debug for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorded").finish_non_exhaustive()
    }
}

fn failed(error: RecordingError) -> ApiError {
    match error {
        RecordingError::NoMoment(why) => ApiError::NotFound(Some(why)),
        other => ApiError::Failed(format!("the recording cannot be read: {other}")),
    }
}

impl Recorded {
    /// Asks a recording that does not change.
    pub fn new(recording: Recording) -> Recorded {
        Recorded::from_source(Source::Opened(recording))
    }

    /// Asks a recording that is being made.
    pub fn live(place: Place) -> Recorded {
        Recorded::from_source(Source::Live(place))
    }

    fn from_source(source: Source) -> Recorded {
        Recorded {
            state: Mutex::new(State {
                source,
                reports: Reports::new(),
            }),
            lately: tokio::sync::Mutex::default(),
        }
    }

    /// Runs `work`, which may take a while, beside the server.
    async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Recording, &mut Reports) -> Result<T, RecordingError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let recorded = Arc::clone(self);
        let done = tokio::task::spawn_blocking(move || {
            let mut state = recorded
                .state
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            state.with(work)
        });
        done.await.map_err(internal)?.map_err(failed)
    }

    /// The report of a moment. Its number is that of the moment, not the one that it had when it was recorded.
    pub(super) async fn report(self: &Arc<Self>, at: At) -> Result<Arc<Report>, ApiError> {
        let moment = self.run(move |recording, _| recording.find(&at)).await?;
        self.report_of(moment).await
    }

    async fn report_of(self: &Arc<Self>, moment: MomentInfo) -> Result<Arc<Report>, ApiError> {
        self.run(move |recording, reports| {
            if let Some(at) = reports.iter().position(|(id, _)| *id == moment.id) {
                let known = reports.remove(at);
                reports.push(known);
            } else {
                let mut report: Report = recording.state(moment.id)?.into();
                report.sequence = FIRST | moment.id.cast_unsigned();
                if reports.len() >= MAX_REPORTS {
                    reports.remove(0);
                }
                reports.push((moment.id, Arc::new(report)));
            }
            let report = &reports[reports.len() - 1].1;
            Ok(Arc::clone(report))
        })
        .await
    }

    /// The report of the moment before or after a shown report, which is that of a moment or of the target; `None` if there is none.
    ///
    /// # Errors
    /// The recording cannot be read.
    pub async fn step(
        self: &Arc<Self>,
        shown: &Report,
        forward: bool,
    ) -> Result<Option<Arc<Report>>, ApiError> {
        let id = shown.sequence.checked_sub(FIRST).map(u64::cast_signed);
        let taken = shown.profile.taken;
        let next = self.run(move |recording, _| recording.next_to(id, taken, forward));
        match next.await? {
            Some(moment) => Ok(Some(self.report_of(moment).await?)),
            None => Ok(None),
        }
    }

    /// What grew in a span.
    pub(super) async fn growth(
        self: &Arc<Self>,
        span: Span,
        by: GrowthBy,
        kind: Kind,
    ) -> Result<GrowthTable, ApiError> {
        self.run(move |recording, _| {
            let to = match (&span, recording.find(&span.to)) {
                (
                    Span {
                        from: None,
                        to: At::End,
                    },
                    Err(RecordingError::NoMoment(_)),
                ) => return Ok(GrowthTable::of_nothing(kind)),
                (_, to) => to?,
            };
            let from = recording.begin(span.from.as_ref())?;
            GrowthTable::between(recording, [from, to], by, kind)
        })
        .await
    }

    /// What grew by function in the last hour, as of at most a minute ago.
    ///
    /// # Errors
    /// The recording cannot be read.
    pub async fn growth_lately(self: &Arc<Self>) -> Result<Arc<GrowthTable>, ApiError> {
        let mut lately = self.lately.lock().await;
        if let Some((at, table)) = &*lately
            && (at.elapsed() < GROWTH_HOLDS && table.total.is_some())
        {
            return Ok(Arc::clone(table));
        }
        let table = self.run(|recording, _| {
            let to = match recording.find(&At::End) {
                Err(RecordingError::NoMoment(_)) => return Ok(GrowthTable::of_nothing(Kind::All)),
                end => end?,
            };
            let from = match recording.find(&At::Ago(LATELY)) {
                Err(RecordingError::NoMoment(_)) => recording.begin(None)?,
                from => from?,
            };
            GrowthTable::between(recording, [from, to], GrowthBy::Function, Kind::All)
        });
        let table = Arc::new(table.await?);
        *lately = Some((Instant::now(), Arc::clone(&table)));
        Ok(table)
    }

    /// The totals of the moments, for the time line, with an empty sample where memprof was not running. Of more than `most`
    /// moments, those with the extremes of intervals.
    pub(super) async fn samples(
        self: &Arc<Self>,
        [since, until]: [u64; 2],
        most: usize,
    ) -> Result<Vec<Sample>, ApiError> {
        let totals = self.run(move |recording, _| recording.totals([since, until], most));
        let sample = |totals: &memprof_recording::Totals| {
            let usage = &totals.usage;
            let mut sample = Sample {
                at: unix_ms(totals.taken),
                ..Sample::default()
            };
            for (figure, value) in FIGURES.iter().zip(&mut sample.values) {
                *value = match figure.name {
                    "rss_anon" => Some(usage.anon),
                    "rss_shmem" => Some(usage.shmem),
                    "rss_file" => Some(usage.file),
                    "swap" => Some(usage.swap),
                    "cache" => Some(usage.cache),
                    "lost" => Some(totals.lost).filter(|lost| *lost > 0),
                    _ => None,
                };
            }
            sample
        };
        let totals = totals.await?;
        let mut samples = Vec::with_capacity(totals.len());
        for (at, moment) in totals.iter().enumerate() {
            if at > 0 && totals[at - 1].run != moment.run {
                samples.push(Sample {
                    at: unix_ms(totals[at - 1].taken) + 1,
                    ..Sample::default()
                });
            }
            samples.push(sample(moment));
        }
        Ok(samples)
    }
}
