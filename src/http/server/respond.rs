//! Builds the response to a request.

use bytes::Bytes;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, Response, StatusCode, Version};
use tokio::time::timeout;

use super::connection::Connections;
use super::{forgery, formats};
use crate::http::api::{ApiError, Body, Method as ApiMethod, Reply, RequestParts, Route};
use crate::http::web;
use memprof_sys::text::printable;

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// Policy for replies that a browser shows as a document: it allows nothing. An SVG flame graph contains a script and
/// names from the profiled program; the script runs only in a saved file. The page has its own policy.
const POLICY: &str =
    "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// How long a browser may cache a preflight, in seconds.
const PREFLIGHT_AGE: HeaderValue = HeaderValue::from_static("600");

/// An error response: status and message.
pub(super) struct Refusal(pub(super) StatusCode, pub(super) String);

/// Seconds after which a client may retry when memprof is busy.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("5");

/// The parts of a request besides its head.
#[derive(Debug)]
pub(super) struct Rest {
    /// The body.
    pub(super) body: Bytes,
    /// Whether the client is on this machine.
    pub(super) local: bool,
}

impl From<ApiError> for Refusal {
    fn from(error: ApiError) -> Refusal {
        let status = match error {
            ApiError::NotFound(_) => StatusCode::NOT_FOUND,
            ApiError::BadRequest(_) | ApiError::TooLarge(_) => StatusCode::BAD_REQUEST,
            ApiError::Forbidden(_) => StatusCode::FORBIDDEN,
            ApiError::Full(_) => StatusCode::CONFLICT,
            ApiError::Busy(_) | ApiError::Unavailable(_) | ApiError::Failed(_) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            ApiError::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Refusal(status, error.to_string())
    }
}

impl Connections {
    /// The response to a request whose body has been read, if there is a [`Connections::largest_body`].
    pub(super) async fn respond(
        &self,
        head: &Parts,
        rest: Result<Rest, Refusal>,
    ) -> Response<Body> {
        let mut response = if has_transfer_encoding(head) {
            last(refuse(head, no_transfer_encoding()))
        } else if self.is_preflight(head) {
            preflight(head)
        } else if let Some(asset) = web::find(head.uri.path()) {
            self.page(head, asset)
                .unwrap_or_else(|refusal| refuse(head, refusal))
        } else {
            let answer = async { self.answer(head, rest?).await };
            match answer.await {
                Ok(reply) => respond(reply),
                Err(refusal) => refuse(head, refusal),
            }
        };
        self.set_headers(head, response.headers_mut());
        response
    }

    /// The response to a request that did not get a slot.
    pub(super) fn too_many(&self, head: &Parts) -> Response<Body> {
        let busy = ApiError::Busy("too many requests at this time: try again later".to_owned());
        let mut response = last(refuse(head, busy.into()));
        self.set_headers(head, response.headers_mut());
        response
    }

    /// The maximum body size of this request, in bytes; `None` if it is not an allowed `POST`, so that no body is used.
    pub(super) fn largest_body(&self, head: &Parts) -> Option<usize> {
        let (route, _) = self.route(head).ok()?;
        let takes = route.method == ApiMethod::Post && !has_transfer_encoding(head);
        takes.then_some(route.largest_body)
    }

    /// Whether a request from a loopback address was really made on this machine.
    pub(super) fn is_from_here(&self, head: &Parts) -> bool {
        forgery::from_here(head, &self.access)
    }

    /// The route of a request, if the request may be answered.
    fn route<'h>(&self, head: &'h Parts) -> Result<(&'static Route, &'h str), Refusal> {
        self.check_host(head)?;
        self.check_token(head)?;
        let target = head.uri.path_and_query().map_or(0, |t| t.as_str().len());
        if target > self.options.max_target {
            let most = self.options.max_target;
            let message = format!("path and query are longer than {most} bytes");
            return Err(Refusal(StatusCode::URI_TOO_LONG, message));
        }
        let path = head.uri.path();
        if Route::at(path).next().is_none() {
            return Err(ApiError::NotFound(None).into());
        }
        let method = api_method(&head.method);
        let found = Route::at(path).find(|(route, _)| Some(route.method) == method);
        let Some(found) = found else {
            let message = format!(
                "{path} answers {} only",
                methods(path).replace(", ", " and ")
            );
            return Err(Refusal(StatusCode::METHOD_NOT_ALLOWED, message));
        };
        if found.0.method != ApiMethod::Get {
            forgery::check(head, &self.access)?;
        }
        Ok(found)
    }

    async fn answer(&self, head: &Parts, rest: Rest) -> Result<Reply, Refusal> {
        let (route, name) = self.route(head)?;
        let given = RequestParts {
            query: head.uri.query().unwrap_or_default(),
            body: rest.body,
            local: rest.local && self.is_from_here(head),
            plain_text: formats::prefers_text(&head.headers),
        };
        let request = route.request(name, given)?;
        let limit = self.options.answer_timeout;
        match timeout(limit, self.api.answer(request)).await {
            Ok(answer) => Ok(answer?),
            Err(_) => {
                let late = format!("it took longer than {} s", limit.as_secs_f32());
                Err(ApiError::Unavailable(late).into())
            }
        }
    }

    /// Refuses hosts that do not name this server. HTTP/1.0 clients may omit the host, because they are not browsers.
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
                    "host {host:?} is not allowed: use an IP address or localhost, \
                     or start memprof with --allow-host NAME"
                );
                Err(Refusal(StatusCode::FORBIDDEN, message))
            }
        }
    }

    /// Refuses requests without the token. Checked before routing, so that existing paths are not disclosed.
    fn check_token(&self, head: &Parts) -> Result<(), Refusal> {
        match &self.options.token {
            Some(token) if !token.is_shown_in(&head.headers) => {
                let message = "this needs the header `Authorization: Bearer TOKEN`, with the token in the file that memprof was \
                               given with --token-file";
                Err(Refusal(StatusCode::UNAUTHORIZED, message.to_owned()))
            }
            _ => Ok(()),
        }
    }

    /// Whether this is a CORS preflight for an allowed origin and an existing route.
    fn is_preflight(&self, head: &Parts) -> bool {
        head.method == Method::OPTIONS
            && head
                .headers
                .contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
            && self.allowed_origin(head).is_some()
            && self.check_host(head).is_ok()
            && Route::at(head.uri.path()).next().is_some()
    }

    /// The value of `Access-Control-Allow-Origin`.
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
        let fixed: [(HeaderName, &'static str); 3] = [
            (header::CACHE_CONTROL, "no-store"),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::CONTENT_SECURITY_POLICY, POLICY),
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

/// Whether anything other than `Content-Length` determines the end of a request's body.
///
/// With both headers, a proxy in front of memprof may see a different end of the request than memprof does, and send
/// another client's next request as the rest of this one (RFC 9112, 6.1 and 6.3). hyper drops `Content-Length` beside
/// `Transfer-Encoding` before memprof sees it, so every `Transfer-Encoding` is refused: no request here has a body of
/// unknown length.
fn has_transfer_encoding(head: &Parts) -> bool {
    head.headers.contains_key(header::TRANSFER_ENCODING)
}

fn no_transfer_encoding() -> Refusal {
    let message = "requests with Transfer-Encoding are not supported: send the body with Content-Length instead";
    Refusal(StatusCode::BAD_REQUEST, message.to_owned())
}

/// Maps an HTTP method to the API's method.
fn api_method(method: &Method) -> Option<ApiMethod> {
    match *method {
        Method::GET | Method::HEAD => Some(ApiMethod::Get),
        Method::POST => Some(ApiMethod::Post),
        Method::DELETE => Some(ApiMethod::Delete),
        _ => None,
    }
}

/// The methods allowed on a path, as the `Allow` header spells them.
fn methods(path: &str) -> String {
    if web::find(path).is_some() {
        return "GET, HEAD".to_owned();
    }
    let name = |(route, _): (&Route, &str)| match route.method {
        ApiMethod::Get => "GET, HEAD",
        ApiMethod::Post => "POST",
        ApiMethod::Delete => "DELETE",
    };
    Route::at(path).map(name).collect::<Vec<_>>().join(", ")
}

fn response(status: StatusCode, content_type: HeaderValue, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, content_type);
    response
}

fn respond(reply: Reply) -> Response<Body> {
    let status = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::OK);
    let content_type = HeaderValue::from_static(reply.content_type);
    let mut response = response(status, content_type, reply.body);
    if status == StatusCode::NO_CONTENT {
        response.headers_mut().remove(header::CONTENT_TYPE);
    }
    let name = reply
        .file_name
        .map(|n| format!("attachment; filename=\"{n}\""));
    if let Some(name) = name.and_then(|n| HeaderValue::from_str(&n).ok()) {
        response
            .headers_mut()
            .insert(header::CONTENT_DISPOSITION, name);
    }
    response
}

fn refuse(head: &Parts, Refusal(status, message): Refusal) -> Response<Body> {
    let body = Body::Whole(Bytes::from(printable(&message).into_owned() + "\n"));
    let mut response = response(status, TEXT, body);
    if status == StatusCode::SERVICE_UNAVAILABLE {
        response
            .headers_mut()
            .insert(header::RETRY_AFTER, RETRY_AFTER);
    }
    if status == StatusCode::UNAUTHORIZED {
        let scheme = HeaderValue::from_static("Bearer realm=\"memprof\"");
        let headers = response.headers_mut();
        headers.insert(header::WWW_AUTHENTICATE, scheme);
    }
    if status == StatusCode::METHOD_NOT_ALLOWED
        && let Ok(methods) = HeaderValue::from_str(&methods(head.uri.path()))
    {
        response.headers_mut().insert(header::ALLOW, methods);
    }
    response
}

/// Marks the response as the last one on its connection.
fn last(mut response: Response<Body>) -> Response<Body> {
    let close = HeaderValue::from_static("close");
    response.headers_mut().insert(header::CONNECTION, close);
    response
}

fn preflight(head: &Parts) -> Response<Body> {
    let mut response = Response::new(Body::Whole(Bytes::new()));
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    if let Ok(methods) = HeaderValue::from_str(&methods(head.uri.path())) {
        headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
    }
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, PREFLIGHT_AGE);
    // Request headers of a page have no effect here, so all of them are allowed.
    if let Some(wanted) = head.headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
    }
    response
}
