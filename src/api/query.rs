//! Paths and parameters.

use super::{ApiError, Request};

/// Threshold of `/v1/tree` where none is given, in KiB.
const DEFAULT_THRESHOLD: u64 = 256;

/// How much of a wrong value an error message repeats, in characters.
const REPEATED: usize = 64;

/// What a route answers with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteKind {
    /// The call tree or totals.
    Tree,
    /// The target's process id.
    Pid,
    /// The OpenAPI document.
    OpenApi,
}

/// A path that is answered.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// The path, without a slash at its end.
    pub path: &'static str,
    /// What it answers with.
    pub kind: RouteKind,
    /// The parameters it knows.
    pub parameters: &'static [&'static str],
    /// Whether the path may end in a slash.
    slash: bool,
}

/// Every path that is answered.
pub const ROUTES: &[Route] = &[
    Route {
        path: "/v1/tree",
        kind: RouteKind::Tree,
        parameters: &["threshold", "reverse", "short"],
        slash: true,
    },
    Route {
        path: "/v1/pid",
        kind: RouteKind::Pid,
        parameters: &[],
        slash: true,
    },
    Route {
        path: "/openapi/memory-profiler-openapi.json",
        kind: RouteKind::OpenApi,
        parameters: &[],
        slash: false,
    },
];

impl Route {
    /// The route of a path as it stands in the request line, without its query. Paths are compared
    /// as they are, with no percent-decoding.
    pub fn find(path: &str) -> Option<&'static Route> {
        let is = |route: &&Route| match path.strip_prefix(route.path) {
            Some(rest) => rest.is_empty() || (route.slash && rest == "/"),
            None => false,
        };
        ROUTES.iter().find(is)
    }

    /// Reads the query: what follows the first `?`, form-urlencoded.
    ///
    /// `/v1/tree` ignores parameters it does not know, the OpenAPI document ignores all.
    ///
    /// # Errors
    /// [`ApiError::BadRequest`] for a value that is bad, empty or given twice, and for any
    /// parameter of `/v1/pid`.
    pub fn request(&self, query: &str) -> Result<Request, ApiError> {
        match self.kind {
            RouteKind::Tree => tree(query),
            RouteKind::Pid => match pairs(query).next() {
                None => Ok(Request::Pid),
                Some((name, _)) => Err(bad(format!(
                    "{} takes no parameters, got {}",
                    self.path,
                    quoted(&name)
                ))),
            },
            RouteKind::OpenApi => Ok(Request::OpenApi),
        }
    }
}

fn tree(query: &str) -> Result<Request, ApiError> {
    let (mut threshold, mut reverse, mut short) = (None, None, None);
    for (name, value) in pairs(query) {
        match name.as_str() {
            "threshold" => set(&mut threshold, &name, number(&name, &value)?)?,
            "reverse" => set(&mut reverse, &name, boolean(&name, &value)?)?,
            "short" => set(&mut short, &name, boolean(&name, &value)?)?,
            _ => {}
        }
    }
    Ok(match short {
        Some(true) => Request::Short,
        _ => Request::Tree {
            threshold: threshold.unwrap_or(DEFAULT_THRESHOLD),
            reverse: reverse.unwrap_or(false),
        },
    })
}

fn set<T>(place: &mut Option<T>, name: &str, value: T) -> Result<(), ApiError> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(bad(format!("parameter {name} is given more than once"))),
    }
}

fn number(name: &str, value: &str) -> Result<u64, ApiError> {
    let digits = !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit());
    match value.parse() {
        Ok(number) if digits => Ok(number),
        _ => Err(bad(format!(
            "parameter {name} must be a whole number of KiB from 0 to {}, got {}",
            u64::MAX,
            quoted(value)
        ))),
    }
}

fn boolean(name: &str, value: &str) -> Result<bool, ApiError> {
    match value {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(bad(format!(
            "parameter {name} must be true or false, got {}",
            quoted(value)
        ))),
    }
}

fn bad(message: String) -> ApiError {
    ApiError::BadRequest(message)
}

/// A wrong value for a message: cut off, with nothing in it that could steer a terminal.
fn quoted(value: &str) -> String {
    let cut: String = value.chars().take(REPEATED).collect();
    let more = if cut.len() < value.len() { "…" } else { "" };
    format!("{cut:?}{more}")
}

/// Name and value pairs of a form-urlencoded query; a name without `=` has an empty value.
fn pairs(query: &str) -> impl Iterator<Item = (String, String)> {
    query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decoded(name), decoded(value))
        })
}

/// Percent-decoding with `+` as a space; what is not a `%` and two hex digits stays as it is, and
/// what is not UTF-8 becomes U+FFFD.
fn decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let hex = |at: usize| bytes.get(at).and_then(|b| char::from(*b).to_digit(16));
        match (byte, hex(at + 1), hex(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                out.push((high * 16 + low) as u8);
                at += 2;
            }
            (b'+', ..) => out.push(b' '),
            _ => out.push(byte),
        }
        at += 1;
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ask(path: &str, query: &str) -> Result<Request, ApiError> {
        Route::find(path).ok_or(ApiError::NotFound)?.request(query)
    }

    fn tree(threshold: u64, reverse: bool) -> Result<Request, ApiError> {
        Ok(Request::Tree { threshold, reverse })
    }

    #[test]
    fn spellings() {
        for path in ["/v1/tree", "/v1/tree/"] {
            assert_eq!(ask(path, ""), tree(256, false));
        }
        for path in ["/v1/pid", "/v1/pid/"] {
            assert_eq!(ask(path, ""), Ok(Request::Pid));
        }
        let document = "/openapi/memory-profiler-openapi.json";
        assert_eq!(ask(document, "any=1"), Ok(Request::OpenApi));
        let others = "/ /v1 /v1/ /v1/tree// //v1/tree /v1/trees /V1/tree /v1/%74ree /v1/tree/x \
            /v1/tree%2f /v1//tree /v1/pid// /openapi/memory-profiler-openapi.json/ * v1/tree";
        for path in others.split_whitespace().chain([""]) {
            assert_eq!(ask(path, ""), Err(ApiError::NotFound), "{path}");
        }
    }

    #[test]
    fn good_values() {
        for (query, wanted) in [
            ("threshold=0", tree(0, false)),
            ("threshold=512&reverse=true", tree(512, true)),
            ("reverse=false&threshold=00012", tree(12, false)),
            ("threshold=18446744073709551615", tree(u64::MAX, false)),
            ("%74hreshold=%31%32", tree(12, false)),
            ("a=1&a=2&b&=&&Threshold=x&THRESHOLD=-1", tree(256, false)),
            ("short=true&threshold=5", Ok(Request::Short)),
            ("short=false", tree(256, false)),
        ] {
            assert_eq!(ask("/v1/tree", query), wanted, "{query}");
        }
        assert_eq!(ask("/v1/pid", "&"), Ok(Request::Pid));
    }

    #[test]
    fn bad_values() {
        for query in [
            "threshold",
            "threshold=",
            "threshold=-1",
            "threshold=%2B1",
            "threshold=+1",
            "threshold=1.0",
            "threshold=1%00",
            "threshold=0x10",
            "threshold=%D9%A3",
            "threshold=18446744073709551616",
            "threshold=1&threshold=1",
            "threshold=1&%74hreshold=1",
            "reverse=TRUE",
            "reverse=1",
            "reverse=",
            "reverse",
            "reverse=true+",
            "reverse=true&reverse=true",
            "short=yes",
            "short=true&threshold=x",
            "short=true&short=false",
        ] {
            let Err(ApiError::BadRequest(message)) = ask("/v1/tree", query) else {
                panic!("{query} is taken");
            };
            let name = ["threshold", "reverse", "short"];
            assert!(name.iter().any(|n| message.contains(n)), "{message}");
        }
        for query in ["x", "x=1", "=", "threshold=1"] {
            assert!(matches!(
                ask("/v1/pid", query),
                Err(ApiError::BadRequest(_))
            ));
        }
    }

    #[test]
    fn messages_are_short_and_printable() {
        let query = format!("threshold=%1b[2J%0a{}", "9".repeat(5000));
        let error = ask("/v1/tree", &query).unwrap_err().to_string();
        assert!(error.len() < 300, "{error}");
        assert!(!error.contains(|c: char| c.is_control()), "{error:?}");
    }

    proptest! {
        #[test]
        fn no_query_panics(query in ".*") {
            let _ = ask("/v1/tree", &query);
            let _ = ask("/v1/pid", &query);
        }

        #[test]
        fn every_number_is_read(n: u64, reverse: bool) {
            let query = format!("threshold={n}&reverse={reverse}");
            prop_assert_eq!(ask("/v1/tree", &query), tree(n, reverse));
        }
    }
}
