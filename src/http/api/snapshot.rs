//! Replies about a single fixed report, for exports.

use std::io;
use std::sync::Arc;

use bytes::Bytes;

use super::reply_builder::ReplyBuilder;
use super::{Api, ApiError, ApiOptions, Opened, ROOM, RequestParts, Route};
use memprof_profile::{CachedFile, Report};

/// An API without a server: answers requests about one report on the calling thread.
pub(crate) struct Snapshot {
    api: Arc<Api>,
    runtime: tokio::runtime::Runtime,
}

impl Snapshot {
    /// Creates an API for this report.
    ///
    /// # Errors
    /// The system does not allow another thread.
    pub(crate) fn new(report: Arc<Report>) -> io::Result<Snapshot> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()?;
        let opened = Opened::new(String::new(), report);
        // Each reply is requested only once.
        let builder = ReplyBuilder::new(0, ROOM);
        let api = Api::with(Arc::new(opened), ApiOptions::default(), builder);
        Ok(Snapshot { api, runtime })
    }

    /// The body of the reply to a path with a query. Must not be called on a thread that runs futures.
    ///
    /// # Errors
    /// Errors of the request.
    pub(crate) fn reply(&self, target: &str) -> Result<Bytes, ApiError> {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let (route, name) = Route::at(path).next().ok_or(ApiError::NotFound(None))?;
        let given = RequestParts {
            query,
            // The user of the export may see everything in the report.
            local: true,
            ..RequestParts::default()
        };
        let request = route.request(name, given)?;
        let reply = self.runtime.block_on(self.api.answer(request))?;
        Ok(reply.bytes())
    }
}

/// The id of a cached file in requests.
pub(crate) fn file_id(file: &CachedFile) -> String {
    super::files::id(&file.id)
}
