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
pub(super) const PARAMETERS: &[&str] = &["resolution", "since"];

/// `/v2/series`.
pub(super) fn read(asked: &RequestContext<'_>) -> Result<Request, ApiError> {
    let words = [("1s", Resolution::Second), ("1m", Resolution::Minute)];
    let resolution = asked.query.word("resolution", words)?;
    let since = asked.query.number("since", " of milliseconds", u64::MAX)?;
    Ok(Arc::new(Since {
        resolution: resolution.unwrap_or_default(),
        since: since.unwrap_or(0),
    }))
}

#[derive(Debug)]
struct Since {
    resolution: Resolution,
    since: u64,
}

#[derive(JsonSchema, Serialize)]
#[schemars(rename = "Series")]
pub(super) struct SeriesReply {
    /// Milliseconds between samples.
    resolution: u64,
    /// Maximum number of samples kept.
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
    /// Name of the figure. pss, kernel and the figures of the heap are left out unless they are counted (--pss, --kernel, --heap).
    #[schemars(schema_with = "figure_names")]
    name: &'static str,
    /// Description of the figure.
    figure: &'static str,
    /// Bytes; null if there is no value for this sample. cache, attributed, not_observed and kernel come from the
    /// newest report, if it was made since the last sample or nothing has changed since.
    values: Vec<Option<u64>>,
}

fn figure_names(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "enum": FIGURES.map(|figure| figure.name)})
}

impl Endpoint for Since {
    fn answer<'a>(&'a self, api: &'a Api) -> BoxFuture<'a, Result<Reply, ApiError>> {
        Box::pin(async {
            let body = self.body(api)?;
            // Built without an await, so no other reply is built in the meantime.
            let held = api.reply_builder.room(body.len())?;
            Ok(Reply::new(JSON, Roomed::bytes(body, held)))
        })
    }
}

impl Since {
    fn body(&self, api: &Api) -> Result<Vec<u8>, ApiError> {
        let samples: Vec<Sample> = {
            let series = api.series();
            series.after(self.resolution, self.since).copied().collect()
        };
        let column = |(at, figure): (usize, &Figure)| {
            let values: Vec<_> = samples.iter().map(|sample| sample.values[at]).collect();
            let shown = !figure.optional || values.iter().any(Option::is_some);
            shown.then_some(Column {
                name: figure.name,
                figure: figure.is,
                values,
            })
        };
        let reply = SeriesReply {
            resolution: self.resolution.millis(),
            capacity: self.resolution.capacity(),
            bytes: Series::BYTES,
            now: millis(SystemTime::now()),
            times: samples.iter().map(|sample| sample.at).collect(),
            series: FIGURES.iter().enumerate().filter_map(column).collect(),
        };
        serde_json::to_vec(&reply).map_err(internal)
    }
}
