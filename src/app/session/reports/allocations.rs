//! Sampled allocations on request, with the names of their stacks.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::Reports;
use crate::collect::collector::Command;
use crate::http::api::{ApiError, Provider};
use memprof_code::symbolize::Detail;
use memprof_profile::Report;
use memprof_profile::allocations::NamedAllocations;
use memprof_profile::measure::HEAP;

impl Reports {
    /// The sampled allocations in memory now.
    ///
    /// # Errors
    /// There is no report, allocations are not sampled, or the collector does not answer.
    pub(super) async fn named_allocations(&self) -> Result<NamedAllocations, ApiError> {
        let newest = self.profile().await?;
        if !newest.profile.measures.iter().any(|m| m.name == HEAP.name) {
            return Err(ApiError::BadRequest(
                "allocations are not sampled: start memprof with --heap".to_owned(),
            ));
        }
        if !newest.profile.has_single_allocations() {
            return Err(ApiError::BadRequest(
                "--heap=exact counts calls and keeps no single allocations: filters and groups need sampled ones (--heap)"
                    .to_owned(),
            ));
        }
        let (reply, answer) = oneshot::channel();
        self.collecting.send(Command::Allocations(reply))?;
        let failed = |_| ApiError::Failed("the collector has ended".to_owned());
        let allocations = answer.await.map_err(failed)?;
        let all = 0..allocations.all.len();
        let profile = Arc::new(allocations.profile_of(all, &newest.profile));
        let symbols = self.names(&profile, Detail::Inlined).await?;
        Ok(NamedAllocations {
            report: Report {
                profile,
                symbols,
                sequence: newest.sequence,
            },
            allocations: Arc::new(allocations),
        })
    }
}
