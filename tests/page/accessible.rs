//! Rules of accessibility, checked by axe-core in every view.

use std::process::Command;

use serde_json::{Value, json};

use super::layout::{SIZES, VIEWS};
use super::live::Run;
use crate::common::browser::Browser;
use crate::common::contents::*;

const AXE: &str = include_str!("vendor/axe-core/axe.min.js");

/// Runs axe-core's rules, or one of them, on what is shown; returns the violated ones, each with its elements.
fn violations(browser: &Browser, rule: Option<&str>) -> Vec<Value> {
    if browser.eval("typeof window.axe") != "object" {
        browser.run(AXE, json!([]));
    }
    let run = "const only = arguments[0] ? { runOnly: [arguments[0]] } : {};
        return axe.run(document, { resultTypes: ['violations'], ...only }).then(({ violations }) =>
            violations.map(({ id, help, nodes }) => ({ id, help, nodes: nodes.slice(0, 3)
                .map(({ html, failureSummary }) => [html.slice(0, 200), failureSummary]) })))";
    serde_json::from_value(browser.run(run, json!([rule]))).unwrap()
}

#[test]
fn no_view_violates_a_rule() {
    let run = Run::start();
    let browser = Browser::start(run.m.address());
    // The difference of two moments needs a mark.
    browser.open("#view=diff");
    browser.click("#mark");
    browser.wait("document.querySelector('.choice select')?.value");
    let mark = run.api("/v2/marks")["marks"][0]["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let taken = run.m.send("POST", "/v2/heap", r#"{"max_stop": 10000}"#);
    assert_eq!(taken.status, 201, "{}", taken.text());
    let mut found = Vec::new();
    browser.open(&format!("#pause=1&view=diff&from={mark}"));
    // In the dark only colours differ. The page is loaded once: axe-core is half a megabyte.
    for (scheme, rule) in [("light", None), ("dark", Some("color-contrast"))] {
        browser.prefer(scheme);
        for (width, height) in SIZES {
            browser.size(width, height);
            for view in VIEWS {
                browser.turn(&format!("#pause=1&view={view}&from={mark}"));
                for rule in violations(&browser, rule) {
                    found.push(format!("{view}, {scheme}, {width}: {rule}"));
                }
            }
            for button in ["help-button", "export"] {
                browser.click(&format!("#{button}"));
                browser.wait("!!document.querySelector('dialog[open] dd, dialog[open] li')");
                for rule in violations(&browser, rule) {
                    found.push(format!("{button}, {scheme}, {width}: {rule}"));
                }
                browser.press(ESCAPE);
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn axe_is_as_it_was_published() {
    let check = Command::new("sha256sum")
        .args(["--check", "--strict", "SHA256SUMS"])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/page/vendor"))
        .output()
        .unwrap();
    assert!(check.status.success(), "{check:?}");
}
