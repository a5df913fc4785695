//! Protects requests that change something against cross-site request forgery.
//!
//! A page of any site can make a browser send a request here, although it cannot read the reply. For a request that
//! changes something, sending is enough. So such a request must come from no page, from a page of this server, or from
//! an origin that may read. Browsers send `Origin`; older ones send only `Referer`. With a `--cors-origin` of `*`,
//! every page may read, but not make changes.

use hyper::header::{self, HeaderName};
use hyper::http::request::Parts;

use super::access::Access;

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Whether a request was sent by no page, or by one that may make changes.
pub(super) fn may_change(head: &Parts, access: &Access) -> bool {
    let mut origins = head.headers.get_all(header::ORIGIN).iter();
    let text = |value: &hyper::header::HeaderValue| value.to_str().unwrap_or("?").to_owned();
    match (origins.next().map(text), origins.next()) {
        (Some(origin), None) => access.may_change(&origin, host(head)),
        (Some(_), Some(_)) => false,
        (None, _) => no_page(head) && referrers_may(head, access),
    }
}

/// Headers that reveal that a proxy forwarded the request.
const PASSED_ON: [&str; 4] = ["forwarded", "x-forwarded-for", "x-real-ip", "via"];

/// Whether a request over a loopback address really comes from this machine: not from a page of another site, not under
/// a foreign name that resolves to this machine, and not forwarded by a proxy.
pub(super) fn from_here(head: &Parts, access: &Access) -> bool {
    let named = head.headers.get(header::HOST).map(|h| h.to_str());
    let asked = head.uri.authority().map(|authority| authority.as_str());
    let known = |host: &str| access.named(host);
    named.is_none_or(|host| host.is_ok_and(known))
        && asked.is_none_or(known)
        && may_change(head, access)
        && !PASSED_ON
            .iter()
            .any(|name| head.headers.contains_key(*name))
}

/// The host name that the client uses.
fn host(head: &Parts) -> Option<&str> {
    let asked = head.uri.authority().map(|authority| authority.as_str());
    let named = head.headers.get(header::HOST).and_then(|h| h.to_str().ok());
    asked.or(named)
}

/// Whether all pages in `Referer` may make changes, for a request without `Origin`.
fn referrers_may(head: &Parts, access: &Access) -> bool {
    let may = |value: &header::HeaderValue| {
        let origin = value.to_str().ok().and_then(origin);
        origin.is_some_and(|origin| access.may_change(origin, host(head)))
    };
    head.headers.get_all(header::REFERER).iter().all(may)
}

/// The origin of a URL.
fn origin(address: &str) -> Option<&str> {
    let authority = address.find("://")? + 3;
    let path = address[authority..].find(['/', '?', '#']);
    Some(&address[..path.map_or(address.len(), |path| authority + path)])
}

/// Whether the request was not sent by a page of another site. Browsers send `Sec-Fetch-Site` even without `Origin`.
fn no_page(head: &Parts) -> bool {
    match head.headers.get(FETCH_SITE) {
        None => true,
        Some(site) => site == "same-origin" || site == "none",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_of_addresses() {
        for (address, wanted) in [
            ("http://localhost:4200/a?b#c", Some("http://localhost:4200")),
            ("https://example.org", Some("https://example.org")),
            ("http://localhost?x", Some("http://localhost")),
            (
                "http://localhost\\@evil.example/",
                Some("http://localhost\\@evil.example"),
            ),
            (
                "http://localhost@evil.example/",
                Some("http://localhost@evil.example"),
            ),
            ("about:blank", None),
            ("", None),
        ] {
            assert_eq!(origin(address), wanted, "{address}");
        }
    }
}
