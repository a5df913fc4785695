//! Replies and errors.

use std::fmt;

use serde::Serialize;

use super::reply_builder::NamedReply;

pub use memprof_server::{Body, Reply};

/// The content type of JSON.
pub const JSON: &str = "application/json";

/// The content type of a stream of events.
pub const EVENTS: &str = "text/event-stream";

/// A reply with a built body and the name of its file.
pub(super) fn made(content_type: &'static str, (body, file_name): NamedReply) -> Reply {
    Reply {
        file_name,
        ..Reply::new(content_type, body)
    }
}

/// A reply with a value as JSON.
///
/// # Errors
/// [`ApiError::Internal`] if the value has no JSON form.
pub(super) fn json(value: &impl Serialize) -> Result<Reply, ApiError> {
    let body = serde_json::to_vec(value).map_err(internal)?;
    Ok(Reply::new(JSON, body))
}

/// The reply to a request that created something: status 201, with the created object as JSON.
///
/// # Errors
/// Errors of [`json`].
pub(super) fn created(value: &impl Serialize) -> Result<Reply, ApiError> {
    Ok(Reply {
        status: 201,
        ..json(value)?
    })
}

/// The reply to a request that deleted something: status 204, without a body.
pub(super) fn deleted() -> Reply {
    Reply {
        status: 204,
        ..Reply::new("", "")
    }
}

/// Reasons why a request fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// The path or the named object does not exist; names the object.
    #[error("{}", .0.as_deref().unwrap_or("no such path"))]
    NotFound(Option<String>),
    /// A parameter is invalid; names the parameter and the expected value.
    #[error("{0}")]
    BadRequest(String),
    /// The reply would be too large; names the remedy.
    #[error("{0}")]
    TooLarge(String),
    /// The client may not make this request; gives the reason.
    #[error("{0}")]
    Forbidden(String),
    /// A storage limit is reached; names the remedy.
    #[error("{0}")]
    Full(String),
    /// Too many requests at the moment; names the remedy.
    #[error("{0}")]
    Busy(String),
    /// There is no report at the moment; gives the reason.
    #[error("no report at this time: {0}")]
    Unavailable(String),
    /// The request could not be carried out at the moment; gives the reason and the remedy.
    #[error("{0}")]
    Failed(String),
    /// memprof failed; holds the error.
    #[error("internal error: {0}")]
    Internal(String),
}

pub(super) fn internal(error: impl fmt::Display) -> ApiError {
    ApiError::Internal(error.to_string())
}
