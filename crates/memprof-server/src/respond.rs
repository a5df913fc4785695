//! Builds the response to a request.

use bytes::Bytes;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, Response, StatusCode, Version};
use tokio::time::timeout;

use super::connection::Connections;
use super::forgery;
use super::service::{Body, Method as ServiceMethod, Refusal, Reply, Request, Service};
use memprof_sys::text::printable;

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// Policy for replies that a browser shows as a document: it allows nothing. An SVG flame graph, for example, contains a script
/// and names from the profiled program; the script runs only in a saved file. The page has its own policy.
const POLICY: &str =
    "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// How long a browser may cache a preflight, in seconds.
const PREFLIGHT_AGE: HeaderValue = HeaderValue::from_static("600");

/// Seconds after which a client may retry when the program is busy.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("5");

/// The parts of a request besides its head.
#[derive(Debug)]
pub(super) struct Rest {
    /// The body.
    pub(super) body: Bytes,
    /// Whether the client is on this machine.
    pub(super) local: bool,
}

impl<S: Service> Connections<S> {
    /// The response to a request whose body has been read, if there is a [`Connections::largest_body`].
    pub(super) async fn respond(
        &self,
        head: &Parts,
        rest: Result<Rest, Refusal>,
    ) -> Response<Body> {
        let mut response = if has_transfer_encoding(head) {
            last(self.refuse(head, no_transfer_encoding()))
        } else if self.is_preflight(head) {
            self.preflight(head)
        } else if let Some(asset) = self.service.asset(head.uri.path()) {
            self.page(head, asset)
                .unwrap_or_else(|refusal| self.refuse(head, refusal))
        } else {
            let answer = async { self.answer(head, rest?).await };
            match answer.await {
                Ok(reply) => respond(reply),
                Err(refusal) => self.refuse(head, refusal),
            }
        };
        self.set_headers(head, response.headers_mut());
        response
    }

    /// The response to a request that did not get a slot.
    pub(super) fn too_many(&self, head: &Parts) -> Response<Body> {
        let busy = Refusal::busy("too many requests at this time: try again later");
        let mut response = last(self.refuse(head, busy));
        self.set_headers(head, response.headers_mut());
        response
    }

    /// The maximum body size of this request, in bytes; `None` if it is not an allowed `POST`, so that no body is used.
    pub(super) fn largest_body(&self, head: &Parts) -> Option<usize> {
        let method = self.method(head).ok()?;
        let takes = method == ServiceMethod::Post && !has_transfer_encoding(head);
        takes.then(|| self.service.largest_body(head.uri.path()))
    }

    /// Whether a request from a loopback address was really made on this machine.
    pub(super) fn is_from_here(&self, head: &Parts) -> bool {
        forgery::from_here(head, &self.access)
    }

    /// The method of a request, if the request may be answered.
    fn method(&self, head: &Parts) -> Result<ServiceMethod, Refusal> {
        self.check_host(head)?;
        self.check_token(head)?;
        let target = head.uri.path_and_query().map_or(0, |t| t.as_str().len());
        if target > self.options.max_target {
            let most = self.options.max_target;
            let message = format!("path and query are longer than {most} bytes");
            return Err(Refusal(StatusCode::URI_TOO_LONG, message));
        }
        let path = head.uri.path();
        let known = self.service.methods(path);
        if known.is_empty() {
            return Err(Refusal(StatusCode::NOT_FOUND, "no such path".to_owned()));
        }
        let Some(method) = service_method(&head.method).filter(|m| known.contains(m)) else {
            let methods = self.methods(path).replace(", ", " and ");
            let message = format!("{path} answers {methods} only");
            return Err(Refusal(StatusCode::METHOD_NOT_ALLOWED, message));
        };
        if method != ServiceMethod::Get && !forgery::may_change(head, &self.access) {
            let message = format!(
                "pages of this origin may not change anything: start {} with --cors-origin ORIGIN, \
                 or use the page that {0} serves",
                S::PROGRAM
            );
            return Err(Refusal(StatusCode::FORBIDDEN, message));
        }
        Ok(method)
    }

    async fn answer(&self, head: &Parts, rest: Rest) -> Result<Reply, Refusal> {
        let request = Request {
            method: self.method(head)?,
            path: head.uri.path(),
            query: head.uri.query().unwrap_or_default(),
            headers: &head.headers,
            body: rest.body,
            local: rest.local && self.is_from_here(head),
        };
        let limit = self.options.answer_timeout;
        let answer = timeout(limit, self.service.answer(request)).await;
        answer.unwrap_or_else(|_| Err(self.service.late(limit)))
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
                     or start {} with --allow-host NAME",
                    S::PROGRAM
                );
                Err(Refusal(StatusCode::FORBIDDEN, message))
            }
        }
    }

    /// Refuses requests without the token. Checked before routing, so that existing paths are not disclosed.
    fn check_token(&self, head: &Parts) -> Result<(), Refusal> {
        match &self.options.token {
            Some(token) if !token.is_shown_in(&head.headers) => {
                let message = format!(
                    "this needs the header `Authorization: Bearer TOKEN`, with the token in the file that {} was \
                     given with --token-file",
                    S::PROGRAM
                );
                Err(Refusal(StatusCode::UNAUTHORIZED, message))
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
            && !self.service.methods(head.uri.path()).is_empty()
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

    /// The methods allowed on a path, as the `Allow` header spells them.
    fn methods(&self, path: &str) -> String {
        if self.service.asset(path).is_some() {
            return "GET, HEAD".to_owned();
        }
        let name = |method| match method {
            ServiceMethod::Get => "GET, HEAD",
            ServiceMethod::Post => "POST",
            ServiceMethod::Delete => "DELETE",
        };
        let methods: Vec<_> = self.service.methods(path).into_iter().map(name).collect();
        methods.join(", ")
    }

    fn refuse(&self, head: &Parts, Refusal(status, message): Refusal) -> Response<Body> {
        let body = Body::Whole(Bytes::from(printable(&message).into_owned() + "\n"));
        let mut response = response(status, TEXT, body);
        let headers = response.headers_mut();
        if status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(header::RETRY_AFTER, RETRY_AFTER);
        }
        if status == StatusCode::UNAUTHORIZED
            && let Ok(scheme) = HeaderValue::from_str(&format!("Bearer realm=\"{}\"", S::PROGRAM))
        {
            headers.insert(header::WWW_AUTHENTICATE, scheme);
        }
        if status == StatusCode::METHOD_NOT_ALLOWED
            && let Ok(methods) = HeaderValue::from_str(&self.methods(head.uri.path()))
        {
            headers.insert(header::ALLOW, methods);
        }
        response
    }

    fn preflight(&self, head: &Parts) -> Response<Body> {
        let mut response = Response::new(Body::Whole(Bytes::new()));
        *response.status_mut() = StatusCode::NO_CONTENT;
        let headers = response.headers_mut();
        if let Ok(methods) = HeaderValue::from_str(&self.methods(head.uri.path())) {
            headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
        }
        headers.insert(header::ACCESS_CONTROL_MAX_AGE, PREFLIGHT_AGE);
        // Request headers of a page have no effect here, so all of them are allowed.
        if let Some(wanted) = head.headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
            headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
        }
        response
    }
}

/// Whether anything other than `Content-Length` determines the end of a request's body.
///
/// With both headers, a proxy in front of the server may see a different end of the request than the server does, and send
/// another client's next request as the rest of this one (RFC 9112, 6.1 and 6.3). hyper drops `Content-Length` beside
/// `Transfer-Encoding` before the server sees it, so every `Transfer-Encoding` is refused: no request here has a body of
/// unknown length.
fn has_transfer_encoding(head: &Parts) -> bool {
    head.headers.contains_key(header::TRANSFER_ENCODING)
}

fn no_transfer_encoding() -> Refusal {
    let message = "requests with Transfer-Encoding are not supported: send the body with Content-Length instead";
    Refusal(StatusCode::BAD_REQUEST, message.to_owned())
}

/// Maps an HTTP method to the service's method.
fn service_method(method: &Method) -> Option<ServiceMethod> {
    match *method {
        Method::GET | Method::HEAD => Some(ServiceMethod::Get),
        Method::POST => Some(ServiceMethod::Post),
        Method::DELETE => Some(ServiceMethod::Delete),
        _ => None,
    }
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
    if let Some((name, value)) = reply.header
        && let Ok(value) = HeaderValue::from_str(&value)
    {
        let exposed = HeaderValue::from_static(name);
        let headers = response.headers_mut();
        headers.insert(HeaderName::from_static(name), value);
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
    }
    response
}

/// Marks the response as the last one on its connection.
fn last(mut response: Response<Body>) -> Response<Body> {
    let close = HeaderValue::from_static("close");
    response.headers_mut().insert(header::CONNECTION, close);
    response
}
