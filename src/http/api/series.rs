//! `/v2/series`: values over time, as columns.

use std::sync::Arc;
use std::time::SystemTime;

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

#[derive(Serialize)]
struct SeriesReply {
    resolution: u64,
    capacity: usize,
    bytes: usize,
    now: u64,
    times: Vec<u64>,
    series: Vec<Column>,
}

#[derive(Serialize)]
struct Column {
    name: &'static str,
    figure: &'static str,
    values: Vec<Option<u64>>,
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
