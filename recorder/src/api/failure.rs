//! Reasons why a request has no reply, and the forms in which the API says them.

use hyper::StatusCode;
use memprof_server::{Refusal, Reply};

use super::reply;
use crate::store::StoreError;

/// Why a request has no reply.
#[derive(Debug)]
pub(super) enum Failure {
    /// No node has this name or port.
    Node(String),
    /// A parameter cannot be read.
    Query(String),
    /// A filter or an id means nothing.
    Value(String),
    /// There is no such object.
    Absent(String),
    /// Too many requests at this time.
    Busy(&'static str),
    /// The store failed.
    Store(StoreError),
    /// The recorder failed.
    Internal(String),
}

impl Failure {
    fn status(&self) -> StatusCode {
        match self {
            Self::Node(_) | Self::Absent(_) => StatusCode::NOT_FOUND,
            Self::Query(_) | Self::Value(_) => StatusCode::BAD_REQUEST,
            Self::Busy(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Store(_) | Self::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    pub(super) fn message(&self) -> String {
        match self {
            Self::Node(name) => format!("no such node: {name:?}"),
            Self::Query(message) | Self::Value(message) => message.clone(),
            Self::Absent(message) | Self::Internal(message) => message.clone(),
            Self::Busy(message) => (*message).to_owned(),
            Self::Store(error) => error.to_string(),
        }
    }

    /// The form of the original API: a JSON string.
    pub(super) fn in_json(&self) -> Reply {
        let message = match self {
            Self::Value(_) | Self::Store(_) => format!("database error: {}", self.message()),
            Self::Query(_) => format!("invalid query: {}", self.message()),
            _ => self.message(),
        };
        Reply {
            status: self.status().as_u16(),
            ..Reply::new(reply::JSON, serde_json::Value::String(message).to_string())
        }
    }
}

/// One line of plain text.
impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        Self(failure.status(), failure.message())
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}
