//! The interface between the server and the program that it serves: requests, replies, refusals and the page's files.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::{HeaderMap, StatusCode};
use tokio::sync::mpsc;

/// Maximum size of an ordinary request body, in bytes. Larger ones are accepted only from this machine, one at a time.
pub const SMALL_BODY: usize = 4 << 10;

/// Answers the requests that a server receives.
pub trait Service: Send + Sync + 'static {
    /// The program's name, for messages.
    const PROGRAM: &'static str;

    /// Paths that are answered even if all ordinary slots are taken.
    const VITAL: &'static [&'static str];

    /// The file of the page that is served at this path. It needs no token.
    fn asset(&self, path: &str) -> Option<&'static Asset>;

    /// The methods that this path answers; none if there is no such path.
    fn methods(&self, path: &str) -> Vec<Method>;

    /// Maximum size of the body of a `POST` to this path, in bytes.
    fn largest_body(&self, _path: &str) -> usize {
        SMALL_BODY
    }

    /// The reply to a request with one of the path's [`Service::methods`], or the reason why there is none.
    fn answer(&self, request: Request<'_>) -> impl Future<Output = Result<Reply, Refusal>> + Send;

    /// The refusal of a request that was not answered in time.
    fn late(&self, limit: Duration) -> Refusal {
        let message = format!("it took longer than {} s", limit.as_secs_f32());
        Refusal(StatusCode::SERVICE_UNAVAILABLE, message)
    }

    /// Runs while the server does.
    fn background(self: Arc<Self>) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }

    /// Whether new replies wait for memory that replies to slow clients occupy.
    fn is_short_of_room(&self) -> bool {
        false
    }

    /// Ends endless replies and what waits, for the server's shutdown.
    fn close(&self) {}
}

/// Methods of a path. `HEAD` is a `Get` whose body is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Reads.
    Get,
    /// Creates something.
    Post,
    /// Removes something.
    Delete,
}

/// A request that may be answered.
#[derive(Debug)]
pub struct Request<'a> {
    /// The method.
    pub method: Method,
    /// The path, without percent-decoding.
    pub path: &'a str,
    /// The text after the first `?` of the target.
    pub query: &'a str,
    /// The headers.
    pub headers: &'a HeaderMap,
    /// The body of a `POST`.
    pub body: Bytes,
    /// Whether the request came from this machine, over a loopback address.
    pub local: bool,
}

/// A reply.
#[derive(Debug)]
pub struct Reply {
    /// The status. A reply with status 204 has no body.
    pub status: u16,
    /// MIME type of the body.
    pub content_type: &'static str,
    /// File name to save the body under.
    pub file_name: Option<String>,
    /// A further header with its value, which pages of other origins may read.
    pub header: Option<(&'static str, String)>,
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
            header: None,
            body: Body::Whole(body.into()),
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

/// An error response, in plain text: status and message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal(pub StatusCode, pub String);

impl Refusal {
    /// The refusal of a request that may succeed later.
    pub(crate) fn busy(message: &str) -> Refusal {
        Refusal(StatusCode::SERVICE_UNAVAILABLE, message.to_owned())
    }
}

/// A file of the page.
#[derive(Clone, Copy, Debug)]
pub struct Asset {
    /// The path at which the file is served.
    pub path: &'static str,
    /// MIME type.
    pub content_type: &'static str,
    /// The content.
    pub bytes: &'static [u8],
}

impl Asset {
    /// A strong validator, which changes when the file changes.
    pub fn etag(&self) -> String {
        let mut hasher = DefaultHasher::new();
        self.bytes.hash(&mut hasher);
        format!("\"{:016x}\"", hasher.finish())
    }
}
