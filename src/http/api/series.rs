//! `/v2/series`: values over time, as columns.

use std::sync::Arc;
use std::time::SystemTime;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;

use super::common::millis;
use super::memory_budget::Roomed;
use super::reply::{JSON, internal};
use super::request::RequestContext;
use super::{Api, ApiError, BoxFuture, Endpoint, Reply, Request};
use crate::http::series::{FIGURES, Figure, Resolution, Sample, Series};

/// Parameters of `/v2/series`.
pub(super) const PARAMETERS: &[&str] = &["resolution", "since", "until"];

/// `/v2/series`.
pub(super) fn read(asked: &RequestContext<'_>) -> Result<Request, ApiError> {
    let words = [("1s", Resolution::Second), ("1m", Resolution::Minute)];
    let resolution = asked.query.word("resolution", words)?;
    let since = asked.query.number("since", " of milliseconds", u64::MAX)?;
    Ok(Arc::new(Since {
        resolution: resolution.unwrap_or_default(),
        since: since.unwrap_or(0),
        until: asked.query.number("until", " of milliseconds", u64::MAX)?,
    }))
}

#[derive(Debug)]
struct Since {
    resolution: Resolution,
    since: u64,
    until: Option<u64>,
}

/// Maximum number of moments of a recording in a reply.
const MAX_MOMENTS: usize = 4000;

#[derive(JsonSchema, Serialize)]
#[schemars(rename = "Series")]
pub(super) struct SeriesReply {
    /// Whether moments are recorded, which every view shows (parameter `at`).
    recorded: bool,
    /// Milliseconds between samples; 0 if they are the moments of an opened recording, which have no regular distance. A
    /// sample without figures is then a time in which memprof was not running.
    resolution: u64,
    /// Maximum number of samples kept; of a recording, in a reply: of more moments, it has the highest and the lowest totals.
    capacity: usize,
    /// Maximum memory of all series, in bytes.
    bytes: usize,
    /// Milliseconds since 1970-01-01 UTC.
    now: u64,
    /// Milliseconds since 1970-01-01 UTC, ascending. A step longer than the resolution is a gap, in which nothing was
    /// sampled.
    times: Vec<u64>,
    series: Vec<Column>,
}

#[derive(JsonSchema, Serialize)]
#[schemars(rename = "SeriesColumn")]
struct Column {
    /// Name of the figure. pss, kernel and the figures of the heap are left out unless they are counted (--pss, --kernel, --heap),
    /// and lost if nothing was lost.
    #[schemars(schema_with = "figure_names")]
    name: &'static str,
    /// Description of the figure.
    figure: &'static str,
    /// Bytes, or numbers of objects or events; null if there is no value for this sample. cache, attributed, not_observed and kernel come from the
    /// newest report, if it was made since the last sample or nothing has changed since.
    values: Vec<Option<u64>>,
}

fn figure_names(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "enum": FIGURES.map(|figure| figure.name)})
}

impl Endpoint for Since {
    fn answer<'a>(&'a self, api: &'a Api) -> BoxFuture<'a, Result<Reply, ApiError>> {
        Box::pin(async {
            let provider = api.provider();
            let recorded = provider.recorded();
            let body = match (&recorded, provider.opened()) {
                (Some(recorded), Some(_)) => {
                    let until = self.until.unwrap_or(u64::MAX);
                    let samples = recorded.samples([self.since, until], MAX_MOMENTS).await?;
                    SeriesReply::new(true, (0, MAX_MOMENTS), &samples)
                }
                _ => self.live(api, recorded.is_some()),
            };
            let body = serde_json::to_vec(&body).map_err(internal)?;
            // Built without an await, so no other reply is built in the meantime.
            let held = api.reply_builder.room(body.len())?;
            Ok(Reply::new(JSON, Roomed::bytes(body, held)))
        })
    }
}

impl Since {
    fn live(&self, api: &Api, recorded: bool) -> SeriesReply {
        let until = self.until.unwrap_or(u64::MAX);
        let samples: Vec<Sample> = {
            let series = api.series();
            let samples = series.after(self.resolution, self.since);
            samples
                .filter(|sample| sample.at <= until)
                .copied()
                .collect()
        };
        let kept = (self.resolution.millis(), self.resolution.capacity());
        SeriesReply::new(recorded, kept, &samples)
    }
}

impl SeriesReply {
    fn new(
        recorded: bool,
        (resolution, capacity): (u64, usize),
        samples: &[Sample],
    ) -> SeriesReply {
        let column = |(at, figure): (usize, &Figure)| {
            let values: Vec<_> = samples.iter().map(|sample| sample.values[at]).collect();
            let shown = !figure.optional || values.iter().any(Option::is_some);
            shown.then_some(Column {
                name: figure.name,
                figure: figure.is,
                values,
            })
        };
        SeriesReply {
            recorded,
            resolution,
            capacity,
            bytes: Series::BYTES,
            now: millis(SystemTime::now()),
            times: samples.iter().map(|sample| sample.at).collect(),
            series: FIGURES.iter().enumerate().filter_map(column).collect(),
        }
    }
}
