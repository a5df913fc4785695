//! Answers made of the newest report: each made once and shared.

use std::fmt::Debug;
use std::sync::Arc;

use super::reply::JSON;
use super::{Api, ApiError, Ask, BoxFuture, ProviderError, Reply, Report, Request};

/// Something that a report is shown as. Its `Debug` form tells it from every other one: replies are
/// shared by it.
pub(super) trait View: Debug + Send + Sync + 'static {
    /// MIME type of what is written.
    fn content_type(&self) -> &'static str {
        JSON
    }

    /// Writes it. Runs on a thread where it may take its time.
    fn write(&self, report: &Report, out: &mut Vec<u8>) -> Result<(), ApiError>;

    /// Whether the report needs source lines and inlined functions.
    fn needs_lines(&self) -> bool {
        false
    }

    /// What there is to say before a target exists; `None`: there is no report.
    fn before_target(&self) -> Option<&'static str> {
        None
    }

    /// Name to store it under.
    fn file_name(&self, _: &Report) -> Option<String> {
        None
    }
}

#[derive(Debug)]
struct Viewed<V>(Arc<V>);

/// Asks for a view of the newest report.
pub(super) fn view(view: impl View) -> Request {
    Arc::new(Viewed(Arc::new(view)))
}

impl<V: View> Ask for Viewed<V> {
    fn answer<'a>(&'a self, api: &'a Api) -> BoxFuture<'a, Result<Reply, ApiError>> {
        Box::pin(async {
            let view = Arc::clone(&self.0);
            match api.provider().profile().await {
                Ok(report) => api.show(report, view).await,
                Err(ProviderError::NoTarget) if view.before_target().is_some() => {
                    let text = view.before_target().unwrap_or_default();
                    Ok(Reply::new(view.content_type(), text))
                }
                Err(e) => Err(e.into()),
            }
        })
    }
}

impl From<ProviderError> for ApiError {
    fn from(e: ProviderError) -> ApiError {
        ApiError::Unavailable(e.to_string())
    }
}
