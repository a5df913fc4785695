//! Decides which hosts and origins the server accepts.
//!
//! A page of any site can make a browser send requests to a server on loopback. Two checks keep the page from reading
//! the replies. Without a CORS header, the browser withholds the reply. If a site points its own name at loopback (DNS
//! rebinding), that name is in the `Host` header. An IP address in the header is safe, because it cannot be rebound.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

#[derive(Debug)]
pub(super) struct Access {
    hosts: Vec<String>,
    origins: Vec<String>,
    any: bool,
}

impl Access {
    pub(super) fn new(hosts: &[String], origins: &[String]) -> Access {
        let host = |name: &String| plain(name).to_ascii_lowercase();
        let origin = |origin: &String| origin.trim_end_matches('/').to_ascii_lowercase();
        Access {
            hosts: hosts.iter().map(host).collect(),
            origins: origins.iter().map(origin).collect(),
            any: origins.iter().any(|origin| origin == "*"),
        }
    }

    /// Whether every origin may read.
    pub(super) fn any_origin(&self) -> bool {
        self.any
    }

    /// Whether the value of a `Host` header, `name[:port]`, names this server.
    pub(super) fn host(&self, value: &str) -> bool {
        self.any || self.named(value)
    }

    /// Whether a host is an IP address, a loopback name or a name of `--allow-host`.
    pub(super) fn named(&self, value: &str) -> bool {
        let Some(host) = without_port(value) else {
            return false;
        };
        let name = plain(host).to_ascii_lowercase();
        ip(host).is_some() || loopback_name(&name) || self.hosts.contains(&name)
    }

    /// Whether a page of this origin may read replies.
    pub(super) fn origin(&self, origin: &str) -> bool {
        self.any || self.listed(&origin.to_ascii_lowercase())
    }

    fn listed(&self, origin: &str) -> bool {
        self.origins.iter().any(|o| o == origin) || loopback_origin(origin)
    }

    /// Whether a page of this origin may make changes on the server that it calls `host`: the origin is loopback, one
    /// of `--cors-origin`, or this server itself. `*` does not permit changes.
    pub(super) fn may_change(&self, origin: &str, host: Option<&str>) -> bool {
        let origin = origin.to_ascii_lowercase();
        let own = |host: &str| {
            let scheme = origin.strip_suffix(&host.to_ascii_lowercase());
            matches!(scheme, Some("http://" | "https://")) && self.named(host)
        };
        (origin != "*" && self.listed(&origin)) || host.is_some_and(own)
    }
}

/// A host name without its trailing dot, if any.
fn plain(name: &str) -> &str {
    name.strip_suffix('.').unwrap_or(name)
}

/// Removes `:port` from a host; `None` if the host is followed by anything else.
fn without_port(value: &str) -> Option<&str> {
    let end = match value.strip_prefix('[') {
        Some(rest) => rest.find(']')? + 2,
        None => value.find(':').unwrap_or(value.len()),
    };
    let (host, rest) = value.split_at(end);
    let port = match rest.strip_prefix(':') {
        Some(port) => port.len() <= 5 && port.bytes().all(|b| b.is_ascii_digit()),
        None => rest.is_empty(),
    };
    (port && !host.is_empty()).then_some(host)
}

/// Parses a host that is an IP literal; IPv6 is in brackets.
fn ip(host: &str) -> Option<IpAddr> {
    match host.strip_prefix('[').and_then(|h| h.strip_suffix(']')) {
        Some(v6) => v6.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
        None => host.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
    }
}

/// Whether a name is `localhost` or a subdomain of it; RFC 6761 reserves these for loopback.
fn loopback_name(name: &str) -> bool {
    name == "localhost" || name.ends_with(".localhost")
}

fn loopback_origin(origin: &str) -> bool {
    let Some((scheme, authority)) = origin.split_once("://") else {
        return false;
    };
    let Some(host) = without_port(authority) else {
        return false;
    };
    let loopback = ip(host).is_some_and(|ip| ip.is_loopback()) || host == "localhost";
    matches!(scheme, "http" | "https") && loopback
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(hosts: &[&str], origins: &[&str]) -> Access {
        let owned = |list: &[&str]| list.iter().map(|s| s.to_string()).collect::<Vec<_>>();
        Access::new(&owned(hosts), &owned(origins))
    }

    #[test]
    fn hosts() {
        let access = access(&["Prof.Example."], &["https://example.org"]);
        let good = "localhost LOCALHOST:17832 localhost.:1 a.localhost 127.0.0.1 127.0.0.1:17832 \
            127.9.9.9 [::1] [::1]:80 10.1.2.3:17832 [fe80::1]:1 prof.example prof.example.:8080";
        for host in good.split_whitespace() {
            assert!(access.host(host), "{host}");
        }
        let bad = "evil.example localhost.evil.example 127.0.0.1.evil.example evil-localhost \
            localhost:80:80 localhost:x localhost@evil.example ::1 [::1 [::1]x [evil]:1 \
            :80 example.org sub.prof.example localhost/ 127.1 0x7f.0.0.1 localhost..";
        for host in bad.split_whitespace().chain([""]) {
            assert!(!access.host(host), "{host}");
        }
    }

    #[test]
    fn origins() {
        let access = access(&["prof.example"], &["https://Example.org/"]);
        let good = "http://localhost http://localhost:4200 https://127.0.0.1:1 http://127.8.8.8 \
            https://[::1]:3000 https://example.org";
        for origin in good.split_whitespace() {
            assert!(access.origin(origin), "{origin}");
        }
        let bad = "null http://evil.example http://localhost.evil.example http://10.0.0.1 file:// \
            http://localhost:80@evil.example http://localhost/ ftp://localhost localhost \
            http://example.org https://example.org:444 http://prof.example http://[::2] *";
        for origin in bad.split_whitespace().chain([""]) {
            assert!(!access.origin(origin), "{origin}");
        }
    }

    #[test]
    fn a_star_opens_both() {
        let access = access(&[], &["*"]);
        assert!(access.any_origin() && access.host("evil.example"));
        assert!(access.origin("http://evil.example"));
        assert!(!access.may_change("http://evil.example", Some("127.0.0.1:1")));
        // A foreign name that resolves to this machine.
        assert!(!access.may_change("http://evil.example:1", Some("evil.example:1")));
        assert!(!access.may_change("*", Some("127.0.0.1:1")));
    }

    #[test]
    fn changes() {
        let access = access(&["prof.example"], &["https://example.org"]);
        for (origin, host, wanted) in [
            ("http://127.0.0.1:1", "127.0.0.1:1", true),
            ("http://localhost:4200", "127.0.0.1:1", true),
            ("https://example.org", "10.0.0.1:1", true),
            ("http://10.0.0.1:1", "10.0.0.1:1", true),
            ("http://10.0.0.1:2", "10.0.0.1:1", false),
            ("http://Prof.example:1", "prof.example:1", true),
            ("http://evil.example", "evil.example", false),
            ("http://evil.example", "127.0.0.1:1", false),
            ("null", "127.0.0.1:1", false),
        ] {
            assert_eq!(access.may_change(origin, Some(host)), wanted, "{origin}");
        }
    }
}
