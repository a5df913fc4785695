//! `/v2/growth`: what grew over a recorded span.

use std::sync::Arc;

use super::recorded::{Span, moment};
use super::request::RequestContext;
use super::{Api, ApiError, BoxFuture, Endpoint, Reply, Request, reply};
use crate::export::growth::GrowthBy;
use memprof_profile::Kind;
use memprof_recording::At;

/// Parameters of `/v2/growth`.
pub(super) const PARAMETERS: &[&str] = &["from", "to", "by", "kind"];

/// `/v2/growth`.
pub(super) fn read(asked: &RequestContext<'_>) -> Result<Request, ApiError> {
    let query = &asked.query;
    let at = |name| query.text(name).map(|text| moment(name, text)).transpose();
    let kinds = Kind::ALL.map(|kind| (kind.name(), kind));
    Ok(Arc::new(Growth {
        span: Span {
            from: at("from")?,
            to: at("to")?.unwrap_or(At::End),
        },
        by: query.word("by", GrowthBy::ALL)?.unwrap_or_default(),
        kind: query.word("kind", kinds)?.unwrap_or_default(),
    }))
}

#[derive(Debug)]
struct Growth {
    span: Span,
    by: GrowthBy,
    kind: Kind,
}

impl Endpoint for Growth {
    fn answer<'a>(&'a self, api: &'a Api) -> BoxFuture<'a, Result<Reply, ApiError>> {
        Box::pin(async {
            let recorded = api.recorded()?;
            let table = recorded
                .growth(self.span.clone(), self.by, self.kind)
                .await?;
            reply::json(&table)
        })
    }
}
