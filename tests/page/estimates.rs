//! Uncertainties have their margin, and small ones only a limit.

use std::sync::Arc;

use super::common::{Fixed, Server, at, kib, report};
use crate::common::browser::Browser;
use crate::common::contents::*;
use ::memprof::http::server::ServerOptions;
use memprof_profile::symbol::Language;
use memprof_profile::{Faults, Report, Uncertainty};
use memprof_sys::residency::PageKind;

/// `large` holds 4,000 KiB and `small` 40, of which neither is known better than by some 50 KiB.
fn estimates() -> Arc<Report> {
    let names = [
        (at(0, 0), "main", Language::Other),
        (at(0, 1), "large", Language::Other),
        (at(0, 2), "small", Language::Other),
    ];
    let samples = [
        (vec![at(0, 1), at(0, 0)], kib(4000, 0, 0)),
        (vec![at(0, 2), at(0, 0)], kib(40, 0, 0)),
    ];
    let exact = report(&samples, &[], &names);
    let mut profile = (*exact.profile).clone();
    profile.faults = Some(Faults {
        all: 1010,
        unwalked: 900,
    });
    let variance = (25.0 * 1024.0_f64).powi(2);
    let between = Uncertainty::between(PageKind::Anon, [Some(0), Some(1)], variance);
    profile.uncertainties = vec![between];
    Arc::new(Report {
        profile: Arc::new(profile),
        symbols: Arc::clone(&exact.symbols),
        sequence: exact.sequence,
    })
}

#[test]
fn a_small_estimate_has_only_a_limit() {
    let server = Server::start(Fixed(Ok(estimates())), ServerOptions::default());
    let tree = api(server.address, "/v2/tree?direction=callees");
    let error = 25 * 1024;
    assert_eq!(
        tree["nodes"]["error"],
        serde_json::json!([0, 0, error, error])
    );
    assert_eq!(
        tree["nodes"]["self_error"],
        serde_json::json!([0, 0, error, error])
    );
    let browser = Browser::start(server.address);
    let cell = |row: &str, cell: usize, what: &str| {
        let script = format!(
            "const row = [...document.querySelectorAll('.rows .row')].find((row) => row.textContent.includes('{row}'));
            return row?.children[{cell}].{what} ?? 'no such row'"
        );
        let text = browser.run(&script, serde_json::json!([]));
        text.as_str().unwrap().to_owned()
    };
    let large = "4,096,000 bytes ± 49 KiB (with 95 % confidence; standard error 25 KiB)";
    browser.open("#view=tree");
    browser.wait("[...document.querySelectorAll('.rows .row')].some((row) => row.textContent.includes('large')) || null");
    assert_eq!(cell("large", 0, "textContent"), "~3.91 MiB");
    assert_eq!(cell("large", 0, "title"), large);
    browser.open("#view=functions");
    browser.wait("document.querySelectorAll('.rows .row').length >= 3 || null");
    assert_eq!(cell("large", 1, "title"), large);
    assert_eq!(cell("small", 1, "textContent"), "< 89 KiB");
    // Which of the two it is makes no difference to their caller.
    assert_eq!(cell("main", 1, "textContent"), "3.95 MiB");
    assert_eq!(cell("main", 1, "title"), "4,136,960 bytes");
    assert!(
        browser.text("#sampled").contains("10.9 %"),
        "{}",
        browser.text("#sampled")
    );
    browser.must_be_quiet();
    browser.end(server);
}

#[test]
fn a_change_within_its_error_has_only_a_limit() {
    let server = Server::start(Fixed(Ok(estimates())), ServerOptions::default());
    let browser = Browser::start(server.address);
    browser.open("#view=diff&show=all");
    browser.click("#mark");
    browser.wait("document.querySelectorAll('.diff-table .rows .row').length >= 3 || null");
    // Nothing has changed, but neither side is known better than by 1.96 times 25 KiB.
    let cell = |row: &str, what: &str| {
        let script = format!(
            "const row = [...document.querySelectorAll('.diff-table .rows .row')].find((row) => row.textContent.includes('{row}'));
            return row?.children[0].{what} ?? 'no such row'"
        );
        let text = browser.run(&script, serde_json::json!([]));
        text.as_str().unwrap().to_owned()
    };
    assert_eq!(cell("large", "textContent"), "< ±69.3 KiB");
    let exact = "0 bytes ± 69.3 KiB (with 95 % confidence; standard error 35.4 KiB)";
    assert_eq!(cell("small", "title"), exact);
    // What contains both is exact.
    assert_eq!(cell("main", "textContent"), "±0");
    assert_eq!(cell("main", "title"), "0 bytes");
    browser.must_be_quiet();
    browser.end(server);
}
