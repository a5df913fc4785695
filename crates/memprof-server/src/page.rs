//! Serves the web page's files over HTTP, with `ETag` validation and a policy against foreign content.

use bytes::Bytes;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, Response, StatusCode};

use super::connection::Connections;
use super::service::{Asset, Body, Refusal, Service};

/// Sent with every file. What the page shows comes from elsewhere, such as the names of a profiled program: even if a name
/// reached the markup, it could neither run a script nor contact another host.
const HEADERS: [(HeaderName, &str); 4] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
         connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::X_FRAME_OPTIONS, "DENY"),
    // Browsers may cache a file but must revalidate it: another program may later serve this address.
    (header::CACHE_CONTROL, "no-cache"),
];

impl<S: Service> Connections<S> {
    pub(super) fn page(&self, head: &Parts, asset: &Asset) -> Result<Response<Body>, Refusal> {
        self.check_host(head)?;
        if !matches!(head.method, Method::GET | Method::HEAD) {
            let message = format!("{} answers GET and HEAD only", asset.path);
            return Err(Refusal(StatusCode::METHOD_NOT_ALLOWED, message));
        }
        let etag = asset.etag();
        let mut response = if is_known(&head.headers, &etag) {
            let mut response = Response::new(Body::Whole(Bytes::new()));
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            response
        } else {
            Response::new(Body::Whole(Bytes::from_static(asset.bytes)))
        };
        let headers = response.headers_mut();
        for (name, value) in HEADERS {
            headers.insert(name, HeaderValue::from_static(value));
        }
        let content_type = HeaderValue::from_static(asset.content_type);
        headers.insert(header::CONTENT_TYPE, content_type);
        if let Ok(etag) = HeaderValue::from_str(&etag) {
            headers.insert(header::ETAG, etag);
        }
        Ok(response)
    }
}

/// Whether the client already has this version of the file.
fn is_known(headers: &HeaderMap, etag: &str) -> bool {
    let tags = headers.get_all(header::IF_NONE_MATCH).iter();
    tags.filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|tag| tag.trim().trim_start_matches("W/"))
        .any(|tag| tag == etag || tag == "*")
}
