//! From a request's head to its response.

use bytes::Bytes;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, Response, StatusCode, Version};
use tokio::time::timeout;

use super::connection::Connections;
use crate::api::{ApiError, Route};
use crate::web;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const METHODS: HeaderValue = HeaderValue::from_static("GET, HEAD");

/// How long a browser may remember a preflight, in seconds.
const PREFLIGHT_AGE: HeaderValue = HeaderValue::from_static("600");

/// A request that is not answered with what it asked for.
pub(super) struct Refusal(pub(super) StatusCode, pub(super) String);

impl From<ApiError> for Refusal {
    fn from(error: ApiError) -> Refusal {
        let status = match error {
            ApiError::NotFound => StatusCode::NOT_FOUND,
            ApiError::BadRequest(_) => StatusCode::BAD_REQUEST,
            ApiError::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
            ApiError::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Refusal(status, error.to_string())
    }
}

impl Connections {
    pub(super) async fn respond(&self, head: &Parts) -> Response<Bytes> {
        let mut response = if self.is_preflight(head) {
            preflight(head)
        } else if let Some(asset) = web::find(head.uri.path()) {
            self.page(head, asset).unwrap_or_else(refuse)
        } else {
            match self.answer(head).await {
                Ok(body) => response(StatusCode::OK, JSON, body),
                Err(refusal) => refuse(refusal),
            }
        };
        self.set_headers(head, response.headers_mut());
        response
    }

    async fn answer(&self, head: &Parts) -> Result<Bytes, Refusal> {
        self.check_host(head)?;
        let target = head.uri.path_and_query().map_or(0, |t| t.as_str().len());
        if target > self.options.max_target {
            let most = self.options.max_target;
            let message = format!("path and query are longer than {most} bytes");
            return Err(Refusal(StatusCode::URI_TOO_LONG, message));
        }
        let route = Route::find(head.uri.path()).ok_or(ApiError::NotFound)?;
        if !matches!(head.method, Method::GET | Method::HEAD) {
            let message = format!("{} answers GET and HEAD only", route.path);
            return Err(Refusal(StatusCode::METHOD_NOT_ALLOWED, message));
        }
        let request = route.request(head.uri.query().unwrap_or_default())?;
        let limit = self.options.answer_timeout;
        match timeout(limit, self.api.answer(request)).await {
            Ok(answer) => Ok(answer?),
            Err(_) => {
                let late = format!("it took longer than {} s", limit.as_secs_f32());
                Err(ApiError::Unavailable(late).into())
            }
        }
    }

    /// Refuses hosts that do not name this server. Old clients that name none are no browsers.
    pub(super) fn check_host(&self, head: &Parts) -> Result<(), Refusal> {
        let mut hosts = head.headers.get_all(header::HOST).iter();
        let (host, more) = (hosts.next(), hosts.next());
        if more.is_some() || (host.is_none() && head.version > Version::HTTP_10) {
            let message = "the request needs exactly one Host header";
            return Err(Refusal(StatusCode::BAD_REQUEST, message.to_owned()));
        }
        let named = host.map(|host| host.to_str().unwrap_or_default());
        let asked = head.uri.authority().map(|authority| authority.as_str());
        match named
            .into_iter()
            .chain(asked)
            .find(|h| !self.access.host(h))
        {
            None => Ok(()),
            Some(host) => {
                let host: String = host.chars().take(64).collect();
                let message = format!(
                    "host {host:?} is not allowed: ask by IP address or as localhost, \
                     or start memprof with --allow-host NAME"
                );
                Err(Refusal(StatusCode::FORBIDDEN, message))
            }
        }
    }

    /// Whether a browser asks if it may ask, and may.
    fn is_preflight(&self, head: &Parts) -> bool {
        head.method == Method::OPTIONS
            && head
                .headers
                .contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
            && self.allowed_origin(head).is_some()
            && self.check_host(head).is_ok()
            && Route::find(head.uri.path()).is_some()
    }

    /// The origin that is told it may read.
    fn allowed_origin(&self, head: &Parts) -> Option<HeaderValue> {
        let origin = head.headers.get(header::ORIGIN);
        if self.access.any_origin() {
            return Some(HeaderValue::from_static("*"));
        }
        origin
            .filter(|o| o.to_str().is_ok_and(|o| self.access.origin(o)))
            .cloned()
    }

    fn set_headers(&self, head: &Parts, headers: &mut HeaderMap) {
        let fixed: [(HeaderName, &'static str); 2] = [
            (header::CACHE_CONTROL, "no-store"),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        ];
        for (name, value) in fixed {
            headers
                .entry(name)
                .or_insert(HeaderValue::from_static(value));
        }
        if let Some(origin) = self.allowed_origin(head) {
            headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        }
        if !self.access.any_origin() {
            headers.insert(header::VARY, HeaderValue::from_static("Origin"));
        }
    }
}

fn response(status: StatusCode, content_type: HeaderValue, body: Bytes) -> Response<Bytes> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, content_type);
    response
}

fn refuse(Refusal(status, message): Refusal) -> Response<Bytes> {
    let mut response = response(status, TEXT, Bytes::from(message + "\n"));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        response.headers_mut().insert(header::ALLOW, METHODS);
    }
    response
}

fn preflight(head: &Parts) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, METHODS);
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, PREFLIGHT_AGE);
    // Whatever headers a page adds to a GET, they change nothing here.
    if let Some(wanted) = head.headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
    }
    response
}
