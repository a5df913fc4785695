//! Views of the sampled allocations that match a filter.
//!
//! The matching allocations depend on the moment of the request, so these replies are not shared, and are built one at
//! a time.

use std::sync::Arc;

use super::query::{Query, bad};
use super::reply_builder::Shown;
use super::shape::kind;
use super::view::{ReportPart, View, no_process};
use super::{Api, ApiError, BoxFuture, Reply, reply};
use memprof_profile::allocations::{Filter, NamedAllocations};
use memprof_profile::measure::HEAP;
use memprof_sys::ids::Pid;

/// The parameter `filter`.
///
/// # Errors
/// The text is not a filter, or it is combined with a mark or with a kind that has no sampled allocations.
pub(super) fn filter(query: &Query) -> Result<Option<Filter>, ApiError> {
    let Some(text) = query.text("filter").filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let filter = Filter::parse(text).map_err(|e| bad(e.to_string()))?;
    if query.text("mark").or(query.text("at")).is_some() {
        return Err(bad(
            "parameters filter, mark and at exclude each other: a mark has no single allocations"
                .to_owned(),
        ));
    }
    if kind(query)?.measure().name != HEAP.name {
        let kinds = HEAP.columns.iter().map(|column| column.name);
        return Err(bad(format!(
            "parameter filter needs a kind of the sampled heap: {}",
            kinds.collect::<Vec<_>>().join(", ")
        )));
    }
    Ok(Some(filter))
}

impl Api {
    /// The sampled allocations in memory now.
    ///
    /// # Errors
    /// Allocations are not sampled, or the process is not followed.
    pub(super) async fn allocations_with(
        &self,
        pid: Option<Pid>,
    ) -> Result<NamedAllocations, ApiError> {
        let named = self.provider().allocations().await?;
        let pids = &named.report.profile.target.pids;
        match pid.filter(|pid| !pids.contains(pid)) {
            Some(pid) => Err(no_process(pid)),
            None => Ok(named),
        }
    }
}

/// The selection of sampled allocations to show.
pub(super) struct Chosen {
    pub(super) filter: Filter,
    /// Restricts the selection to one process; `None` for all processes.
    pub(super) pid: Option<Pid>,
    /// Which frames to show.
    pub(super) part: ReportPart,
}

impl Chosen {
    /// The same selection with all frames, as recorded.
    pub(super) fn recorded(self) -> Chosen {
        Chosen {
            part: self.part.recorded(),
            ..self
        }
    }

    /// Replies with a view of the selected allocations.
    ///
    /// # Errors
    /// Allocations are not sampled, the process is not followed, or the filter cannot be evaluated.
    pub(super) async fn show(self, api: &Api, view: Arc<dyn View>) -> Result<Reply, ApiError> {
        let _turn = api.filtering.turn().await?;
        let Chosen { filter, pid, part } = self;
        let named = api.allocations_with(pid).await?;
        let marks = api.mark_times();
        let choose = move || filter.choose(&named, pid, &marks);
        let chosen = tokio::task::spawn_blocking(choose).await;
        let chosen = chosen.map_err(|e| ApiError::Failed(e.to_string()))?;
        let report = Arc::new(chosen.map_err(|e| bad(e.to_string()))?);
        let again = || -> BoxFuture<'_, _> { Box::pin(async { Ok(Arc::clone(&report)) }) };
        let shown = Shown {
            sequence: report.sequence,
            report: Arc::downgrade(&report),
            again: &again,
        };
        let (view, content_type) = (part.in_view(Arc::clone(&view)), view.content_type());
        let made = api.reply_builder.make(shown, view, api.provider()).await?;
        Ok(reply::made(content_type, made))
    }
}
