//! `/v2/export/{format}` and `/v2/exports`: a report in any export format.

use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use super::common::counted;
use super::marks::NOW;
use super::memory_budget::Out;
use super::query::{bad, quoted};
use super::reply::{self, internal};
use super::request::RequestContext;
use super::shape::{direction, kind};
use super::view::{ReportSelector, View, frames};
use super::{Api, ApiError, BoxFuture, Endpoint, Reply, Request};
use crate::export::{ExportOptions, Exporter, write};
use crate::http::exporters::{EXPORTERS, by_name, names};
use memprof_profile::Report;

/// Parameters of `/v2/export/{format}`.
pub(super) const PARAMETERS: &[&str] = &[
    "direction",
    "kind",
    "threshold",
    "from",
    "to",
    "pid",
    "cgroup",
    "frames",
    "inlined",
    "filter",
];

/// The format of `/debug/pprof/heap`.
const PPROF: &str = "pprof";

/// `/v2/export/{format}`.
pub(super) fn read(asked: &RequestContext<'_>) -> Result<Request, ApiError> {
    let format = by_name(asked.name).ok_or_else(|| {
        let known = names().collect::<Vec<_>>().join(", ");
        let name = quoted(asked.name);
        ApiError::NotFound(Some(format!("unknown format {name}: use one of {known}")))
    })?;
    let query = &asked.query;
    let options = ExportOptions {
        direction: direction(query)?,
        kind: kind(query)?,
        threshold: query.number("threshold", " of bytes", u64::MAX)?,
        frames: frames(query)?,
        no_inline: !query.boolean("inlined")?.unwrap_or(true),
        baseline: None,
    };
    options.check(format).map_err(|e| bad(e.to_string()))?;
    Ok(Arc::new(Export {
        format,
        options,
        from: query.text("from").map(str::to_owned),
        to: query.text("to").unwrap_or(NOW).to_owned(),
        which: ReportSelector::read(query)?,
        local: asked.local,
    }))
}

/// `/debug/pprof/heap`: the usual path in pprof tools.
pub(super) fn pprof(asked: &RequestContext<'_>) -> Result<Request, ApiError> {
    Ok(Arc::new(Export {
        format: by_name(PPROF).ok_or(ApiError::NotFound(None))?,
        options: ExportOptions::default(),
        from: None,
        to: NOW.to_owned(),
        which: ReportSelector::default(),
        local: asked.local,
    }))
}

/// `/v2/exports`.
pub(super) fn list(_: &RequestContext<'_>) -> Result<Request, ApiError> {
    Ok(Arc::new(List))
}

#[derive(Clone)]
struct Export {
    format: &'static Exporter,
    options: ExportOptions,
    /// Id of the mark to subtract.
    from: Option<String>,
    /// Id of the mark to export, or [`NOW`].
    to: String,
    which: ReportSelector,
    /// Whether the client is on this machine; other clients get no addresses, as in `/v2/maps`.
    local: bool,
}

/// Equal `Debug` forms mean equal exports, because marks never change and ids are not reused.
impl fmt::Debug for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ExportOptions {
            direction,
            kind,
            threshold,
            frames: _,
            no_inline,
            baseline: _,
        } = &self.options;
        let (name, from, to) = (self.format.name, &self.from, &self.to);
        let (which, local) = (&self.which, self.local);
        write!(
            f,
            "Export {name} {direction:?} {kind:?} {threshold:?} {no_inline} {from:?} {to:?} {which:?} {local}"
        )
    }
}

impl Endpoint for Export {
    fn answer<'a>(&'a self, api: &'a Api) -> BoxFuture<'a, Result<Reply, ApiError>> {
        Box::pin(async {
            let mut options = self.options.clone();
            let mut from = None;
            if let Some(id) = &self.from {
                let mark = api.mark(id, self.which.pid).await?;
                // The peak changes; the number of its mark does not mean another report later.
                from = Some(mark.id.to_string());
                options.baseline = Some(mark.report);
                options.check(self.format).map_err(|e| bad(e.to_string()))?;
            }
            if let Some(chosen) = self.which.chosen() {
                if self.from.is_some() || self.to != NOW {
                    return Err(bad(
                        "parameter filter excludes from and to: marks have no single allocations"
                            .to_owned(),
                    ));
                }
                return chosen.recorded().show(api, Arc::new(self.clone())).await;
            }
            let to = api.mark_or_now(&self.to, self.which.pid).await?;
            let report = api.state(to.as_ref()).await?;
            let view = Export {
                format: self.format,
                options,
                from,
                to: self.to.clone(),
                which: self.which.clone(),
                local: self.local,
            };
            let again = api.state_again(to);
            let view = self.which.recorded().in_view(Arc::new(view));
            api.show(report, &again, view).await
        })
    }
}

impl View for Export {
    fn content_type(&self) -> &'static str {
        self.format.content_type
    }

    fn baseline(&self) -> Option<Arc<Report>> {
        self.options.baseline.clone()
    }

    fn compared_with(&self, baseline: Arc<Report>) -> Option<Arc<dyn View>> {
        let mut view = self.clone();
        view.options.baseline = Some(baseline);
        Some(Arc::new(view))
    }

    fn write(&self, report: &Report, out: &mut Out) -> Result<(), ApiError> {
        counted(self.options.kind, &report.profile)?;
        let mut options = self.options.clone();
        if let Some(baseline) = &mut options.baseline {
            *baseline = Arc::new(self.which.recorded().select(baseline)?.into_owned());
        }
        let hidden = (!self.local).then(|| Report {
            profile: Arc::new(report.profile.without_mappings()),
            ..report.clone()
        });
        let report = hidden.as_ref().unwrap_or(report);
        write(self.format, report, &options, out).map_err(internal)
    }

    fn needs_lines(&self) -> bool {
        true
    }

    fn file_name(&self, report: &Report) -> Option<String> {
        let target = &report.profile.target;
        let plain = |c: char| {
            if c.is_ascii_alphanumeric() || c == '-' {
                c
            } else {
                '_'
            }
        };
        let comm: String = target.comm.chars().map(plain).collect();
        let (pid, number) = (target.pid, report.sequence);
        let extension = self.format.extension;
        Some(format!("memprof-{comm}-{pid}-{number}.{extension}"))
    }
}

#[derive(Debug)]
struct List;

/// The export formats.
#[derive(JsonSchema, Serialize)]
#[schemars(rename = "Exports")]
pub(super) struct Formats(Vec<Format>);

/// An export format.
#[derive(JsonSchema, Serialize)]
#[schemars(rename = "ExportFormat")]
struct Format {
    /// Name of the format.
    name: &'static str,
    /// Short description of the format.
    about: &'static str,
    /// Usual file extension.
    extension: &'static str,
    /// MIME type.
    content_type: &'static str,
    /// Path of the export.
    href: String,
    /// Parameters that the format supports.
    options: Vec<&'static str>,
}

impl From<&Exporter> for Format {
    fn from(format: &Exporter) -> Format {
        let can = &format.supports;
        // Every format can export a mark's report and a single process. A filter requires a kind of the heap.
        let options = [
            ("direction", can.direction),
            ("kind", can.kind),
            ("threshold", can.threshold),
            ("from", can.difference),
            ("to", true),
            ("pid", true),
            ("cgroup", true),
            ("filter", can.kind),
        ];
        let options = options.into_iter().filter(|(_, held)| *held);
        Format {
            name: format.name,
            about: format.about,
            extension: format.extension,
            content_type: format.content_type,
            href: format!("/v2/export/{}", format.name),
            options: options.map(|(name, _)| name).collect(),
        }
    }
}

impl Endpoint for List {
    fn answer<'a>(&'a self, _: &'a Api) -> BoxFuture<'a, Result<Reply, ApiError>> {
        let formats = Formats(EXPORTERS.iter().map(Format::from).collect());
        Box::pin(async move { reply::json(&formats) })
    }
}
