use proptest::prelude::*;

use crate::http::api::{ApiError, RequestParts, Route};
use memprof_profile::tree::Direction;

/// The parsed request, in its `Debug` form.
fn ask(path: &str, query: &str) -> Result<String, ApiError> {
    let (route, name) = Route::at(path).next().ok_or(ApiError::NotFound(None))?;
    let given = RequestParts {
        query,
        ..RequestParts::default()
    };
    route
        .request(name, given)
        .map(|request| format!("{request:?}"))
}

fn tree(threshold: u64, reverse: bool) -> Result<String, ApiError> {
    tree_to(threshold, reverse, 59)
}

fn tree_to(threshold: u64, reverse: bool, depth: u64) -> Result<String, ApiError> {
    let direction = match reverse {
        true => Direction::OutermostFirst,
        false => Direction::InnermostFirst,
    };
    // Thresholds are given in KiB.
    let threshold = threshold.saturating_mul(1024);
    viewed(&format!(
        "Tree(TreeShape {{ direction: {direction:?}, threshold: {threshold}, depth: {depth} }})"
    ))
}

/// The `Debug` form of a view of the newest report of all processes.
fn viewed(view: &str) -> Result<String, ApiError> {
    Ok(format!(
        "ViewEndpoint {{ which: ReportSelector {{ mark: None, known: None, pid: None, cgroup: None, frames: All, filter: None }}, view: {view} }}"
    ))
}

fn parsed(text: &str) -> Result<String, ApiError> {
    Ok(text.to_owned())
}

#[test]
fn spellings() {
    for path in ["/v1/tree", "/v1/tree/"] {
        assert_eq!(ask(path, ""), tree(256, false));
    }
    for path in ["/v1/pid", "/v1/pid/"] {
        assert_eq!(ask(path, ""), parsed("TargetPid"));
    }
    let document = "/openapi/memory-profiler-openapi.json";
    assert!(ask(document, "any=1").unwrap().starts_with("Fixed"));
    let others = "/ /v1 /v1/ /v1/tree// //v1/tree /v1/trees /V1/tree /v1/%74ree /v1/tree/x \
        /v1/tree%2f /v1//tree /v1/pid// /openapi/memory-profiler-openapi.json/ * v1/tree";
    for path in others.split_whitespace().chain([""]) {
        assert_eq!(ask(path, ""), Err(ApiError::NotFound(None)), "{path}");
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
        ("short=true&threshold=5", viewed("Totals")),
        ("short=false", tree(256, false)),
        ("depth=500&threshold=1", tree_to(1, false, 500)),
        ("depth=0", tree_to(256, false, 0)),
    ] {
        assert_eq!(ask("/v1/tree", query), wanted, "{query}");
    }
    assert_eq!(ask("/v1/pid", "&"), parsed("TargetPid"));
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
        "depth=",
        "depth=all",
        "depth=1&depth=2",
        "short=true&depth=-1",
    ] {
        let Err(ApiError::BadRequest(message)) = ask("/v1/tree", query) else {
            panic!("{query} is taken");
        };
        let name = ["threshold", "reverse", "short", "depth"];
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
fn addresses_are_for_this_machine() {
    let (route, name) = Route::at("/v2/maps").next().unwrap();
    let given = |local| RequestParts {
        local,
        ..RequestParts::default()
    };
    let refused = route.request(name, given(false));
    assert!(matches!(refused, Err(ApiError::Forbidden(_))));
    assert!(route.request(name, given(true)).is_ok());
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
