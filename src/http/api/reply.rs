//! Replies and errors.

use std::fmt;

use bytes::Bytes;
use serde::Serialize;
use tokio::sync::mpsc;

use super::reply_builder::NamedReply;

/// The content type of JSON.
pub const JSON: &str = "application/json";

/// The content type of a stream of events.
pub const EVENTS: &str = "text/event-stream";

/// A successful reply.
#[derive(Debug)]
pub struct Reply {
    /// The status: 200, 201 or 204.
    pub status: u16,
    /// MIME type of the body.
    pub content_type: &'static str,
    /// File name to save the body under.
    pub file_name: Option<String>,
    /// The body.
    pub body: Body,
}

/// The body of a reply.
#[derive(Debug)]
pub enum Body {
    /// Complete.
    Whole(Bytes),
    /// Complete, in two parts: one shared by clients, one for this client alone.
    Two(Bytes, Bytes),
    /// Sent piece by piece until the sender stops.
    Live(mpsc::Receiver<Bytes>),
}

impl Reply {
    /// A reply with status 200 and a body of this type.
    pub fn new(content_type: &'static str, body: impl Into<Bytes>) -> Reply {
        Reply {
            status: 200,
            content_type,
            file_name: None,
            body: Body::Whole(body.into()),
        }
    }

    /// A reply with a built body and the name of its file.
    pub(super) fn made(content_type: &'static str, (body, file_name): NamedReply) -> Reply {
        Reply {
            file_name,
            body: Body::Whole(body),
            ..Reply::new(content_type, "")
        }
    }

    /// A reply with a value as JSON.
    ///
    /// # Errors
    /// [`ApiError::Internal`] if the value has no JSON form.
    pub fn json(value: &impl Serialize) -> Result<Reply, ApiError> {
        let body = serde_json::to_vec(value).map_err(internal)?;
        Ok(Reply::new(JSON, body))
    }

    /// The reply to a request that created something: status 201, with the created object as JSON.
    ///
    /// # Errors
    /// Errors of [`Reply::json`].
    pub(super) fn created(value: &impl Serialize) -> Result<Reply, ApiError> {
        Ok(Reply {
            status: 201,
            ..Reply::json(value)?
        })
    }

    /// The reply to a request that deleted something: status 204, without a body.
    pub(super) fn deleted() -> Reply {
        Reply {
            status: 204,
            ..Reply::new("", Bytes::new())
        }
    }

    /// The complete body; empty for [`Body::Live`].
    pub fn bytes(&self) -> Bytes {
        match &self.body {
            Body::Whole(bytes) => bytes.clone(),
            Body::Two(first, second) => [&first[..], second].concat().into(),
            Body::Live(_) => Bytes::new(),
        }
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
