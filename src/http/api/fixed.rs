//! Constant replies.

use std::sync::Arc;

use super::reply::JSON;
use super::{Api, ApiError, BoxFuture, Endpoint, Reply, Request};

#[derive(Debug)]
struct Fixed {
    content_type: &'static str,
    body: &'static str,
}

/// A constant reply with this JSON text.
pub(super) fn json(body: &'static str) -> Result<Request, ApiError> {
    Ok(Arc::new(Fixed {
        content_type: JSON,
        body,
    }))
}

impl Endpoint for Fixed {
    fn answer<'a>(&'a self, _: &'a Api) -> BoxFuture<'a, Result<Reply, ApiError>> {
        Box::pin(async { Ok(Reply::new(self.content_type, self.body)) })
    }
}
